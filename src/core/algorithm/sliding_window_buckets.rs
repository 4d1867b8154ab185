//! `sliding_window_buckets`: a ring of counters of short intervals.
//!
//! A check sums every bucket that overlaps the window, the oldest one whole. So no window ever has
//! more hits than the limit, and a hit is refused for at most one interval longer than necessary.
//! The ring knows its last bucket, and clears all buckets between that one and now before it is
//! used: an idle gap cannot revive counts of an earlier lap. The twin is
//! `lua/sliding_window_buckets.lua`, with `lua/log.lua`.
//!
//! Only buckets that hold hits are stored, as a packed text as in a log and not as a Redis hash: it
//! takes fewer bytes.

use super::definition::Definition;
use super::part::CountedPlaces;
use super::ticks::{self, Clock, TickOutcome};
use super::{
    Arrival, Debt, OptionError, Options, Part, SCRIPT_PARAMETERS, State, Step, Terms,
    debt_in_field, messages,
};
use crate::core::time::{Micros, Period, Span, Tick};

/// The most buckets of a ring.
pub const MOST_BUCKETS: u16 = 1_000;

/// The largest sum of all buckets: `lua/log.lua` counts modulo 2^48.
const LARGEST_TOTAL: u64 = (1 << 48) - 1;

/// A limit per sliding window, and the size of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindowBuckets {
    /// Hits per window.
    pub limit: u64,
    /// The window in microseconds; never zero.
    pub window: u64,
    /// A bucket's length in microseconds; never zero, and not above the window.
    pub interval: u64,
    /// The number of buckets: enough for the window and one interval.
    pub buckets: u16,
    /// The microseconds for which an idle key is kept.
    pub expiry: u64,
    /// Whether a refused hit is taken as debt, and of at most how many full limits.
    pub debt: Debt,
}

/// The state of a key: its buckets up to the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The number of the last bucket: intervals since the epoch.
    pub last: u64,
    /// The hits of bucket `number` are at index `number` modulo the length.
    pub counts: Box<[u64]>,
}

impl Ring {
    pub(crate) fn new(last: u64, buckets: u16) -> Self {
        Self {
            last,
            counts: vec![0; usize::from(buckets)].into(),
        }
    }

    /// The hits of a bucket; 0 if it is not in the ring.
    pub fn count(&self, number: u64) -> u64 {
        match self.last.checked_sub(number) {
            Some(age) if age < self.counts.len() as u64 => self.counts[self.index(number)],
            _ => 0,
        }
    }

    /// Clears all buckets after the last one up to `number`, which becomes the last one.
    fn advance(&mut self, number: u64) {
        if number.saturating_sub(self.last) >= self.counts.len() as u64 {
            self.counts.fill(0);
        } else {
            for cleared in self.last + 1..=number {
                self.counts[self.index(cleared)] = 0;
            }
        }
        self.last = self.last.max(number);
    }

    fn sum(&self, first: u64, last: u64) -> u64 {
        (self.first(first)..=last.min(self.last))
            .fold(0, |sum, number| sum.saturating_add(self.count(number)))
    }

    /// The first bucket from `first` on that is in the ring.
    fn first(&self, first: u64) -> u64 {
        first.max((self.last + 1).saturating_sub(self.counts.len() as u64))
    }

    fn index(&self, number: u64) -> usize {
        usize::try_from(number % self.counts.len() as u64).expect("less than the length")
    }
}

impl SlidingWindowBuckets {
    /// The hits of all buckets that overlap the `interval` before `now`, as far as the ring goes
    /// back.
    pub fn count_over(&self, state: Option<&State>, now: Micros, interval: Span) -> u64 {
        let (clock, ring) = self.read(state, Tick::FINEST.at(now));
        let first = self.first(clock.now, interval.micros());
        if interval == Span::ZERO {
            0
        } else {
            ring.map_or(0, |ring| ring.sum(first, clock.now / self.interval))
        }
    }

