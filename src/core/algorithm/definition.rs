//! The interface that the file of each algorithm implements, and by which all other code calls it;
//! and the rules that several algorithms share: refused hits, a replica's share of a limit, and
//! hits that a replica draws ahead.

use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};

use super::{
    Algorithm, AlgorithmKind, Debt, LARGEST_COUNT, OptionError, Part, Spec, State, TABLE, Terms,
    dispatch, part::CountedPlaces, ticks,
};
use crate::core::time::{Micros, Period, Span, Tick};
use crate::core::verdict::Verdict;

/// Numbers of a limit that its step in `lua/` takes.
pub const SCRIPT_PARAMETERS: usize = 6;

/// The time of a check, and how long its caller can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The store's time.
    pub now: Micros,
    /// The longest time that the caller can wait. A shaper refuses a check that would have to
    /// wait longer.
    pub max_wait: Span,
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
pub trait Definition {
    /// The algorithm of these terms.
    ///
    /// # Errors
    /// An option cannot be used with the limit.
    fn try_new(terms: &Terms<'_>) -> Result<Self, OptionError>
    where
        Self: Sized;

    /// Decides `hits` at an arrival: above 0 takes, 0 peeks, below 0 refunds. Total: it never
    /// panics, whatever is stored and requested. A state of another algorithm counts as none.
    fn step(&self, state: Option<State>, arrival: Arrival, hits: i64) -> Step;

    /// Gives back hits at the places where they were counted, which ascend. Returns how many the
    /// state still had. Only of algorithms whose hits can be held.
    fn refund_at(&self, state: Option<State>, _: Arrival, _: &[Part]) -> (Option<State>, u64) {
        (state, 0)
    }

    /// The places whose hits a state counts at this time. Only of algorithms whose hits can be
    /// held, but for a token bucket.
    fn counted_places(&self, _: Option<&State>, _: Arrival) -> CountedPlaces {
        CountedPlaces::NONE
    }

    /// Hits per window.
    fn limit(&mut self) -> &mut u64;

    /// See [`Algorithm::share`].
    fn share(&mut self, replicas: NonZeroU32) {
        let limit = self.limit();
        *limit = limit.div_ceil(replicas.get().into());
    }

    /// See [`Algorithm::with_limit`].
    fn set_limit(&mut self, limit: u64) {
        *self.limit() = limit;
    }

    /// Whether all of its numbers are exact, and so the same in Lua. Limits of up to 2^32 - 1 are,
    /// except in a log.
    fn is_exact(&self) -> bool {
        true
    }

    /// The most hits that a key without a state can take at once.
    fn capacity(&self) -> u64;

    /// The treatment of refused hits.
    fn debt(&self) -> Debt;

    /// Replaces the treatment of refused hits, on the same counters.
    fn set_debt(&mut self, debt: Debt);

    /// The largest number of hits that makes a difference: more are refused alike, and leave the
    /// same state. With `count_denied` that is where a key without a state reaches the bound of its
    /// debt.
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

    /// Whether a window with `count` hits allows these, how many of them it takes, and how many it
    /// refunds.
    #[inline]
    fn charge(&self, count: u64, hits: i64) -> (bool, u64, u64)
    where
        Self: Sized,
    {
        let limit = self.capacity();
        match u64::try_from(hits) {
            Ok(0) => (count <= limit, 0, 0),
            Ok(asked) if count.saturating_add(asked) <= limit => (true, asked, 0),
            Ok(asked) if self.debt().counts() => {
                let room = (limit + self.most_debt()).saturating_sub(count);
                (false, asked.min(room), 0)
            }
            Ok(_) => (false, 0, 0),
            Err(_) => (true, 0, hits.unsigned_abs().min(count)),
        }
    }

    /// The window of the rate. Only a fixed window is aligned to the clock; of the others it is the
    /// length that counts. Of a limit of requests in flight it is the longest time that one counts.
    fn window(&self) -> Period;

    /// The resolution of its times; the finest where nothing is multiplied.
    fn tick(&self) -> Tick {
        Tick::FINEST
    }

    /// Whether an allowed check may have a delay: only a shaper's.
    fn may_delay(&self) -> bool {
        false
    }

    /// Writes the part of a counter key after the window: everything else that gives the state its
    /// meaning. Amounts are not in it, nor the tick, which follows from the amount: a changed
    /// amount keeps its counters.
    fn write_key_suffix(&self, _out: &mut Vec<u8>) {}

    /// See [`Algorithm::script_parameters`]: the parameters after the debt.
    fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS - 1];

