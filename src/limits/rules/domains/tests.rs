mod trials;
mod usage;

use prost_types::Value;
use prost_types::value::Kind;

use super::*;
use crate::core::algorithm::Algorithm;
use crate::core::proto::xds::{RateLimitDescriptor, RateLimitPolicy, RateLimitReplace};
use crate::core::request::Entry as RequestEntry;
use crate::core::time::Unit;
use crate::limits::rules::Commit;
use crate::limits::rules::compile::{Options, ProcessDefaults, SourceText};
use crate::limits::rules::limit::{Limit, OnStoreFailure};

const MINUTE: i32 = 2;

#[expect(clippy::unnecessary_wraps, reason = "as the field takes it")]
fn per_minute(requests_per_unit: u32) -> Option<RateLimitPolicy> {
    Some(RateLimitPolicy {
        unit: MINUTE,
        requests_per_unit,
        ..RateLimitPolicy::default()
    })
}

fn node(key: &str, value: &str, rate_limit: Option<RateLimitPolicy>) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.into(),
        value: value.into(),
        rate_limit,
        ..RateLimitDescriptor::default()
    }
}

fn resource(name: &str, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig {
        name: name.into(),
        domain: domain.into(),
        descriptors,
    }
}

/// A domain of the same name with one limit.
fn one(name: &str, requests: u32) -> RateLimitConfig {
    resource(name, name, vec![node("user", "", per_minute(requests))])
}

fn broken(name: &str) -> RateLimitConfig {
    resource(
        name,
        name,
        vec![node("user", "", Some(RateLimitPolicy::default()))],
    )
}

/// The hits of the limit that a descriptor finds.
fn found(
    rules: &Rules,
    domain: &str,
    entries: &[(&'static str, &'static str)],
) -> Result<Option<u64>, &'static str> {
    let entry = |(key, value): &(&'static str, &'static str)| RequestEntry {
        key: key.as_bytes(),
        value: value.as_bytes(),
    };
    let entries: Vec<_> = entries.iter().map(entry).collect();
    match rules.find(domain.as_bytes(), &entries) {
        None if rules.commit(domain.as_bytes()).is_none() => Err("unknown domain"),
        None => Ok(None),
        Some(limit) => {
            assert!(
                std::ptr::eq(rules.limit(limit.limit.id), limit.limit),
                "the id leads to the limit"
            );
            Ok(limit.amount().map(|amount| amount.rate.requests_per_unit))
        }
    }
}

fn user(rules: &Rules, domain: &str) -> Result<Option<u64>, &'static str> {
    found(rules, domain, &[("user", "ann")])
}

fn texts(problems: &[Problem]) -> String {
    let lines = problems.iter().map(|problem| format!("{problem}\n"));
    lines.collect()
}

/// A list of resources as the first one, with the default settings.
fn applied(list: Vec<RateLimitConfig>) -> Applied {
    Domains::default().apply(list, &XdsOptions::default())
}

/// The problems of the first domain that is refused.
fn refusal(applied: &Applied) -> String {
    texts(&applied.refused.first().expect("it is refused").problems)
}

#[test]
fn a_list_is_everything_and_an_equal_one_changes_nothing() {
    let (mut domains, settings) = (Domains::default(), XdsOptions::default());
    let applied = domains.apply(Vec::<RateLimitConfig>::new(), &settings);
    assert!(applied.rules.is_none());
    let applied = domains.apply(vec![one("b", 2), one("a", 1)], &settings);
    let rules = applied.rules.expect("rules");
    assert_eq!(
        (user(&rules, "a"), user(&rules, "b")),
        (Ok(Some(1)), Ok(Some(2)))
    );
    let applied = domains.apply(vec![one("a", 1), one("b", 2)], &settings);
    assert!(
        applied.rules.is_none() && applied.refused.is_empty(),
        "{applied:?}"
    );
    let applied = domains.apply(vec![one("c", 3), one("b", 5)], &settings);
    let rules = applied.rules.expect("rules");
    assert_eq!(
        (user(&rules, "a"), user(&rules, "b"), user(&rules, "c")),
        (Err("unknown domain"), Ok(Some(5)), Ok(Some(3)))
    );
    let applied = domains.apply(Vec::<RateLimitConfig>::new(), &settings);
    assert_eq!(applied.rules.expect("rules").limit_count(), 0);
    assert_eq!(domains.in_force().count(), 0);
}

