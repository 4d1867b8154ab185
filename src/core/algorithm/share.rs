//! The share of a limit that one of several replicas allows by itself while the replicas cannot
//! reach their common store.
//!
//! Only amounts are divided. Windows, ticks and the longest delay stay, so that times mean the
//! same, keys do not change, and no product gets larger.

use std::num::NonZeroU32;

use super::definition::Definition;
use super::{Algorithm, dispatch};

impl Algorithm {
    /// The same algorithm with 1/`replicas` of the amount, rounded up: at least one hit where there
    /// is any. All replicas together allow at least the limit, and at most one hit per replica
    /// more.
    #[must_use]
    pub fn share(self, replicas: NonZeroU32) -> Self {
        dispatch!(map self, whole => whole.share(replicas))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::algorithm::{AlgorithmKind, Arrival, Options};
    use crate::core::time::{Micros, Rate, Span, Unit};

    fn made(kind: AlgorithmKind, limit: u64) -> Algorithm {
        let options = Options {
            kind,
            burst: (kind == AlgorithmKind::TokenBucket && limit > 0).then_some(limit),
            max_delay: (kind == AlgorithmKind::LeakyBucket).then_some(Span::from_secs(7)),
            ..Options::default()
        };
        Algorithm::try_new(
            &Rate {
                requests_per_unit: limit,
                unit: Unit::Minute,
                unit_multiplier: 1,
            },
            &options,
        )
        .expect("an algorithm")
    }

    fn shared(algorithm: Algorithm, replicas: u32) -> Algorithm {
        algorithm.share(NonZeroU32::new(replicas).expect("not 0"))
    }

    /// How many single hits pass at one instant.
    fn passes(algorithm: &Algorithm) -> u64 {
        let (mut state, mut passed) = (None, 0);
        let at = Arrival {
            now: Micros(1_800_000_000_000_000),
            max_hold: Span::MAX,
        };
        loop {
            let step = algorithm.step(state, at, 1);
            if !step.verdict.allowed {
                return passed;
            }
            passed += 1;
            state = step.state;
        }
    }

    #[test]
    fn replicas_together_let_the_limit_pass_and_hardly_more() {
        for (name, kind) in AlgorithmKind::OVER_TIME {
            for limit in [0, 1, 2, 3, 7, 10, 100] {
                for replicas in [1, 2, 3, 10, 1_000] {
                    let (whole, share) = (made(kind, limit), shared(made(kind, limit), replicas));
                    let (alone, together) = (passes(&whole), passes(&share) * u64::from(replicas));
                    assert!(
                        together >= alone,
                        "{name} of {limit}, {replicas} replicas: {together} < {alone}"
                    );
                    let most = alone + u64::from(replicas) - 1;
                    // A queue has one being served in each replica, beside those that wait.
                    let most = if kind == AlgorithmKind::LeakyBucket {
                        most + u64::from(replicas)
                    } else {
                        most
                    };
                    assert!(
                        limit == 0 || together <= most,
                        "{name} of {limit}, {replicas} replicas: {together} > {most}"
                    );
                    assert!(limit > 0 || together == 0, "{name}: nothing is nothing");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        #[test]
        fn times_stay_and_amounts_shrink(kind in prop::sample::select(AlgorithmKind::OVER_TIME.map(|(_, kind)| kind).to_vec()), limit in 0..100_000_u64,
            replicas in 1..=u32::MAX, hits in any::<i64>()) {
            let (whole, share) = (made(kind, limit), shared(made(kind, limit), replicas));
            prop_assert_eq!(whole.tick(), share.tick());
            prop_assert!(share.capacity() <= whole.capacity());
            prop_assert_eq!(share.capacity() == 0, whole.capacity() == 0);
            prop_assert_eq!(shared(whole, 1), whole);
            // Whatever was stored under the whole is understood.
            let at = Arrival { now: Micros(1_800_000_000_000_000), max_hold: Span::MAX };
            let stored = whole.step(None, at, hits).state;
            prop_assert!(share.step(stored, at, 0).verdict.remaining <= share.capacity());
        }
    }
}
