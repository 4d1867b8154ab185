//! A state in two words: what makes an entry of the memory store small.
//!
//! Every algorithm but the logs and the rings keeps a time and one or two numbers. The time is stored in microseconds, so that it also says
//! when the state has recovered, whatever the algorithm. The algorithm, its window and its tick need no space: they are part of the key, so that
//! every look-up knows them.
//!
//! A state is never rounded. One that does not fit (a count above 2^32 in a pair, a time after the year 2112) is not packed; it is kept in
//! `unpacked`, as logs are. Only the time of recovery is rounded, upwards, by an eighth of the wait at most, because it is for garbage collection
//! alone.

use super::unpacked::UnpackedIndex;
use crate::algorithm::{Algorithm, State};
use crate::time::{Micros, Span, Tick};

/// A state in two words.
///
/// `when` holds, from the highest bit down, a time in microseconds (52 bits), how much later than that the state has recovered
/// ([`LATER_BITS`]), and the [`Kind`] ([`KIND_BITS`]). `number` holds what the kind says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packed {
    when: u64,
    number: u64,
}

/// What the second word holds, and what the time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The index of an unpacked state; the time is when it recovers.
    Unpacked,
    /// Hits; the time is the window's end.
    FixedWindow,
    /// Hits of the current window and of the one before it, 32 bits each; the time is the current one's start.
    Counter,
    /// A level; the time is the last tick.
    Tokens,
    /// A backlog; the time is the last tick.
    Queue,
}

const KINDS: [Kind; 5] = [Kind::Unpacked, Kind::FixedWindow, Kind::Counter, Kind::Tokens, Kind::Queue];

const KIND_BITS: u32 = 3;

const LATER_BITS: u32 = 9;

/// 52 bits of microseconds end in the year 2112.
const LATEST: u64 = (1 << (u64::BITS - LATER_BITS - KIND_BITS)) - 1;

impl Packed {
    /// The content of a gap.
    pub(super) const EMPTY: Self = Self { when: 0, number: 0 };

    /// Packs a state that has recovered at `recovers`. `None` if it does not fit.
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

    /// A reference to an unpacked state.
    pub(super) fn reference(index: UnpackedIndex, recovers: Micros) -> Self {
        Self::assemble(Kind::Unpacked, recovers.0.min(LATEST), recovers, u64::from(index.0))
    }

    /// The index of the unpacked state that this refers to; `None` if the state is packed.
    pub(super) fn unpacked_index(self) -> Option<UnpackedIndex> {
        (self.kind() == Kind::Unpacked).then_some(UnpackedIndex(self.number as u32))
    }

    /// The same reference with another index.
    pub(super) const fn with_index(self, index: UnpackedIndex) -> Self {
        Self { number: index.0 as u64, ..self }
    }

    /// The packed state; `None` if another algorithm wrote it.
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

    /// When the state means the same as a missing one, rounded up.
    pub(super) fn recovers(self) -> Micros {
        let later = (self.when >> KIND_BITS) & ((1 << LATER_BITS) - 1);
        Micros(self.time()) + Span::from_micros(expand(later))
    }

    /// `time` must not be above [`LATEST`].
    fn assemble(kind: Kind, time: u64, recovers: Micros, number: u64) -> Self {
        let later = shorten(recovers.since(Micros(time)).micros());
        Self { when: (((time << LATER_BITS) | later) << KIND_BITS) | kind as u64, number }
    }

    const fn time(self) -> u64 {
        self.when >> (LATER_BITS + KIND_BITS)
    }

    fn kind(self) -> Kind {
        KINDS.get((self.when & ((1 << KIND_BITS) - 1)) as usize).copied().unwrap_or(Kind::Unpacked)
    }
}

/// `count` spans after the epoch; `None` above [`LATEST`].
fn micros(count: u64, span: Span) -> Option<u64> {
    count.checked_mul(span.micros()).filter(|&time| time <= LATEST)
}

/// Bits of a shortened number after its highest set bit.
const FRACTION_BITS: u32 = 3;

/// A number in [`LATER_BITS`] bits, rounded up: an exponent and a fraction, as in a floating-point number. Below 8 it is the number itself.
const fn shorten(number: u64) -> u64 {
    let Some(highest) = number.checked_ilog2() else { return 0 };
    let Some(exponent) = highest.checked_sub(FRACTION_BITS) else { return number };
    let fraction = (number >> exponent) & ((1 << FRACTION_BITS) - 1);
    let is_cut = number & ((1 << exponent) - 1) != 0;
    // Adding one to the largest fraction carries into the exponent, which is right.
    (((exponent as u64 + 1) << FRACTION_BITS) | fraction) + is_cut as u64
}

/// The inverse of [`shorten`]: the number, or up to an eighth more.
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