#[test]
fn a_bad_domain_keeps_its_last_good_version_or_is_absent_and_the_others_apply() {
    let (mut domains, settings) = (Domains::default(), XdsOptions::default());
    domains.apply(vec![one("a", 1), one("b", 1)], &settings);
    let applied = domains.apply(vec![one("a", 2), broken("b"), broken("c")], &settings);
    let rules = applied.rules.as_ref().expect("rules");
    assert_eq!(
        (user(rules, "a"), user(rules, "b"), user(rules, "c")),
        (Ok(Some(2)), Ok(Some(1)), Err("unknown domain"))
    );
    let refused = applied.refused.iter();
    let refused: Vec<_> = refused
        .map(|refused| (&*refused.domain, refused.keeps_old))
        .collect();
    assert_eq!(refused, [("b", true), ("c", false)]);
    assert_eq!(
        refusal(&applied),
        "resource b: user: error: the rate_limit has no unit; write one of second, minute, hour, \
         day, week, month, quarter, year\n"
    );
    let amounts = domains
        .in_force()
        .map(|good| &good.descriptors[0].rate_limit);
    assert_eq!(
        amounts.cloned().collect::<Vec<_>>(),
        [per_minute(2), per_minute(1)],
        "the good version is what a cache keeps"
    );
    // Again: the same refusals, and nothing is compiled.
    let received = |domains: &Domains| {
        ["b", "c"].map(|domain| Arc::as_ptr(&domains.entries[domain].received[0]))
    };
    let before = received(&domains);
    let applied = domains.apply(vec![broken("c"), broken("b"), one("a", 2)], &settings);
    assert!(applied.rules.is_none());
    assert_eq!(received(&domains), before);
    let has_problems = |refused: &Refused| !refused.problems.is_empty();
    assert!(applied.refused.iter().all(has_problems) && applied.refused.len() == 2);
    // Corrected, as it was before: its old version is in force already.
    let applied = domains.apply(vec![one("a", 2), one("b", 1), one("c", 3)], &settings);
    let rules = applied.rules.expect("rules");
    assert_eq!(
        (user(&rules, "b"), user(&rules, "c"), applied.refused.len()),
        (Ok(Some(1)), Ok(Some(3)), 0)
    );
    // A domain that is gone is forgotten, with its good version.
    domains.apply(vec![one("c", 3)], &settings);
    let applied = domains.apply(vec![broken("b"), one("c", 3)], &settings);
    assert!(!applied.refused[0].keeps_old && applied.rules.is_none());
}

#[test]
fn one_change_among_a_thousand_domains_compiles_one_and_shares_the_others() {
    let list = |of_500: u32| -> Vec<_> {
        let domain = |number: u32| {
            let requests = if number == 500 { of_500 } else { 1 };
            let limit = |index: u32| node("user", &index.to_string(), per_minute(requests));
            let name = format!("d{number}");
            resource(&name, &name, (0..100).map(limit).collect())
        };
        (0..1_000).map(domain).collect()
    };
    let (mut domains, settings) = (Domains::default(), XdsOptions::default());
    let applied = domains.apply(list(1), &settings);
    let before = applied.rules.expect("rules");
    assert_eq!(before.limit_count(), 100_000);
    let applied = domains.apply(list(2), &settings);
    let after = applied.rules.expect("rules");
    let domains = after.by_number.iter();
    assert_eq!(domains.filter(|domain| before.shares(domain)).count(), 999);
    assert_eq!(found(&after, "d500", &[("user", "7")]), Ok(Some(2)));
    assert_eq!(found(&after, "d501", &[("user", "7")]), Ok(Some(1)));
    let difference = crate::limits::rules::diff::Difference::new(&before, &after);
    assert!(difference.added.is_empty() && difference.removed.is_empty());
    assert_eq!(difference.changed.len(), 100);
}

/// Settings of the process for all limits apply to limits of control planes too, and a change of
/// them compiles all domains.
#[test]
fn defaults_of_the_process_apply_to_every_domain() {
    let (mut domains, mut settings) = (Domains::default(), XdsOptions::default());
    let rules = domains
        .apply(vec![one("a", 1)], &settings)
        .rules
        .expect("rules");
    assert_eq!(rules.commit(b"a"), Some(Commit::Each));
    settings.process = ProcessDefaults {
        commit: Commit::AllOrNone,
        calendar_months: true,
        ..ProcessDefaults::default()
    };
    let applied = domains.apply(vec![one("a", 1)], &settings);
    assert_eq!(
        applied.rules.expect("rules").commit(b"a"),
        Some(Commit::AllOrNone)
    );
}

