//! A state in two words: what makes an entry of the memory store small.
//!
//! Every algorithm but the logs and the rings keeps a time and a number or two. The time is kept in microseconds, so that it also says when
//! the state has recovered, whatever the algorithm; who looks a state up knows the algorithm, its window and its tick, because the key does.
//! Nothing is rounded in a state: one that does not fit (a count above 2^32 in a pair, a time after 2112) is not packed, and has a place of
//! its own as logs have. Only the time of recovery is, upwards, by an eighth of the wait at most: it is nothing but garbage collection.

use crate::algorithm::{Algorithm, State};
use crate::time::{Micros, Span, Tick};

/// Two words.
///
/// The first holds a time in microseconds, how much later the state has recovered, and what it is a state of; the second its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packed {
    when: u64,
    number: u64,
}

/// What the second word is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The place of a state that has not been packed; the time is when it recovers.
    Elsewhere,
    /// Hits; the time is the window's end.
    FixedWindow,
    /// Hits of the current window and of the one before it, 32 bits each; the time is the current one's start.
    Counter,
    /// A level; the time is the last tick.
    Tokens,
    /// A backlog; the time is the last tick.
    Queue,
}

const KINDS: [Kind; 5] = [Kind::Elsewhere, Kind::FixedWindow, Kind::Counter, Kind::Tokens, Kind::Queue];

const KIND_BITS: u32 = 3;

const LATER_BITS: u32 = 9;

/// 52 bits of microseconds end in the year 2112.
const LATEST: u64 = (1 << (u64::BITS - LATER_BITS - KIND_BITS)) - 1;

impl Packed {
    /// What stands in a gap.
    pub(super) const NOTHING: Self = Self { when: 0, number: 0 };

    /// `None`: the state does not fit.
    pub(super) fn new(state: &State, algorithm: &Algorithm, recovers: Micros) -> Option<Self> {
        let (kind, time, number) = match (state, algorithm) {
            (&State::FixedWindow { window, count }, Algorithm::FixedWindow(fixed)) => {
                (Kind::FixedWindow, micros(window.checked_add(1)?, fixed.window)?, count)
            }
            (&State::Counter { window, current, previous }, Algorithm::SlidingWindowCounter(counter)) => {
                let [current, previous] = [current, previous].map(u32::try_from);
                let number = (u64::from(current.ok()?) << u32::BITS) | u64::from(previous.ok()?);
                (Kind::Counter, micros(window, counter.tick.span(counter.window))?, number)
            }
            (&State::Tokens { last, level }, Algorithm::TokenBucket(token)) => {
                (Kind::Tokens, micros(last, token.tick.span(1))?, level.cast_unsigned())
            }
            (&State::Queue { last, backlog }, Algorithm::LeakyBucket(leaky)) => (Kind::Queue, micros(last, leaky.tick.span(1))?, backlog),
            _ => return None,
        };
        Some(Self::assemble(kind, time, recovers, number))
    }

    /// A state that is kept at `place`.
    pub(super) fn elsewhere(place: u32, recovers: Micros) -> Self {
        Self::assemble(Kind::Elsewhere, recovers.0.min(LATEST), recovers, u64::from(place))
    }

    /// Where the state is kept, if not here.
    pub(super) fn place(self) -> Option<u32> {
        (self.kind() == Kind::Elsewhere).then_some(self.number as u32)
    }

    /// The same when its state has moved to another place.
    pub(super) const fn moved(self, place: u32) -> Self {
        Self { number: place as u64, ..self }
    }

    /// The state that is kept here; none if another algorithm's.
    pub(super) fn state(self, algorithm: &Algorithm) -> Option<State> {
        let ticks = |tick: Tick| self.time() / tick.micros();
        match (self.kind(), algorithm) {
            (Kind::FixedWindow, Algorithm::FixedWindow(fixed)) => {
                Some(State::FixedWindow { window: (self.time() / fixed.window.micros()).saturating_sub(1), count: self.number })
            }
            (Kind::Counter, Algorithm::SlidingWindowCounter(counter)) => {
                let window = self.time() / counter.tick.span(counter.window).micros();
                Some(State::Counter { window, current: self.number >> u32::BITS, previous: u64::from(self.number as u32) })
            }
            (Kind::Tokens, Algorithm::TokenBucket(token)) => {
                Some(State::Tokens { last: ticks(token.tick), level: self.number.cast_signed() })
            }
            (Kind::Queue, Algorithm::LeakyBucket(leaky)) => Some(State::Queue { last: ticks(leaky.tick), backlog: self.number }),
            _ => None,
        }
    }

    /// When the state means no more than a missing one; a little later than that at most.
    pub(super) fn recovers(self) -> Micros {
        let later = (self.when >> KIND_BITS) & ((1 << LATER_BITS) - 1);
        Micros(self.time()) + Span::from_micros(expand(later))
    }

    /// The time is not after [`LATEST`].
    fn assemble(kind: Kind, time: u64, recovers: Micros, number: u64) -> Self {
        let later = shorten(recovers.since(Micros(time)).micros());
        Self { when: (((time << LATER_BITS) | later) << KIND_BITS) | kind as u64, number }
    }

    const fn time(self) -> u64 {
        self.when >> (LATER_BITS + KIND_BITS)
    }

    fn kind(self) -> Kind {
        KINDS.get((self.when & ((1 << KIND_BITS) - 1)) as usize).copied().unwrap_or(Kind::Elsewhere)
    }
}

/// So many spans after the epoch.
fn micros(count: u64, span: Span) -> Option<u64> {
    count.checked_mul(span.micros()).filter(|&time| time <= LATEST)
}

/// Bits of a shortened number after its first one.
const FRACTION_BITS: u32 = 3;

/// A number in [`LATER_BITS`], rounded up: as floating-point numbers are kept, an exponent and a fraction. Below 8 it is the number itself.
const fn shorten(number: u64) -> u64 {
    let Some(highest) = number.checked_ilog2() else { return 0 };
    let Some(exponent) = highest.checked_sub(FRACTION_BITS) else { return number };
    let fraction = (number >> exponent) & ((1 << FRACTION_BITS) - 1);
    let is_cut = number & ((1 << exponent) - 1) != 0;
    // One more carries over into the exponent.
    (((exponent as u64 + 1) << FRACTION_BITS) | fraction) + is_cut as u64
}

/// The number that was shortened, or a little more.
const fn expand(short: u64) -> u64 {
    let first = 1 << FRACTION_BITS;
    let fraction = short & (first - 1);
    match (short >> FRACTION_BITS).checked_sub(1) {
        None => fraction,
        Some(exponent) => (first | fraction).saturating_mul(1 << exponent),
    }
}

#[cfg(test)]
mod tests;
