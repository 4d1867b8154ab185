//! The lease of one key in this process: pure rules, with the time as an argument. Times are in
//! microseconds of the table.
//!
//! The rules, and why they hold. The count of a window is never less than the hits that were used
//! in it and not refunded, and the hits that all processes hold. A hit is used only by the store's
//! own verdict, or because it is held, before `until`; and a draw is granted only hits with which
//! the count is at most the limit. So hits used and held, less those refunded, are at most the
//! limit. `until` is never after the end of their window: it is computed from the instant before
//! the draw was sent, and a 4,096th of the rest is taken off, which is more than two clocks differ.
//! So a reply that arrives before its own `until` and before the lease's `until` is of the same
//! window. One that arrives after the lease's `until` begins a new one. The hits of a reply that
//! arrives after its own `until` are lost. No window needs a number.
//!
//! A refund takes used hits off the count, and held hits stay a part of it. So a count that falls
//! voids nothing, unless it is less than the hits that this process alone holds: then the counter
//! was reset or lost, or hits were refunded that were never used. Held hits beyond the count are
//! void, and since nothing counts them any more, their part of the limit is not lost. Sliding
//! windows take refunds off their newest hits, with and without leases.

use crate::core::algorithm::Algorithm;
use crate::core::time::Span;
use crate::core::verdict::{Verdict, Wait};

/// Admitted requests in the measured time that make a key busy. No draw is of fewer hits.
const BUSY: u64 = 8;

/// The measured time, unless a twentieth of the window is less: 0.1 s. A block is the number of
/// hits used in it, because a crash should lose no more.
const MEASURED: u64 = 100_000;

/// A count that is older than 1 s answers nothing: other replicas' hits, a reset and refunds are
/// noticed by then.
const FRESH: u64 = 1_000_000;

/// After a failure, held hits answer for this time, however old their count is.
const RETRY: u64 = 100_000;

/// The part of the rest of a window by which a lease ends earlier.
const CLOCKS: u64 = 4_096;

/// Numbers of a limit that leases need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub(super) algorithm: &'a Algorithm,
    /// Number of replicas that share the limit. It only sizes blocks.
    pub(super) replicas: u64,
}

impl Terms<'_> {
    /// Hits that fit in a window.
    fn limit(self) -> u64 {
        self.algorithm.capacity()
    }
}

/// Decision about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseStep {
    /// The lease answers.
    Leased(Verdict),
    /// The store decides. With `draws`, no other request draws until this one ends; `ahead` are the
    /// hits to draw beyond its own.
    Sent { ahead: u64, draws: bool },
}

/// Result of the store's answer to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drawn {
    /// The answer to the request; `None`: its own hits have to be sent again, without those ahead.
    pub(super) verdict: Option<Verdict>,
    /// Hits that are held from now on.
    pub(super) granted: u64,
    /// Hits that were held and are void: they are not in the store's count.
    pub(super) void: u64,
    /// Held hits whose window has ended.
    pub(super) ended: u64,
}

/// Requests or hits of the last two measured times.
#[derive(Clone, Copy, Debug, Default)]
struct RecentDemand {
    before: u64,
    now: u64,
}

impl RecentDemand {
    fn next(&mut self, is_next: bool) {
        self.before = if is_next { self.now } else { 0 };
        self.now = 0;
    }

    fn most(self) -> u64 {
        self.before.max(self.now)
    }
}

/// State of a key. All zero: an unused entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lease {
    /// Hits that are held.
    pub(super) rest: u64,
    /// Hits that were held after the last draw.
    block: u64,
    /// Hits are answered before this instant.
    pub(super) until: u64,
    fresh_until: u64,
    /// The limit has recovered by then.
    reset: u64,
    /// The store's count by its latest answer, and the time of that answer.
    store_used: u64,
    answered_at: u64,
    /// When the measured time began: the last use, or a measured time before it.
    pub(super) slot: u64,
    requests: RecentDemand,
    hits: RecentDemand,
    /// A draw is under way.
    is_drawing: bool,
}

impl Lease {
    /// Decides who answers a request of `hits`, at least one and not above the limit.
    pub(super) fn decide(&mut self, now: u64, hits: u64, terms: Terms<'_>) -> LeaseStep {
        self.measure(now, terms.algorithm);
        if self.answers(now)
            && let Some(verdict) = self.take(now, hits, terms)
        {
            return LeaseStep::Leased(verdict);
        }
        if self.is_drawing {
            return LeaseStep::Sent {
                ahead: 0,
                draws: false,
            };
        }
        let (ahead, is_fresh) = (self.wanted(now, hits, terms), self.is_fresh(now));
        if ahead == 0
            && is_fresh
            && let Some(verdict) = self.take(now, hits, terms)
        {
            return LeaseStep::Leased(verdict);
        }
        self.is_drawing = ahead > 0 || !is_fresh;
        LeaseStep::Sent {
            ahead,
            draws: self.is_drawing,
        }
    }

