//! Tests of the configuration: what each response leaves in force.

use prost::Message;

use super::*;
use crate::core::proto::xds;
use crate::core::request::Entry;
use crate::limits::rules::limit::LimitInForce;

fn users(domain: &str, amount: u32) -> xds::RateLimitConfig {
    let rate_limit = xds::RateLimitPolicy {
        unit: 4,
        requests_per_unit: amount,
        ..Default::default()
    };
    let user = xds::RateLimitDescriptor {
        key: "user".to_owned(),
        rate_limit: Some(rate_limit),
        ..Default::default()
    };
    xds::RateLimitConfig {
        name: format!("r-{domain}"),
        domain: domain.to_owned(),
        descriptors: vec![user],
    }
}

/// A limit without a unit.
fn wrong(domain: &str) -> xds::RateLimitConfig {
    let mut config = users(domain, 1);
    config.descriptors[0]
        .rate_limit
        .as_mut()
        .expect("a limit")
        .unit = 0;
    config
}

fn any(config: &xds::RateLimitConfig) -> Bytes {
    resources::pack(&config.encode_to_vec().into())
        .encode_to_vec()
        .into()
}

/// Bounds that nothing but the size of messages meets.
const fn bounds(max_bytes: usize) -> (usize, u64) {
    (max_bytes, 1 << 40)
}

/// A configuration with the rules that it gave last.
struct Tested(Configuration, Rules);

impl Tested {
    fn new() -> Self {
        Self::with(bounds(1 << 20))
    }

    fn with((max_bytes, max_memory): (usize, u64)) -> Self {
        let configuration = Configuration::new(XdsOptions::default(), max_bytes, max_memory);
        Self(configuration, Rules::default())
    }

    fn apply_all(&mut self, configs: &[xds::RateLimitConfig]) -> Applied {
        let packed: Vec<_> = configs.iter().map(any).collect();
        self.apply(&packed)
    }

    fn amounts<const N: usize>(&self, domains: [&str; N]) -> [u32; N] {
        domains.map(|domain| self.amount(domain))
    }

    fn apply(&mut self, packed: &[Bytes]) -> Applied {
        let mut applied = self.0.apply(packed);
        if let Some(rules) = applied.rules.take() {
            self.1 = rules;
        }
        applied
    }

    /// The amount for a user of the domain; 0 without a limit.
    fn amount(&self, domain: &str) -> u32 {
        let entry = Entry {
            key: b"user",
            value: b"u",
        };
        let limit = self.1.find(domain.as_bytes(), &[entry]);
        let amount = limit.and_then(LimitInForce::amount);
        amount.map_or(0, |amount| amount.rate.requests_per_unit as u32)
    }

    fn in_force(&self) -> Vec<&str> {
        self.0.in_force.keys().map(String::as_str).collect()
    }
}

fn is_refused(applied: &Applied) -> bool {
    matches!(applied.outcome, ApplyOutcome::Refused { .. })
}

#[test]
fn a_refused_domain_keeps_its_last_good_resource_in_what_is_saved() {
    let mut tested = Tested::new();
    assert!(!is_refused(
        &tested.apply_all(&[users("a", 1), users("b", 1)])
    ));
    assert!(tested.0.take_changed() && !tested.0.take_changed());
    let applied = tested.apply_all(&[users("a", 2), wrong("b"), wrong("c")]);
    assert!(is_refused(&applied));
    assert_eq!((applied.kept, applied.absent), (1, 1));
    assert_eq!(tested.amounts(["a", "b", "c"]), [2, 1, 0]);
    assert_eq!(tested.in_force(), ["r-a", "r-b"]);

    let saved = tested.0.in_force.clone();
    let (max_bytes, max_memory) = bounds(1 << 20);
    let mut restarted = Configuration::new(XdsOptions::default(), max_bytes, max_memory);
    let applied = restarted.restore(saved);
    assert_eq!(applied.outcome, ApplyOutcome::Accepted);
    assert_eq!(applied.rules.expect("rules").domains().count(), 2);
    assert!(!restarted.take_changed(), "it is what the file has");
    assert!(
        restarted
            .apply(&[any(&users("b", 1)), any(&users("a", 2))])
            .is_known,
        "the control plane sends the same in another order"
    );
}

#[test]
fn a_domain_that_moves_to_another_resource_while_it_is_wrong_keeps_its_limits() {
    let mut tested = Tested::new();
    tested.apply_all(&[users("a", 1)]);
    let moved = xds::RateLimitConfig {
        name: "moved".to_owned(),
        ..wrong("a")
    };
    assert!(is_refused(&tested.apply_all(&[moved])));
    assert_eq!((tested.amount("a"), tested.in_force()), (1, vec!["r-a"]));
}

