//! What becomes of refused hits: `count_denied` and `max_debt`.

/// Whether refused hits count, and how many full limits below zero they may take a key.
///
/// A key may be in debt although its limit counts refused hits no more: it was counted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Debt {
    counts: bool,
    limits: u8,
}

impl Debt {
    /// The largest `max_debt`. With it, the numbers of a limit of 2^32 - 1 are exact.
    pub const MOST: u8 = 100;

    /// Refused hits consume nothing.
    pub const NONE: Self = Self {
        counts: false,
        limits: 1,
    };

    /// Refused hits count, up to one full limit.
    pub const ONE: Self = Self {
        counts: true,
        limits: 1,
    };

    /// Refused hits count, up to so many full limits; `None` beyond 1 and [`Debt::MOST`].
    pub fn of(limits: u32) -> Option<Self> {
        let limits = u8::try_from(limits)
            .ok()
            .filter(|limits| (1..=Self::MOST).contains(limits))?;
        Some(Self {
            counts: true,
            limits,
        })
    }

    /// Whether refused hits count.
    pub const fn counts(self) -> bool {
        self.counts
    }

    /// How many full limits a key may be below zero.
    pub const fn limits(self) -> u64 {
        self.limits as u64
    }

    /// The same for stored states, with refused hits that consume nothing.
    #[must_use]
    pub const fn uncounted(self) -> Self {
        Self {
            counts: false,
            ..self
        }
    }

    /// As steps in `lua/` take it: twice the limits, plus 1 if refused hits count.
    pub(super) const fn script_parameter(self) -> u64 {
        2 * self.limits() + self.counts as u64
    }
}
