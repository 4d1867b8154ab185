//! What the file of each algorithm defines, and how all other code calls it.

use std::num::NonZeroU32;

use super::{
    Algorithm, AlgorithmKind, Debt, LARGEST_COUNT, OptionError, Spec, State, TABLE, Terms,
    dispatch, ticks,
};
use crate::core::time::{Micros, Period, Span, Tick};
use crate::core::verdict::Verdict;

/// Numbers of a limit that its step in `lua/` takes.
pub const SCRIPT_PARAMETERS: usize = 6;

/// When a check arrives, and how long its caller can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The store's time.
    pub now: Micros,
    /// The longest time that the caller can be held. A shaper refuses a check that would have to
    /// wait longer.
    pub max_hold: Span,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The answer.
    pub verdict: Verdict,
    /// The state from now on; the state before if nothing has to be written.
    pub state: Option<State>,
    /// `Some`: the state changed, has to be written, and has to be kept for at least this long.
    /// After that it means the same as none.
    pub keep_for: Option<Span>,
}

impl Step {
    /// Nothing has to be written.
    #[inline]
    pub(super) const fn unchanged(verdict: Verdict, state: Option<State>) -> Self {
        Self {
            verdict,
            state,
            keep_for: None,
        }
    }

    /// This state has to be written, and kept for so long.
    #[inline]
    pub(super) const fn changed(verdict: Verdict, state: State, keep_for: Span) -> Self {
        Self {
            verdict,
            state: Some(state),
            keep_for: Some(keep_for),
        }
    }
}

/// One algorithm with its numbers.
pub(super) trait Definition: Copy {
    /// The algorithm of these terms.
    fn try_new(terms: &Terms<'_>) -> Result<Self, OptionError>;

    /// See [`Algorithm::step`].
    fn step(&self, state: Option<State>, arrival: Arrival, hits: i64) -> Step;

    /// Hits per window.
    fn limit(&mut self) -> &mut u64;

    /// See [`Algorithm::share`].
    fn share(mut self, replicas: NonZeroU32) -> Self {
        let limit = self.limit();
        *limit = limit.div_ceil(replicas.get().into());
        self
    }

    /// See [`Algorithm::with_limit`].
    fn with_limit(mut self, limit: u64) -> Self {
        *self.limit() = limit;
        self
    }

    /// Whether all of its numbers are exact, and so the same in Lua. Limits of up to 2^32 - 1 are,
    /// but for those of a log.
    fn is_exact(&self) -> bool {
        true
    }

    /// See [`Algorithm::capacity`].
    fn capacity(&self) -> u64;

    /// What becomes of refused hits.
    fn debt(&self) -> Debt;

    /// Replaces what becomes of refused hits, on the same counters.
    fn set_debt(&mut self, debt: Debt);

    /// See [`Algorithm::largest_charge`].
    fn largest_charge(&self) -> u64 {
        let debt = if self.debt().counts() {
            self.most_debt()
        } else {
            0
        };
        self.capacity() + debt.max(1)
    }

    /// The most hits of debt, if refused hits count.
    fn most_debt(&self) -> u64 {
        self.debt().limits() * self.capacity()
    }

    /// See [`Algorithm::window`].
    fn window(&self) -> Period;

    /// See [`Algorithm::tick`].
    fn tick(&self) -> Tick;

    /// See [`Algorithm::may_delay`].
    fn may_delay(&self) -> bool {
        false
    }

    /// See [`Algorithm::write_key_suffix`].
    fn write_key_suffix(&self, _out: &mut Vec<u8>) {}

    /// See [`Algorithm::script_parameters`]: those behind the debt.
    fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS - 1];

    /// See [`Algorithm::check_parameter`].
    fn check_parameter(&self, _max_hold: Span) -> u64 {
        0
    }

    /// See [`Algorithm::state_of_row`].
    fn state_of_row(&self, _row: [f64; 4]) -> Option<State> {
        None
    }

    /// See [`Algorithm::pack`].
    fn pack(&self, _state: &State) -> Option<(u64, u64)> {
        None
    }

    /// See [`Algorithm::unpack`].
    fn unpack(&self, _micros: u64, _number: u64) -> Option<State> {
        None
    }
}

impl AlgorithmKind {
    /// All of them with their names in a file.
    pub const NAMED: [(&'static str, Self); TABLE.len()] = {
        let mut named = [("", Self::FixedWindow); TABLE.len()];
        let mut index = 0;
        while index < TABLE.len() {
            assert!(
                TABLE[index].kind as usize == index,
                "the table is in the order of AlgorithmKind"
            );
            named[index] = (TABLE[index].name, TABLE[index].kind);
            index += 1;
        }
        named
    };

    /// Those that count hits over a time: all but the last of the table, which counts requests in
    /// flight.
    pub const OVER_TIME: [(&'static str, Self); TABLE.len() - 1] =
        *Self::NAMED.first_chunk().expect("fewer than all");

    /// Its row of the table.
    #[inline]
    pub const fn spec(self) -> &'static Spec {
        &TABLE[self as usize]
    }

    /// The name in a file.
    pub const fn name(self) -> &'static str {
        self.spec().name
    }
}

impl Algorithm {
    /// Its row of the table.
    #[inline]
    pub const fn spec(&self) -> &'static Spec {
        self.kind().spec()
    }

