//! With time passed in: what is cached and for how long, and that the store would have made every
//! refusal of the cache.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::core::algorithm::{AlgorithmKind, Arrival, FixedWindow, State};
use crate::core::time::{Micros, Period, Rate, Unit};
use crate::core::verdict::StoreError;
use crate::limits::plan::{AllOrNone, Modes};

const FIXED: FixedWindow = FixedWindow {
    limit: 10,
    window: Period::Even(Span::from_secs(60)),
    count_denied: true,
};

fn cache() -> DenialCache {
    DenialCache::new(Options::default()).expect("a cache")
}

fn made(kind: AlgorithmKind, limit: u64, count_denied: bool) -> Algorithm {
    delayed(kind, limit, count_denied, None)
}

fn delayed(
    kind: AlgorithmKind,
    limit: u64,
    count_denied: bool,
    max_delay: Option<Span>,
) -> Algorithm {
    let rate = Rate {
        requests_per_unit: limit,
        unit: Unit::Second,
        unit_multiplier: 1,
    };
    let options = crate::core::algorithm::Options {
        kind,
        count_denied: Some(count_denied),
        max_delay,
        ..Default::default()
    };
    Algorithm::try_new(&rate, &options).expect("an algorithm")
}

fn checks(algorithm: Algorithm, hits: &[(&str, i64)]) -> Checks {
    Checks::of(hits.iter().map(|&(key, hits)| {
        let check = Check::new(algorithm, hits, Modes::default());
        (key.as_bytes(), check)
    }))
}

/// Checks of a fixed window.
fn fixed(hits: &[(&str, i64)]) -> Checks {
    checks(Algorithm::FixedWindow(FIXED), hits)
}

fn group(mut checks: Checks) -> Checks {
    checks.commit = Commit::AllOrNone;
    checks
}

fn refusal(retry_after: Wait, reset: Span) -> Verdict {
    Verdict {
        allowed: false,
        remaining: 0,
        used: 12,
        reset_after: reset,
        retry_after,
        delay: Span::ZERO,
    }
}

