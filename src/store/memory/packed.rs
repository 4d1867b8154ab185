//! A state in two words, which keeps entries of the memory store small.
//!
//! Every algorithm but the logs and the rings keeps a time and one or two numbers. The time is
//! stored in microseconds: it also shows when the state has recovered, whatever the algorithm. The
//! algorithm, its window and its tick need no space, because they are part of the key and every
//! lookup has them.
//!
//! A state is never rounded. One that does not fit (a count above 2^30 in a pair, a time after the
//! year 2112) is not packed; it is kept in `unpacked`, as logs are. Only the time of recovery is
//! rounded, upwards, by at most an eighth of the wait, because it is for garbage collection alone.
//!
//! Three more bits hold the used share of the limit. A full store needs it to choose a key, and
//! knows no limits.
//!
//! So a key takes 32 bytes: a fingerprint of 128 bits and the two words.

use super::unpacked::UnpackedIndex;
use crate::core::algorithm::{Algorithm, LARGEST_COUNT, State, TABLE};
use crate::core::time::{Micros, Span};
use crate::core::verdict::Verdict;

/// The share of its limit that a key had used after its last check, in [`SHARE_BITS`] bits: sixths,
/// then "nothing left", and then "nothing left, and a check was refused".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UsedShare(u8);

impl UsedShare {
    pub(super) const NOTHING_LEFT: Self = Self(6);
    pub(super) const REFUSED: Self = Self(7);

    #[inline]
    pub(super) fn after(verdict: &Verdict) -> Self {
        let used = verdict.used.min(LARGEST_COUNT);
        Self(match verdict.remaining {
            0 => Self::NOTHING_LEFT.0 + u8::from(!verdict.allowed),
            left => (u64::from(Self::NOTHING_LEFT.0) * used / used.saturating_add(left)) as u8,
        })
    }
}

const SHARE_BITS: u32 = 3;

/// A state in two words.
///
/// `when` holds, from the highest bit down, a time in microseconds (52 bits), how much later than
/// that the state has recovered ([`LATER_BITS`]), and a mark ([`MARK_BITS`]) of the algorithm whose
/// [`Definition::pack`] gave the time and a number. `tail` holds this number, and in its lowest bits
/// the [`UsedShare`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packed {
    when: u64,
    tail: u64,
}

/// The mark of a reference: the number is the index of an unpacked state, and the time is when it
/// recovers. All other marks are marks of algorithms.
const UNPACKED: u64 = 0;

/// The mark of an algorithm's states.
const fn mark_of(algorithm: &Algorithm) -> u64 {
    algorithm.kind() as u64 + 1
}

const MARK_BITS: u32 = 3;

const _: () = assert!(TABLE.len() < 1 << MARK_BITS, "every algorithm has a mark");

const LATER_BITS: u32 = 9;

/// 52 bits of microseconds end in the year 2112.
const LATEST: u64 = (1 << (u64::BITS - LATER_BITS - MARK_BITS)) - 1;

impl Packed {
    /// The content of a gap.
    pub(super) const EMPTY: Self = Self { when: 0, tail: 0 };

    /// Packs a state that has recovered at `recovers`. `None` if it does not fit.
    pub(super) fn new(state: &State, algorithm: &Algorithm, recovers: Micros) -> Option<Self> {
        let (time, number) = algorithm.pack(state)?;
        let fits = time <= LATEST && unshifted(number << SHARE_BITS) == number;
        fits.then(|| Self::assemble(mark_of(algorithm), time, recovers, number))
    }

    /// A reference to an unpacked state.
    pub(super) fn reference(index: UnpackedIndex, recovers: Micros) -> Self {
        let (time, number) = (recovers.0.min(LATEST), u64::from(index.0));
        Self::assemble(UNPACKED, time, recovers, number)
    }

    /// The index of the unpacked state that this refers to; `None` if the state is packed.
    pub(super) fn unpacked_index(self) -> Option<UnpackedIndex> {
        (self.mark() == UNPACKED).then_some(UnpackedIndex(self.number() as u32))
    }

    /// The same reference with another index.
    pub(super) const fn with_index(self, index: UnpackedIndex) -> Self {
        Self {
            tail: (index.0 as u64) << SHARE_BITS | self.used().0 as u64,
            ..self
        }
    }

    /// The same state of a key that has used another share of its limit.
    #[inline]
    pub(super) const fn with_used(self, used: UsedShare) -> Self {
        Self {
            tail: self.tail >> SHARE_BITS << SHARE_BITS | used.0 as u64,
            ..self
        }
    }

    pub(super) const fn used(self) -> UsedShare {
        UsedShare((self.tail & ((1 << SHARE_BITS) - 1)) as u8)
    }

    /// Weight of the hits that are lost with the key at `now`: the time until they have recovered,
    /// twice as heavy for each further step of the used share. 0 if they have recovered.
    pub(super) fn loss(self, now: Micros) -> u64 {
        let left = self.recovers().since(now).micros();
        left.saturating_mul(1 << self.used().0)
    }

    /// The packed state; `None` if another algorithm wrote it.
    pub(super) fn state(self, algorithm: &Algorithm) -> Option<State> {
        if self.mark() == mark_of(algorithm) {
            algorithm.unpack(self.time(), self.number())
        } else {
            None
        }
    }

    /// The time at which the state means the same as a missing one, rounded up.
    pub(super) fn recovers(self) -> Micros {
        let later = (self.when >> MARK_BITS) & ((1 << LATER_BITS) - 1);
        Micros(self.time()) + Span::from_micros(expand(later))
    }

    /// `time` must not be above [`LATEST`].
    fn assemble(mark: u64, time: u64, recovers: Micros, number: u64) -> Self {
        let later = shorten(recovers.since(Micros(time)).micros());
        Self {
            when: (((time << LATER_BITS) | later) << MARK_BITS) | mark,
            tail: number << SHARE_BITS,
        }
    }

    const fn number(self) -> u64 {
        unshifted(self.tail)
    }

    const fn time(self) -> u64 {
        self.when >> (LATER_BITS + MARK_BITS)
    }

    const fn mark(self) -> u64 {
        self.when & ((1 << MARK_BITS) - 1)
    }
}

/// The number of a state, which may be below zero.
const fn unshifted(tail: u64) -> u64 {
    (tail.cast_signed() >> SHARE_BITS).cast_unsigned()
}

/// Bits of a shortened number after its highest set bit.
const FRACTION_BITS: u32 = 3;

/// A number in [`LATER_BITS`] bits, rounded up: an exponent and a fraction, as in a floating-point
/// number. Below 8 it is the number itself.
const fn shorten(number: u64) -> u64 {
    let Some(highest) = number.checked_ilog2() else {
        return 0;
    };
    let Some(exponent) = highest.checked_sub(FRACTION_BITS) else {
        return number;
    };
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
