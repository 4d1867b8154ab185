//! `sliding_window_log`: a log of the times of all hits, which is exact over any window.
//!
//! Each entry holds the running total up to itself: counting is a binary search. Hits of one tick
//! share an entry. A write drops the entries that have left the window. The twin is
//! `lua/sliding_window_log.lua`, with `lua/log.lua`.

use std::collections::VecDeque;

use super::definition::Definition;
use super::part::CountedPlaces;
use super::ticks::{self, Clock, TickOutcome};
use super::{
    Arrival, Debt, OptionError, Part, SCRIPT_PARAMETERS, State, Step, Terms, debt_in_field,
    messages,
};
use crate::core::time::{Period, Span, Tick};

/// The largest limit: a key may hold an entry for each hit.
pub const LARGEST_LIMIT: u64 = 100_000;

/// A limit per sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindowLog {
    /// Hits per window.
    pub limit: u64,
    /// The window in microseconds; never zero.
    pub window: u64,
    /// Whether a refused hit is taken as debt, and of at most how many full limits.
    pub debt: Debt,
}

/// The state of a key: its hits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Hits before the oldest entry.
    pub before: u64,
    /// Oldest first; ticks and totals rise.
    pub entries: VecDeque<LoggedHits>,
}

/// The hits of one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedHits {
    pub tick: u64,
    /// The total of all hits up to and including these.
    pub total: u64,
}

impl Log {
    fn total(&self) -> u64 {
        self.entries.back().map_or(self.before, |entry| entry.total)
    }

    /// The total of all hits before entry `index`.
    fn total_before(&self, index: usize) -> u64 {
        index
            .checked_sub(1)
            .map_or(self.before, |index| self.entries[index].total)
    }

    /// Removes the first `count` entries.
    fn forget(&mut self, count: usize) {
        self.before = self.total_before(count);
        self.entries.drain(..count);
        if self.entries.is_empty() {
            self.before = 0;
        }
        if self.entries.capacity() > 4 * self.entries.len().max(16) {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }

    fn add(&mut self, tick: u64, hits: u64) {
        let total = self.total().saturating_add(hits);
        match self.entries.back_mut() {
            Some(entry) if entry.tick == tick => entry.total = total,
            _ => self.entries.push_back(LoggedHits { tick, total }),
        }
    }

    /// Gives back hits of ticks, which ascend. Returns how many it had. Entries without hits stay,
    /// but for the newest.
    fn refund_at(&mut self, parts: &[Part]) -> u64 {
        let oldest = parts.first().map_or(u64::MAX, |part| part.place);
        let first = self.entries.partition_point(|entry| entry.tick < oldest);
        let (mut before, mut less) = (self.total_before(first), 0);
        let mut parts = parts.iter().peekable();
        for entry in self.entries.range_mut(first..) {
            let (own, mut asked) = (entry.total - before, 0_u64);
            before = entry.total;
            while let Some(part) = parts.next_if(|part| part.place <= entry.tick) {
                if part.place == entry.tick {
                    asked = asked.saturating_add(part.hits);
                }
            }
            less += asked.min(own);
            entry.total -= less;
        }
        if less > 0 {
            self.refund(0);
        }
        less
    }

    /// Removes hits, the newest first.
    fn refund(&mut self, hits: u64) {
        let total = self.total().saturating_sub(hits);
        while let Some(last) = self.entries.len().checked_sub(1) {
            if self.total_before(last) < total {
                self.entries[last].total = total;
                return;
            }
            self.entries.pop_back();
        }
        self.before = 0;
    }
}

impl SlidingWindowLog {
    fn read<'s>(&self, state: Option<&'s State>, now: u64) -> (Clock, Option<&'s Log>) {
        if let Some(State::Log(log)) = state {
            let newest = log.entries.back().map_or(0, |entry| entry.tick);
            if let Some(clock) = Clock::resume(now, newest, self.window) {
                return (clock, Some(log));
            }
        }
        (Clock::fresh(now), None)
    }

    /// Number of entries that have left the window.
    fn left(&self, log: &Log, now: u64) -> usize {
        log.entries
            .partition_point(|entry| entry.tick.saturating_add(self.window) <= now)
    }

