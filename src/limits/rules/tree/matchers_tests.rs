//! The order of precedence against a matcher that tries everything, and explanations of a look-up
//! against the look-up.

use core::net::IpAddr;

use ipnet::IpNet;
use proptest::prelude::*;

use super::trace::{End, How, Tracer, WhyNot};
use super::*;

/// A branch of a level, all of the same key.
#[derive(Clone, Debug)]
enum Kind {
    Exact(String),
    Set(Vec<String>),
    Networks(Vec<IpNet>),
    Regex(&'static str),
    Wildcard(&'static str),
    Any,
}

impl Kind {
    fn text(&self) -> Option<String> {
        match self {
            Self::Exact(value) => Some(value.clone()),
            Self::Set(values) => Some(format!("set:{}", values.join(","))),
            Self::Networks(networks) => Some(format!("cidr:{networks:?}")),
            Self::Regex(regex) => Some(format!("regex:{regex}")),
            Self::Wildcard(text) => Some((*text).to_owned()),
            Self::Any => None,
        }
    }

    fn add(&self, tree: &mut Tree, number: u32) {
        let branch = Branch::new(Some(LimitId::new(0, number)), Tree::default());
        let text = self.text();
        let written = text.clone().unwrap_or_default();
        match self {
            Self::Exact(_) | Self::Wildcard(_) | Self::Any => {
                let text = text.map(Into::into);
                tree.add(&"ip".into(), text.as_ref(), branch);
            }
            Self::Set(values) => {
                let values: Vec<Box<str>> =
                    values.iter().map(|value| value.as_str().into()).collect();
                tree.add_matched("ip", &written, &Matched::Set(values), branch);
            }
            Self::Networks(networks) => {
                let networks = Matched::Networks(networks.clone());
                drop(tree.add_matched("ip", &written, &networks, branch));
            }
            Self::Regex(regex) => {
                let regex = Matched::Regex((*regex).into());
                drop(tree.add_matched("ip", &written, &regex, branch));
            }
        }
    }
}

fn tree(kinds: &[Kind]) -> Tree {
    let mut tree = Tree::default();
    (0..)
        .zip(kinds)
        .for_each(|(number, kind)| kind.add(&mut tree, number));
    tree.complete().expect("small expressions");
    tree
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>()
        .ok()
        .map(|address| address.to_canonical())
}

/// The number of the branch that a value finds according to the documentation: it tries all of
/// them, in the order of precedence.
fn naive(kinds: &[Kind], value: &str) -> Option<usize> {
    let knows_addresses = kinds.iter().any(|kind| match kind {
        Kind::Set(values) => values.iter().any(|value| address(value).is_some()),
        Kind::Networks(_) => true,
        _ => false,
    });
    let found = address(value).filter(|_| knows_addresses);
    let canonical = found.map(|found| found.to_string());
    let exact = |text: &str| {
        kinds
            .iter()
            .position(|kind| matches!(kind, Kind::Exact(own) if own == text))
    };
    let set = || {
        let is_it = |own: &String| own == value || (found.is_some() && address(own) == found);
        kinds
            .iter()
            .position(|kind| matches!(kind, Kind::Set(values) if values.iter().any(is_it)))
    };
    let network = || {
        let found = found?;
        let mut longest: Option<(u8, usize)> = None;
        for (number, kind) in kinds.iter().enumerate() {
            let Kind::Networks(networks) = kind else {
                continue;
            };
            for network in networks.iter().filter(|network| network.contains(&found)) {
                if longest.is_none_or(|(bits, _)| network.prefix_len() > bits) {
                    longest = Some((network.prefix_len(), number));
                }
            }
        }
        longest.map(|(_, number)| number)
    };
    let pattern = || {
        kinds.iter().position(|kind| match kind {
            Kind::Wildcard(text) => super::matches(text, value.as_bytes()),
            Kind::Regex(regex) => regex::Regex::new(&format!("^(?s:{regex})$"))
                .expect("a regex")
                .is_match(value),
            _ => false,
        })
    };
    exact(value)
        .or_else(|| canonical.as_deref().and_then(exact))
        .or_else(set)
        .or_else(network)
        .or_else(pattern)
        .or_else(|| kinds.iter().position(|kind| matches!(kind, Kind::Any)))
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (0..3_u8, 0..4_u8).prop_map(|(third, fourth)| format!("10.0.{third}.{fourth}")),
        2 => (0..3_u8, 0..4_u8).prop_map(|(third, fourth)| format!("::ffff:10.0.{third}.{fourth}")),
        1 => (0..4_u8).prop_map(|last| format!("::FFFF:a00:{last}")),
        2 => (0..3_u8, 0..4_u8).prop_map(|(group, last)| format!("2001:db8::{group}:{last}")),
        1 => (0..3_u8, 0..4_u8).prop_map(|(group, last)| format!("2001:0DB8:0::{group}:{last}")),
        3 => "[ab1]{0,3}".prop_map(|text| text),
    ]
}

fn network() -> impl Strategy<Value = IpNet> {
    let cut = |text: String, bits: u8| {
        IpNet::new(text.parse().expect("an address"), bits)
            .expect("a network")
            .trunc()
    };
    prop_oneof![
        (0..3_u8, 0..4_u8, prop_oneof![0..=8_u8, 20..=32_u8])
            .prop_map(move |(third, fourth, bits)| cut(format!("10.0.{third}.{fourth}"), bits)),
        (0..3_u8, 0..4_u8, prop_oneof![0..=32_u8, 100..=128_u8])
            .prop_map(move |(group, last, bits)| cut(format!("2001:db8::{group}:{last}"), bits)),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        value()
            .prop_filter("no value", |value| !value.is_empty())
            .prop_map(Kind::Exact),
        prop::collection::vec(value(), 1..4).prop_map(Kind::Set),
        prop::collection::vec(network(), 1..4).prop_map(Kind::Networks),
        prop::sample::select(vec!["a+", "[ab]*", "10\\..*", ".*:.*", ".*1", ".*", "b|ab"])
            .prop_map(Kind::Regex),
        prop::sample::select(vec!["a*", "*", "10.*", "*1", "*:*"]).prop_map(Kind::Wildcard),
        Just(Kind::Any),
    ]
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    prop::collection::vec(kind(), 1..8).prop_map(|kinds| {
        let mut seen = Vec::new();
        // Two descriptors that are written in the same way are refused.
        kinds
            .into_iter()
            .filter(|kind| {
                !seen.contains(&kind.text()) && {
                    seen.push(kind.text());
                    true
                }
            })
            .collect()
    })
}

fn entry(value: &str) -> Entry<'_> {
    Entry {
        key: b"ip",
        value: value.as_bytes(),
    }
}