#[test]
fn the_same_refused_content_is_not_compiled_again_and_has_the_same_outcome() {
    let mut tested = Tested::new();
    let first = tested.apply_all(&[users("a", 1), wrong("b")]);
    let second = tested.apply_all(&[wrong("b"), users("a", 1)]);
    assert!(!first.is_known && second.is_known);
    assert_eq!(first.outcome, second.outcome);
}

#[test]
fn two_different_resources_of_one_name_refuse_it_whatever_their_order() {
    for order in [[1, 2], [2, 1]] {
        let mut tested = Tested::new();
        tested.apply_all(&[users("a", 9)]);
        let applied = tested.apply_all(&order.map(|amount| users("a", amount)));
        assert!(is_refused(&applied) && tested.amount("a") == 9, "{order:?}");
    }
    let mut tested = Tested::new();
    assert!(
        !is_refused(&tested.apply_all(&[users("a", 1), users("a", 1)])),
        "the same one twice"
    );
}

#[test]
fn longer_times_to_live_change_nothing() {
    let mut tested = Tested::new();
    tested.apply_all(&[users("a", 1), users("b", 2)]);
    let wrapper = xds::Resource {
        name: "r-a".into(),
        ..Default::default()
    }
    .encode_to_vec();
    let type_url = "type.googleapis.com/envoy.service.discovery.v3.Resource".into();
    let prolonged: Bytes = resources::Any {
        type_url,
        value: wrapper.into(),
    }
    .encode_to_vec()
    .into();
    let applied = tested.apply(std::slice::from_ref(&prolonged));
    assert_eq!(
        (applied.outcome, tested.amount("b")),
        (ApplyOutcome::Accepted, 2),
        "it need not name all resources"
    );
    tested.apply(&[prolonged, any(&users("c", 3))]);
    assert_eq!(tested.amounts(["a", "b", "c"]), [1, 0, 3]);
}

#[test]
fn domains_that_keep_old_resources_are_charged_for_them() {
    let weight = weigh(&users("d00", 1).encode_to_vec(), u64::MAX).expect("valid");
    let bounds = (1 << 30, 10 * weight);
    let mut tested = Tested::with(bounds);
    // Each domain is refused under another name as soon as it is in force: then no name wants the
    // version that is kept.
    for number in 0..40 {
        let moved = (0..number).map(|old| xds::RateLimitConfig {
            name: "x".to_owned() + &old.to_string(),
            ..wrong(&format!("d{old:02}"))
        });
        tested.apply_all(
            &moved
                .chain([users(&format!("d{number:02}"), 1)])
                .collect::<Vec<_>>(),
        );
    }
    assert!(tested.in_force().len() <= 11, "{:?}", tested.in_force());
}

#[test]
fn a_resource_that_is_wanted_again_is_charged_once() {
    let weight = weigh(&users("a", 1).encode_to_vec(), u64::MAX).expect("valid");
    let bounds = (1 << 30, 2 * weight + weight / 2);
    let mut tested = Tested::with(bounds);
    tested.apply_all(&[users("a", 1)]);
    let moved = xds::RateLimitConfig {
        name: "moved".to_owned(),
        ..wrong("a")
    };
    assert!(is_refused(&tested.apply_all(&[moved])));
    assert!(
        !is_refused(&tested.apply_all(&[users("a", 1), users("b", 1)])),
        "both fit"
    );
    assert_eq!(tested.in_force(), ["r-a", "r-b"]);
}

#[test]
fn an_element_without_a_name_may_be_any_and_removes_none() {
    let mut tested = Tested::new();
    tested.apply_all(&[users("a", 1), users("b", 1)]);
    tested.apply(&[any(&users("a", 2)), Bytes::from_static(b"\xff")]);
    assert_eq!(tested.amounts(["a", "b"]), [2, 1]);
}

#[test]
fn elements_without_a_name_leave_few_texts() {
    let broken = Bytes::from_static(b"\xff");
    let applied = Tested::new().apply(&vec![broken; 5_000]);
    let ApplyOutcome::Refused { message, .. } = applied.outcome else {
        panic!("a refusal")
    };
    assert_eq!(
        (applied.problems.len(), message.lines().count()),
        (MOST_SHOWN, MOST_SHOWN)
    );
}

#[test]
fn more_resources_than_the_bound_refuse_the_response() {
    let mut tested = Tested::new();
    tested.apply_all(&[users("a", 1)]);
    let applied = tested.apply(&vec![any(&users("b", 1)); MAX_RESOURCES + 1]);
    assert!(is_refused(&applied) && tested.amount("a") == 1 && tested.amount("b") == 0);
}