    fn read<'s>(&self, state: Option<&'s State>, now: u64) -> (Clock, Option<&'s Ring>) {
        let forgotten = (Clock::fresh(now), None);
        let Some(State::Buckets(ring)) = state else {
            return forgotten;
        };
        if ring.counts.len() != usize::from(self.buckets) {
            return forgotten;
        }
        // Within the last bucket, the clock counts as not having gone back.
        match ring.last.checked_sub(now / self.interval) {
            None | Some(0) => (Clock::fresh(now), Some(ring)),
            Some(behind) if behind <= self.window.div_ceil(self.interval) => {
                let start = ring.last * self.interval;
                (Clock::ahead(start, now), Some(ring))
            }
            Some(_) => forgotten,
        }
    }

    /// The oldest bucket that overlaps the `span` ticks up to `now`; not before 1970.
    const fn first(&self, now: u64, span: u64) -> u64 {
        (now + 1).saturating_sub(span) / self.interval
    }

    fn found(&self, ring: Option<&Ring>, clock: Clock, allowed: bool, hits: i64) -> TickOutcome {
        let (first, last) = (
            self.first(clock.now, self.window),
            clock.now / self.interval,
        );
        let used = ring.map_or(0, |ring| ring.sum(first, last));
        let most = self.limit.checked_sub(hits.max(0).unsigned_abs());
        let (mut reset, mut retry, mut left) = (0, 0, used);
        if let Some(ring) = ring {
            for number in ring.first(first)..=last.min(ring.last) {
                let count = ring.count(number);
                let leaves = (number + 1) * self.interval + self.window - 1 - clock.now;
                if count > 0 {
                    reset = leaves;
                    if most.is_some_and(|most| left > most) {
                        retry = leaves;
                    }
                    left = left.saturating_sub(count);
                }
            }
        }
        TickOutcome {
            allowed,
            capacity: self.limit,
            used,
            reset,
            retry: most.map(|_| retry),
        }
    }
}

impl Definition for SlidingWindowBuckets {
    fn try_new(terms: &Terms<'_>) -> Result<Self, OptionError> {
        let (window, options) = (terms.window, terms.options);
        let interval = options
            .bucket_interval
            .unwrap_or(Span::from_micros(window.micros().div_ceil(60)));
        if interval == Span::ZERO {
            return Err(messages::bucket_interval_is_zero().of("bucket_interval"));
        }
        if interval > window {
            let message = messages::bucket_interval_too_long(interval, window);
            return Err(message.of("bucket_interval"));
        }
        let shortest = Span::from_micros(window.micros() + interval.micros());
        let span = options.bucket_span.unwrap_or(shortest);
        if span < shortest {
            let message = messages::bucket_span_too_short(span, window, interval, shortest);
            return Err(message.of("bucket_span"));
        }
        let count = span.micros().div_ceil(interval.micros());
        let Some(buckets) = u16::try_from(count)
            .ok()
            .filter(|&count| count <= MOST_BUCKETS)
        else {
            return Err(too_many_buckets(count, window, interval, span, options));
        };
        let expiry = options.subject_expiry.unwrap_or(span);
        if expiry < span {
            let message = messages::subject_expiry_too_short(expiry, span);
            return Err(message.of("subject_expiry"));
        }
        Ok(Self {
            limit: terms.limit,
            window: window.micros(),
            interval: interval.micros(),
            buckets,
            expiry: expiry.micros(),
            debt: terms.debt,
        })
    }