fn number(tree: &Tree, value: &str) -> Option<usize> {
    tree.branch(&entry(value)).and_then(|found| {
        tree.branches
            .iter()
            .position(|branch| std::ptr::eq(branch, found))
    })
}

proptest! {
    #![proptest_config(crate::testing::property(2_000))]

    #[test]
    fn the_order_is_that_of_a_matcher_that_tries_everything(
        kinds in kinds(),
        values in prop::collection::vec(value(), 1..8),
    ) {
        let tree = tree(&kinds);
        for value in values {
            prop_assert_eq!(
                number(&tree, &value),
                naive(&kinds, &value),
                "{:?} {}",
                kinds,
                value
            );
        }
        prop_assert_eq!(
            tree.find(&[Entry {
                key: b"other",
                value: b"a"
            }]),
            None
        );
    }

    /// As for texts: each other branch alone in a tree matches if, and only if, it is called a
    /// later one.
    #[test]
    fn what_is_said_of_a_look_up_is_what_it_does(kinds in kinds(), value in value()) {
        let tree = tree(&kinds);
        let trace = Tracer::new(&tree).trace(&[entry(&value)]);
        let text = |number: usize| kinds[number].text();
        let found = number(&tree, &value);
        let matched = trace.levels[0].matched.as_ref();
        prop_assert_eq!(
            matched.map(|(branch, _)| branch.value.as_deref().map(str::to_owned)),
            found.map(text),
            "{:?}",
            trace
        );
        prop_assert_eq!(matches!(trace.end, End::Limit(_)), found.is_some());
        prop_assert_eq!(
            trace.levels[0].passed.first.len() + usize::from(found.is_some()),
            kinds.len()
        );
        for (branch, why) in &trace.levels[0].passed.first {
            let own = kinds
                .iter()
                .find(|kind| kind.text().as_deref() == branch.value.as_deref())
                .expect(
                    "it is \
                written",
                );
            let matches = number(&self::tree(std::slice::from_ref(own)), &value).is_some();
            match why {
                WhyNot::OtherValue => prop_assert!(!matches, "{branch} {trace:?}"),
                WhyNot::Later(how) => {
                    prop_assert!(matches, "{branch} {trace:?}");
                    prop_assert!(
                        matched.is_some_and(|(_, best)| best <= how),
                        "{branch} \
                        {trace:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn each_kind_is_named() {
    let net = |text: &str| text.parse::<IpNet>().expect("a network");
    let kinds = [
        Kind::Any,
        Kind::Regex("a.*"),
        Kind::Networks(vec![net("10.0.0.0/8")]),
        Kind::Set(vec!["10.0.0.2".to_owned(), "alice".to_owned()]),
        Kind::Exact("10.0.0.1".to_owned()),
    ];
    let tree = tree(&kinds);
    for (value, how) in [
        ("10.0.0.1", How::Exact),
        ("::ffff:10.0.0.1", How::Exact),
        ("::ffff:10.0.0.2", How::Set),
        ("alice", How::Set),
        ("10.9.9.9", How::Network),
        ("anna", How::Pattern),
        ("11.0.0.1", How::AnyValue),
    ] {
        let trace = Tracer::new(&tree).trace(&[entry(value)]);
        assert_eq!(
            trace.levels[0].matched.as_ref().map(|(_, how)| *how),
            Some(how),
            "{value}: {trace:?}"
        );
    }
}

/// A look-up allocates nothing, for any match, once its thread has a cache for the expressions.
#[test]
fn a_look_up_allocates_nothing() {
    let net = |text: &str| text.parse::<IpNet>().expect("a network");
    let kinds = [
        Kind::Set((0..1_000).map(|index| format!("user-{index}")).collect()),
        Kind::Networks(vec![net("10.0.0.0/8"), net("2001:db8::/32")]),
        Kind::Regex("[a-z]+@example"),
        Kind::Any,
    ];
    let tree = tree(&kinds);
    let values = [
        "user-77",
        "10.1.2.3",
        "::ffff:10.1.2.3",
        "2001:DB8::1",
        "bob@example",
        "none",
    ];
    for value in &values {
        assert!(number(&tree, value).is_some());
    }
    let counted = allocation_counter::measure(|| {
        for value in &values {
            assert!(tree.find(&[entry(value)]).is_some());
        }
    });
    assert_eq!(counted.count_total, 0);
}
