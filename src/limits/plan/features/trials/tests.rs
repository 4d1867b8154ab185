//! Which requests reach the trials of their limits, and with what.

use std::sync::Arc;

use proptest::prelude::*;

use crate::core::time::{Micros, Unit};
use crate::limits::overrides::Overrides;
use crate::limits::plan::override_tests::order_to;
use crate::limits::plan::*;
use crate::limits::rules::compile::rules_of;

const FILE: &str = "
domain: d
descriptors:
- { key: a, rate_limit: { unit: minute, requests_per_unit: 9, name: first, \
    trial: { requests_per_unit: 3 } } }
- { key: b, rate_limit: { unit: minute, requests_per_unit: 9 } }
- { key: c, rate_limit: { unit: minute, requests_per_unit: 9, replaces: [{ name: first }] } }
- { key: s, rate_limit: { unit: minute, requests_per_unit: 9, track_usage: true, default_cost: 5, \
    trial: { unit: second, default_cost: 7 } } }
- { key: u, rate_limit: { unlimited: true, trial: { unit: minute, requests_per_unit: 3, \
    algorithm: token_bucket } } }
- { key: p, value: '/a*', share_threshold: true, rate_limit: { unit: minute, requests_per_unit: 9, \
    trial: { requests_per_unit: 3 } } }
";

/// Descriptors of one entry with these keys, each with its hits.
fn request<'a>(descriptors: &[(&'a str, Option<u64>)]) -> DecodedRequest<'a> {
    let mut request = DecodedRequest::default();
    request.domain = b"d";
    for (key, hits) in descriptors {
        request.push(Entry {
            key: key.as_bytes(),
            value: b"/ab",
        });
        let mut descriptor = Descriptor::default();
        descriptor.hits_addend = *hits;
        request.close(descriptor);
    }
    request
}

/// The trials of a plan: the key, the hits, and the number of the descriptor.
fn trials(plan: &Plan) -> Vec<(String, i64, usize)> {
    let of = |(index, slot, _)| {
        let check = &plan.checks[index];
        let key = String::from_utf8_lossy(plan.checks.key(check)).into_owned();
        (key, check.hits, slot)
    };
    plan.trials().map(of).collect()
}

fn plan(file: &str, descriptors: &[(&str, Option<u64>)]) -> Plan {
    Plan::new(
        &Arc::new(rules_of(file)),
        &request(descriptors),
        &Options {
            key_prefix: "x:".to_owned(),
            ..Options::default()
        },
    )
}

#[test]
fn a_trial_has_the_key_of_its_limit_with_a_mark_and_the_hits_of_the_request() {
    let plan = plan(
        FILE,
        &[
            ("b", None),
            ("a", Some(4)),
            ("u", None),
            ("p", Some(0)),
            ("s", None),
            ("none", None),
        ],
    );
    let expected = [
        ("x:w1{d|a=/ab}trfw60", 4, 1),
        ("x:w1{d|u=/ab}trtb60", 1, 2),
        ("x:w1{d|p~/a*}trfw60", 0, 3),
        ("x:w1{d|s=/ab}trfw1", 7, 4),
    ];
    assert_eq!(
        trials(&plan),
        expected.map(|(key, hits, slot)| (key.to_owned(), hits, slot))
    );
    assert_eq!(
        plan.checks.len(),
        4,
        "the checks are those of the limits alone"
    );
    assert!(
        plan.checks.iter().all(|check| !plan
            .checks
            .key(check)
            .windows(3)
            .any(|part| part == b"}tr"))
    );
    let checks = &plan.checks;
    assert_eq!(checks.total(), 8);
    assert!(checks.apart().all(|index| checks.is_apart(index)));
    let of_slot = |slot| {
        let mut trials = plan.trials().filter(|(_, of, _)| *of == slot);
        trials.next().map(|(check, ..)| check)
    };
    assert_eq!((of_slot(0), of_slot(2)), (None, Some(CheckIndex(5))));
    let (first, last) = (CheckIndex(4), CheckIndex(7));
    assert!(
        checks[last].per_second && !checks[first].per_second,
        "the unit is that of the trial"
    );
    let tracking = checks[last].tracking().expect("its limit has usage");
    assert!(tracking.is_trial && checks[first].tracking().is_none());
    let mut record = Vec::new();
    features::usage::write_key(checks.key(&checks[last]), &mut record);
    assert_eq!(record, b"x:w1{d|s=/ab}trus");
    assert!(trials(&self::plan(FILE, &[("b", None)])).is_empty());
}