/// A refusal with a wait of so many milliseconds, and a reset after twice as much.
fn refused_for(wait_ms: u64) -> Verdict {
    let wait = Span::from_micros(wait_ms * 1_000);
    refusal(Wait::For(wait), Span::from_micros(wait_ms * 2_000))
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl DenialCache {
    fn knows(&self, checks: &Checks, now: Instant) -> Vec<bool> {
        let refused = self.refused(checks, now);
        refused.iter().map(Option::is_some).collect()
    }

    fn entries_at(&self, now: Instant) -> usize {
        self.usage(now).0
    }

    /// Learns the answers to all checks in a decision without length.
    fn record_all(&self, checks: &Checks, answers: &[Verdict], at: Instant) {
        let answers: Vec<_> = answers.iter().map(|one| Ok(*one).into()).collect();
        self.record(checks, &checks.indices(), &answers, at, || at);
    }
}

#[test]
fn an_entry_ends_at_the_retry_time_counted_from_the_beginning_of_its_decision() {
    let (cache, began) = (cache(), Instant::now());
    let one = checks(made(AlgorithmKind::TokenBucket, 10, false), &[("a", 1)]);
    let answers = [Ok(refused_for(100)).into()];
    cache.record(&one, &[CheckIndex(0)], &answers, began, || began + ms(30));
    assert_eq!(cache.entries_at(began + ms(99)), 1);
    let verdict = cache.refused(&one, began + ms(99))[0].expect("still refused");
    // The times in the answer count down from the arrival of the store's answer.
    let [retry_after, reset_after] = [31_000, 131_000].map(Span::from_micros);
    assert_eq!(verdict.retry_after, Wait::For(retry_after));
    assert_eq!(verdict.reset_after, reset_after);
    assert_eq!((verdict.allowed, verdict.remaining), (false, 0));
    assert_eq!(cache.knows(&one, began + ms(100)), [false]);
    assert_eq!(cache.entries_at(began + ms(100)), 0);
}

#[test]
fn look_ups_are_counted_by_what_was_found() {
    let (cache, now) = (cache(), Instant::now());
    let one = checks(made(AlgorithmKind::TokenBucket, 10, false), &[("a", 1)]);
    let lookups = || cache.usage(now).1;
    assert_eq!(lookups(), Lookups::default());
    assert_eq!(cache.knows(&one, now), [false]);
    cache.record_all(&one, &[refused_for(100)], now);
    for (at, is_known) in [(0, true), (0, true), (100, false)] {
        assert_eq!(cache.knows(&one, now + ms(at)), [is_known], "{at}");
    }
    assert_eq!(lookups(), Lookups { hits: 2, misses: 2 });
    // A peek, a refund and a charge bypass the cache.
    for (algorithm, hits) in [
        (one_of(10), 0),
        (one_of(10), -1),
        (made(AlgorithmKind::TokenBucket, 10, true), 1),
    ] {
        let checks = checks(algorithm, &[("a", hits)]);
        assert_eq!(cache.knows(&checks, now), [false]);
    }
    assert_eq!(lookups(), Lookups { hits: 2, misses: 2 });
}

fn one_of(limit: u64) -> Algorithm {
    made(AlgorithmKind::TokenBucket, limit, false)
}

#[test]
fn no_entry_lives_longer_than_a_second() {
    let (cache, began) = (cache(), Instant::now());
    let log = |limit| made(AlgorithmKind::SlidingWindowLog, limit, false);
    let (long, never) = (
        checks(log(10), &[("long", 1)]),
        checks(log(0), &[("never", 1)]),
    );
    cache.record_all(&long, &[refused_for(3_600_000)], began);
    cache.record_all(&never, &[refusal(Wait::Never, Span::from_secs(9))], began);
    for checks in [long, never] {
        let known = [999, 1_000].map(|at| cache.knows(&checks, began + ms(at)));
        assert_eq!(known, [[true], [false]]);
    }
}

#[test]
fn a_single_hit_and_what_never_passes_are_refused_and_the_store_knows_other_waits() {
    let (cache, now) = (cache(), Instant::now());
    let algorithm = made(AlgorithmKind::TokenBucket, 10, false);
    let asked = |hits| checks(algorithm, &[("a", hits)]);
    cache.record_all(&asked(1), &[refused_for(500)], now);
    for (hits, known) in [
        (1, true),
        (2, false),
        (10, false),
        (11, true),
        (i64::MAX, true),
        (0, false),
        (-1, false),
    ] {
        assert_eq!(cache.knows(&asked(hits), now), [known], "{hits} hits");
    }
    for (hits, wait) in [
        (1, Wait::For(Span::from_micros(500_000))),
        (11, Wait::Never),
    ] {
        let verdict = cache.refused(&asked(hits), now)[0].expect("refused");
        assert_eq!(verdict.retry_after, wait);
    }
    // Of two, the one that holds for longer stays.
    for (wait, until) in [(200, 499), (900, 899)] {
        cache.record_all(&asked(1), &[refused_for(wait)], now);
        assert_eq!(cache.knows(&asked(1), now + ms(until)), [true]);
    }
}

#[test]
fn a_full_fixed_window_refuses_any_number_of_hits() {
    let asked = |algorithm, hits| checks(Algorithm::FixedWindow(algorithm), &[("a", hits)]);
    let answer = [refusal(Wait::Never, Span::from_micros(700_000))];
    let not_counted = FixedWindow {
        count_denied: false,
        ..FIXED
    };
    for (fixed, learned) in [
        (FIXED, asked(FIXED, 15)),
        (not_counted, asked(not_counted, 15)),
        (FIXED, group(asked(FIXED, 15))),
    ] {
        let (cache, now) = (cache(), Instant::now());
        cache.record_all(&learned, &answer, now);
        let known = [699, 700].map(|at| cache.knows(&asked(fixed, 1), now + ms(at)));
        assert_eq!(known, [[true], [false]], "the window has ended");
        let wait = Wait::For(Span::from_micros(700_000));
        for (hits, wait) in [(1, wait), (10, wait), (11, Wait::Never)] {
            let verdict = cache.refused(&asked(fixed, hits), now)[0].expect("refused");
            let found = (verdict.remaining, verdict.retry_after);
            assert_eq!(found, (0, wait), "{hits} hits");
        }
    }
}

#[test]
fn a_changed_amount_does_not_find_old_entries() {
    let (cache, now) = (cache(), Instant::now());
    let window = |limit| Algorithm::FixedWindow(FixedWindow { limit, ..FIXED });
    let bucket = one_of(10);
    let Algorithm::TokenBucket(token) = bucket else {
        panic!("a bucket")
    };
    let larger = Algorithm::TokenBucket(crate::core::algorithm::TokenBucket { burst: 11, ..token });
    for (key, old, new) in [("a", window(10), window(11)), ("b", bucket, larger)] {
        let asked = |algorithm| checks(algorithm, &[(key, 1)]);
        cache.record_all(&asked(old), &[refused_for(900)], now);
        let known = [old, new].map(|algorithm| cache.knows(&asked(algorithm), now));
        assert_eq!(known, [[true], [false]], "{key}");
    }
}

#[test]
fn refusals_of_a_shaper_are_cached_only_without_max_delay() {
    let (cache, now) = (cache(), Instant::now());
    for (max_delay, known) in [(Span::ZERO, true), (Span::from_secs(1), false)] {
        let leaky = delayed(AlgorithmKind::LeakyBucket, 10, false, Some(max_delay));
        let one = checks(leaky, &[("a", 1)]);
        cache.record_all(&one, &[refused_for(900)], now);
        assert_eq!(cache.knows(&one, now), [known]);
    }
}

#[test]
fn checks_that_commit_all_or_none_are_refused_for_one_that_refuses_them_all() {
    let (cache, now) = (cache(), Instant::now());
    let allowed = Verdict {
        allowed: true,
        ..refused_for(1)
    };
    let both = fixed(&[("a", 1), ("b", 1)]);
    let answers = [refused_for(900), allowed];
    cache.record_all(&group(both.clone()), &answers, now);
    assert_eq!(cache.knows(&both, now), [true, false]);
    assert_eq!(cache.knows(&group(both), now), [true, false]);
    let one = |shadow| {
        let modes = Modes {
            shadow,
            ..Modes::default()
        };
        Check::new(Algorithm::FixedWindow(FIXED), 1, modes)
    };
    // The request may pass, and count.
    let shadowed = Checks::of([(&b"a"[..], one(true)), (b"b", one(false))]);
    assert_eq!(cache.knows(&group(shadowed), now), [false, false]);
    assert_eq!(cache.knows(&group(fixed(&[("a", 1)])), now), [true]);
    // The second of one key was refused because of the first, and neither is taken.
    let answers = [allowed, refused_for(900)];
    cache.record_all(&group(fixed(&[("c", 10), ("c", 1)])), &answers, now);
    assert_eq!(cache.knows(&fixed(&[("c", 1)]), now), [false]);
}

#[test]
fn its_size_is_bounded_and_the_smallest_works() {
    assert!(DenialCache::new(Options { bytes: 0 }).is_none());
    for (bytes, most) in [
        (1, WAYS),
        (100, WAYS),
        (10_000, 10_000 / size_of::<CachedKey>()),
        (1 << 20, (1 << 20) / size_of::<CachedKey>()),
    ] {
        let cache = DenialCache::new(Options { bytes }).expect("a cache");
        let now = Instant::now();
        for key in 0..50_000 {
            let one = fixed(&[(&key.to_string(), 1)]);
            cache.record_all(&one, &[refused_for(900)], now);
        }
        let last = fixed(&[("49999", 1)]);
        assert_eq!(cache.knows(&last, now), [true], "the newest entry is kept");
        let entries = cache.entries_at(now);
        let is_right = entries <= most && entries > most / 2;
        assert!(is_right, "{bytes} bytes: {entries} of {most}");
    }
}

/// The store, without a cache: pure steps.
#[derive(Default)]
struct Reference(HashMap<String, State>);

impl Reference {
    fn decide(
        &mut self,
        checks: &Checks,
        keys: &[&str],
        picked: &[CheckIndex],
        at: Arrival,
    ) -> Vec<Result<Verdict, StoreError>> {
        if checks.commit == Commit::AllOrNone {
            let group = AllOrNone::decide(
                checks,
                at,
                |index| self.0.get(keys[index.0]).cloned(),
                |left, right| keys[left.0] == keys[right.0],
            );
            let writes = group.writes.into_iter();
            let written = writes.map(|(index, state, _)| (keys[index.0].to_owned(), state));
            self.0.extend(written);
            return group.verdicts.into_iter().map(Ok).collect();
        }
        let mut answers = vec![Err(StoreError::NotExecuted("not picked")); checks.len()];
        for &index in picked {
            let (check, key) = (&checks[index], keys[index.0]);
            let state = self.0.get(key).cloned();
            let step = check.algorithm.step(state, at, check.hits);
            let state = step.state.map(|state| (key.to_owned(), state));
            self.0.extend(state);
            answers[index.0] = Ok(step.verdict);
        }
        answers
    }

    fn would_allow(&self, check: &Check, key: &str, hits: i64, at: Arrival) -> bool {
        let state = self.0.get(key).cloned();
        check.algorithm.step(state, at, hits).verdict.allowed
    }
}

proptest! {
    #![proptest_config(crate::testing::property(2_000))]

    /// With the cache in front, every refusal of its own is one that the store would have made, for
    /// these hits and for more, with the same numbers, and the store has the states that it would
    /// have without the cache. Only a fixed window that counts refused hits misses the hits that
    /// the cache refused.
    #[test]
    fn the_store_would_have_refused_too(
        kind in prop::sample::select(AlgorithmKind::OVER_TIME.map(|(_, kind)| kind).to_vec()), limit in 0..12_u64, count_denied in any::<bool>(),
        operations in prop::collection::vec(
            (0..400_000_u64, 0..50_000_u64, prop::collection::vec((0..2_usize, prop_oneof![8 => 1..4_i64, 2 => 4..15_i64, 1 => -3..=0_i64]), 1..4), any::<bool>()),
            1..60,
        ),
    ) {
        let (cache, epoch, algorithm) = (cache(), Instant::now(), made(kind, limit, count_denied));
        let (mut store, mut without_cache, mut micros) = (Reference::default(), Reference::default(), 0);
        for (passes, trip, hits, is_group) in operations {
            micros += passes;
            let hits: Vec<_> = hits.into_iter().map(|(key, hits)| (["a", "b"][key], hits)).collect();
            let keys: Vec<_> = hits.iter().map(|(key, _)| *key).collect();
            let checks = checks(algorithm, &hits);
            let checks = if is_group { group(checks) } else { checks };
            let began = epoch + Duration::from_micros(micros);
            let arrival = |micros| Arrival { now: Micros(1_800_000_000_000_000 + micros), max_wait: Span::MAX };
            let known = cache.refused(&checks, began);
            for ((check, key), verdict) in checks.iter().zip(&keys).zip(&known).filter_map(|(check, known)| Some((check, (*known)?))) {
                for hits in [check.hits, check.hits + 1, check.hits * 2, 1_000_000] {
                    prop_assert!(!store.would_allow(check, key, hits, arrival(micros)), "{hits} of \
                        {key:?}: {verdict:?}");
                }
                prop_assert!(!verdict.allowed && verdict.retry_after != Wait::For(Span::ZERO));
                // Its numbers are true; times are longer by at most the time of the store's reply.
                let truth = check.algorithm.step(store.0.get(*key).cloned(), arrival(micros), check.hits).verdict;
                let is_true = |told: Span, truth: Span| truth <= told && told.micros() <= truth.micros() + 50_000;
                prop_assert_eq!(verdict.remaining, truth.remaining);
                prop_assert!(is_true(verdict.until_reset(), truth.until_reset()), "{:?} instead of \
                    {:?}", verdict, truth);
                prop_assert_eq!(verdict.retry_after == Wait::Never, truth.retry_after == Wait::Never);
            }
            let (picked, cached): (Vec<_>, Vec<_>) = checks.indices().into_iter().partition(|index| known[index.0].is_none());
            if picked.is_empty() || !is_group {
                let _ = without_cache.decide(&checks, &keys, &cached, arrival(micros));
            }
            if picked.is_empty() {
                continue;
            }
            // On the way to the store and back.
            micros += trip;
            let answers = store.decide(&checks, &keys, &picked, arrival(micros));
            let _ = without_cache.decide(&checks, &keys, &picked, arrival(micros));
            if !(count_denied && kind == AlgorithmKind::FixedWindow) {
                prop_assert_eq!(&store.0, &without_cache.0);
            }
            micros += trip;
            let now = || epoch + Duration::from_micros(micros);
            let answers: Vec<_> = answers.into_iter().map(Answer::from).collect();
            cache.record(&checks, &picked, &answers, began, now);
        }
    }
}

/// A refusal arrives after a refund, or a reset, that began later.
#[tokio::test(start_paused = true)]
async fn a_refusal_from_before_a_reset_is_not_cached() {
    let (cache, key) = (cache(), fixed(&[("a", 1)]));
    let record = |began| {
        let refused = [Ok(refused_for(900)).into()];
        cache.record(&key, &[CheckIndex(0)], &refused, began, Instant::now);
        cache.knows(&key, Instant::now())
    };
    let began = Instant::now();
    tokio::time::advance(ms(10)).await;
    cache.forget(&key);
    assert_eq!(record(began), [false]);
    tokio::time::advance(ms(10)).await;
    assert_eq!(record(Instant::now()), [true]);
}
