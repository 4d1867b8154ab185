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
fn decide(
    limit: &Algorithm,
    id: &[u8],
    state: Option<State>,
    now: u64,
    hits: i64,
) -> (Step, Change) {
    let Algorithm::Concurrency(limit) = limit else {
        panic!("{limit:?}")
    };
    limit.step_by(RequestId::of(id), state, Micros(now), hits)
}

/// The meaning of the algorithm, without any order.
#[derive(Default)]
struct Naive {
    /// Ids with their times, places, and acquires that joined.
    holders: Vec<(u8, u64, u64, u8)>,
    marks: Vec<(u8, u64, Mark)>,
}

impl Naive {
    fn decide(&mut self, id: u8, hits: i64, now: u64, (limit, life): (u64, u64)) -> (bool, u64) {
        let is_held =
            |&(_, since, ..): &(u8, u64, u64, u8)| since + 15 + life > now && since <= now + life;
        let is_known =
            |&(_, then, _): &(u8, u64, Mark)| then + 2_000_015 > now && then <= now + 2_000_000;
        let used = |holders: &[(u8, u64, u64, u8)]| {
            let held = holders.iter().filter(|one| is_held(one));
            held.map(|one| one.2).sum::<u64>()
        };
        let (taken, present) = (used(&self.holders), now - now % 16);
        let own = self.holders.iter().find(|one| one.0 == id && is_held(one));
        let own = own.copied();
        let places = own.map_or(0, |own| own.2);
        let mark = self.marks.iter().find(|one| one.0 == id && is_known(one));
        let mark = mark.copied().map(|(_, then, mark)| (then, mark));
        let is_early = matches!(mark, Some((_, Mark::Early | Mark::Overtaken)));
        // A request that takes none needs no free place.
        let others = if is_early { 0 } else { taken };
        let allowed = match u64::try_from(hits) {
            Ok(0) => return (places > 0 || others < limit, taken),
            Ok(asked) => asked <= places || others.saturating_add(asked - places) <= limit,
            Err(_) => true,
        };
        let (mut holder, mut new) = (own, mark);
        match (own, mark) {
            (Some(own), _) if hits > 0 && allowed => {
                holder = Some((
                    id,
                    own.1,
                    hits.unsigned_abs().max(own.2),
                    (own.3 + 1).min(15),
                ));
            }
            (Some(own), _) if hits == TAKE_BACK && own.3 > 0 => {
                holder = Some((id, own.1, own.2, own.3 - 1));
            }
            (Some(_), _) if hits < 0 => (holder, new) = (None, Some((present, Mark::Over))),
            (Some(_), _) => return (allowed, taken),
            (None, Some((_, Mark::Early))) if hits < 0 && hits != TAKE_BACK => {
                new = Some((present, Mark::Early));
            }
            (None, Some((then, Mark::Early))) if hits > 0 && allowed => {
                new = Some((then, Mark::Overtaken));
            }
            (None, Some((_, Mark::Overtaken))) if hits < 0 => new = Some((present, Mark::Over)),
            (None, Some((_, Mark::Early | Mark::Overtaken))) => return (allowed, taken),
            (None, _) if hits > 0 && allowed => {
                (holder, new) = (Some((id, present, hits.unsigned_abs(), 0)), None);
            }
            (None, None) if hits < 0 && hits != TAKE_BACK => new = Some((present, Mark::Early)),
            (None, Some(_)) if hits < 0 => return (allowed, taken),
            (None, _) => new = Some((present, Mark::Over)),
        }
        self.holders.retain(|one| one.0 != id);
        self.holders.extend(holder);
        self.marks.retain(|one| one.0 != id);
        self.marks.extend(new.map(|(then, mark)| (id, then, mark)));
        // A write drops all that has expired.
        self.holders.retain(is_held);
        self.marks.retain(is_known);
        (allowed, used(&self.holders))
    }
}

