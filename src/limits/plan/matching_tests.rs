//! Counters of sets, networks, groups and regular expressions: two values have the same key if, and
//! only if, they count together.

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::key::Subject;
use super::*;
use crate::limits::rules::address;
use crate::limits::rules::compile::rules_of;

const FILE: &str = "
domain: d
descriptors:
- { key: ip, value: 10.0.0.1, rate_limit: &one { unit: day, requests_per_unit: 1 } }
- { key: ip, value: '::ffff:10.0.0.3', rate_limit: *one }
- { key: ip, match: set, values: [10.0.0.2, '::FFFF:10.1.0.3', a], rate_limit: *one }
- { key: ip, match: cidr, value: 10.0.0.0/8, rate_limit: *one }
- { key: ip, match: cidr, value: 10.1.0.0/16, share_threshold: true, rate_limit: *one }
- { key: ip, match: cidr, value: '2001:db8::/32', prefix: 64, rate_limit: *one }
- { key: ip, match: cidr, value: '2001:db8:0:1::/64', prefix: 112, rate_limit: *one }
- { key: ip, match: cidr, value: '2001:db8:0:2::/64', share_threshold: true, rate_limit: *one }
- { key: ip, match: regex, value: 'b.*', share_threshold: true, rate_limit: *one }
- { key: ip, match: regex, value: '[cd].*', rate_limit: *one }
- { key: ip, value: 'regex:*', share_threshold: true, rate_limit: *one }
- { key: ip, rate_limit: *one }
";

fn rules() -> Arc<Rules> {
    static RULES: LazyLock<Arc<Rules>> = LazyLock::new(|| Arc::new(rules_of(FILE)));
    Arc::clone(&RULES)
}

fn key_of(plan: &Plan) -> Vec<u8> {
    plan.checks
        .iter()
        .map(|check| plan.checks.key(check).to_vec())
        .next()
        .expect("a check")
}

/// The text by which the limit of a value counts it.
fn counted(rules: &Rules, value: &str) -> (String, String) {
    let Some(limit) = rules.find(
        b"d",
        &[Entry {
            key: b"ip",
            value: value.as_bytes(),
        }],
    ) else {
        panic!("{value}")
    };
    let path = limit.limit.path();
    let canonical = || {
        address::read(value.as_bytes()).map_or_else(|| value.to_owned(), |found| found.to_string())
    };
    let group = |bits| {
        address::read(value.as_bytes())
            .and_then(|found| address::group(found, bits))
            .expect("IPv6")
            .to_string()
    };
    let text = match path.as_str() {
        "d.ip_10.0.0.1" => "10.0.0.1".to_owned(),
        path if path.starts_with("d.ip_set:") => canonical(),
        "d.ip_cidr:10.0.0.0/8" => canonical(),
        "d.ip_cidr:2001:db8::/32" => group(64),
        "d.ip_cidr:2001:db8:0:1::/64" => group(112),
        "d.ip_cidr:10.1.0.0/16"
        | "d.ip_cidr:2001:db8:0:2::/64"
        | "d.ip_regex:b.*"
        | "d.ip_regex:*" => String::new(),
        // A key that matches networks counts addresses in one spelling, whichever limit takes them.
        _ => canonical(),
    };
    (path, text)
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..3_u8, 0..5_u8).prop_map(|(second, last)| format!("10.{second}.0.{last}")),
        (0..3_u8, 0..5_u8).prop_map(|(second, last)| format!("::ffff:10.{second}.0.{last}")),
        (0..3_u8, 0..5_u8).prop_map(|(second, last)| format!("::FFFF:10.{second}.0.{last}")),
        (0..4_u8, 0..2_u8, 0..3_u8)
            .prop_map(|(group, far, last)| format!("2001:db8:0:{group}:{far}::{last}")),
        (0..4_u8, 0..2_u8, 0..3_u8)
            .prop_map(|(group, far, last)| format!("2001:0DB8:0:{group}:{far}:0:0:{last}")),
        (0..4_u8).prop_map(|group| format!("2001:db8:0:{group}::/64")),
        prop::sample::select(vec![
            "10.1.0.0/16",
            "cidr:10.1.0.0/16",
            "a",
            "b",
            "bb",
            "c",
            "cc",
            "regex:b.*",
            "regex:x",
            "x",
            "~x",
            ""
        ])
        .prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(crate::testing::property(4_000))]

    #[test]
    fn keys_are_equal_only_for_what_counts_together(left in value(), right in value()) {
        let rules = rules();
        let key = |value: &str| {
            key_of(&Plan::new(
                &rules,
                &request_of(b"d", &[(b"ip", value.as_bytes())]),
                &Options::default(),
            ))
        };
        let same = counted(&rules, &left) == counted(&rules, &right);
        prop_assert_eq!(same, key(&left) == key(&right), "{} {}", left, right);
    }

    /// The name of the subject leads to the counter again.
    #[test]
    fn a_name_leads_to_its_counter(value in value()) {
        let rules = rules();
        let key = key_of(&Plan::new(
            &rules,
            &request_of(b"d", &[(b"ip", value.as_bytes())]),
            &Options::default(),
        ));
        let name = Subject::of_key(&key).to_string();
        let limit = counted(&rules, &value).0;
        let plan = Plan::of_subject(
            &rules,
            &name.parse().expect("a name"),
            Some(&limit),
            &Options::default(),
        );
        let plan = plan.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        prop_assert_eq!(key_of(&plan), key, "{}", name);
    }
}

#[test]
fn keys_name_the_network_and_one_spelling() {
    let rules = rules();
    let name = |value: &str| {
        let key = key_of(&Plan::new(
            &rules,
            &request_of(b"d", &[(b"ip", value.as_bytes())]),
            &Options::default(),
        ));
        Subject::of_key(&key).to_string()
    };
    for (value, expected) in [
        ("::ffff:10.0.0.9", "d|ip=10.0.0.9"),
        ("10.1.0.9", "d|ip~cidr:10.1.0.0/16"),
        ("2001:DB8:0:7::9", "d|ip~2001:db8:0:7::/64"),
        ("bob", "d|ip~regex:b.*"),
        ("carol", "d|ip=carol"),
        ("::FFFF:10.0.0.1", "d|ip=10.0.0.1"),
    ] {
        assert_eq!(name(value), expected);
    }
    assert_eq!(
        *address::text(
            "2001:db8::/32"
                .parse::<ipnet::Ipv6Net>()
                .expect("a network")
        ),
        *b"2001:db8::/32"
    );
}

/// A metric has one series for values that count together: a client with a network has 2^64
/// addresses.
#[test]
fn metrics_show_addresses_as_they_are_counted() {
    let text = FILE
        .replace("prefix: 64", "prefix: 64, value_to_metric: true")
        .replace(
            "value: 10.0.0.0/8",
            "value: 10.0.0.0/8, detailed_metric: true",
        );
    let rules = Arc::new(rules_of(&text));
    for (value, expected) in [
        ("2001:DB8:0:7::9", "ip_2001:db8:0:7::/64"),
        ("::ffff:10.0.0.9", "ip_10.0.0.9"),
    ] {
        let plan = Plan::new(
            &rules,
            &request_of(b"d", &[(b"ip", value.as_bytes())]),
            &Options::default(),
        );
        let Disposition::Checked(Checked {
            metric: Some(levels),
            ..
        }) = &plan.slots[0].disposition
        else {
            panic!("{:?}", plan.slots)
        };
        assert_eq!(**levels, [expected]);
    }
}
