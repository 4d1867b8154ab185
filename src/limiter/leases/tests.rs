//! Tests of the table of leases, with a store that takes the real steps. Time advances only where a
//! test advances it.

use std::collections::HashMap;
use std::num::NonZeroU32;

use tokio::time::{Duration, advance};

use super::*;
use crate::core::algorithm::{Algorithm, Arrival, FixedWindow, State};
use crate::core::time::{Micros, Period, Span};
use crate::core::verdict::StoreError;
use crate::limits::plan::Modes;

const LIMIT: FixedWindow = FixedWindow {
    limit: 1_000,
    window: Period::Even(Span::from_secs(60)),
    count_denied: true,
};

const NOT_EXECUTED: StoreError = StoreError::NotExecuted("a test");

/// Decider of a check, and whether the check was allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Lease,
    Store(bool),
    Error,
}

/// A process with leases, and a store.
struct Bench {
    leases: Leases,
    replicas: ReplicaCount,
    states: HashMap<Vec<u8>, State>,
    /// The time at which a window of the store began.
    began: Instant,
    /// Checks that the store has decided.
    asked: u64,
    is_down: bool,
}

impl Bench {
    async fn new() -> Self {
        let (leases, began) = (Leases::default(), Instant::now());
        // The table is made now.
        leases.table();
        advance(Duration::from_secs(1)).await;
        Self {
            leases,
            replicas: ReplicaCount::new(NonZeroU32::MIN),
            states: HashMap::new(),
            began,
            asked: 0,
            is_down: false,
        }
    }

    fn decide(&mut self, checks: &Checks, index: CheckIndex) -> Result<Verdict, StoreError> {
        if self.is_down {
            return Err(NOT_EXECUTED);
        }
        self.asked += 1;
        let check = &checks[index];
        let passed = Span::from(self.began.elapsed()).micros();
        let at = Arrival {
            now: Micros(60_000_000 + passed),
            max_wait: Span::ZERO,
        };
        let key = checks.key(check).to_vec();
        let step = check
            .algorithm
            .step(self.states.remove(&key), at, check.hits);
        if let Some(state) = step.state {
            self.states.insert(key, state);
        }
        Ok(step.verdict)
    }

    /// A request, as `Limiter` sends it without a denial cache.
    fn request(&mut self, checks: &Checks) -> Vec<By> {
        let leases = self.leases.clone();
        let Some(mut draws) = leases.draws(checks, Instant::now(), &self.replicas) else {
            let decide = |index| by(self.decide(checks, index));
            return checks.indices().into_iter().map(decide).collect();
        };
        self.finish(checks, &mut draws)
    }

    /// Sends what is not answered, and takes in the answers.
    fn finish(&mut self, checks: &Checks, draws: &mut Draws<'_>) -> Vec<By> {
        let mut picked = checks.indices();
        picked.retain(|index| draws.answer(*index).is_none());
        let mut asked = checks.clone();
        for &index in &picked {
            asked.draw_ahead(index, draws.ahead(index));
        }
        let mut answers: Vec<Answer> = vec![NOT_EXECUTED.into(); checks.len()];
        for &index in &picked {
            answers[index.0] = self.decide(&asked, index).into();
        }
        let again = draws.take_in(checks, &picked, &mut answers);
        for &index in &again {
            assert_eq!(draws.ahead(index), 0);
            answers[index.0] = self.decide(checks, index).into();
        }
        let none = draws.take_in(checks, &again, &mut answers);
        assert!(none.is_empty(), "asked again twice");
        let decided = |(index, answer): (usize, Answer)| match draws.answer(CheckIndex(index)) {
            Some(verdict) => {
                assert!(verdict.allowed);
                By::Lease
            }
            None => by(answer.verdict),
        };
        answers.into_iter().enumerate().map(decided).collect()
    }

    /// Sends `count` requests. Returns how many were allowed.
    fn requests(&mut self, checks: &Checks, count: usize) -> usize {
        let allowed = |by: &By| matches!(by, By::Lease | By::Store(true));
        (0..count)
            .filter(|_| self.request(checks).iter().all(allowed))
            .count()
    }

