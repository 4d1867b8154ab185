use super::*;
use crate::core::algorithm::places::RequestId;
use crate::core::algorithm::reservations::Purpose;
use crate::core::algorithm::{
    Algorithm, AlgorithmKind, FixedWindow, OnExpiry, Options as AlgorithmOptions, Reservations,
};
use crate::core::time::{Micros, Period, Rate, Span, Unit};
use crate::core::verdict::{Verdict, Wait};
use crate::limits::plan::Modes;

use OnStoreFailure::{Allow, Deny, Error, Local};

const DOWN: StoreError = StoreError::NotExecuted("connect");
const PLAIN: Modes = Modes {
    shadow: false,
    quota: false,
};
fn outage(replicas: u32) -> FailurePolicies {
    FailurePolicies::new(&Options {
        replicas: Source::Fixed(NonZeroU32::new(replicas).expect("not 0")),
        ..Options::default()
    })
}

fn check(on_store_failure: OnStoreFailure, modes: Modes) -> Check {
    let fixed = FixedWindow {
        limit: 4,
        window: Period::Even(Span::from_secs(3_600)),
        count_denied: true,
    };
    let mut check = Check::new(Algorithm::FixedWindow(fixed), 1, modes);
    check.on_store_failure = on_store_failure;
    check
}

fn checks(of: &[(OnStoreFailure, Modes)]) -> Checks {
    let checks = of
        .iter()
        .enumerate()
        .map(|(index, &(policy, modes))| (index.to_string(), check(policy, modes)));
    let checks: Vec<_> = checks.collect();
    Checks::of(
        checks
            .iter()
            .map(|(key, check)| (key.as_bytes(), check.clone())),
    )
}

fn at() -> Arrival {
    Arrival {
        now: Micros(1_800_000_000_000_000),
        max_wait: Span::ZERO,
    }
}

fn verdict(allowed: bool) -> Verdict {
    let second = Span::from_secs(1);
    Verdict {
        allowed,
        remaining: 0,
        used: 5,
        reset_after: second,
        retry_after: Wait::For(second),
        delay: Span::ZERO,
    }
}

/// The decisions, with a letter for each check: allowed (`a`) or refused (`d`) by policy, failed
/// (`e`), allowed or refused locally (`L`, `l`) or by the store (`S`, `s`); then the outcome of the
/// request.
fn decided(
    outage: &FailurePolicies,
    checks: &Checks,
    partial: &[Result<Decision, StoreError>],
) -> String {
    let decision = |answer: &Result<_, _>| answer.unwrap_or_else(Decision::Fails);
    let mut decisions: Vec<Decision> = partial.iter().map(decision).collect();
    let _ = outage.apply(checks, &mut decisions, at);
    let letter = |decision: &Decision| match decision {
        Decision::PolicyAllows(_) => 'a',
        Decision::PolicyRefuses(_) => 'd',
        Decision::Fails(_) => 'e',
        Decision::Local(verdict, ..) => {
            if verdict.allowed {
                'L'
            } else {
                'l'
            }
        }
        Decision::Store(verdict) | Decision::Lease(verdict) | Decision::DenialCache(verdict) => {
            if verdict.allowed {
                'S'
            } else {
                's'
            }
        }
    };
    let letters: String = decisions.iter().map(letter).collect();
    let fails = decisions
        .iter()
        .any(|decision| decision.failure().is_some());
    let refused = checks.is_over_limit(decisions.iter().map(Decision::allows));
    assert!(!(fails && refused), "a refused request does not fail");
    letters
        + if fails {
            " UNAVAILABLE"
        } else if refused {
            " OVER_LIMIT"
        } else {
            " OK"
        }
}

#[test]
fn decisions_of_the_store_stay() {
    let (yes, no) = (
        Ok(Decision::Store(verdict(true))),
        Ok(Decision::DenialCache(verdict(false))),
    );
    let two = |policy| checks(&[(Error, PLAIN), (policy, PLAIN)]);
    assert_eq!(decided(&outage(1), &two(Deny), &[yes, no]), "Ss OVER_LIMIT");
    assert_eq!(
        decided(&outage(1), &two(Deny), &[yes, Err(DOWN)]),
        "Sd OVER_LIMIT"
    );
    assert_eq!(
        decided(&outage(1), &two(Error), &[yes, Err(DOWN)]),
        "Se UNAVAILABLE"
    );
    assert_eq!(
        decided(
            &outage(1),
            &two(Allow),
            &[yes, Err(StoreError::Data("wrong type"))]
        ),
        "Sa OK"
    );
    assert_eq!(decided(&outage(1), &two(Local), &[yes, Err(DOWN)]), "SL OK");
    // A refusal remains, whatever the other check would have been.
    assert_eq!(
        decided(&outage(1), &two(Error), &[no, Err(DOWN)]),
        "sa OVER_LIMIT"
    );
    assert_eq!(
        decided(&outage(1), &two(Local), &[no, Err(DOWN)]),
        "sL OVER_LIMIT"
    );
}

#[test]
fn local_counts_a_share_of_the_limit() {
    for (replicas, expected) in [(1, 4), (2, 2), (3, 2), (4, 1), (100, 1)] {
        let (outage, checks) = (outage(replicas), checks(&[(Local, PLAIN)]));
        let passed = (0..10)
            .filter(|_| decided(&outage, &checks, &[Err(DOWN)]) == "L OK")
            .count();
        assert_eq!(passed, expected, "{replicas} replicas");
        assert_eq!(outage.local().size().keys, 1);
    }
}

/// Hits are refunded at the share of the limit at which they were reserved: the bucket of a tenth
/// has one token more after 6 s, and gets one back.
#[test]
fn settlements_count_the_share_of_the_limit() {
    let (outage, now) = (outage(10), clock::now());
    let options = AlgorithmOptions {
        kind: AlgorithmKind::TokenBucket,
        ..AlgorithmOptions::default()
    };
    let rate = Rate {
        requests_per_unit: 100,
        unit: Unit::Minute,
        unit_multiplier: 1,
    };
    let algorithm = Algorithm::try_new(&rate, &options).expect("an algorithm");
    let terms = Reservations {
        ttl: Span::from_secs(60),
        max_share: 100,
        minimum: 0,
        on_expiry: OnExpiry::default(),
    };
    let id = RequestId::of(b"id");
    let decide = |hits, purpose, at: Micros| {
        let mut check = Check::new(algorithm, hits, PLAIN);
        check.on_store_failure = Local;
        let checks = Checks::of([(&b"a"[..], check)]);
        let checks = checks.with_reservation(CheckIndex(0), terms, purpose);
        let mut decisions = [Decision::Fails(DOWN)];
        let at = || Arrival {
            now: at,
            max_wait: Span::ZERO,
        };
        match purpose {
            Purpose::Settle(_) => drop(outage.release(&checks, |_| true)),
            _ => drop(outage.apply(&checks, &mut decisions, at)),
        }
        decisions[0].allows()
    };
    let before = Micros(now.0 - 6_000_000);
    assert!(decide(10, Purpose::Reserve(id), before), "all of the share");
    decide(9, Purpose::Settle(id), now);
    assert!(
        !decide(3, Purpose::Plain, clock::now()),
        "more than two are left"
    );
    assert!(decide(2, Purpose::Plain, clock::now()));
}
