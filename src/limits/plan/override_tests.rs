//! Effects of overrides on a plan.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::core::algorithm::{Arrival, State};
use crate::core::time::{Micros, Unit};
use crate::limits::overrides::{EntryRecord, Override, Overrides, RateRecord, Record};
use crate::limits::rules::Commit;
use crate::limits::rules::compile::rules_of;
use crate::limits::rules::limit::Units;

const FILE: &str = "
domain: d
descriptors:
- { key: a, rate_limit: { unit: minute, requests_per_unit: 2, name: first, \
    on_store_failure: local } }
- { key: b, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
- { key: c, rate_limit: { unit: minute, requests_per_unit: 2, replaces: [{ name: first }] } }
- { key: q, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
- { key: r, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
- { key: u, rate_limit: { unlimited: true } }
";

fn all_or_none() -> String {
    FILE.replace("domain: d\n", "domain: d\ncommit: all_or_none\n")
}

/// A raise is to `requests_per_unit` a minute.
pub(super) fn order_to(requests_per_unit: u64, kind: &str, key: &str) -> Override {
    let record = Record {
        kind: kind.to_owned(),
        domain: "d".to_owned(),
        entries: vec![EntryRecord {
            key: key.to_owned(),
            value: None,
            value_sha256: None,
        }],
        to: (kind == "raise").then(|| RateRecord {
            requests_per_unit: Units(requests_per_unit as f64),
            unit: Some("minute".to_owned()),
            unit_multiplier: None,
        }),
        ..Record::default()
    };
    record.read().expect("an override")
}

fn order(kind: &str, key: &str) -> Override {
    order_to(5, kind, key)
}

fn request<'a>(domain: &'a str, keys: &[&'a str], hits: u64) -> DecodedRequest<'a> {
    let mut request = DecodedRequest::default();
    request.domain = domain.as_bytes();
    for key in keys {
        request.push(Entry {
            key: key.as_bytes(),
            value: b"1",
        });
        let mut descriptor = Descriptor::default();
        descriptor.hits_addend = Some(hits);
        request.close(descriptor);
    }
    request
}

/// The states of counters by their keys.
type Store = Rc<RefCell<HashMap<Vec<u8>, State>>>;

/// A process with one store: what it answers to requests, one after the other.
struct Process {
    rules: Arc<Rules>,
    overrides: Overrides,
    options: Options,
    store: Store,
}

impl Process {
    fn new(file: &str, orders: &[Override]) -> Self {
        let (overrides, store) = (Overrides::new(orders.to_vec()), Store::default());
        Self {
            rules: Arc::new(rules_of(file)),
            overrides,
            options: Options::default(),
            store,
        }
    }

    fn plan(&self, request: &DecodedRequest<'_>) -> Plan {
        Plan::with_overrides(
            &self.rules,
            Some(self.overrides.at(Micros(1_000_000))),
            request,
            &self.options,
        )
    }

    /// Whether each check is allowed, and whether the request is.
    fn decide(&self, keys: &[&str], hits: u64) -> (Vec<bool>, bool) {
        let plan = self.plan(&request("d", keys, hits));
        let at = Arrival {
            now: Micros(1_800_000_000_000_000),
            max_wait: Span::MAX,
        };
        let (checks, mut store) = (&plan.checks, self.store.borrow_mut());
        let key = |index: CheckIndex| checks.key(&checks[index]).to_vec();
        let allowed: Vec<_> = match checks.commit {
            Commit::Each => checks
                .indexed()
                .map(|(index, check)| {
                    let step = check
                        .algorithm
                        .step(store.remove(&key(index)), at, check.hits);
                    store.extend(step.state.map(|state| (key(index), state)));
                    step.verdict.allowed
                })
                .collect(),
            Commit::AllOrNone => {
                let outcome = AllOrNone::decide(
                    checks,
                    at,
                    |index| store.get(&key(index)).cloned(),
                    |one, other| key(one) == key(other),
                );
                store.extend(
                    outcome
                        .writes
                        .into_iter()
                        .map(|(index, state, _)| (key(index), state)),
                );
                outcome
                    .verdicts
                    .iter()
                    .map(|verdict| verdict.allowed)
                    .collect()
            }
        };
        let is_over = plan.checks.is_over_limit(allowed.iter().copied());
        (allowed, !is_over)
    }
}

#[test]
fn a_blocked_descriptor_refuses_its_request_and_asks_no_store() {
    for key in ["a", "b", "q", "u", "unknown"] {
        let process = Process::new(FILE, &[order("block", key)]);
        let plan = process.plan(&request("d", &[key], 1));
        assert!(
            plan.checks.is_empty()
                && matches!(&plan.slots[0].disposition, Disposition::Blocked(block) if block.ends_in.is_none()),
            "{key}: {:?}",
            plan.slots
        );
        assert_eq!(process.decide(&[key], 1), (vec![], false), "{key}");
    }
    // The others are counted as with any refusal.
    let process = Process::new(FILE, &[order("block", "unknown")]);
    assert_eq!(process.decide(&["unknown", "a"], 2), (vec![true], false));
    assert_eq!(process.decide(&["a"], 1), (vec![false], false));
    // A domain that no file defines.
    let other = Override {
        domain: "e".into(),
        until: Some(Micros(3_000_000)),
        ..order("block", "a")
    };
    let process = Process::new(FILE, &[other]);
    let plan = process.plan(&request("e", &["a"], 1));
    assert!(plan.unknown_domain && plan.checks.is_over_limit(std::iter::empty()));
    assert!(matches!(
        &plan.slots[0],
        Slot {
            limit: None,
            disposition: Disposition::Blocked(Block { rate: None, ends_in: Some(left), .. }),
            ..
        } if *left == Span::from_secs(2)
    ));
    assert!(matches!(
        process.plan(&request("e", &["b"], 1)).slots[0].disposition,
        Disposition::Free
    ));
}

#[test]
fn nothing_of_an_all_or_none_request_with_a_blocked_descriptor_is_written() {
    for blocked in ["b", "q", "unknown"] {
        let process = Process::new(&all_or_none(), &[order("block", blocked)]);
        for _ in 0..3 {
            assert_eq!(
                process.decide(&["a", blocked], 2),
                (vec![true], false),
                "{blocked}: it says what is left"
            );
        }
        assert_eq!(
            process.decide(&["a"], 2),
            (vec![true], true),
            "{blocked}: the full limit is there"
        );
    }
    let process = Process::new(FILE, &[order("block", "b")]);
    process.decide(&["a", "b"], 2);
    assert_eq!(
        process.decide(&["a"], 1),
        (vec![false], false),
        "without all_or_none it was counted"
    );
}

#[test]
fn an_exempt_descriptor_passes_and_is_not_counted() {
    let process = Process::new(FILE, &[order("exempt", "a")]);
    for _ in 0..5 {
        assert_eq!(process.decide(&["a"], 2), (vec![], true));
    }
    assert!(process.store.borrow().is_empty());
    // The limit still replaces others, and is replaced.
    let process = Process::new(FILE, &[order("exempt", "c")]);
    assert_eq!(process.decide(&["a", "c"], 9), (vec![], true));
    // A limit of the request's own.
    let (mut own, mut descriptor) = (DecodedRequest::default(), Descriptor::default());
    own.domain = b"d";
    own.push(Entry {
        key: b"c",
        value: b"1",
    });
    descriptor.limit = Some(Rate {
        requests_per_unit: 2,
        unit: Unit::Minute,
        unit_multiplier: 1,
    });
    own.close(descriptor);
    assert!(matches!(
        process.plan(&own).slots[0],
        Slot {
            limit: None,
            disposition: Disposition::Exempt,
            ..
        }
    ));
    let raised = Process::new(FILE, &[order("raise", "c")]).plan(&own);
    assert!(matches!(
        raised.slots[0],
        Slot {
            limit: None,
            disposition: Disposition::Checked(Checked {
                is_raised: true,
                rate: Rate {
                    requests_per_unit: 5,
                    ..
                },
                ..
            }),
            ..
        }
    ));
}

#[test]
fn an_exempt_quota_is_always_left() {
    let without = Process::new(FILE, &[]);
    let exempt = Process::new(FILE, &[order("exempt", "q")]);
    for process in [&without, &exempt] {
        assert!(!process.decide(&["r"], 3).1, "alone it is over");
    }
    assert_eq!(without.decide(&["q", "r"], 1), (vec![true, false], true));
    assert_eq!(
        exempt.decide(&["q", "r"], 1),
        (vec![false], true),
        "an exemption does not make a request fail"
    );
    let mut all_quotas = Process::new(FILE, &[order("exempt", "a")]);
    all_quotas.options.quota_mode = true;
    assert_eq!(all_quotas.decide(&["a", "c"], 9), (vec![false], true));
    assert_eq!(all_quotas.decide(&["c"], 9), (vec![false], false));
    // An unlimited limit is no quota.
    let mut unlimited = Process::new(FILE, &[order("exempt", "u")]);
    unlimited.options.quota_mode = true;
    assert_eq!(unlimited.decide(&["u", "c"], 9), (vec![false], false));
}

#[test]
fn a_raised_limit_counts_where_it_counted() {
    let limited = Process::new(FILE, &[]);
    let raised = Process {
        store: Rc::clone(&limited.store),
        ..Process::new(FILE, &[order("raise", "a")])
    };
    assert_eq!(limited.decide(&["a"], 2), (vec![true], true));
    assert_eq!(limited.decide(&["a"], 1), (vec![false], false));
    // Three were counted: fixed windows count what they refuse.
    assert_eq!(raised.decide(&["a"], 2), (vec![true], true));
    assert_eq!(raised.decide(&["a"], 1), (vec![false], false));
    let plan = raised.plan(&request("d", &["a"], 1));
    let Slot {
        limit: Some(id),
        disposition:
            Disposition::Checked(Checked {
                rate,
                is_raised: true,
                check,
                ..
            }),
        ..
    } = plan.slots[0]
    else {
        panic!("{:?}", plan.slots)
    };
    assert_eq!(
        (plan.rules.limit(id).path().as_str(), rate.requests_per_unit),
        ("d.a", 5)
    );
    // The share of one of five replicas, while Redis is away.
    let shares = plan.checks.subset(
        &[check],
        |algorithm| algorithm.share(5.try_into().expect("not 0")),
        |_| true,
    );
    assert_eq!(shares[CheckIndex(0)].algorithm.capacity(), 1);
    // Replaced, it stays off.
    assert_eq!(raised.decide(&["a", "c"], 1), (vec![true], true));
}

proptest! {
    #![proptest_config(crate::testing::property(256))]

    /// Who orders an exemption or a raise lets more pass, whatever the request; who orders a block
    /// lets less pass.
    #[test]
    fn exemptions_and_raises_let_more_pass(
        requests in
            prop::collection::vec((prop::collection::vec(0..7_usize, 1..4), 0..4_u64), 1..6),
        key in 0..7_usize,
        kind in prop::sample::select(vec!["exempt", "raise"]),
        commits in any::<bool>(),
        quota_mode in any::<bool>(),
    ) {
        const KEYS: [&str; 7] = ["a", "b", "c", "q", "r", "u", "unknown"];
        let file = if commits {
            all_or_none()
        } else {
            FILE.to_owned()
        };
        let make = |orders: &[Override]| {
            let process = Process::new(&file, orders);
            Process {
                options: Options {
                    quota_mode,
                    ..Options::default()
                },
                ..process
            }
        };
        let (plain, better, worse) = (
            make(&[]),
            make(&[order(kind, KEYS[key])]),
            make(&[order("block", KEYS[key])]),
        );
        for (keys, hits) in &requests {
            let keys: Vec<_> = keys.iter().map(|&index| KEYS[index]).collect();
            let passes = plain.decide(&keys, *hits).1;
            // Of all-or-none requests a later one may find more taken, because an earlier one
            // passed.
            let is_first = std::ptr::eq(hits, &raw const requests[0].1);
            prop_assert!(
                !passes || better.decide(&keys, *hits).1 || (commits && !is_first),
                "{keys:?} {hits}"
            );
            prop_assert!(
                !keys.contains(&KEYS[key]) || !worse.decide(&keys, *hits).1,
                "{keys:?} \
                {hits}"
            );
        }
    }
}
