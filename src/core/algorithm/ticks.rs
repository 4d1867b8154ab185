//! Parts that the algorithms share: the unit in which a limit counts, a clock that may go back, and
//! the outcome of a step.
//!
//! Lua's numbers are exact only below 2^53, and Rust keeps the same bound, to decide the same. A
//! limit has the finest tick at which the product of its amount and its window stays below. Where
//! that is coarser than a second, the product is split ([`product`], `lua/frame.lua`): its window
//! has up to [`MOST_TICKS`] ticks, and a bucket holds parts of hits, which come back by the clock
//! ([`Flow`]).
//!
//! A state is kept in parts: a hit is as many parts as the window has ticks, and nothing is rounded
//! away. A split product has 128 bits in Rust, and two halves of 17 bits in Lua, for which a window
//! has up to 2^35 ticks. Coarser ticks would do without, but had times that were off by days. Where
//! parts come back by the clock, what comes back between two ticks is the difference of what has
//! come back since the epoch, rounded down: no step loses a remainder, and the state needs no
//! second word.
//!
//! A state names its units, and keys do not: a changed amount keeps its counts although its tick
//! may change. A tick that depends on the window alone would be simpler, but would have to suit the
//! largest amount: a second for every limit per day, too coarse for a shaper. A step that finds
//! other units converts the state, and rounds against the client by less than one of the coarser
//! ticks, or by less than a hit where products are split. In Redis the units are the fraction of
//! the expiry, in memory four bits of the level: no state takes more bytes.
//!
//! Counts end at 2^53, one above the largest limit, because a full counter still has to refuse. A
//! clock that goes back freezes a key for at most a window (two for `fixed_window` in memory and
//! for `sliding_window_counter`, which continue from the start of the latest window that they saw),
//! or resets it.

use crate::core::time::{MAX_SAFE_INTEGER, Span, Tick};
use crate::core::verdict::{Verdict, Wait};

/// The largest count: more than any limit, and exact in Lua.
pub const LARGEST_COUNT: u64 = MAX_SAFE_INTEGER + 1;

/// The fewest ticks of a window: its times are never coarser than a hundredth of it.
const FEWEST_TICKS: u64 = 100;

/// The most ticks of a window whose products are split: twice 17 bits, and one more. It makes ticks
/// of 0.1 s for 100 years, and of 1 ms for a year.
const MOST_TICKS: u64 = 1 << 35;

/// The coarsest tick of products that are not split: a second.
const SECOND: u8 = 6;

/// The units in which a limit and its state count.
///
/// A code up to 6 is the exponent of a tick: a hit has as many units as the window has such ticks.
/// A code from 7 on belongs to a limit whose products are split: a hit has 10^(15 - code) units,
/// and the tick follows from the window alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Units(u8);

impl Units {
    /// More than any code: a state holds its units in so many parts of another number.
    pub(super) const CODES: u64 = 16;

    /// The units of this code, modulo 16.
    pub const fn new(code: u8) -> Self {
        Self(code % Self::CODES as u8)
    }

    /// The number of the units in a state.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The units that the fraction of an expiry in Redis names (see `lua/frame.lua`).
    pub(super) fn of_expiry(expiry: f64) -> Self {
        Self::new((expiry.fract() * Self::CODES as f64) as u8)
    }

    #[inline]
    const fn is_split(self) -> bool {
        self.0 > SECOND
    }

    /// The first that fits of the ticks, and then of the parts, the finest first.
    pub(super) fn choose(fits: impl Fn(Self) -> bool) -> Self {
        (0..Self::CODES as u8)
            .map(Self)
            .find(|&units| fits(units))
            .unwrap_or(Self::new(15))
    }

    /// The tick of times.
    #[inline]
    pub(super) fn tick(self, window: Span) -> Tick {
        if self.is_split() {
            split_tick(window)
        } else {
            Tick::new(self.0)
        }
    }

    /// The units of a hit.
    fn per_hit(self, window: Span) -> u64 {
        if self.is_split() {
            10_u64.pow(u32::from(15 - self.0))
        } else {
            Tick::new(self.0).ceil(window)
        }
    }