#[test]
fn a_descriptor_without_its_limit_has_no_trial() {
    assert!(
        trials(&plan(FILE, &[("a", None), ("c", None)])).is_empty(),
        "it is replaced"
    );
    let mut own = request(&[]);
    own.push(Entry {
        key: b"a",
        value: b"1",
    });
    let mut descriptor = Descriptor::default();
    descriptor.limit = Some(Rate {
        requests_per_unit: 1,
        unit: Unit::Minute,
        unit_multiplier: 1,
    });
    own.close(descriptor);
    let plan = Plan::new(&Arc::new(rules_of(FILE)), &own, &Options::default());
    assert!(trials(&plan).is_empty(), "the request has its own limit");
}

#[test]
fn what_operators_decide_does_not_reach_a_trial_and_a_raise_does_not_change_it() {
    let with = |file: &str, kind: &str, key: &str| {
        let overrides = Overrides::new(vec![order_to(50, kind, key)]);
        let request = request(&[("a", None), ("u", None)]);
        Plan::with_overrides(
            &Arc::new(rules_of(file)),
            Some(overrides.at(Micros(1_000_000))),
            &request,
            &Options::default(),
        )
    };
    let slots = |plan: &Plan| {
        trials(plan)
            .into_iter()
            .map(|(.., slot)| slot)
            .collect::<Vec<_>>()
    };
    for kind in ["block", "exempt"] {
        assert_eq!(slots(&with(FILE, kind, "a")), [1], "{kind}");
        assert_eq!(slots(&with(FILE, kind, "u")), [0], "{kind}");
    }
    let raised = with(FILE, "raise", "a");
    let (trial, ..) = raised.trials().next().expect("a trial");
    assert_eq!(
        (
            raised.checks[CheckIndex(0)].algorithm.capacity(),
            raised.checks[trial].algorithm.capacity()
        ),
        (50, 3)
    );
    let whole = FILE.replace("domain: d\n", "domain: d\ncommit: all_or_none\n");
    assert!(
        trials(&with(&whole, "block", "a")).is_empty(),
        "nothing of the request is counted"
    );
    assert_eq!(slots(&with(&whole, "exempt", "a")), [1]);
}

#[test]
fn a_subject_that_is_known_by_its_digest_has_the_trial_of_its_limit() {
    let rules = Arc::new(rules_of(FILE));
    let long = "v".repeat(200);
    for (key, checks) in [("a", 1), ("u", 0)] {
        let entry = Entry {
            key: key.as_bytes(),
            value: long.as_bytes(),
        };
        let name = key::Subject::new(b"d", [entry]).to_string();
        let subject = name.parse().expect("a name");
        let plan = Plan::of_subject(&rules, &subject, None, &Options::default()).expect("a plan");
        let mut whole = DecodedRequest::default();
        whole.domain = b"d";
        whole.push(Entry {
            key: key.as_bytes(),
            value: long.as_bytes(),
        });
        whole.close(Descriptor::default());
        let asked = Plan::new(&rules, &whole, &Options::default());
        assert_eq!(trials(&plan)[0].0, trials(&asked)[0].0, "{key}");
        assert_eq!(
            (plan.checks.len(), asked.checks.len()),
            (checks, checks),
            "{key}"
        );
    }
}

proptest! {
    #![proptest_config(crate::testing::property(256))]

    /// For all requests, the plan equals the plan of the same limits without trials.
    #[test]
    fn the_plan_of_a_request_does_not_depend_on_trials(
        keys in prop::collection::vec(
            (
                prop::sample::select(vec!["a", "b", "c", "s", "u", "p", "x"]),
                prop::option::of(0..9_u64),
            ),
            0..6,
        ),
    ) {
        let without: String = FILE
            .lines()
            .map(|line| {
                line.find(", trial").map_or_else(
                    || line.to_owned(),
                    |end| {
                        format!(
                            "{} }} \
                }}",
                            &line[..end]
                        )
                    },
                ) + "\n"
            })
            .collect();
        prop_assert!(!without.contains("trial"));
        let describe = |plan: &Plan| {
            let checks = plan
                .checks
                .iter()
                .map(|check| (plan.checks.key(check).to_vec(), check.algorithm, check.hits))
                .collect::<Vec<_>>();
            format!(
                "{:?} {checks:?} {}",
                plan.slots,
                plan.checks.passing_quotas()
            )
        };
        prop_assert_eq!(describe(&plan(FILE, &keys)), describe(&plan(&without, &keys)));
    }
}