fn read_overlay(text: &str, is_strict: bool) -> Result<ReadOverlay, Vec<Problem>> {
    let file = SourceText {
        name: "overlay.yaml".into(),
        text: text.into(),
    };
    let options = Options {
        strict: is_strict,
        ..Options::default()
    };
    Overlay::read(file, &options)
}

/// The problems of an overlay that is refused.
fn overlay_problems(text: &str) -> String {
    texts(&read_overlay(text, false).expect_err("it is wrong"))
}

fn with_overlay(text: &str) -> XdsOptions {
    let read = read_overlay(text, true);
    let read = read.unwrap_or_else(|problems| panic!("{}", texts(&problems)));
    XdsOptions {
        overlay: Some(Arc::new(read.overlay)),
        ..XdsOptions::default()
    }
}

/// Each limit, as in the comparison with no rules.
fn limits(rules: &Rules) -> Vec<String> {
    let difference = crate::limits::rules::diff::Difference::new(&Rules::default(), rules);
    difference.added.iter().map(ToString::to_string).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "made where it is used")]
fn metadata(json: serde_json::Value) -> Option<crate::limits::rules::limit::Metadata> {
    json.as_object().cloned()
}

/// The same in a message, of which no value is null or a list.
fn message(json: &serde_json::Value) -> Option<prost_types::Struct> {
    let value = |json: &serde_json::Value| {
        let kind = match json {
            serde_json::Value::String(text) => Some(Kind::StringValue(text.clone())),
            serde_json::Value::Object(_) => message(json).map(Kind::StructValue),
            number => number.as_f64().map(Kind::NumberValue),
        };
        Value { kind }
    };
    let fields = json.as_object()?.iter();
    let fields = fields.map(|(name, json)| (name.clone(), value(json)));
    Some(prost_types::Struct {
        fields: fields.collect(),
    })
}

#[test]
fn duplicates_are_merged_and_the_first_limit_counts() {
    let below = |key: &str, value: &str| RateLimitDescriptor {
        descriptors: vec![node(key, value, per_minute(7))],
        ..node("route", "r", None)
    };
    let descriptors = vec![
        below("a", ""),
        node("user", "x*", per_minute(1)),
        RateLimitDescriptor {
            shadow_mode: true,
            ..node("route", "r", per_minute(2))
        },
        node("route", "r", per_minute(3)),
        below("b", "1"),
        below("b", "1"),
        node("user", "x*", None),
    ];
    let applied = applied(vec![resource("r1", "d", descriptors)]);
    assert!(applied.refused.is_empty(), "{applied:?}");
    let rules = applied.rules.expect("rules");
    let route = rules.limits().find(|limit| limit.path() == "d.route_r");
    let is_shadow = route.expect("it is there").shadow_mode;
    assert!(is_shadow, "the flags are those of its limit");
    for (entries, amount) in [
        (&[("route", "r")][..], 2),
        (&[("route", "r"), ("a", "any")], 7),
        (&[("route", "r"), ("b", "1")], 7),
        (&[("user", "xyz")], 1),
    ] {
        assert_eq!(found(&rules, "d", entries), Ok(Some(amount)), "{entries:?}");
    }
    assert_eq!(rules.limit_count(), 4);
    assert_eq!(
        texts(&applied.warnings),
        "resource r1: route=r: warning: the descriptor has more than one limit: 2 per minute \
         counts, and 3 per minute of resource r1 is ignored; send one limit for each path of keys \
         and values\n\
         resource r1: route=r > b=1: warning: the descriptor has more than one limit: 7 per minute \
         counts, and 7 per minute of resource r1 is ignored; send one limit for each path of keys \
         and values\n"
    );
}

