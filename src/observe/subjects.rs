//! The heaviest subjects by hits and by refusals over the last minute and hour, and the last
//! descriptors that no limit matched.
//!
//! A subject is a counter and its limit. Each thread that decides requests counts in a pane of its
//! own ([`windows::Pane`]), under a lock that another thread takes only to exchange the pane for an
//! empty one. So no two requests wait for each other, and nothing is merged on their path. A
//! request whose thread finds its pane locked is counted as unknown, which is part of the error.
//!
//! All of it is approximate, of this process alone, and lost at a restart. The bytes are bounded
//! whatever clients send; see [`MAX_BYTES`].
//!
//! A subject is a counter key and not a limit and a value: two values that share a counter are one
//! subject, and it survives a changed amount or a reload. Its path is kept as text, because numbers
//! of limits change with a reload. Counting the subjects of a request adds at most 2.5 % to the
//! instructions of its decision in memory where requests of 500 customers alternate, and at most
//! 0.9 % to the instructions of a whole call.

mod ranking;
mod sketch;
pub(crate) mod text;
pub(crate) mod unmatched;
mod windows;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::core::fingerprint::Fingerprint;
use crate::core::request::DecodedRequest;
use crate::core::{lock, try_lock};
use crate::limits::plan::{DecidedBy, Outcome, Outcomes, Plan};
use crate::net::clock;
use crate::observe::metrics::Core;
pub use ranking::{Heaviest, Query, Ranked};
use text::Path;
pub use text::{LimitedSubject, NO_LIMIT, REQUEST_LIMIT};
use unmatched::{Quota, Unmatched};
pub use unmatched::{UnmatchedDescriptor, UnmatchedDomain};
use windows::{Pane, Windows};

/// The bytes of all counters with their texts, in a process with any number of workers, and while
/// they are read: the sum of the three below.
pub const MAX_BYTES: usize = WINDOW_BYTES + WORKER_BYTES + RANKING_BYTES;

/// The panes of the last minute and hour, 14 of them with up to 2 times 700 counters.
const WINDOW_BYTES: usize = 15 * (256 << 10);

/// The panes that threads count in, in equal parts, and one that is empty. With up to ten workers
/// each has as many counters as is of use.
const WORKER_BYTES: usize = 13 * (256 << 10);

/// The table of one ranking while it is computed. One is computed at a time.
const RANKING_BYTES: usize = 1 << 20;

/// The number by which subjects are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranking {
    /// All hits, also refused ones.
    Hits,
    /// Refused hits.
    Refusals,
}

/// The window of a ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recent {
    /// The last 60 to 70 seconds.
    Minute,
    /// The last 60 to 70 minutes.
    Hour,
}

/// How often [`Subjects::maintain`] reads the clock.
const TURN: Duration = Duration::from_secs(1);

/// The subjects of a process's decisions, counted by all threads.
#[derive(Debug)]
pub struct Subjects {
    parts: Box<[ThreadPart]>,
    collected: Mutex<Collected>,
    unmatched: Unmatched,
    started: Instant,
}

/// Counts of one thread, on cache lines of its own. Many processors fetch two lines of 64 bytes
/// together.
#[derive(Debug)]
#[repr(align(128))]
struct ThreadPart {
    pane: Mutex<Pane>,
    /// Hits, and refused hits, of requests that found the pane locked.
    unknown: AtomicU64,
    unknown_refused: AtomicU64,
    quota: Quota,
}

#[derive(Debug)]
struct Collected {
    windows: Windows,
    /// Empty; exchanged for the pane of a part.
    spare: Pane,
}

impl Subjects {
    /// Nothing yet. `cores` is the number of threads that decide requests, including the control
    /// thread.
    pub fn new(cores: usize) -> Arc<Self> {
        let cores = cores.max(1);
        let pane_bytes = ((WORKER_BYTES - size_of::<Self>()) / (cores + 1))
            .saturating_sub(size_of::<ThreadPart>());
        let part = || ThreadPart {
            pane: Mutex::new(Pane::new(pane_bytes)),
            unknown: AtomicU64::new(0),
            unknown_refused: AtomicU64::new(0),
            quota: Quota::default(),
        };
        Arc::new(Self {
            parts: (0..cores).map(|_| part()).collect(),
            collected: Mutex::new(Collected {
                windows: Windows::new(WINDOW_BYTES),
                spare: Pane::new(pane_bytes),
            }),
            unmatched: Unmatched::default(),
            started: Instant::now(),
        })
    }