    /// Turns the tick of the last change and an amount of `other` units into these. The tick is
    /// rounded up, and whole units or hits by `divide`.
    pub(super) fn convert<T>(
        self,
        other: Self,
        window: Span,
        last: u64,
        amount: impl Fn(u64, u64) -> T,
    ) -> (u64, T) {
        let (ticks, divisor) = self.tick(window).ratio(other.tick(window));
        let (units, whole) = match (self.is_split(), other.is_split()) {
            (false, false) => (ticks, divisor),
            _ => (self.per_hit(window), other.per_hit(window)),
        };
        (
            last.saturating_mul(ticks).div_ceil(divisor),
            amount(units, whole),
        )
    }
}

/// The tick of a window whose products are split.
#[cold]
pub(super) fn split_tick(window: Span) -> Tick {
    Tick::all()
        .find(|tick| tick.ceil(window) <= MOST_TICKS)
        .unwrap_or(Tick::COARSEST)
}

/// The finest tick of up to a second at which `most_hits * window + rate` stays exact.
pub(super) fn finest(window: Span, rate: u64, most_hits: u64) -> Option<Tick> {
    (0..=SECOND)
        .map(Tick::new)
        .find(|tick| is_exact(tick.ceil(window), rate, most_hits))
}

/// Whether `most_hits * window + rate` is exact, and the window has ticks enough.
fn is_exact(window: u64, rate: u64, most_hits: u64) -> bool {
    let most = u128::from(most_hits) * u128::from(window) + u128::from(rate);
    most <= u128::from(MAX_SAFE_INTEGER) && window >= FEWEST_TICKS
}

/// `one * other / divisor`, rounded down; saturates.
pub(super) fn product(one: u64, other: u64, divisor: u64) -> u64 {
    match one.checked_mul(other) {
        Some(product) => product / divisor,
        None => u64::try_from(u128::from(one) * u128::from(other) / u128::from(divisor))
            .unwrap_or(u64::MAX),
    }
}

/// How the hits of a bucket come back: `limit` per window.
///
/// Where products are split, they come back by the clock: until tick `t`, as many units as have
/// been whole since the epoch. So nothing is lost to rounding between two steps, and no time is off
/// by more than one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Hits per window.
    pub limit: u64,
    /// The window.
    pub period: Span,
    /// The window in ticks, rounded up; never zero.
    pub window: u64,
    /// The units of amounts.
    pub units: Units,
}

impl Flow {
    pub(super) fn new(limit: u64, period: Span, units: Units) -> Self {
        let window = units.tick(period).ceil(period);
        Self {
            limit,
            period,
            window,
            units,
        }
    }

    /// The units of a hit.
    #[inline]
    pub(super) fn per_hit(&self) -> u64 {
        if self.units.is_split() {
            self.split_per_hit()
        } else {
            self.window
        }
    }

    #[cold]
    #[inline(never)]
    fn split_per_hit(&self) -> u64 {
        self.units.per_hit(self.period)
    }

    /// The units that come back in a window.
    fn rate(&self) -> u64 {
        self.limit.saturating_mul(self.per_hit())
    }

    /// Whether a key that counts at most so many hits is exact.
    pub(super) fn is_exact(&self, most_hits: u64) -> bool {
        if !self.units.is_split() {
            return is_exact(self.window, self.limit, most_hits);
        }
        let unit = u128::from(self.per_hit());
        // A unit comes back within half a second, unless a bucket of up to 32 bits takes years to
        // fill.
        let is_fine = u128::from(self.limit) * unit
            >= 2 * u128::from(Tick::new(SECOND).ceil(self.period))
            || most_hits <= 1 << 41;
        // The rate is a number too, of a window that may be far longer than what counts fills.
        u128::from(most_hits.max(self.limit)) * unit <= u128::from(MAX_SAFE_INTEGER) && is_fine
    }

    /// Minimum number of units that come back in so many ticks.
    #[inline]
    pub(super) fn within(&self, ticks: u64) -> u64 {
        if self.units.is_split() {
            self.split_within(ticks)
        } else {
            self.limit.saturating_mul(ticks)
        }
    }

    #[cold]
    #[inline(never)]
    fn split_within(&self, ticks: u64) -> u64 {
        product(self.rate(), ticks, self.window)
    }

    /// The units that came back between two ticks.
    #[inline]
    pub(super) fn between(&self, from: u64, to: u64) -> u64 {
        if self.units.is_split() {
            self.split_between(from, to)
        } else {
            self.limit.saturating_mul(to - from)
        }
    }