    /// Decides `hits` at an arrival: above 0 takes, 0 looks, below 0 gives back. Total: it never
    /// panics, whatever is stored and asked. A state of another algorithm counts as none.
    pub fn step(&self, state: Option<State>, arrival: Arrival, hits: i64) -> Step {
        dispatch!(self, it => it.step(state, arrival, hits))
    }

    /// Whether an allowed check may have a delay: only a shaper's.
    pub fn may_delay(&self) -> bool {
        dispatch!(self, it => it.may_delay())
    }

    /// What becomes of refused hits.
    pub fn debt(&self) -> Debt {
        dispatch!(self, it => it.debt())
    }

    /// Whether refused hits count.
    pub fn counts_denied(&self) -> bool {
        dispatch!(self, it => it.debt().counts())
    }

    /// The same limit with `count_denied: false`.
    #[must_use]
    pub fn without_debt(mut self) -> Self {
        dispatch!(&mut self, it => it.set_debt(it.debt().uncounted()));
        self
    }

    /// The same algorithm with so many hits per window, on the same counters. A bucket whose burst
    /// is the limit grows with it; one with a burst of its own keeps that.
    ///
    /// # Errors
    /// The largest number of hits that the algorithm can have.
    pub fn with_limit(self, limit: u64) -> Result<Self, u64> {
        let with = |limit| dispatch!(map self, it => it.with_limit(limit));
        let fits = |limit: u64| dispatch!(with(limit), it => it.is_exact());
        let limit = limit.min(LARGEST_COUNT);
        if fits(limit) {
            Ok(with(limit))
        } else {
            Err(ticks::largest(fits))
        }
    }

    /// Whether all of its numbers are exact.
    pub(super) fn is_exact(&self) -> bool {
        dispatch!(self, it => it.is_exact())
    }

    /// The most hits that a key without a state can take at once.
    pub fn capacity(&self) -> u64 {
        dispatch!(self, it => it.capacity())
    }

    /// The largest number of hits that makes a difference: more are refused alike, and leave the
    /// same state. With `count_denied` that is where a key without a state reaches the bound of its
    /// debt.
    pub fn largest_charge(&self) -> u64 {
        dispatch!(self, it => it.largest_charge())
    }

    /// Whether the last entry of a descriptor is the id of its request, and no part of the
    /// counter's key.
    #[inline]
    pub const fn has_holders(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }

    /// The window of the rate. Only a fixed window is aligned to the clock; of the others it is the
    /// length that counts. Of a limit of requests in flight it is the longest time that one counts.
    pub fn window(&self) -> Period {
        dispatch!(self, it => it.window())
    }

    /// The resolution of its times.
    pub fn tick(&self) -> Tick {
        dispatch!(self, it => it.tick())
    }

    /// Writes what a counter key holds behind the window: everything else that gives the state its
    /// meaning. Amounts are not in it, nor the tick, which follows from the amount, so that a
    /// changed amount keeps its counters.
    pub fn write_key_suffix(&self, out: &mut Vec<u8>) {
        dispatch!(self, it => it.write_key_suffix(out));
    }

    /// The limit as its step in `lua/` takes it; unused numbers are 0.
    pub fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS] {
        let [second, third, fourth, fifth, sixth] = dispatch!(self, it => it.script_parameters());
        let debt = self.debt().script_parameter();
        [debt, second, third, fourth, fifth, sixth]
    }

    /// The number of one check that its step in `lua/` takes besides the hits; 0 if it takes none.
    pub fn check_parameter(&self, max_hold: Span) -> u64 {
        dispatch!(self, it => it.check_parameter(max_hold))
    }

    /// The state in a row of the script's reply: the expiry, whose fraction may name a tick (see
    /// `lua/frame.lua`), and the numbers behind it, of which missing ones are 0. `None`: rows of
    /// this algorithm hold the decision and not the state.
    pub fn state_of_row(&self, row: [f64; 4]) -> Option<State> {
        dispatch!(self, it => it.state_of_row(row))
    }

    /// The state as a time in microseconds since the epoch and a number, for a store that keeps two
    /// words per key. `None`: it does not fit.
    pub fn pack(&self, state: &State) -> Option<(u64, u64)> {
        dispatch!(self, it => it.pack(state))
    }

    /// The state that [`Algorithm::pack`] turned into these words.
    pub fn unpack(&self, micros: u64, number: u64) -> Option<State> {
        dispatch!(self, it => it.unpack(micros, number))
    }
}