    /// Answers a request with hits that are held, if there are enough.
    pub(super) fn take(&mut self, now: u64, hits: u64, terms: Terms<'_>) -> Option<Verdict> {
        if now >= self.until {
            return None;
        }
        self.rest = self.rest.checked_sub(hits)?;
        self.count(now, hits, terms.algorithm);
        let used = self.used();
        Some(Verdict {
            allowed: true,
            remaining: terms.limit().saturating_sub(used),
            used,
            reset_after: Span::from_micros(self.reset.saturating_sub(now)),
            retry_after: Wait::For(Span::ZERO),
            delay: Span::ZERO,
        })
    }

    /// Takes in the store's answer, which arrived at `now`, to a request of `hits` and `ahead` more
    /// that began at `began`.
    pub(super) fn drawn(
        &mut self,
        (began, now): (u64, u64),
        (hits, ahead): (u64, u64),
        verdict: &Verdict,
        terms: Terms<'_>,
    ) -> Drawn {
        let mut drawn = Drawn::default();
        let left = terms.algorithm.lease_left(verdict).micros();
        let until = began.saturating_add(left - left.div_ceil(CLOCKS));
        let position = terms.algorithm.counted_before(verdict, hits + ahead);
        let mut used = verdict.used;
        if now < until {
            let before = position.unwrap_or(verdict.used);
            let mut latest = verdict.used;
            if now >= self.until {
                drawn.ended = std::mem::take(&mut self.rest);
            } else if began >= self.answered_at {
                drawn.void = self.rest.saturating_sub(before);
                self.rest -= drawn.void;
            } else {
                // The store may have sent the other answer after this one.
                latest = latest.max(self.store_used);
            }
            drawn.granted = position.map_or(0, |before| {
                ahead.min(terms.limit().saturating_sub(before + hits))
            });
            self.rest += drawn.granted;
            self.block = self.rest;
            (self.store_used, self.answered_at) = (latest, now);
            (self.until, self.fresh_until) = (until, began.saturating_add(FRESH));
            self.reset = now.saturating_add(verdict.reset_after.micros());
            used = self.used();
        }
        drawn.verdict = match position {
            Some(before) if before + hits <= terms.limit() => {
                self.count(now, hits, terms.algorithm);
                Some(Verdict {
                    allowed: true,
                    remaining: terms.limit().saturating_sub(used),
                    used,
                    ..*verdict
                })
            }
            None if ahead > 0 => None,
            Some(_) | None => Some(*verdict),
        };
        drawn
    }

    /// The store did not answer.
    pub(super) fn failed(&mut self, now: u64) {
        self.fresh_until = self.fresh_until.max(now.saturating_add(RETRY));
    }

    /// A draw was not answered, and the store may have counted it. The key is busy again when
    /// further requests were admitted: so draws lose no more hits than requests have used.
    pub(super) fn draw_lost(&mut self) {
        (self.requests, self.hits) = Default::default();
    }

    /// The draw that was under way has ended.
    pub(super) fn end_draw(&mut self) {
        self.is_drawing = false;
    }

    /// Hits that a request at `now` could be answered with.
    pub(super) fn leased(&self, now: u64) -> u64 {
        if now < self.until { self.rest } else { 0 }
    }

    /// Hits that count as used: all hits of other replicas, and the hits of this one that are not
    /// held.
    fn used(&self) -> u64 {
        self.store_used.saturating_sub(self.rest)
    }

    /// Begins a measured time, if the last one is over.
    fn measure(&mut self, now: u64, algorithm: &Algorithm) {
        let window = algorithm.lease_window().unwrap_or_default().micros();
        let measured = MEASURED.min(window / 20);
        let passed = now.saturating_sub(self.slot);
        if passed >= measured {
            self.slot = now;
            let is_next = passed < measured.saturating_mul(2);
            self.requests.next(is_next);
            self.hits.next(is_next);
        }
    }

    /// Counts an admitted request. Refused requests make no key busy, and no block larger.
    fn count(&mut self, now: u64, hits: u64, algorithm: &Algorithm) {
        self.measure(now, algorithm);
        self.requests.now += 1;
        self.hits.now = self.hits.now.saturating_add(hits);
    }

    /// Whether held hits answer a request: the count is fresh, and no draw is due.
    fn answers(&self, now: u64) -> bool {
        self.is_fresh(now) && (self.is_drawing || self.rest > self.block / 4)
    }

    fn is_fresh(&self, now: u64) -> bool {
        now < self.fresh_until
    }

    /// Whether there are enough hits, of a count that is too old to answer with.
    pub(super) fn is_old(&self, now: u64, hits: u64) -> bool {
        self.leased(now) >= hits && !self.is_fresh(now)
    }

    /// The hits to draw ahead of a request: none for a key that is not busy, in a window that no
    /// answer has described yet, or near the limit.
    fn wanted(&self, now: u64, hits: u64, terms: Terms<'_>) -> u64 {
        if self.requests.most() < BUSY || now >= self.until {
            return 0;
        }
        let part = terms.limit().saturating_sub(self.store_used) / (2 * terms.replicas);
        let block = self.hits.most().min(part).min(terms.limit() - hits);
        Some(block.saturating_sub(self.rest))
            .filter(|&block| block >= BUSY)
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