#[test]
fn resources_of_one_domain_are_merged_if_that_is_asked_for_and_their_order_does_not_matter() {
    let of = |name, amount, only: Option<u32>| {
        let only = only.map(|amount| node("only", name, per_minute(amount)));
        let all = [node("user", "", per_minute(amount))].into_iter();
        resource(name, "d", all.chain(only).collect())
    };
    let list = || vec![of("b", 2, Some(5)), of("a", 1, None), of("c", 4, Some(6))];
    let shuffled = || vec![list().remove(2), list().remove(0), list().remove(1)];
    for (merge_domains, expected) in [(false, [1, 0, 0]), (true, [1, 5, 6])] {
        let settings = XdsOptions {
            merge_domains,
            ..XdsOptions::default()
        };
        let applied = Domains::default().apply(list(), &settings);
        let rules = applied.rules.expect("rules");
        let only = |value| found(&rules, "d", &[("only", value)]).map(Option::unwrap_or_default);
        assert_eq!(
            (user(&rules, "d"), only("b"), only("c")),
            (Ok(Some(expected[0])), Ok(expected[1]), Ok(expected[2]))
        );
        let other = Domains::default().apply(shuffled(), &settings);
        assert_eq!(limits(&rules), limits(&other.rules.expect("rules")));
        assert_eq!(
            (&applied.warnings, &applied.refused),
            (&other.warnings, &other.refused)
        );
        let refused = applied.refused.iter();
        let problems: String = refused.map(|refused| texts(&refused.problems)).collect();
        if merge_domains {
            assert_eq!((problems.as_str(), applied.warnings.len()), ("", 2));
        } else {
            let remedy = "send one resource for each domain, or set MERGE_DOMAIN_CONFIG=true, with \
                which resources may share a domain";
            let line = |name| {
                format!(
                    "resource {name}: error: the domain 'd' is already defined, in resource a; \
                     {remedy}\n"
                )
            };
            assert_eq!(problems, line("b") + &line("c"));
        }
    }
}

#[test]
fn messages_mean_what_files_mean() {
    let policy = |unit, unlimited| RateLimitPolicy {
        unit,
        requests_per_unit: 9,
        unlimited,
        ..RateLimitPolicy::default()
    };
    let units = [
        (1, "second"),
        (2, "minute"),
        (3, "hour"),
        (4, "day"),
        (5, "month"),
        (6, "year"),
        (7, "week"),
    ];
    let of_unit = |&(unit, name): &(_, &str)| node(name, "", Some(policy(unit, false)));
    let mut descriptors: Vec<_> = units.iter().map(of_unit).collect();
    descriptors.push(node("unlimited", "", Some(policy(0, true))));
    descriptors.push(node("none", "x", None));
    descriptors.push(RateLimitDescriptor {
        shadow_mode: true,
        quota_mode: true,
        detailed_metric: true,
        ..node("unlimited in hours", "", Some(policy(3, true)))
    });
    let sent = applied(vec![resource("r", "d", descriptors)]);
    let are_right = sent.refused.is_empty() && sent.warnings.is_empty();
    assert!(are_right, "{sent:?}");
    let expected = units.iter();
    let mut expected: Vec<_> = expected
        .map(|(_, name)| format!("d.{name} (9 per {name})"))
        .collect();
    expected.extend([
        "d.unlimited (unlimited)".to_owned(),
        "d.unlimited in hours (unlimited)".to_owned(),
    ]);
    let rules = sent.rules.expect("rules");
    assert_eq!(limits(&rules), expected);
    let last = rules.limits().last().expect("limits");
    assert!(last.shadow_mode && last.quota_mode && last.detailed_metric);
    let rules = applied(vec![one("d", 0)]).rules.expect("rules");
    assert_eq!(user(&rules, "d"), Ok(Some(0)));
}

fn limit_with(change: impl Fn(&mut RateLimitPolicy)) -> RateLimitDescriptor {
    let mut descriptor = node("user", "", per_minute(1));
    change(descriptor.rate_limit.as_mut().expect("a limit"));
    descriptor
}

#[test]
fn problems_name_the_resource_and_the_path_of_keys() {
    let deep = (0..70).fold(node("leaf", "", per_minute(1)), |below, level| {
        RateLimitDescriptor {
            descriptors: vec![below],
            ..node(&format!("k{level}"), "v", None)
        }
    });
    for (descriptors, expected) in [
        (
            vec![node("", "v", per_minute(1))],
            "=v: error: the descriptor has no key; write 'key: ' and the key that Envoy sends",
        ),
        (
            vec![RateLimitDescriptor {
                descriptors: vec![node("b", "c\n*", Some(policy_of(9)))],
                ..node("a", "", None)
            }],
            "a > b=c\\n*: error: unknown unit: '9'; write one of second, minute, hour, day, week, \
             month, quarter, year",
        ),
        (vec![deep], "k69=v > k68=v > k67=v"),
        (
            vec![limit_with(|policy| {
                policy.name = "a\r\nset-cookie: evil=1\r\nx: y".into();
            })],
            "user: error: the name 'a\\r\\nset-cookie: evil=1\\r\\nx: y' has a line break",
        ),
        (
            vec![limit_with(|policy| {
                policy.replaces = vec![RateLimitReplace {
                    name: "a\tb".into(),
                }];
            })],
            "user: error: the name 'a\\tb' has a line break",
        ),
        (
            vec![RateLimitDescriptor {
                metadata: message(&serde_json::json!({"text": "x".repeat(20_000)})),
                ..node("user", "", per_minute(1))
            }],
            "user: error: the metadata",
        ),
    ] {
        let problems = refusal(&applied(vec![resource("ns/gw", "d", descriptors)]));
        assert!(
            problems.starts_with(&format!("resource ns/gw: {expected}")),
            "{problems}"
        );
        assert_eq!(problems.lines().count(), 1, "{problems}");
    }
}