    fn begin(&self, checks: &Checks) -> Draws<'_> {
        self.leases
            .draws(checks, Instant::now(), &self.replicas)
            .expect("leases have a part in it")
    }

    fn at_once(&self, checks: &Checks) -> Option<Verdict> {
        let now = Instant::now();
        let draws = self.leases.draws(checks, now, &self.replicas)?;
        draws.answer(CheckIndex(0))
    }

    fn held(&self, checks: &Checks) -> u64 {
        self.leases.leased(checks, CheckIndex(0), Instant::now())
    }

    fn len(&self) -> usize {
        self.leases.len(Instant::now())
    }

    /// The count of the store.
    fn count(&self, checks: &Checks) -> u64 {
        match self.states.get(checks.key(&checks[CheckIndex(0)])) {
            Some(State::FixedWindow { count, .. }) => *count,
            _ => 0,
        }
    }

    /// Draws by result: granted, partial, refused, failed.
    fn draws(&self) -> [u64; 4] {
        [
            Event::Granted,
            Event::Partial,
            Event::Refused,
            Event::Failed,
        ]
        .map(|event| self.leases.counted(event))
    }

    /// Hits that were drawn, and the unused ones by cause: the window ended, evicted, and void.
    fn hits(&self) -> [u64; 4] {
        [
            Event::DrawnHits,
            Event::WindowEnded,
            Event::Evicted,
            Event::Void,
        ]
        .map(|event| self.leases.counted(event))
    }

    /// Address of the lease set of a check.
    fn set(&self, checks: &Checks) -> *const LeaseSet {
        let set = self.leases.table().set(fingerprint(&checks[CheckIndex(0)]));
        std::ptr::from_ref(&*set)
    }

    fn knows(&self, checks: &Checks) -> bool {
        let key = fingerprint(&checks[CheckIndex(0)]);
        let set = self.leases.table().set(key);
        set.iter().any(|entry| entry.key == key)
    }
}

fn by(answer: Result<Verdict, StoreError>) -> By {
    answer.map_or(By::Error, |verdict| By::Store(verdict.allowed))
}

fn checks_of(limit: FixedWindow, keys: &[(&str, i64)]) -> Checks {
    checks_with(true, limit, keys)
}

fn checks_with(lease: bool, limit: FixedWindow, keys: &[(&str, i64)]) -> Checks {
    Checks::of(keys.iter().map(|&(key, hits)| {
        let mut check = Check::new(Algorithm::FixedWindow(limit), hits, Modes::default());
        check.draws_ahead = lease;
        (key.as_bytes(), check)
    }))
}

fn one(key: &str) -> Checks {
    checks_of(LIMIT, &[(key, 1)])
}

#[tokio::test(start_paused = true)]
async fn a_busy_key_draws_and_the_store_counts_what_is_used_and_held() {
    let (mut bench, key) = (Bench::new().await, one("a"));
    assert_eq!(bench.requests(&key, 8), 8);
    assert_eq!((bench.asked, bench.draws()), (8, [0; 4]), "not busy yet");
    assert_eq!((bench.held(&key), bench.len()), (0, 0));
    assert_eq!(bench.request(&key), [By::Store(true)]);
    assert_eq!(bench.draws(), [1, 0, 0, 0]);
    assert_eq!((bench.held(&key), bench.len()), (8, 1));
    assert_eq!(bench.request(&key), [By::Lease]);
    assert_eq!(bench.requests(&key, 400), 400);
    assert!(bench.asked < 20, "{} of 410 asked the store", bench.asked);
    assert_eq!(bench.count(&key), 410 + bench.held(&key));
    // Another key goes to the store.
    assert_eq!(bench.request(&one("b")), [By::Store(true)]);
    assert_eq!(bench.requests(&key, 2_000), 590, "exactly the limit");
    let [drawn, ..] = bench.hits();
    assert_eq!(bench.held(&key), 0);
    assert_eq!(drawn, 1_000 - (bench.asked - 1 - (2_000 - 590)));
}

