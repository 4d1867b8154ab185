//! The state of each check in a draft: what leases, the denial cache and the store decide, and what
//! is sent to the store meanwhile.

use futures_util::FutureExt;
use tokio::time::advance;

use super::*;
use crate::core::algorithm::{Algorithm, AlgorithmKind, FixedWindow, Options as AlgorithmOptions};
use crate::core::answer::{Answer, Answers, Decision};
use crate::core::time::{Period, Rate, Unit};
use crate::core::verdict::{Verdict, Wait};
use crate::limits::plan::{Check, Modes};
use crate::limits::rules::Commit;
use crate::store::memory;

const LIMIT: Algorithm = Algorithm::FixedWindow(FixedWindow {
    limit: 1_000,
    window: Period::Even(Span::from_secs(1 << 30)),
    count_denied: true,
});
const ERROR: StoreError = StoreError::NotExecuted("a test");

/// A limiter with leases and a denial cache, which the memory store does not need.
async fn limiter() -> Limiter {
    let leases = Leases::default();
    // The time of the table begins with its first use.
    let _ = leases.draws(&one("b", true), Instant::now(), &replicas());
    advance(Duration::from_secs(1)).await;
    let store = Store::Memory(memory::Memory::new(memory::Options::default()));
    let policies = FailurePolicies::new(&failure_policies::Options::default());
    let denial_cache = DenialCache::new(denial_cache::Options::default());
    Limiter::new(denial_cache, store, policies, Options::default()).with_leases(Some(leases))
}

fn replicas() -> replicas::ReplicaCount {
    replicas::ReplicaCount::new(std::num::NonZeroU32::MIN)
}

fn checks(of: &[(&str, bool)], commit: Commit) -> Arc<Checks> {
    let mut checks = Checks::of(of.iter().map(|&(key, lease)| {
        let mut check = Check::new(LIMIT, 1, Modes::default());
        check.draws_ahead = lease;
        (key.as_bytes(), check)
    }));
    checks.commit = commit;
    Arc::new(checks)
}

fn one(key: &str, lease: bool) -> Arc<Checks> {
    checks(&[(key, lease)], Commit::Each)
}

fn verdict(allowed: bool, remaining: u64) -> Verdict {
    Verdict {
        allowed,
        remaining,
        used: 1_000 - remaining,
        reset_after: Span::from_secs(1_000),
        retry_after: Wait::For(Span::from_secs(1_000)),
        delay: Span::ZERO,
    }
}

fn of<'c>(checks: &'c Arc<Checks>, span: &'c TraceSpan) -> Undecided<'c> {
    Undecided {
        checks,
        timeout: None,
        span,
        tallies: None,
    }
}

/// Decides so many requests by the store and by leases.
fn decide(limiter: &Limiter, checks: &Arc<Checks>, times: usize) {
    for _ in 0..times {
        let span = TraceSpan::default();
        let mut decide = limiter.decide(of(checks, &span));
        decide.wait().now_or_never().expect("memory does not wait");
    }
}

/// Caches a refusal of a check.
fn refuse(limiter: &Limiter, checks: &Checks) {
    let cache = limiter.denial_cache.as_ref().expect("it has one");
    let refused = [Ok(verdict(false, 0)).into()];
    cache.record(
        checks,
        &[CheckIndex(0)],
        &refused,
        Instant::now(),
        Instant::now,
    );
}