#[test]
fn problems_of_whole_resources_are_bounded() {
    let unnamed = [("r", vec![node("a", "", None)]), ("s", Vec::new())];
    let unnamed = unnamed.map(|(name, descriptors)| resource(name, "", descriptors));
    assert_eq!(
        refusal(&applied(unnamed.to_vec())),
        "resource r: error: the resource has no domain; send the domain that Envoy sends\n"
    );
    // A domain keeps a bounded number of problems; equal ones are merged.
    let equal = vec![node("", "v", None); 50];
    let many = (0..50).map(|index| node("", &index.to_string(), None));
    for (descriptors, kept, last) in [
        (equal, 1, "the descriptor has no key"),
        (
            many.collect(),
            21,
            "30 more problems in this domain are not shown",
        ),
    ] {
        let applied = applied(vec![resource("r", "d", descriptors)]);
        let problems = &applied.refused[0].problems;
        assert_eq!(
            (problems.len(), &*problems[kept - 1].message.what),
            (kept, last)
        );
    }
}

/// Options come from the overlay. Metadata in their place has no effect, and one warning.
#[test]
fn options_in_metadata_have_no_effect_and_are_warned_of_once() {
    let with = |options: serde_json::Value| RateLimitDescriptor {
        metadata: message(&serde_json::json!({"weir": options, "team": "x"})),
        ..node("user", "", per_minute(1))
    };
    for options in [
        serde_json::json!({"algorithm": "token_bucket", "burst": 40.0, "name": "own"}),
        serde_json::json!({"trial": {"requests_per_unit": 5}}),
        serde_json::json!({"brust": 3}),
        serde_json::json!(3),
    ] {
        let group = RateLimitDescriptor {
            key: "group".into(),
            ..with(options.clone())
        };
        let applied = applied(vec![resource("r", "d", vec![with(options), group])]);
        assert!(applied.refused.is_empty(), "{applied:?}");
        assert_eq!(
            texts(&applied.warnings),
            "resource r: user: warning: 'weir' in the metadata has no effect; write its options \
             into the file that CONFIG_GRPC_XDS_OVERLAY_FILE names\n"
        );
        let rules = applied.rules.expect("rules");
        assert_eq!(
            limits(&rules),
            ["d.user (1 per minute)", "d.group (1 per minute)"]
        );
        for limit in rules.limits() {
            assert_eq!(limit.metadata, metadata(serde_json::json!({"team": "x"})));
            assert!(limit.trial.is_none() && limit.name.is_none());
        }
    }
}

#[test]
fn metadata_of_a_message_becomes_json_with_whole_numbers() {
    let value = |kind| Value { kind: Some(kind) };
    let list = prost_types::ListValue {
        values: vec![
            value(Kind::BoolValue(true)),
            value(Kind::NullValue(0)),
            Value::default(),
        ],
    };
    let inner = [
        ("burst".to_owned(), value(Kind::NumberValue(20.0))),
        ("share".to_owned(), value(Kind::NumberValue(0.5))),
        ("none".to_owned(), value(Kind::NumberValue(f64::INFINITY))),
        ("list".to_owned(), value(Kind::ListValue(list))),
    ];
    let inner = prost_types::Struct {
        fields: inner.into(),
    };
    let fields = [
        ("inner".to_owned(), value(Kind::StructValue(inner))),
        ("team".to_owned(), value(Kind::StringValue("a".to_owned()))),
    ];
    let sent = RateLimitDescriptor {
        metadata: Some(prost_types::Struct {
            fields: fields.into(),
        }),
        ..node("user", "", per_minute(1))
    };
    let rules = applied(vec![resource("r", "d", vec![sent])]).rules;
    let expected = serde_json::json!({
        "inner": {"burst": 20, "share": 0.5, "none": null, "list": [true, null, null]},
        "team": "a",
    });
    for limit in rules.expect("rules").limits() {
        assert_eq!(limit.metadata, metadata(expected.clone()));
    }
}

fn policy_of(unit: i32) -> RateLimitPolicy {
    RateLimitPolicy {
        unit,
        requests_per_unit: 1,
        ..RateLimitPolicy::default()
    }
}

