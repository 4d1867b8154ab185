//! Compares the steps with a counter of charged hits and a list of holds.

use std::collections::HashMap;

use super::*;
use crate::core::algorithm::FixedWindow;
use crate::core::time::Period;

const SECOND: u64 = 1_000_000;
const START: u64 = 1_800_000_000 * SECOND;

fn terms(ttl: u64, on_expiry: OnExpiry) -> Reservations {
    Reservations {
        ttl: Span::from_secs(ttl),
        max_share: 50,
        on_expiry,
    }
}

fn window(limit: u64, length: u64) -> Algorithm {
    Algorithm::FixedWindow(FixedWindow {
        limit,
        window: Period::Even(Span::from_secs(length)),
        count_denied: true,
    })
}

/// A key, with its limit and its time.
struct Key {
    limit: Algorithm,
    terms: Reservations,
    state: Option<State>,
    holds: Holds,
    now: u64,
}

impl Key {
    fn new(limit: Algorithm, terms: Reservations) -> Self {
        Self {
            limit,
            terms,
            state: None,
            holds: Holds::default(),
            now: START,
        }
    }

    fn step(&mut self, purpose: Purpose, hits: i64) -> (Verdict, HoldChange) {
        let at = Arrival {
            now: Micros(self.now),
            max_wait: Span::ZERO,
        };
        let state = self.state.take();
        let (step, change) =
            (self.terms).step(&self.limit, purpose, hits, state, &mut self.holds, at);
        self.state = step.state;
        (step.verdict, change)
    }

    fn reserve(&mut self, id: u8, hits: i64) -> Outcome {
        self.step(Purpose::Reserve(HolderId::of(&[id])), hits)
            .1
            .outcome
    }

    fn release(&mut self, id: u8, hits: i64) -> Outcome {
        self.step(Purpose::Settle(HolderId::of(&[id])), hits)
            .1
            .outcome
    }

    fn used(&mut self) -> u64 {
        self.step(Purpose::Plain, 0).0.used
    }
}

#[test]
fn a_counter_has_what_is_settled_and_what_is_held() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        let limit = random.u64(1..1_000);
        let mut key = Key::new(window(limit, 86_400), terms(20, OnExpiry::Release));
        let (mut charged, mut settled) = (0, HashMap::<u8, u64>::new());
        let mut held = HashMap::<u8, (u64, u64)>::new();
        for _ in 0..60 {
            key.now += random.u64(..3 * SECOND);
            held.retain(|_, (_, until)| *until > key.now);
            settled.retain(|_, until| *until > key.now);
            let (id, hits) = (random.u8(..10), random.u64(..limit / 2 + 2));
            let used =
                |held: &HashMap<u8, (u64, u64)>| held.values().map(|(hits, _)| hits).sum::<u64>();
            if random.bool() {
                let outcome = key.reserve(id, hits.cast_signed());
                let wanted = hits.min((limit / 2).max(1));
                let (own, until) = held.get(&id).copied().unwrap_or((0, key.now + 20 * SECOND));
                let fits = charged + used(&held) + wanted.saturating_sub(own) <= limit;
                if settled.contains_key(&id) {
                    assert_eq!(outcome, Outcome::Overtaken);
                } else if held.contains_key(&id) && wanted <= own {
                    assert_eq!(outcome, Outcome::HeldBefore);
                } else if fits {
                    assert!(matches!(outcome, Outcome::Held | Outcome::Shortened));
                    held.insert(id, (wanted.max(own), until));
                } else {
                    assert_eq!(outcome, Outcome::Refused);
                }
            } else {
                let outcome = key.release(id, hits.cast_signed());
                let expected = match (settled.contains_key(&id), held.remove(&id)) {
                    (true, _) => Outcome::SettledBefore,
                    (false, Some(_)) => Outcome::Matched,
                    (false, None) => Outcome::Unknown,
                };
                assert_eq!(outcome, expected);
                if outcome != Outcome::SettledBefore {
                    charged += hits;
                    settled.insert(id, key.now + 60 * SECOND);
                }
            }
            assert_eq!(key.used(), charged + used(&held));
        }
    }
}

#[test]
fn an_earlier_window_is_never_refunded() {
    for on_expiry in [OnExpiry::Release, OnExpiry::Keep] {
        let mut key = Key::new(window(100, 10), terms(30, on_expiry));
        assert_eq!(key.reserve(1, 40), Outcome::Held);
        assert_eq!(key.reserve(2, 40), Outcome::Held);
        key.now += 10 * SECOND;
        // Below the reservation nothing is counted, above it the difference.
        assert_eq!((key.release(1, 10), key.used()), (Outcome::Matched, 0));
        assert_eq!((key.release(2, 70), key.used()), (Outcome::Matched, 30));
        // An expired one is known for another `ttl`.
        assert_eq!(key.reserve(3, 40), Outcome::Held);
        key.now += 31 * SECOND;
        assert_eq!(key.used(), 0);
        assert_eq!((key.release(3, 45), key.used()), (Outcome::Matched, 5));
        assert_eq!(key.reserve(4, 40), Outcome::Held);
        key.now += 31 * SECOND;
        key.step(Purpose::Plain, 1);
        key.now += 31 * SECOND;
        assert_eq!((key.release(4, 45), key.used()), (Outcome::Unknown, 45));
    }
}