    fn step(&self, state: Option<State>, Arrival { now, .. }: Arrival, hits: i64) -> Step {
        let (clock, ring) = self.read(state.as_ref(), Tick::FINEST.at(now));
        let first = self.first(clock.now, self.window);
        let last = clock.now / self.interval;
        let sum = ring.map_or(0, |ring| ring.sum(first, last));
        let (allowed, taken, given) = self.charge(sum, hits);
        if taken == 0 && given == 0 {
            let found = self.found(ring, clock, allowed, hits);
            return Step::unchanged(found.verdict(Tick::FINEST, clock), state);
        }
        let is_known = ring.is_some();
        let mut ring = match state {
            Some(State::Buckets(ring)) if is_known => ring,
            _ => Box::new(Ring::new(last, self.buckets)),
        };
        ring.advance(last);
        let index = ring.index(last);
        ring.counts[index] = ring.counts[index].saturating_add(taken);
        let mut left = given;
        for number in (ring.first(first)..=last).rev() {
            let index = ring.index(number);
            let less = left.min(ring.counts[index]);
            ring.counts[index] -= less;
            left -= less;
        }
        let found = self.found(Some(&ring), clock, allowed, hits);
        let verdict = found.verdict(Tick::FINEST, clock);
        let keep_for = ticks::keep_for(Tick::FINEST, &verdict).max(Span::from_micros(self.expiry));
        Step::changed(verdict, State::Buckets(ring), keep_for)
    }

    fn refund_at(
        &self,
        mut state: Option<State>,
        at: Arrival,
        parts: &[Part],
    ) -> (Option<State>, u64) {
        let (clock, known) = self.read(state.as_ref(), Tick::FINEST.at(at.now));
        let (first, is_known) = (self.first(clock.now, self.window), known.is_some());
        let mut returned = 0;
        if let Some(State::Buckets(ring)) = &mut state
            && is_known
        {
            for part in parts.iter().filter(|part| part.place >= first) {
                let less = part.hits.min(ring.count(part.place));
                if less > 0 {
                    let index = ring.index(part.place);
                    ring.counts[index] -= less;
                    returned += less;
                }
            }
        }
        (state, returned)
    }

    fn counted_places(&self, state: Option<&State>, at: Arrival) -> CountedPlaces {
        let (clock, known) = self.read(state, Tick::FINEST.at(at.now));
        let first = self.first(clock.now, self.window);
        known.map_or(CountedPlaces::NONE, |_| {
            CountedPlaces::all(first..=u64::MAX)
        })
    }

    fn limit(&mut self) -> &mut u64 {
        &mut self.limit
    }

    /// Of each window in the ring, and the two at its ends, a key may hold a full limit and its
    /// debt.
    fn is_exact(&self) -> bool {
        let windows = (u64::from(self.buckets) * self.interval).div_ceil(self.window) + 1;
        u128::from(self.limit) * u128::from(1 + self.debt.limits()) * u128::from(windows)
            <= LARGEST_TOTAL.into()
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> Period {
        Period::Even(Span::from_micros(self.window))
    }

    fn write_key_suffix(&self, out: &mut Vec<u8>) {
        for (mark, number) in [(b'.', self.interval), (b'x', self.buckets.into())] {
            out.push(mark);
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        }
    }

    debt_in_field!();

    fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS - 1] {
        [
            self.limit,
            self.window,
            self.interval,
            self.buckets.into(),
            self.expiry,
        ]
    }
}

/// The error for a ring of `count` buckets. Its remedy is one that gives a valid ring.
fn too_many_buckets(
    count: u64,
    window: Span,
    interval: Span,
    span: Span,
    options: &Options,
) -> OptionError {
    let most = u64::from(MOST_BUCKETS);
    let is_span_written = options.bucket_span.is_some();
    // A default span is the window and one bucket.
    let longer = if is_span_written {
        span.micros().div_ceil(most)
    } else {
        window.micros().div_ceil(most - 1)
    };
    let longest_span = Span::from_micros(interval.micros() * most);
    let is_span_long_enough = longest_span.micros() >= window.micros() + interval.micros();
    // No interval may be longer than the window.
    if is_span_written
        && is_span_long_enough
        && (options.bucket_interval.is_none() || longer > window.micros())
    {
        let message = messages::bucket_span_too_long(interval, span, count, most, longest_span);
        return message.of("bucket_span");
    }
    // Windows are whole seconds: an interval rounded up to milliseconds is not longer than one.
    let longer = Span::from_micros(longer.next_multiple_of(1_000));
    let message = messages::bucket_interval_too_short(interval, span, count, most, longer);
    message.of("bucket_interval")
}