#[test]
fn long_paths_are_bounded_over_all_domains_together() {
    let long = |name: &str, bytes: usize| {
        let below = (0..4).map(|index| node(&index.to_string(), "", per_minute(1)));
        let descriptor = RateLimitDescriptor {
            descriptors: below.collect(),
            ..node(&"x".repeat(bytes), "", None)
        };
        resource(name, name, vec![descriptor])
    };
    let (mut domains, settings) = (Domains::default(), XdsOptions::default());
    let applied = domains.apply(vec![long("a", 9 << 20), long("b", 9 << 20)], &settings);
    assert!(applied.rules.is_some());
    assert_eq!(
        applied.refused[0].problems[0].message.what,
        "the keys and values above all limits have more than 67108864 bytes in total"
    );
    // The same message for b fits as soon as a is smaller.
    let applied = domains.apply(vec![long("a", 1 << 20), long("b", 9 << 20)], &settings);
    assert!(applied.rules.is_some() && applied.refused.is_empty());
    domains.apply(Vec::<RateLimitConfig>::new(), &settings);
    assert_eq!(domains.path_bytes, 0);
}

/// A resource whose limits an overlay names.
fn overlaid() -> RateLimitConfig {
    let sent = RateLimitPolicy {
        name: "sent".into(),
        ..per_minute(3).expect("a policy")
    };
    let unlimited = RateLimitPolicy {
        unlimited: true,
        ..RateLimitPolicy::default()
    };
    let below = vec![
        node("user", "", per_minute(1)),
        node("used", "", per_minute(2)),
        node("other", "", Some(sent)),
        node("unlimited", "", Some(unlimited)),
    ];
    let route = RateLimitDescriptor {
        descriptors: below,
        ..node("route", "r", None)
    };
    resource("dd", "dd", vec![route, node("user", "", per_minute(4))])
}

/// The fields of a limit that an overlay may change.
fn summary(limit: &Limit) -> String {
    let burst = match limit.amount.map(|amount| amount.algorithm) {
        Some(Algorithm::TokenBucket(bucket)) => format!("burst {}", bucket.burst),
        Some(other) => other.kind().spec().name.to_owned(),
        None => "unlimited".to_owned(),
    };
    let multiplier = limit.amount.map_or(0, |amount| amount.rate.unit_multiplier);
    format!(
        "{}: {burst}, {multiplier}, {:?}, {:?}",
        limit.path_in_domain(),
        limit.name.as_deref().unwrap_or("-"),
        limit.on_store_failure
    )
}

#[test]
fn the_overlay_is_stronger_than_the_defaults() {
    let defaults: XdsDefaults = "algorithm: token_bucket, burst: 9, on_store_failure: deny"
        .parse()
        .expect("it is right");
    let file = "
defaults: { on_store_failure: local }
domains:
- domain: d*
  commit: all_or_none
  descriptors:
  - key: route
    defaults: { burst: 20 }
    descriptors:
    - key: user
      rate_limit: { burst: 30, name: per-user }
    - key: us*
      rate_limit: { algorithm: sliding_window_log, name: second, unit_multiplier: 5 }
    - key: other
      defaults: { burst: 25 }
- domain: dd
  commit: each
";
    let apply = |settings: &XdsOptions| {
        let applied = Domains::default().apply(vec![overlaid()], settings);
        assert!(applied.refused.is_empty(), "{applied:?}");
        let rules = applied.rules.expect("rules");
        let policy = rules
            .domain(b"dd")
            .and_then(|domain| domain.on_store_failure);
        let limits: Vec<_> = rules.limits().map(summary).collect();
        (
            limits,
            rules.commit(b"dd"),
            policy,
            texts(&applied.warnings),
        )
    };
    let (limits, commit, policy, warnings) = apply(&XdsOptions {
        defaults: defaults.clone(),
        ..with_overlay(file)
    });
    assert_eq!(
        limits,
        [
            // The first entry that matches gives burst and name, the second one the algorithm,
            // which has no burst, and the multiplier.
            "route_r.user: sliding_window_log, 5, \"per-user\", Some(Local)",
            "route_r.used: sliding_window_log, 5, \"second\", Some(Local)",
            "route_r.other: burst 25, 1, \"sent\", Some(Local)",
            "route_r.unlimited: unlimited, 0, \"-\", None",
            "user: burst 9, 1, \"-\", Some(Local)",
        ]
    );
    assert_eq!(
        (commit, policy),
        (Some(Commit::AllOrNone), Some(OnStoreFailure::Local))
    );
    assert_eq!(warnings, "");
    let (limits, commit, policy, _) = apply(&XdsOptions {
        defaults,
        ..XdsOptions::default()
    });
    assert_eq!(limits[0], "route_r.user: burst 9, 1, \"-\", Some(Deny)");
    assert_eq!(
        (commit, policy),
        (Some(Commit::Each), Some(OnStoreFailure::Deny))
    );
}