proptest! {
    #![proptest_config(crate::testing::property(3_000))]

    #[test]
    fn a_set_of_holders_is_what_a_list_of_them_is(
        places in 0_u64..6,
        life in 1_u64..40,
        asks in prop::collection::vec(
            (
                0_u8..6,
                prop_oneof![
                    4 => Just(1_i64),
                    4 => Just(-1),
                    1 => Just(0),
                    2 => -3_i64..5,
                    2 => Just(TAKE_BACK),
                    1 => any::<i64>(),
                ],
                prop_oneof![6 => 0_i64..2_000_000, 1 => 0_i64..60_000_000, 1 => -30_000_000_i64..0],
            ),
            1..60,
        ),
    ) {
        let life = Span::from_micros(life * 500_000);
        let (algorithm, mut naive, mut state, mut now) =
            (limit(places, life), Naive::default(), None, START);
        for (id, hits, pause) in asks {
            now = now.saturating_add_signed(pause);
            let expected = naive.decide(id, hits, now, (places, life.micros()));
            let before = state.clone();
            let (step, _) = decide(&algorithm, &[id], state, now, hits);
            prop_assert_eq!(
                (step.verdict.allowed, step.verdict.used),
                expected,
                "{} hits of {} at \
                {}",
                hits,
                id,
                now
            );
            prop_assert_eq!(step.verdict.remaining, places.saturating_sub(expected.1));
            if step.keep_for.is_none() {
                prop_assert_eq!(&step.state, &before);
            }
            // When it need not be kept any longer, it means nothing.
            if let Some(keep_for) = step.keep_for {
                let then = now + keep_for.micros();
                let verdict = |state| decide(&algorithm, &[id], state, then, hits).0.verdict;
                prop_assert_eq!(verdict(step.state.clone()), verdict(None));
            }
            state = step.state;
        }
    }

    #[test]
    fn numbers_of_any_size_are_total(
        places in 0..=LARGEST_LIMIT,
        life in 1..=LONGEST_DURATION.micros(),
        now in any::<u64>(),
        hits in any::<i64>(),
        then in any::<u64>(),
    ) {
        let algorithm = limit(places, Span::from_micros(life));
        let state = decide(&algorithm, b"a", None, now, hits).0.state;
        for (id, hits) in [
            (b"a", 1),
            (b"a", -1),
            (b"b", i64::MAX),
            (b"b", i64::MIN),
            (b"a", 0),
            (b"b", hits),
        ] {
            let (step, _) = decide(&algorithm, id, state.clone(), then, hits);
            prop_assert!(step.verdict.used <= places && step.verdict.remaining <= places);
        }
    }
}

#[test]
fn marks_are_bounded_and_the_oldest_goes_first() {
    let algorithm = limit(1, Span::from_secs(60));
    let mut state = None;
    let release = |state, number: usize, now| {
        let (step, _) = decide(&algorithm, &number.to_le_bytes(), state, now, -1);
        step.state
    };
    let at = |number: usize| START + NUMBERS * number as u64;
    for number in 0..=MOST_MARKS {
        state = release(state, number, at(number));
    }
    let Some(State::Holders(holders)) = &state else {
        panic!("{state:?}")
    };
    assert_eq!(holders.iter().count(), MOST_MARKS);
    let used = |number: usize| {
        let now = at(MOST_MARKS);
        let (step, _) = decide(&algorithm, &number.to_le_bytes(), state.clone(), now, 1);
        step.verdict.used
    };
    assert_eq!(
        (used(0), used(1), used(MOST_MARKS)),
        (1, 0, 0),
        "the first is forgotten"
    );
}

/// Times are stored in steps of 16 ticks.
#[test]
fn a_place_never_ends_early_and_at_most_a_step_late() {
    for life in [1, 15, 16, 17, 10_000_000] {
        let algorithm = limit(1, Span::from_micros(life));
        for begin in START..START + 16 {
            let (step, _) = decide(&algorithm, b"a", None, begin, 1);
            let is_free = |now| {
                decide(&algorithm, b"b", step.state.clone(), now, 0)
                    .0
                    .verdict
                    .allowed
            };
            let end = begin + life;
            assert!(!is_free(end - 1), "{life} from {begin}");
            assert!(is_free(end + 15), "{life} from {begin}");
        }
    }
}

/// Acquires whose answers are lost, and retries of their callers, in any order.
#[test]
fn an_acquire_that_is_taken_back_leaves_its_place_to_a_retry() {
    let algorithm = limit(2, Span::from_secs(60));
    let used = |asks: &[i64]| {
        let mut state = None;
        for (index, &hits) in asks.iter().enumerate() {
            let (step, _) = decide(&algorithm, b"a", state, START + index as u64, hits);
            state = step.state;
        }
        let (step, _) = decide(&algorithm, b"b", state, START + 99, 0);
        step.verdict.used
    };
    for (asks, expected) in [
        (&[1, TAKE_BACK][..], 0),
        (&[1, 1, TAKE_BACK], 1),
        (&[1, 1, TAKE_BACK, TAKE_BACK], 0),
        (&[1, TAKE_BACK, 1], 1),
        (&[1, TAKE_BACK, -1, 1], 1),
        (&[1, 1, TAKE_BACK, -1], 0),
        (&[TAKE_BACK, 1], 1),
        (&[-1, TAKE_BACK, 1], 0),
        (&[-1, 1, TAKE_BACK, 1], 1),
        (&[2, 1, TAKE_BACK], 2),
    ] {
        assert_eq!(used(asks), expected, "{asks:?}");
    }
    let joined = [&[1; 40][..], &[TAKE_BACK; 40]].concat();
    assert_eq!(used(&joined), 0, "as many as are counted");
}

#[test]
fn a_step_says_what_changed() {
    let algorithm = limit(9, Span::from_secs(60));
    let mut state = None;
    let mut change = |id: &[u8], hits, secs: u64| {
        let now = START + secs * 1_000_000;
        let (step, Change { age, places }) = decide(&algorithm, id, state.take(), now, hits);
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
        error(LARGEST_LIMIT + 1, Some(Span::from_secs(1)))
            .message
            .remedy,
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
