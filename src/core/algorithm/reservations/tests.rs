//! Compares the steps with the rule of `tests/vectors/holds.py`.

use super::*;
use crate::core::algorithm::{AlgorithmKind, FixedWindow, Options};
use crate::core::time::{Period, Rate, Unit};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_800_000_000 * SECOND;

fn terms(ttl: u64, on_expiry: OnExpiry) -> Reservations {
    Reservations {
        ttl: Span::from_secs(ttl),
        max_share: 50,
        minimum: 0,
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
#[derive(Clone)]
struct Key {
    limit: Algorithm,
    terms: Reservations,
    state: Option<State>,
    now: u64,
}

impl Key {
    fn new(limit: Algorithm, terms: Reservations) -> Self {
        Self {
            limit,
            terms,
            state: None,
            now: START,
        }
    }

    fn at(&self) -> Arrival {
        Arrival {
            now: Micros(self.now),
            max_wait: Span::ZERO,
        }
    }

    fn step(&mut self, purpose: Purpose, hits: i64) -> (Verdict, HoldChange) {
        let at = self.at();
        let state = self.state.take();
        let (step, change) = (self.terms).step(&self.limit, purpose, hits, state, at);
        self.state = step.state;
        (step.verdict, change)
    }

    fn reserve(&mut self, id: u8, hits: i64) -> Outcome {
        self.step(Purpose::Reserve(RequestId::of(&[id])), hits)
            .1
            .outcome
    }

    fn release(&mut self, id: u8, hits: i64) -> Outcome {
        self.step(Purpose::Settle(RequestId::of(&[id])), hits)
            .1
            .outcome
    }

    fn holds(&self) -> &Holds {
        match &self.state {
            Some(State::Holds(holds)) => holds,
            other => panic!("no holds: {other:?}"),
        }
    }

    /// The hits that would count without the open holds.
    fn settled(&mut self) -> u64 {
        let (used, at) = (self.used(), self.at());
        match &self.state {
            Some(State::Holds(holds)) => used - holds.open_hits(&self.limit, at),
            _ => used,
        }
    }

    fn used(&mut self) -> u64 {
        self.step(Purpose::Plain, 0).0.used
    }
}

/// The algorithm of a world of the model.
fn algorithm(name: &str, limit: u64, window: Span) -> Algorithm {
    let kind = AlgorithmKind::NAMED
        .iter()
        .find(|(known, _)| *known == name);
    let rate = Rate {
        requests_per_unit: limit,
        unit: Unit::Second,
        unit_multiplier: u32::try_from(window.micros() / SECOND).expect("a window"),
    };
    let options = Options {
        kind: kind.expect("an algorithm").1,
        reservations: Some(terms(1, OnExpiry::Release)),
        ..Options::default()
    };
    Algorithm::try_new(&rate, &options).expect("an algorithm")
}

/// The steps of the model: settlements that are late, lost or repeated, and requests that another
/// limit refuses.
#[test]
fn steps_answer_as_the_rule_of_the_model() {
    let mut key: Option<Key> = None;
    let (mut steps, mut usage) = (0, 0_i64);
    for line in include_str!("../../../../tests/vectors/holds.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let key = match (words[0], &mut key) {
            ("#", _) => continue,
            ("world", key) => {
                let limit = algorithm(words[1], number(2), Span::from_micros(number(3)));
                let on_expiry = [OnExpiry::Release, OnExpiry::Keep][number(6) as usize];
                let mut terms = terms(number(4) / SECOND, on_expiry);
                terms.max_share = number(5) as u8;
                *key = Some(Key::new(limit, terms));
                usage = 0;
                continue;
            }
            (_, key) => key.as_mut().expect("a world"),
        };
        key.now = number(0);
        let id = |at: usize| RequestId::of(words[at].as_bytes());
        let (purpose, hits) = match words[1] {
            "reserve" => (Purpose::Reserve(id(2)), number(3) as i64),
            "settle" => (Purpose::Settle(id(2)), number(3) as i64),
            "hit" => (Purpose::Plain, number(2) as i64),
            _ => (Purpose::Plain, 0),
        };
        let (verdict, change) = key.step(purpose, hits);
        usage += change.kept;
        if change.outcome != Outcome::Refused {
            usage += change.own_use(hits, verdict.allowed);
        }
        if words[1] == "reserve" && words[4] == "1" && change.is_new() {
            let before = change.held - change.stepped;
            let undone = key.step(Purpose::Undo(id(2)), before.cast_signed());
            usage += undone.1.kept;
        }
        if let (false, 1.., Wait::For(retry)) =
            (verdict.allowed, key.limit.capacity(), verdict.retry_after)
        {
            let mut later = key.clone();
            later.now += retry.micros();
            let (again, _) = later.step(Purpose::Plain, change.stepped.cast_signed());
            assert!(
                again.allowed,
                "{line}: {:?}, again after {retry}",
                key.limit
            );
        }
        let found = [
            u64::from(verdict.allowed),
            key.used(),
            key.settled(),
            usage as u64,
        ];
        let expected = [4, 3, 2, 1].map(|last| number(words.len() - last));
        assert_eq!(found, expected, "{line}: {:?}", key.limit);
        steps += 1;
    }
    assert!(steps > 1_000);
}

#[test]
fn a_change_has_the_hold_of_its_id() {
    let mut key = Key::new(window(1_000, 86_400), terms(10, OnExpiry::Release));
    let (tally, first) = (Tally::new(&terms(10, OnExpiry::Release)), key.now);
    let mut hold_after = |seconds, purpose: fn(RequestId) -> Purpose, hits| {
        key.now += seconds * SECOND;
        let now = Micros(key.now);
        let change = key.step(purpose(RequestId::of(b"1")), hits).1;
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
    let (_, refused) = full.step(Purpose::Reserve(RequestId::of(&[2])), 1);
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
    key.step(Purpose::Plain, 0);
    let known_until = Micros(key.now) + Span::from_secs(30);
    assert!(
        key.holds().until >= known_until,
        "a store keeps them as long"
    );
    for (seconds, id, outcome, used) in [
        (2, 2, Outcome::Unknown, 300),
        (27, 1, Outcome::MatchedLate, 300),
    ] {
        key.now += seconds * SECOND;
        assert_eq!((key.release(id, 100), key.used()), (outcome, used));
    }
}

#[test]
fn a_refused_reservation_leaves_the_id_its_hits_of_before() {
    for (seconds, outcome) in [(1, Outcome::Matched), (11, Outcome::MatchedLate)] {
        let mut key = Key::new(window(1_000, 86_400), terms(10, OnExpiry::Keep));
        assert_eq!(key.reserve(1, 100), Outcome::Held);
        key.now += seconds * SECOND;
        assert_eq!((key.reserve(1, 150), key.used()), (Outcome::Held, 150));
        for _ in 0..2 {
            key.step(Purpose::Undo(RequestId::of(&[1])), 100);
            assert_eq!(key.used(), 100, "after {seconds} s");
        }
        assert_eq!((key.release(1, 120), key.used()), (outcome, 120));
    }
}

/// Nothing ends the hold again: what its id reserves after the expiry is used at once, and no peak
/// of a bucket waits for its end.
#[test]
fn what_a_kept_id_reserves_is_used_at_once() {
    let bucket = algorithm("token_bucket", 1_000, Span::from_secs(1_000_000));
    let mut key = Key::new(bucket, terms(10, OnExpiry::Keep));
    key.reserve(1, 100);
    key.now += 11 * SECOND;
    assert_eq!(key.step(Purpose::Plain, 0).1.kept, 100);
    key.reserve(2, 100);
    let more = key.step(Purpose::Reserve(RequestId::of(&[1])), 150).1;
    assert_eq!((more.outcome, more.held), (Outcome::Held, 150));
    assert_eq!((more.settled, more.kept), (50, 50));
    let open = key.holds().peaks.clone();
    for kept in [-50, 0] {
        let undone = key.step(Purpose::Undo(RequestId::of(&[1])), 100).1;
        assert_eq!((undone.kept, key.used()), (kept, 200));
        assert_eq!(key.holds().peaks, open, "the open hold has its peak");
    }
    key.release(2, 0);
    assert_eq!(key.used(), 100);
    assert!(key.holds().peaks.list.is_empty());
}

/// An active key returns to the size of its counter.
#[test]
fn each_step_forgets_ids_whose_time_is_over() {
    for on_expiry in [OnExpiry::Release, OnExpiry::Keep] {
        let mut key = Key::new(window(1_000, 86_400), terms(10, on_expiry));
        key.step(Purpose::Plain, 1);
        for id in 0..3 {
            key.reserve(id, 10);
        }
        key.release(1, 10);
        key.release(2, 10);
        key.now += 59 * SECOND;
        key.step(Purpose::Plain, 0);
        assert_eq!(key.holds().iter().count(), 2, "the settled ones");
        key.now += SECOND;
        let (at, state) = (key.at(), key.state.take());
        let (step, _) = key.terms.step(&key.limit, Purpose::Plain, 0, state, at);
        assert!(
            matches!(step.state, Some(State::FixedWindow { .. })),
            "{step:?}"
        );
        assert!(step.keep_for.is_some(), "a store writes it");
    }
}

#[test]
fn a_key_has_a_bound_of_ids() {
    let mut key = Key::new(window(1_000_000, 86_400), terms(10, OnExpiry::Keep));
    let id = |number: usize| RequestId::of(&number.to_le_bytes());
    let reserve = |key: &mut Key, number| key.step(Purpose::Reserve(id(number)), 1).1.outcome;
    for number in 0..MOST_IDS {
        assert_eq!(reserve(&mut key, number), Outcome::Held);
    }
    assert_eq!(reserve(&mut key, MOST_IDS), Outcome::Full);
    assert_eq!(reserve(&mut key, 0), Outcome::HeldBefore);
    // Kept ones make room.
    key.now += 10 * SECOND;
    assert_eq!(reserve(&mut key, MOST_IDS), Outcome::Held);
    for number in 0..2 * MOST_SETTLED {
        key.step(Purpose::Settle(id(number)), 1);
    }
    let all = key.holds().iter();
    let settled = all.filter(|(_, hold)| hold.kind == Kind::Settled);
    assert_eq!(settled.count(), MOST_SETTLED);
    assert!(key.holds().bytes() < 3 << 20);
}