#[test]
fn an_overlay_that_suits_a_limit_badly_is_left_out_there_and_refuses_nothing() {
    let file = "
domains:
- domain: '*'
  descriptors:
  - key: '*'
    rate_limit: { algorithm: sliding_window_log, unit_multiplier: 4000000000 }
";
    let settings = XdsOptions {
        defaults: "algorithm: leaky_bucket".parse().expect("it is right"),
        ..with_overlay(file)
    };
    let nodes =
        [("big", 200_000), ("small", 2)].map(|(key, amount)| node(key, "", per_minute(amount)));
    let applied = Domains::default().apply(vec![resource("r", "d", nodes.to_vec())], &settings);
    assert!(applied.refused.is_empty(), "{applied:?}");
    assert_eq!(
        limits(&applied.rules.expect("rules")),
        [
            "d.big (200000 per minute, leaky_bucket)",
            "d.small (2 per minute, sliding_window_log)"
        ]
    );
    let end = "overlay.yaml:6 is not used for this limit";
    let warnings = applied.warnings.iter();
    let warnings: Vec<_> = warnings
        .map(|problem| (&*problem.path, problem.message.what.ends_with(end)))
        .collect();
    let expected = [("big", true), ("big", true), ("small", true)];
    assert_eq!(warnings, expected, "{}", texts(&applied.warnings));
}

const OVERLAY_WITH_ENTRIES_THAT_MATCH_NOTHING: &str = "
domains:
- domain: a
  descriptors:
  - key: user
    value: ''
    rate_limit: { algorithm: token_bucket }
  - key: user
    value: x
    share_threshold: true
  - key: group
    rate_limit: { burst: 1 }
    descriptors:
    - key: below
- domain: absent
  commit: each
  descriptors:
  - key: x
";

#[test]
fn entries_of_an_overlay_that_match_nothing_are_warned_of_once_and_every_change_applies() {
    let (mut domains, settings) = (
        Domains::default(),
        with_overlay(OVERLAY_WITH_ENTRIES_THAT_MATCH_NOTHING),
    );
    let with_group = || {
        let group = node("group", "", None);
        let users = ["", "x"].map(|value| node("user", value, per_minute(1)));
        resource("a", "a", users.into_iter().chain([group]).collect())
    };
    let applied = domains.apply(vec![with_group(), broken("b")], &settings);
    let unused = "overlay.yaml:8:5: warning: no descriptor of the control plane matches this \
        entry; correct its names, keys and values, or remove it\n\
                  overlay.yaml:11:5: warning: no descriptor with a limit of the control plane \
        matches this entry; correct its names, keys and values, or remove it\n\
                  overlay.yaml:15:3: warning: no domain of the control plane matches this entry; \
        correct its names, keys and values, or remove it\n";
    assert_eq!(
        texts(&applied.warnings),
        unused,
        "of the entries below another one that matches nothing, the outermost"
    );
    assert_eq!(
        limits(&applied.rules.expect("rules"))[0],
        "a.user (1 per minute, token_bucket)"
    );
    let applied = domains.apply(vec![with_group(), one("b", 1)], &settings);
    assert_eq!(texts(&applied.warnings), unused);
    // An equal text is the same overlay; another one compiles everything again, also good versions
    // of what is refused.
    let equal = with_overlay(OVERLAY_WITH_ENTRIES_THAT_MATCH_NOTHING);
    let again = domains.apply(vec![with_group(), one("b", 1)], &equal);
    assert!(again.rules.is_none());
    domains.apply(vec![with_group(), broken("b")], &settings);
    let other = with_overlay("defaults: { algorithm: leaky_bucket }\n");
    let applied = domains.apply(vec![with_group(), broken("b")], &other);
    assert_eq!(applied.refused.len(), 1);
    assert_eq!(
        limits(&applied.rules.expect("rules"))[2],
        "b.user (1 per minute, leaky_bucket)"
    );
    let applied = domains.apply(vec![with_group(), broken("b")], &XdsOptions::default());
    assert_eq!(
        limits(&applied.rules.expect("rules"))[2],
        "b.user (1 per minute)"
    );
    assert_eq!(texts(&applied.warnings), "");
}