    /// The number of one check that its step in `lua/` takes in addition to the hits; 0 if it takes
    /// none.
    fn check_parameter(&self, _max_wait: Span) -> u64 {
        0
    }

    /// The hits of one check as its step in `lua/` takes them.
    fn script_hits(&self, hits: i64) -> i64 {
        let most = self.largest_charge().cast_signed();
        hits.clamp(-LARGEST_COUNT.cast_signed(), most)
    }

    /// The state in a row of the script's reply: the expiry, whose fraction may name a tick (see
    /// `lua/frame.lua`), and the numbers after it, of which missing ones are 0. `None`: rows of
    /// this algorithm hold the decision and not the state.
    fn state_of_row(&self, _row: [f64; 4]) -> Option<State> {
        None
    }

    /// The state as a time in microseconds since the epoch and a number, for a store that keeps two
    /// words per key. `None`: it does not fit.
    fn pack(&self, _state: &State) -> Option<(u64, u64)> {
        None
    }

    /// The state that [`Definition::pack`] turned into these words.
    fn unpack(&self, _micros: u64, _number: u64) -> Option<State> {
        None
    }
}

impl Deref for Algorithm {
    type Target = dyn Definition;

    fn deref(&self) -> &Self::Target {
        dispatch!(self, it => it)
    }
}

impl DerefMut for Algorithm {
    fn deref_mut(&mut self) -> &mut Self::Target {
        dispatch!(self, it => it)
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

    /// The algorithms that count hits over a time: all but the last of the table, which counts
    /// requests in flight.
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

    /// Appends the part of a counter's key after the subject: the algorithm, its window in seconds,
    /// calendar months or a calendar with its zone, and all other options that give its state a
    /// meaning. The amount is left out: changing it keeps the counters.
    pub(crate) fn write_key_tag(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.spec().key_tag);
        // A changed `max_duration` keeps the places.
        if self.counts_in_flight() {
            return;
        }
        let mut number = itoa::Buffer::new();
        match self.window() {
            // Windows are whole seconds, or whole ticks where a tick is longer than a second.
            Period::Even(length) => {
                out.extend_from_slice(number.format(length.micros() / 1_000_000).as_bytes());
            }
            // Not the 30 days of a replica without the setting, whose windows have other numbers.
            Period::Months(months) => {
                out.push(b'm');
                out.extend_from_slice(number.format(months.get()).as_bytes());
            }
            Period::Calendar(calendar) => calendar.write_tag(out),
        }
        self.write_key_suffix(out);
    }

    /// Whether refused hits count.
    pub fn counts_denied(&self) -> bool {
        self.debt().counts()
    }

    /// The same limit with `count_denied: false`.
    #[must_use]
    pub fn without_debt(mut self) -> Self {
        let debt = self.debt().uncounted();
        self.set_debt(debt);
        self
    }

    /// The same algorithm with so many hits per window, on the same counters. A bucket whose burst
    /// is the limit grows with it; one with a burst of its own keeps that.
    ///
    /// # Errors
    /// The largest number of hits that the algorithm can have.
    pub fn with_limit(self, limit: u64) -> Result<Self, u64> {
        let with = |limit| {
            let mut with = self;
            with.set_limit(limit);
            with
        };
        let fits = |limit: u64| with(limit).is_exact();
        let limit = limit.min(LARGEST_COUNT);
        if fits(limit) {
            Ok(with(limit))
        } else {
            Err(ticks::largest(fits))
        }
    }

    /// For so long a state means something after a verdict, unless it changes.
    pub(super) fn idle_life(&self, verdict: &Verdict) -> Span {
        let life = ticks::keep_for(self.tick(), verdict);
        match self {
            Self::SlidingWindowBuckets(buckets) => life.max(Span::from_micros(buckets.expiry)),
            _ => life,
        }
    }

    /// Whether the last entry of a descriptor is the id of its request, and no part of the
    /// counter's key.
    #[inline]
    pub const fn counts_in_flight(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }

    /// The limit as its step in `lua/` takes it; unused numbers are 0.
    pub fn script_parameters(&self) -> [u64; SCRIPT_PARAMETERS] {
        let [second, third, fourth, fifth, sixth] = (**self).script_parameters();
        let debt = self.debt().script_parameter();
        [debt, second, third, fourth, fifth, sixth]
    }
}

impl Algorithm {
    /// The same algorithm with 1/`replicas` of the amount, rounded up: at least one hit where there
    /// is any. All replicas together allow at least the limit, and at most one hit per replica
    /// more. Windows, ticks and the longest delay stay: times mean the same, and keys do not
    /// change.
    #[must_use]
    pub fn share(mut self, replicas: NonZeroU32) -> Self {
        self.deref_mut().share(replicas);
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::algorithm::{AlgorithmKind, Arrival, Options};
    use crate::core::time::{Micros, Rate, Span, Unit};

    fn made(kind: AlgorithmKind, limit: u64) -> Algorithm {
        let options = Options {
            kind,
            burst: (kind == AlgorithmKind::TokenBucket && limit > 0).then_some(limit),
            max_delay: (kind == AlgorithmKind::LeakyBucket).then_some(Span::from_secs(7)),
            ..Options::default()
        };
        Algorithm::try_new(
            &Rate {
                requests_per_unit: limit,
                unit: Unit::Minute,
                unit_multiplier: 1,
            },
            &options,
        )
        .expect("an algorithm")
    }

    fn shared(algorithm: Algorithm, replicas: u32) -> Algorithm {
        algorithm.share(NonZeroU32::new(replicas).expect("not 0"))
    }

    /// Number of single hits that pass at one instant.
    fn passes(algorithm: &Algorithm) -> u64 {
        let (mut state, mut passed) = (None, 0);
        let at = Arrival {
            now: Micros(1_800_000_000_000_000),
            max_wait: Span::MAX,
        };
        loop {
            let step = algorithm.step(state, at, 1);
            if !step.verdict.allowed {
                return passed;
            }
            passed += 1;
            state = step.state;
        }
    }

    #[test]
    fn replicas_together_let_the_limit_pass_and_hardly_more() {
        for (name, kind) in AlgorithmKind::OVER_TIME {
            for limit in [0, 1, 2, 3, 7, 10, 100] {
                for replicas in [1, 2, 3, 10, 1_000] {
                    let (whole, share) = (made(kind, limit), shared(made(kind, limit), replicas));
                    let (alone, together) = (passes(&whole), passes(&share) * u64::from(replicas));
                    assert!(
                        together >= alone,
                        "{name} of {limit}, {replicas} replicas: {together} < {alone}"
                    );
                    let most = alone + u64::from(replicas) - 1;
                    // A queue has one being served in each replica, in addition to the waiting
                    // ones.
                    let most = if kind == AlgorithmKind::LeakyBucket {
                        most + u64::from(replicas)
                    } else {
                        most
                    };
                    assert!(
                        limit == 0 || together <= most,
                        "{name} of {limit}, {replicas} replicas: {together} > {most}"
                    );
                    assert!(limit > 0 || together == 0, "{name}: nothing is nothing");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(crate::testing::property(256))]

        #[test]
        fn times_stay_and_amounts_shrink(
            kind in
                prop::sample::select(AlgorithmKind::OVER_TIME.map(|(_, kind)| kind).to_vec()),
            limit in 0..100_000_u64,
            replicas in 1..=u32::MAX,
            hits in any::<i64>(),
        ) {
            let (whole, share) = (made(kind, limit), shared(made(kind, limit), replicas));
            prop_assert_eq!(whole.tick(), share.tick());
            prop_assert!(share.capacity() <= whole.capacity());
            prop_assert_eq!(share.capacity() == 0, whole.capacity() == 0);
            prop_assert_eq!(shared(whole, 1), whole);
            // Whatever was stored under the whole is understood.
            let at = Arrival {
                now: Micros(1_800_000_000_000_000),
                max_wait: Span::MAX,
            };
            let stored = whole.step(None, at, hits).state;
            prop_assert!(share.step(stored, at, 0).verdict.remaining <= share.capacity());
        }
    }
}