    /// The outcome for a log whose first `left` entries have left the window.
    fn found(
        &self,
        log: Option<&Log>,
        left: usize,
        clock: Clock,
        allowed: bool,
        hits: i64,
    ) -> TickOutcome {
        let most = self.limit.checked_sub(hits.max(0).unsigned_abs());
        let Some(log) = log else {
            return TickOutcome {
                allowed,
                capacity: self.limit,
                used: 0,
                reset: 0,
                retry: most.map(|_| 0),
            };
        };
        let used = log.total().saturating_sub(log.total_before(left));
        let leaves = |entry: &LoggedHits| {
            entry
                .tick
                .saturating_add(self.window)
                .saturating_sub(clock.now)
        };
        let reset = log.entries.back().map_or(0, leaves);
        let retry = most.map(|most| match log.total().saturating_sub(most) {
            // The total of the entries that have to leave.
            gone if used > most => {
                let index = log.entries.partition_point(|entry| entry.total < gone);
                log.entries.get(index).map_or(reset, leaves)
            }
            _ => 0,
        });
        TickOutcome {
            allowed,
            capacity: self.limit,
            used,
            reset,
            retry,
        }
    }
}

impl Definition for SlidingWindowLog {
    fn try_new(terms: &Terms<'_>) -> Result<Self, OptionError> {
        let limit = terms.limit;
        if limit > LARGEST_LIMIT {
            return Err(messages::log_too_large(limit, LARGEST_LIMIT).of("algorithm"));
        }
        Ok(Self {
            limit,
            window: terms.window.micros(),
            debt: terms.debt,
        })
    }

    fn step(&self, state: Option<State>, Arrival { now, .. }: Arrival, hits: i64) -> Step {
        let (clock, log) = self.read(state.as_ref(), Tick::FINEST.at(now));
        let left = log.map_or(0, |log| self.left(log, clock.now));
        let count = log.map_or(0, |log| log.total().saturating_sub(log.total_before(left)));
        let (allowed, taken, given) = self.charge(count, hits);
        if taken == 0 && given == 0 {
            let found = self.found(log, left, clock, allowed, hits);
            return Step::unchanged(found.verdict(Tick::FINEST, clock), state);
        }
        let is_known = log.is_some();
        let mut log = match state {
            Some(State::Log(log)) if is_known => log,
            _ => Box::default(),
        };
        log.forget(left);
        if taken > 0 {
            log.add(clock.now, taken);
        } else {
            log.refund(given);
        }
        let found = self.found(Some(&log), 0, clock, allowed, hits);
        let verdict = found.verdict(Tick::FINEST, clock);
        let keep_for = ticks::keep_for(Tick::FINEST, &verdict);
        Step::changed(verdict, State::Log(log), keep_for)
    }

    fn refund_at(
        &self,
        mut state: Option<State>,
        at: Arrival,
        parts: &[Part],
    ) -> (Option<State>, u64) {
        let (clock, known) = self.read(state.as_ref(), Tick::FINEST.at(at.now));
        let has_left = |part: &Part| part.place.saturating_add(self.window) <= clock.now;
        let parts = &parts[parts.partition_point(has_left)..];
        let is_known = known.is_some();
        let less = match &mut state {
            Some(State::Log(log)) if is_known => log.refund_at(parts),
            _ => 0,
        };
        (state, less)
    }

    fn counted_places(&self, state: Option<&State>, at: Arrival) -> CountedPlaces {
        let (clock, known) = self.read(state, Tick::FINEST.at(at.now));
        let first = (clock.now + 1).saturating_sub(self.window);
        known.map_or(CountedPlaces::NONE, |_| {
            CountedPlaces::all(first..=u64::MAX)
        })
    }

    fn limit(&mut self) -> &mut u64 {
        &mut self.limit
    }

    fn is_exact(&self) -> bool {
        self.limit <= LARGEST_LIMIT
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> Period {
        Period::Even(Span::from_micros(self.window))
    }

    debt_in_field!();

    fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS - 1] {
        [self.limit, self.window, 0, 0, 0]
    }
}