#[test]
fn calendars_come_from_overlays_and_defaults() {
    let file = "
domains:
- domain: d
  descriptors:
  - key: week
    rate_limit: { period: calendar, timezone: America/New_York, week_starts: sunday }
  - key: minute
    rate_limit: { period: calendar }
  - key: many
    rate_limit: { unit_multiplier: 2 }
  - key: many
    rate_limit: { period: calendar, timezone: Europe/Berlin, anchor: 2026-03-31 }
  - key: own
    rate_limit: { period: calendar, timezone: Europe/Berlin, anchor: 2026-03-31 }
";
    let node_per = |(key, unit): (&str, Unit)| {
        let unit = unit.number();
        node(
            key,
            "",
            Some(RateLimitPolicy {
                unit,
                ..per_minute(1).expect("a policy")
            }),
        )
    };
    let list = [
        ("own", Unit::Month),
        ("week", Unit::Week),
        ("minute", Unit::Minute),
        ("many", Unit::Month),
        ("day", Unit::Day),
        ("hour", Unit::Hour),
    ];
    let defaults = "period: calendar, timezone: Asia/Tokyo"
        .parse()
        .expect("they are right");
    let applied = Domains::default().apply(
        vec![resource("r", "d", list.map(node_per).to_vec())],
        &XdsOptions {
            defaults,
            ..with_overlay(file)
        },
    );
    assert!(applied.refused.is_empty(), "{applied:?}");
    assert_eq!(
        limits(&applied.rules.expect("rules")),
        [
            "d.own (1 per month, period calendar, timezone Europe/Berlin, anchor day 31)",
            "d.week (1 per week, period calendar, timezone America/New_York, week_starts sunday)",
            "d.minute (1 per minute)",
            "d.many (1 per month, period calendar, timezone Europe/Berlin, anchor day 31)",
            "d.day (1 per day, period calendar, timezone Asia/Tokyo)",
            "d.hour (1 per hour)",
        ]
    );
    let expected = "\
resource r: minute: warning: 'period: calendar' has no meaning for 'unit: minute': overlay.yaml:8 \
    is not used for this limit; write 'unit: day', week, month, quarter or year, or remove 'period'
resource r: many: warning: the limit has 'period: calendar': the 'unit_multiplier' of \
    overlay.yaml:10 is not used for this limit; remove it, or remove 'period'
";
    assert_eq!(texts(&applied.warnings), expected);
}

#[test]
fn an_overlay_has_a_bounded_number_of_entries() {
    let many = "domains:\n".to_owned() + &"- domain: a\n".repeat(10_001);
    let problems = overlay_problems(&many);
    assert!(
        problems.contains("more than 10000 domains and descriptors"),
        "{problems}"
    );
}

#[test]
fn defaults_are_read_from_one_line() {
    for (text, expected) in [
        ("", Ok(())),
        (" ", Ok(())),
        ("algorithm: token_bucket, burst: 20", Ok(())),
        ("{on_store_failure: local}", Ok(())),
        (
            "algorithm: x",
            Err("unknown algorithm: 'x'; write one of fixed_window"),
        ),
        (
            "unit: minute",
            Err("'unit' has no meaning in defaults; it belongs in rate_limit"),
        ),
        (
            "algorithm: fixed_window, algorithm: leaky_bucket",
            Err("the key 'algorithm' occurs twice in one map"),
        ),
        (
            "algorithm",
            Err("'algorithm' has no value; write a value after 'algorithm: '"),
        ),
        ("region_shares: {eu: 40%, us: 60%}", Ok(())),
        ("{region_shares: {eu: 40%}, burst: 2}", Ok(())),
        ("notify: [80%, 100%]", Ok(())),
        (
            "notify: [80]",
            Err("'notify' has '80', not a whole percentage"),
        ),
        (
            "region_shares: {eu: 40%, us: 61%}",
            Err("the shares of 'region_shares' are 101 % together"),
        ),
        ("}", Err("a brace has no other half")),
        ("burst: 1}, x", Err("a brace has no other half")),
        ("{burst: 1}, {x: 1}", Err("a brace has no other half")),
        ("region_shares: {eu: 40%", Err("a brace has no other half")),
    ] {
        let read = text.parse::<XdsDefaults>();
        match expected {
            Ok(()) => assert!(read.is_ok(), "{text}: {read:?}"),
            Err(start) => assert!(
                read.as_ref().is_err_and(|error| error.starts_with(start)),
                "{text}: {read:?}"
            ),
        }
    }
    assert_eq!("".parse::<XdsDefaults>(), Ok(XdsDefaults::default()));
}