#[test]
fn a_kept_hold_stays_counted_and_a_peek_changes_nothing() {
    for (on_expiry, used) in [(OnExpiry::Release, 0), (OnExpiry::Keep, 40)] {
        let limit = window(100, 86_400);
        let mut key = Key::new(limit, terms(10, on_expiry));
        assert_eq!(key.reserve(1, 40), Outcome::Held);
        key.now += 10 * SECOND;
        let before = (key.state.clone(), key.holds.clone());
        assert_eq!(key.used(), used);
        assert_eq!((key.state.clone(), key.holds.clone()), before);
        assert_eq!(key.step(Purpose::Plain, 0).1, HoldChange::default());
    }
}

#[test]
fn a_change_has_the_hold_of_its_id() {
    let mut key = Key::new(window(1_000, 86_400), terms(10, OnExpiry::Release));
    let (tally, first) = (Tally::new(Span::from_secs(10)), key.now);
    let mut hold_after = |seconds, purpose: fn(HolderId) -> Purpose, hits| {
        key.now += seconds * SECOND;
        let now = Micros(key.now);
        let change = key.step(purpose(HolderId::of(b"1")), hits).1;
        tally.record(&change, hits, now);
        let hold = change.hold(key.terms.ttl, now);
        let hold = hold.map(|(hits, until)| (hits, (until.0 - first) / SECOND));
        (change.outcome, hold, tally.held.places(now))
    };
    for (hits, outcome, held) in [
        (100, Outcome::Held, 100_u64),
        (300, Outcome::Held, 300),
        (200, Outcome::HeldBefore, 300),
        (600, Outcome::Shortened, 500),
    ] {
        let after = hold_after(2, Purpose::Reserve, hits);
        assert_eq!(after, (outcome, Some((held, 12)), held.cast_signed()));
    }
    let settled = hold_after(1, Purpose::Settle, 70);
    assert_eq!(settled, (Outcome::Matched, None, 0));
    let overtaken = hold_after(1, Purpose::Reserve, 100);
    assert_eq!(overtaken, (Outcome::Overtaken, None, 0));
    assert_eq!(hold_after(1, |_| Purpose::Plain, 1).1, None);
    let mut full = Key::new(window(100, 86_400), terms(10, OnExpiry::Release));
    full.reserve(1, 50);
    full.step(Purpose::Plain, 50);
    let (_, refused) = full.step(Purpose::Reserve(HolderId::of(&[2])), 1);
    assert_eq!((refused.outcome, refused.held), (Outcome::Refused, 0));
}

#[test]
fn a_shorter_ttl_is_of_one_hold_only() {
    let mut key = Key::new(window(1_000, 86_400), terms(30, OnExpiry::Keep));
    assert_eq!(key.reserve(1, 100), Outcome::Held);
    key.terms.ttl = Span::from_secs(1);
    assert_eq!(key.reserve(2, 100), Outcome::Held);
    // The second is known for 1 s more, the first for 30 s.
    key.now += 30 * SECOND;
    assert_eq!(key.reserve(3, 0), Outcome::Held);
    let known_until = Micros(key.now) + Span::from_secs(30);
    assert!(key.holds.until >= known_until, "a store keeps them as long");
    for (seconds, id, outcome, used) in [
        (2, 2, Outcome::Unknown, 300),
        (27, 1, Outcome::Matched, 300),
    ] {
        key.now += seconds * SECOND;
        assert_eq!((key.release(id, 100), key.used()), (outcome, used));
    }
}

#[test]
fn a_key_has_a_bound_of_ids() {
    let mut key = Key::new(window(1_000_000, 86_400), terms(10, OnExpiry::Keep));
    let id = |number: usize| HolderId::of(&number.to_le_bytes());
    let reserve = |key: &mut Key, number| key.step(Purpose::Reserve(id(number)), 1).1.outcome;
    for number in 0..MOST_IDS {
        assert_eq!(reserve(&mut key, number), Outcome::Held);
    }
    assert_eq!(reserve(&mut key, MOST_IDS), Outcome::Full);
    assert_eq!(reserve(&mut key, 0), Outcome::HeldBefore);
    // Kept ones make room, a hundred with each step.
    key.now += 10 * SECOND;
    assert_eq!(reserve(&mut key, MOST_IDS), Outcome::Full);
    assert_eq!(reserve(&mut key, MOST_IDS), Outcome::Held);
    for number in 0..2 * MOST_SETTLED {
        key.step(Purpose::Settle(id(number)), 1);
    }
    let settled = key
        .holds
        .iter()
        .filter(|(_, hold)| hold.kind == Kind::Settled);
    assert_eq!(settled.count(), MOST_SETTLED);
    assert!(key.holds.bytes() < 2 << 20);
}