#[tokio::test(start_paused = true)]
async fn what_is_held_ends_with_its_window_and_is_counted() {
    let (mut bench, key) = (Bench::new().await, one("a"));
    bench.requests(&key, 100);
    let held = bench.held(&key);
    assert!(held > 0);
    advance(Duration::from_secs(59)).await;
    assert_eq!((bench.held(&key), bench.len()), (0, 0));
    assert!(bench.at_once(&key).is_none());
    assert_eq!(bench.hits()[1], 0, "only when it is seen");
    assert_eq!(bench.requests(&key, 1_100), 1_000);
    assert_eq!(bench.hits()[1..], [held, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_counter_voids_what_was_drawn_from_it() {
    let (mut bench, key) = (Bench::new().await, one("a"));
    bench.requests(&key, 100);
    let held = bench.held(&key);
    bench.states.clear();
    advance(Duration::from_millis(1_001)).await;
    assert!(bench.at_once(&key).is_none(), "a second old");
    assert_eq!(bench.request(&key), [By::Store(true)]);
    assert_eq!(bench.hits()[1..], [0, 0, held]);
    assert_eq!(bench.held(&key), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_key_replaces_the_one_that_was_not_used_for_the_longest_time() {
    let (mut bench, first) = (Bench::new().await, one("a"));
    let set = bench.set(&first);
    let others: Vec<_> = (0..)
        .map(|number| one(&format!("key{number}")))
        .filter(|checks| bench.set(checks) == set)
        .take(2 * WAYS)
        .collect();
    bench.requests(&first, 100);
    let held = bench.held(&first);
    for (index, other) in others.iter().enumerate() {
        advance(Duration::from_millis(1)).await;
        assert_eq!(bench.knows(&first), index < WAYS, "{index}");
        bench.request(other);
        let known: Vec<_> = others.iter().map(|key| bench.knows(key)).collect();
        let is_recent = |of: usize| of <= index && index - of < WAYS;
        let recent: Vec<_> = (0..others.len()).map(is_recent).collect();
        // `first` is evicted when the set is full.
        assert!(known == recent || index < WAYS - 1, "{index}: {known:?}");
    }
    assert!(held > 0);
    assert_eq!(bench.hits()[1..], [0, held, 0]);
    // Hits of an entry that is replaced after its window count as ended, not as evicted.
    bench.requests(&first, 100);
    let held = bench.held(&first);
    advance(Duration::from_secs(60)).await;
    for other in &others[..WAYS] {
        bench.request(other);
    }
    assert!(!bench.knows(&first) && held > 0);
    assert_eq!(bench.hits()[1], held);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_ends_its_draw() {
    let (mut bench, key) = (Bench::new().await, one("a"));
    bench.requests(&key, 8);
    let (draw, other) = (bench.begin(&key), bench.begin(&key));
    assert_eq!(draw.ahead(CheckIndex(0)), 8);
    assert_eq!(other.ahead(CheckIndex(0)), 0, "one draw at a time");
    drop(other);
    assert_eq!(bench.draws(), [0; 4], "it had none");
    assert_eq!(bench.begin(&key).ahead(CheckIndex(0)), 0, "still under way");
    drop(draw);
    assert_eq!(bench.draws(), [0, 0, 0, 1]);
    // Its hits may be lost. No more are drawn until as many are used.
    let draw = bench.begin(&key);
    assert_eq!(draw.ahead(CheckIndex(0)), 0);
    drop(draw);
    bench.requests(&key, 8);
    let draw = bench.begin(&key);
    assert!(draw.ahead(CheckIndex(0)) >= 8);
}

/// As above, if the store does not answer.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_gets_one_draw() {
    let (mut bench, key) = (Bench::new().await, one("a"));
    bench.requests(&key, 8);
    bench.is_down = true;
    for _ in 0..10 {
        assert_eq!(bench.request(&key), [By::Error]);
    }
    assert_eq!(bench.draws(), [0, 0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn an_answered_request_ends_its_draw_once() {
    let (mut bench, key) = (Bench::new().await, one("a"));
    bench.requests(&key, 8);
    let leases = bench.leases.clone();
    let mut draws = leases
        .draws(&key, Instant::now(), &bench.replicas)
        .expect("a draw");
    assert_eq!(bench.finish(&key, &mut draws), [By::Store(true)]);
    // Another draw begins; the end of the first one does not end it.
    assert_eq!(bench.requests(&key, 6), 6);
    let next = bench.begin(&key);
    assert!(next.ahead(CheckIndex(0)) >= 8);
    drop(draws);
    assert_eq!(bench.begin(&key).ahead(CheckIndex(0)), 0);
    assert_eq!(bench.draws(), [1, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_draw_is_asked_again_with_its_own_hits() {
    let limit = FixedWindow {
        count_denied: false,
        ..LIMIT
    };
    let (mut bench, key) = (Bench::new().await, checks_of(limit, &[("a", 1)]));
    bench.requests(&key, 8);
    // Other replicas leave five hits.
    let others = checks_of(limit, &[("a", 987)]);
    assert_eq!(
        bench.decide(&others, CheckIndex(0)).map(|it| it.allowed),
        Ok(true)
    );
    let asked = bench.asked;
    assert_eq!(bench.request(&key), [By::Store(true)]);
    assert_eq!((bench.asked, bench.count(&key)), (asked + 2, 996));
    assert_eq!((bench.draws(), bench.held(&key)), ([0, 0, 1, 0], 0));
    assert_eq!(bench.requests(&key, 100), 4);
}

#[tokio::test(start_paused = true)]
async fn a_draw_beyond_the_limit_gets_what_is_left() {
    let (mut bench, key) = (Bench::new().await, one("a"));
    bench.requests(&key, 8);
    let others = checks_of(LIMIT, &[("a", 987)]);
    let _ = bench.decide(&others, CheckIndex(0));
    assert_eq!(bench.request(&key), [By::Store(true)]);
    assert_eq!((bench.draws(), bench.held(&key)), ([0, 1, 0, 0], 4));
    assert_eq!(bench.requests(&key, 100), 4);
    assert_eq!(bench.draws(), [0, 1, 0, 0], "near the limit no draws");
}

#[tokio::test(start_paused = true)]
async fn only_hits_that_are_held_are_answered_at_once() {
    let key = one("a");
    let new = Leases::default();
    let (replicas, without) = (
        ReplicaCount::new(NonZeroU32::MIN),
        checks_with(false, LIMIT, &[("a", 1)]),
    );
    assert!(new.draws(&without, Instant::now(), &replicas).is_none());
    assert!(new.0.table.get().is_none(), "no table for it");
    let mut bench = Bench::new().await;
    bench.requests(&key, 100);
    let held = bench.held(&key);
    let of = |hits: i64| checks_of(LIMIT, &[("a", hits)]);
    for hits in [0, -1, i64::MIN, held.cast_signed() + 1, 1_001, i64::MAX] {
        assert!(bench.at_once(&of(hits)).is_none(), "{hits}");
    }
    assert!(bench.at_once(&without).is_none());
    assert_eq!(
        bench.leases.leased(&without, CheckIndex(0), Instant::now()),
        0
    );
    assert_eq!(bench.held(&key), held);
    let verdict = bench.at_once(&of(2)).expect("two of them");
    assert_eq!(bench.held(&key), held - 2);
    assert_eq!((verdict.used, verdict.remaining), (102, 898));
    assert_eq!(verdict.reset_after, Span::from_secs(59));
}

#[tokio::test(start_paused = true)]
async fn requests_without_leases_and_with_give_backs_are_left_alone() {
    let bench = Bench::new().await;
    let begin = |checks: &Checks| {
        let draws = bench.leases.draws(checks, Instant::now(), &bench.replicas);
        draws.is_some()
    };
    for keys in [
        &[("a", 0)][..],
        &[("a", -1)],
        &[("a", 1), ("b", -1)],
        &[("a", 1_001)],
        &[],
    ] {
        assert!(!begin(&checks_of(LIMIT, keys)), "{keys:?}");
    }
    assert!(begin(&checks_of(LIMIT, &[("a", 0), ("b", 1)])));
}

#[tokio::test(start_paused = true)]
async fn of_several_checks_each_has_its_own_lease() {
    let (mut bench, hot) = (Bench::new().await, one("a"));
    bench.requests(&hot, 100);
    let (both, held) = (
        checks_of(LIMIT, &[("b", 1), ("a", 1), ("c", 0)]),
        bench.held(&hot),
    );
    let asked = bench.asked;
    assert_eq!(
        bench.request(&both),
        [By::Store(true), By::Lease, By::Store(true)]
    );
    assert_eq!((bench.asked, bench.held(&hot)), (asked + 2, held - 1));
}

#[test]
fn the_table_keeps_its_bounds() {
    let leases = Leases::default();
    let table = leases.table();
    assert_eq!(table.sets.len() * WAYS, MAX_ENTRIES);
    assert!(size_of_val(&*table.sets) <= MAX_BYTES);
}