    /// Counts the decisions on one request, and keeps a few of the descriptors that no limit
    /// matched.
    pub fn observe(
        &self,
        core: Core,
        request: &DecodedRequest<'_>,
        plan: &Plan,
        outcomes: &Outcomes<'_>,
    ) {
        let part = &self.parts[core.0.min(self.parts.len() - 1)];
        let outcomes = &outcomes.each[..];
        if outcomes.iter().any(|outcome| outcome.counter.is_some()) {
            match try_lock(&part.pane) {
                Some(mut pane) => count(&mut pane, outcomes),
                None => part.count_unknown(outcomes),
            }
        }
        let is_free = |outcome: &Outcome<'_>| matches!(outcome.by, DecidedBy::NoLimit);
        if outcomes.iter().any(is_free) {
            let quota = &part.quota;
            self.unmatched.observe(quota, request, plan);
        }
    }

    /// The heaviest subjects. Takes milliseconds of the thread, and blocks it while another ranking
    /// is computed.
    pub fn heaviest(&self, query: &Query) -> Heaviest {
        let mut collected = lock(&self.collected);
        let now = self.started.elapsed();
        self.collect(&mut collected);
        collected.windows.advance(now);
        ranking::heaviest(&collected.windows.view(query.window, now), query)
    }

    /// The last descriptors that no limit matched, by domain; of one domain only, if it is given.
    /// The domain that was seen last comes first.
    pub fn unmatched(&self, domain: Option<&str>) -> Vec<UnmatchedDomain> {
        self.unmatched.by_domain(domain)
    }

    /// Keeps the windows moving; never ends. Panes are merged on a blocking thread.
    pub async fn maintain(self: Arc<Self>) {
        let mut turn = tokio::time::interval(TURN);
        loop {
            turn.tick().await;
            self.tick();
            if self.is_due() {
                let subjects = Arc::clone(&self);
                // It can only fail by a panic, which costs one turn.
                let _ = tokio::task::spawn_blocking(move || subjects.rotate()).await;
            }
        }
    }

    /// Whether a pane is over. A ranking that is computed now closes it too.
    fn is_due(&self) -> bool {
        let now = self.started.elapsed();
        try_lock(&self.collected).is_some_and(|collected| collected.windows.is_due(now))
    }

    /// Begins the next second of the samples.
    fn tick(&self) {
        self.unmatched.set_time(clock::now());
        for part in &self.parts {
            part.quota.renew();
        }
    }

    fn rotate(&self) {
        let mut collected = lock(&self.collected);
        self.collect(&mut collected);
        collected.windows.advance(self.started.elapsed());
    }

    /// Moves the counts of all threads to the open pane.
    fn collect(&self, collected: &mut Collected) {
        let Collected { windows, spare } = collected;
        for part in &self.parts {
            // For the length of an exchange of pointers.
            std::mem::swap(&mut *lock(&part.pane), spare);
            windows.open().merge(spare);
            spare.clear();
            windows.open().add_unknown(
                part.unknown.swap(0, Ordering::Relaxed),
                part.unknown_refused.swap(0, Ordering::Relaxed),
            );
        }
    }
}

fn count(pane: &mut Pane, outcomes: &[Outcome<'_>]) {
    for outcome in outcomes {
        let (Some(counter), Ok(hits @ 1..)) = (outcome.counter, u64::try_from(outcome.used()))
        else {
            continue;
        };
        let fingerprint = match outcome.by {
            DecidedBy::Check { check, .. } => check.fingerprint,
            _ => Fingerprint::of(counter),
        };
        let fingerprint = fingerprint.half();
        let text = |texts: &mut Vec<u8>| text::write(texts, Path::of(outcome), counter);
        let refused = if outcome.refuses { hits } else { 0 };
        pane.hits.add(fingerprint, hits, refused, text);
        if outcome.refuses {
            pane.refusals.add(fingerprint, hits, 0, text);
        }
    }
}

impl ThreadPart {
    #[cold]
    fn count_unknown(&self, outcomes: &[Outcome<'_>]) {
        for outcome in outcomes {
            let hits = u64::try_from(outcome.used()).unwrap_or(0);
            self.unknown.fetch_add(hits, Ordering::Relaxed);
            if outcome.refuses {
                self.unknown_refused.fetch_add(hits, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