    #[cold]
    #[inline(never)]
    fn split_between(&self, from: u64, to: u64) -> u64 {
        u64::try_from(self.until(to) - self.until(from)).unwrap_or(u64::MAX)
    }

    /// The units that have come back since the epoch.
    fn until(&self, tick: u64) -> u128 {
        u128::from(self.rate()) * u128::from(tick) / u128::from(self.window)
    }

    /// The ticks from `now` on in which so many units come back.
    #[inline]
    pub(super) fn ticks(&self, now: u64, units: u64) -> u64 {
        if self.units.is_split() {
            self.split_ticks(now, units)
        } else {
            units.div_ceil(self.limit)
        }
    }

    #[cold]
    #[inline(never)]
    fn split_ticks(&self, now: u64, units: u64) -> u64 {
        let then = ((self.until(now) + u128::from(units)) * u128::from(self.window))
            .div_ceil(u128::from(self.rate()));
        u64::try_from(then).unwrap_or(u64::MAX).saturating_sub(now)
    }

    /// The ticks after which a state that misses so many units has recovered, whatever the clock
    /// shows: as the script computes them.
    #[inline]
    pub(super) fn keep(&self, units: u64, reset: u64) -> u64 {
        if self.units.is_split() {
            self.split_keep(units)
        } else {
            reset
        }
    }

    #[cold]
    #[inline(never)]
    fn split_keep(&self, units: u64) -> u64 {
        match units {
            1.. => {
                (units as f64 * self.window as f64 / self.rate() as f64)
                    .ceil()
                    .min(LARGEST_COUNT as f64 / 2.0) as u64
                    + 1
            }
            0 => 0,
        }
    }
}

/// The largest number of hits that fits, if all below it do.
pub(super) fn largest(fits: impl Fn(u64) -> bool) -> u64 {
    let (mut most, mut too_many) = (0, LARGEST_COUNT);
    while too_many - most > 1 {
        let middle = most.midpoint(too_many);
        if fits(middle) {
            most = middle;
        } else {
            too_many = middle;
        }
    }
    most
}

/// The time of a step: never before the time of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// The tick that the step happens at.
    pub(super) now: u64,
    /// The ticks by which `now` is ahead of the store's clock.
    pub(super) behind: u64,
}

impl Clock {
    /// The clock of a key without a state.
    pub(super) const fn fresh(now: u64) -> Self {
        Self { now, behind: 0 }
    }

    /// Continues at `last`, which the store's clock has not reached again.
    pub(super) const fn ahead(last: u64, now: u64) -> Self {
        Self {
            now: last,
            behind: last - now,
        }
    }

    /// Continues at `last` if the clock went back. `None`: by more than `most` ticks, and the state
    /// is dropped.
    pub(super) const fn resume(now: u64, last: u64, most: u64) -> Option<Self> {
        if last <= now {
            Some(Self::fresh(now))
        } else if last - now <= most {
            Some(Self::ahead(last, now))
        } else {
            None
        }
    }

    /// The wait on the store's clock, which first has to catch up, for what takes so many ticks.
    pub(super) const fn wait(&self, ticks: u64) -> u64 {
        if ticks == 0 { 0 } else { ticks + self.behind }
    }
}

/// The outcome of a step, in ticks of the algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct TickOutcome {
    pub(super) allowed: bool,
    pub(super) capacity: u64,
    pub(super) used: u64,
    pub(super) reset: u64,
    /// `None`: never. Without a meaning if allowed.
    pub(super) retry: Option<u64>,
}

impl TickOutcome {
    pub(super) fn verdict(self, tick: Tick, clock: Clock) -> Verdict {
        Verdict {
            allowed: self.allowed,
            remaining: self.capacity.saturating_sub(self.used),
            used: self.used,
            reset_after: tick.span(clock.wait(self.reset)),
            retry_after: match self.retry {
                _ if self.allowed => Wait::For(Span::ZERO),
                Some(ticks) => Wait::For(tick.span(clock.wait(ticks))),
                None => Wait::Never,
            },
            delay: Span::ZERO,
        }
    }
}

/// How long a changed state is kept: until it has recovered, and at least one tick.
pub(super) fn keep_for(tick: Tick, verdict: &Verdict) -> Span {
    verdict.reset_after.max(tick.span(1))
}