impl Draft<'_> {
    /// The checks that are sent, each with its hits.
    fn sent(&self) -> Vec<(usize, i64)> {
        let sent = self.sent_as.as_ref().unwrap_or(self.of.checks);
        let hits = |&index: &CheckIndex| (index.0, sent[index].hits);
        self.to_send.iter().map(hits).collect()
    }

    /// Takes in these answers, of all checks, to what was sent.
    fn answer(&mut self, limiter: &Limiter, answers: &[Result<Verdict, StoreError>]) {
        let (picked, _) = (std::mem::take(&mut self.to_send), self.sent_as.take());
        let each = answers.iter().map(|&answer| Answer::from(answer));
        let (now, each) = (clock::now(), each.collect());
        limiter.take_in(self, picked, Answers { now, each });
    }

    /// A letter for each check: open, or decided by the store, a lease, the denial cache; in
    /// capitals if it is refused.
    fn letters(&self) -> String {
        let letter = |decided: &Option<Decision>| match decided {
            None => 'o',
            Some(decision) => {
                let letter = match decision {
                    Decision::Store(_) => 's',
                    Decision::Lease(_) => 'l',
                    Decision::DenialCache(_) => 'd',
                    _ => 'f',
                };
                match decision.allows() {
                    true => letter,
                    false => letter.to_ascii_uppercase(),
                }
            }
        };
        self.decided.iter().map(letter).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_as_a_whole_only_peeks() {
    let (limiter, span) = (limiter().await, TraceSpan::default());
    let both = checks(&[("a", false), ("b", false)], Commit::AllOrNone);
    refuse(&limiter, &both);
    for (left, letters, then) in [(7, "Ds", vec![]), (0, "oo", vec![(0, 1), (1, 1)])] {
        let mut draft = limiter.draft(of(&both, &span));
        assert_eq!(
            (&*draft.letters(), draft.sent()),
            ("Do", vec![(0, 0), (1, 0)])
        );
        draft.answer(
            &limiter,
            &[Ok(verdict(true, left)), Ok(verdict(left > 0, left))],
        );
        assert_eq!((&*draft.letters(), draft.sent()), (letters, then));
        if left == 0 {
            // A peek is no refusal that the cache may keep.
            let alone = one("b", false);
            assert_eq!(limiter.draft(of(&alone, &span)).letters(), "o");
            draft.answer(&limiter, &[Ok(verdict(true, 1)), Ok(verdict(false, 0))]);
            assert_eq!((&*draft.letters(), draft.sent()), ("sS", vec![]));
        }
    }
}

/// The store has failed since the cache learned of the refusal.
#[tokio::test(start_paused = true)]
async fn a_cached_refusal_is_final_if_a_peek_fails() {
    let (limiter, span) = (limiter().await, TraceSpan::default());
    let both = checks(&[("a", false), ("b", false)], Commit::AllOrNone);
    refuse(&limiter, &both);
    let mut draft = limiter.draft(of(&both, &span));
    draft.answer(&limiter, &[Err(ERROR), Err(ERROR)]);
    assert_eq!((&*draft.letters(), draft.sent()), ("Df", vec![]));
    let decisions = draft.decisions();
    assert!(
        decisions
            .iter()
            .all(|decision| decision.failure().is_none())
    );
}

/// The store marks the id of an acquire that it refuses.
#[tokio::test(start_paused = true)]
async fn the_store_refuses_acquires_with_others() {
    let (limiter, span) = (limiter().await, TraceSpan::default());
    refuse(&limiter, &one("a", false));
    let options = AlgorithmOptions {
        kind: AlgorithmKind::Concurrency,
        max_duration: Some(Span::from_secs(60)),
        ..AlgorithmOptions::default()
    };
    let rate = Rate {
        requests_per_unit: 10,
        unit: Unit::None,
        unit_multiplier: 1,
    };
    let in_flight = Algorithm::try_new(&rate, &options).expect("an algorithm");
    let check = |algorithm| Check::new(algorithm, 1, Modes::default());
    let mut both = Checks::of([(&b"a"[..], check(LIMIT)), (b"b", check(in_flight))]);
    both.commit = Commit::AllOrNone;
    let both = Arc::new(both.with_holder(CheckIndex(1), b"id"));
    let draft = limiter.draft(of(&both, &span));
    assert_eq!(
        (&*draft.letters(), draft.sent()),
        ("oo", vec![(0, 1), (1, 1)])
    );
}

/// Hits may be refused for longer than a peek is.
#[tokio::test(start_paused = true)]
async fn the_cache_keeps_no_refused_peek() {
    let (limiter, span, hit) = (limiter().await, TraceSpan::default(), one("a", false));
    let peek = Check::new(LIMIT, 0, Modes::default());
    refuse(&limiter, &Checks::of([("a".as_bytes(), peek)]));
    assert_eq!(limiter.draft(of(&hit, &span)).letters(), "o");
    refuse(&limiter, &hit);
    assert_eq!(limiter.draft(of(&hit, &span)).letters(), "D");
}

#[tokio::test(start_paused = true)]
async fn leases_draw_ahead_and_then_answer() {
    let (limiter, span, a) = (limiter().await, TraceSpan::default(), one("a", true));
    decide(&limiter, &a, 8);
    let mut draft = limiter.draft(of(&a, &span));
    assert_eq!((&*draft.letters(), draft.sent()), ("o", vec![(0, 9)]));
    draft.answer(&limiter, &[Ok(verdict(true, 983))]);
    let decisions = draft.decisions();
    assert!(
        matches!(decisions[0], Decision::Store(Verdict { used: 9, .. })),
        "{decisions:?}"
    );
    let drawn = Effect::Drawn {
        before: 8,
        after: 17,
    };
    assert_eq!(decisions.effects, [(CheckIndex(0), drawn)]);
    // Of several checks only the others are sent.
    let both = checks(&[("a", true), ("c", false)], Commit::Each);
    let mut draft = limiter.draft(of(&both, &span));
    assert_eq!((&*draft.letters(), draft.sent()), ("lo", vec![(1, 1)]));
    draft.answer(&limiter, &[Err(ERROR), Ok(verdict(true, 1))]);
    assert_eq!(draft.letters(), "ls");
}

/// Two hits are held, and a draw is due.
#[tokio::test(start_paused = true)]
async fn held_hits_answer_where_the_store_or_the_cache_does_not() {
    let (limiter, span, a) = (limiter().await, TraceSpan::default(), one("a", true));
    decide(&limiter, &a, 15);
    let mut draft = limiter.draft(of(&a, &span));
    assert!(draft.sent()[0].1 > 1, "{:?}", draft.sent());
    draft.answer(&limiter, &[Err(ERROR)]);
    assert_eq!((&*draft.letters(), draft.sent()), ("l", vec![]));
    drop(draft);
    decide(&limiter, &a, 12);
    let held = |limiter: &Limiter| limiter.leased(&a, CheckIndex(0));
    let left = held(&limiter);
    assert!(left > 0);
    // The count is old: the store decides, whatever the cache has.
    advance(Duration::from_secs(2)).await;
    refuse(&limiter, &a);
    let draft = limiter.draft(of(&a, &span));
    assert_eq!((&*draft.letters(), draft.sent()), ("o", vec![(0, 1)]));
    drop(draft);
    assert_eq!(held(&limiter), left);
}

/// A draw is refused for longer than its check alone.
#[tokio::test(start_paused = true)]
async fn the_cache_keeps_no_refusal_of_a_draw_that_held_hits_answer() {
    let (limiter, span, a) = (limiter().await, TraceSpan::default(), one("a", true));
    decide(&limiter, &a, 15);
    let mut draft = limiter.draft(of(&a, &span));
    assert!(draft.sent()[0].1 > 1, "{:?}", draft.sent());
    let refused = Verdict {
        used: 1_900,
        ..verdict(false, 0)
    };
    draft.answer(&limiter, &[Ok(refused)]);
    assert_eq!(draft.letters(), "l");
    for letters in ["l", "o"] {
        assert_eq!(limiter.draft(of(&a, &span)).letters(), letters);
    }
}

#[tokio::test(start_paused = true)]
async fn the_denial_cache_refuses_what_no_lease_answers() {
    let (limiter, span, a) = (limiter().await, TraceSpan::default(), one("a", true));
    refuse(&limiter, &a);
    assert_eq!(limiter.draft(of(&a, &span)).letters(), "D");
    limiter
        .denial_cache
        .as_ref()
        .expect("it has one")
        .forget(&a);
    decide(&limiter, &a, 15);
    assert_eq!(limiter.leased(&a, CheckIndex(0)), 2);
    refuse(&limiter, &a);
    for letters in ["l", "l", "D"] {
        assert_eq!(limiter.draft(of(&a, &span)).letters(), letters);
    }
}
