//! The step against a list of holders that is searched from end to end.

use proptest::prelude::*;

use super::*;
use crate::core::algorithm::{Algorithm, Options};
use crate::core::time::{Rate, Unit};

const START: u64 = 1_800_000_000_000_000;

fn limit(places: u64, max_duration: Span) -> Algorithm {
    let rate = Rate {
        requests_per_unit: places,
        unit: Unit::None,
        unit_multiplier: 1,
    };
    let options = Options {
        kind: crate::core::algorithm::AlgorithmKind::Concurrency,
        max_duration: Some(max_duration),
        ..Options::default()
    };
    Algorithm::try_new(&rate, &options).expect("a limit")
}

/// A step of a request with this id.
fn ask(limit: &Algorithm, id: &[u8], state: Option<State>, now: u64, hits: i64) -> (Step, Change) {
    let Algorithm::Concurrency(limit) = limit else {
        panic!("{limit:?}")
    };
    limit.step_by(HolderId::of(id), state, Micros(now), hits)
}

/// What the algorithm means, without any order.
#[derive(Default)]
struct Naive {
    holders: Vec<(u8, u64, u64)>,
    tombstones: Vec<(u8, u64)>,
}

impl Naive {
    fn ask(&mut self, id: u8, hits: i64, now: u64, (limit, life): (u64, u64)) -> (bool, u64) {
        let is_held = |&(_, since, _): &(u8, u64, u64)| since + life > now && since <= now + life;
        let used = |holders: &[(u8, u64, u64)]| {
            holders
                .iter()
                .filter(|one| is_held(one))
                .map(|one| one.2)
                .sum::<u64>()
        };
        let taken = used(&self.holders);
        let own = self
            .holders
            .iter()
            .position(|one| one.0 == id && is_held(one));
        let places = own.map_or(0, |own| self.holders[own].2);
        let is_remembered =
            |&(_, then): &(u8, u64)| then + 2_000_000 > now && then <= now + 2_000_000;
        let is_released = self
            .tombstones
            .iter()
            .any(|one| one.0 == id && is_remembered(one));
        // A request that takes none needs no free place.
        let others = if is_released { 0 } else { taken };
        match u64::try_from(hits) {
            Ok(0) => (places > 0 || others < limit, taken),
            Ok(asked) if asked <= places => (true, taken),
            Ok(asked) if others.saturating_add(asked - places) > limit => (false, taken),
            Ok(_) if is_released => (true, taken),
            Ok(asked) => {
                match own {
                    Some(own) => self.holders[own].2 = asked,
                    None => {
                        self.holders.retain(|one| one.0 != id);
                        self.holders.push((id, now, asked));
                    }
                }
                // A write drops all that has expired.
                self.holders.retain(is_held);
                self.tombstones.retain(&is_remembered);
                (true, used(&self.holders))
            }
            Err(_) => {
                if own.is_some() {
                    self.holders.retain(|one| one.0 != id);
                } else {
                    self.tombstones.retain(|&(other, _)| other != id);
                    self.tombstones.push((id, now));
                }
                self.tombstones.retain(&is_remembered);
                self.holders.retain(is_held);
                (true, used(&self.holders))
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::testing::property(3_000))]

    #[test]
    fn a_set_of_holders_is_what_a_list_of_them_is(
        places in 0_u64..6, life in 1_u64..40,
        asks in prop::collection::vec((0_u8..6, prop_oneof![4 => Just(1_i64), 4 => Just(-1), 1 => Just(0), 2 => -3_i64..5, 1 => any::<i64>()],
            prop_oneof![6 => 0_i64..2_000_000, 1 => 0_i64..60_000_000, 1 => -30_000_000_i64..0]), 1..60),
    ) {
        let life = Span::from_micros(life * 500_000);
        let (algorithm, mut naive, mut state, mut now) = (limit(places, life), Naive::default(), None, START);
        for (id, hits, pause) in asks {
            now = now.saturating_add_signed(pause);
            let expected = naive.ask(id, hits, now, (places, life.micros()));
            let before = state.clone();
            let (step, _) = ask(&algorithm, &[id], state, now, hits);
            prop_assert_eq!((step.verdict.allowed, step.verdict.used), expected, "{} hits of {} at \
                {}", hits, id, now);
            prop_assert_eq!(step.verdict.remaining, places.saturating_sub(expected.1));
            if step.keep_for.is_none() {
                prop_assert_eq!(&step.state, &before);
            }
            // When it need not be kept any longer, it means nothing.
            if let Some(keep_for) = step.keep_for {
                let then = now + keep_for.micros();
                let verdict = |state| ask(&algorithm, &[id], state, then, hits).0.verdict;
                prop_assert_eq!(verdict(step.state.clone()), verdict(None));
            }
            state = step.state;
        }
    }

    #[test]
    fn numbers_of_any_size_are_total(places in 0..=LARGEST_LIMIT, life in 1..=LONGEST_DURATION.micros(), now in any::<u64>(), hits in any::<i64>(), then in any::<u64>()) {
        let algorithm = limit(places, Span::from_micros(life));
        let state = ask(&algorithm, b"a", None, now, hits).0.state;
        for (id, hits) in [(b"a", 1), (b"a", -1), (b"b", i64::MAX), (b"b", i64::MIN), (b"a", 0), (b"b", hits)] {
            let (step, _) = ask(&algorithm, id, state.clone(), then, hits);
            prop_assert!(step.verdict.used <= places && step.verdict.remaining <= places);
        }
    }
}

#[test]
fn tombstones_are_bounded_and_the_oldest_goes_first() {
    let algorithm = limit(1, Span::from_secs(60));
    let mut state = None;
    let release = |state, number: usize, now| {
        let (step, _) = ask(&algorithm, &number.to_le_bytes(), state, now, -1);
        step.state
    };
    for number in 0..=MOST_TOMBSTONES {
        state = release(state, number, START + number as u64);
    }
    let Some(State::Holders(holders)) = &state else {
        panic!("{state:?}")
    };
    assert_eq!(holders.tombstones().count(), MOST_TOMBSTONES);
    let now = START + MOST_TOMBSTONES as u64;
    let used = |number: usize| {
        let (step, _) = ask(&algorithm, &number.to_le_bytes(), state.clone(), now, 1);
        step.verdict.used
    };
    assert_eq!(
        (used(0), used(1), used(MOST_TOMBSTONES)),
        (1, 0, 0),
        "the first is forgotten"
    );
}

#[test]
fn a_step_says_what_changed() {
    let algorithm = limit(9, Span::from_secs(60));
    let mut state = None;
    let mut change = |id: &[u8], hits, secs: u64| {
        let now = START + secs * 1_000_000;
        let (step, Change { age, places }) = ask(&algorithm, id, state.take(), now, hits);
        state = step.state;
        assert_eq!(step.verdict.reset_after, Span::ZERO, "no time until it");
        (age, places)
    };
    assert_eq!(change(b"a", 3, 0), (Span::ZERO, 3));
    assert_eq!(change(b"a", 3, 1), (Span::ZERO, 0), "it has them");
    assert_eq!(change(b"a", 5, 2), (Span::from_secs(2), 2));
    assert_eq!(change(b"b", 7, 3), (Span::ZERO, 0), "refused");
    assert_eq!(change(b"b", -1, 3), (Span::ZERO, 0), "unknown");
    assert_eq!(change(b"a", -1, 10), (Span::from_secs(10), 5));
}

#[test]
fn replicas_share_the_places_and_a_limit_is_bounded() {
    let replicas = |number| std::num::NonZeroU32::new(number).expect("not 0");
    assert_eq!(
        limit(10, Span::from_secs(1)).share(replicas(3)).capacity(),
        4
    );
    assert_eq!(
        limit(10, Span::from_secs(1))
            .with_limit(LARGEST_LIMIT)
            .map(|limit| limit.capacity()),
        Ok(LARGEST_LIMIT)
    );
    assert_eq!(
        limit(10, Span::from_secs(1)).with_limit(LARGEST_LIMIT + 1),
        Err(LARGEST_LIMIT)
    );
    let error = |places, max_duration| {
        let rate = Rate {
            requests_per_unit: places,
            unit: Unit::None,
            unit_multiplier: 1,
        };
        let options = Options {
            kind: crate::core::algorithm::AlgorithmKind::Concurrency,
            max_duration,
            ..Options::default()
        };
        Algorithm::try_new(&rate, &options).expect_err("an error")
    };
    assert_eq!(
        error(LARGEST_LIMIT + 1, Some(Span::from_secs(1))).remedy,
        "write at most 10000"
    );
    for max_duration in [
        None,
        Some(Span::ZERO),
        Some(Span::from_micros(LONGEST_DURATION.micros() + 1)),
    ] {
        assert_eq!(
            error(1, max_duration).option,
            "max_duration",
            "{max_duration:?}"
        );
    }
}
