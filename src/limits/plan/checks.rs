//! The checks of one request, as stores decide them. They do not depend on the rules or on the
//! response. They are plain data, to which no store writes: a clone is a copy.

use std::ops::{Index, Range};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::algorithm::concurrency::{HolderId, TAKE_BACK};
use crate::core::algorithm::reservations::Purpose;
use crate::core::algorithm::{Algorithm, Arrival, Reservations, State, Step};
pub use crate::core::answer::CheckIndex;
use crate::core::answer::Effect;
use crate::core::fingerprint::Fingerprint;
use crate::core::time::Span;
use crate::core::usage::{Tracked, Tracking};
use crate::limits::rules::Commit;
use crate::limits::rules::limit::{LimitId, OnStoreFailure};
use crate::limits::rules::thresholds::Thresholds;

/// Some checks of a request, in ascending order.
pub type CheckIndices = SmallVec<[CheckIndex; 4]>;

/// All checks of one request, in the order of its descriptors, and their keys.
///
/// After the checks that decide the request come its trials, in the same order. A store counts each
/// of them like a check, but iteration leaves them out: only an index or [`Checks::all`] leads to
/// one, and a trial cannot affect the decision on the request by mistake.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// Indexed by [`CheckIndex`].
    pub(super) list: SmallVec<[Check; 4]>,
    /// Number of trials among them.
    pub(super) trials: usize,
    /// The keys of all checks, concatenated.
    pub(super) keys: Vec<u8>,
    /// Whether a check that is over its limit keeps the others from being counted.
    pub commit: Commit,
    pub(super) passing_quotas: usize,
    /// Whether a check may have [`Extras`]: the checks of most requests have none.
    pub(super) may_have_extras: bool,
    /// An override blocks a descriptor of the request.
    pub(super) is_blocked: bool,
}

/// Data of a check that few limits need; see [`Check::extras`].
#[derive(Clone, Debug, Default)]
pub(super) struct Extras {
    /// Its limit has `track_usage`.
    pub(super) tracking: Option<Tracked>,
    /// The limit whose holders or holds metrics count.
    pub(super) limit: Option<LimitId>,
    /// Its limit is one of requests in flight: the id of the request.
    pub(super) holder: Option<HolderId>,
    /// Its limit has `reservations`.
    pub(super) reservation: Option<Reservation>,
    /// Its limit has `notify`.
    pub(super) thresholds: Option<Thresholds>,
}

/// The reservation or the settlement that a check makes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reservation {
    pub terms: Reservations,
    pub purpose: Purpose,
}

/// One thing to decide.
#[derive(Clone, Debug)]
pub struct Check {
    pub(super) key: Range<usize>,
    /// Of the key.
    pub fingerprint: Fingerprint,
    /// The algorithm with the numbers of the limit.
    pub algorithm: Algorithm,
    /// Requested hits: 0 is a peek, and a negative number a refund.
    pub hits: i64,
    /// Effect of this check, when over its limit, on the overall code of the request.
    pub modes: Modes,
    /// The answer while the store is unavailable.
    pub on_store_failure: OnStoreFailure,
    /// The limit's unit is a second: a separate Redis may count it.
    pub per_second: bool,
    /// Hits may be drawn ahead of requests.
    pub lease: bool,
    /// In a box, which keeps the checks of most limits small.
    pub(super) extras: Option<Box<Extras>>,
}

impl Check {
    /// A check without a key; [`Checks::of`] sets it and the fingerprint.
    pub fn new(algorithm: Algorithm, hits: i64, modes: Modes) -> Self {
        Self {
            key: 0..0,
            fingerprint: Fingerprint::default(),
            algorithm,
            hits,
            modes,
            on_store_failure: OnStoreFailure::default(),
            per_second: false,
            lease: false,
            extras: None,
        }
    }

    /// The limit of the check, if that has `track_usage`.
    #[inline]
    pub fn tracking(&self) -> Option<&Arc<Tracking>> {
        self.tracked().map(|(tracking, _)| tracking)
    }

    /// The same with the periods of its amount.
    #[inline]
    pub fn tracked(&self) -> Option<&Tracked> {
        self.extras.as_ref()?.tracking.as_ref()
    }

    /// The limit whose holders or holds metrics count, if it has some.
    #[inline]
    pub fn limit(&self) -> Option<LimitId> {
        self.extras.as_ref()?.limit
    }

    /// The id of the request, for a limit of requests in flight.
    pub fn holder(&self) -> Option<HolderId> {
        self.extras.as_ref()?.holder
    }

    /// The reservation or the settlement, if the limit has `reservations`.
    #[inline]
    pub fn reservation(&self) -> Option<&Reservation> {
        self.extras.as_ref()?.reservation.as_ref()
    }

    /// Whether requests can hold hits of the limit: then a counter has more than its state.
    #[inline]
    pub fn has_holds(&self) -> bool {
        self.reservation().is_some()
    }

    /// Whether the check reserves hits.
    pub fn reserves(&self) -> bool {
        let purpose = self.reservation().map(|reservation| reservation.purpose);
        matches!(purpose, Some(Purpose::Reserve(_)))
    }

    /// The id whose hold the check settles.
    pub fn settles(&self) -> Option<HolderId> {
        match self.reservation()?.purpose {
            Purpose::Settle(id) => Some(id),
            Purpose::Reserve(_) | Purpose::Undo(_) | Purpose::Plain => None,
        }
    }

    /// Whether it refunds hits, releases places, or settles or gives back a reservation. Such a check
    /// refuses nothing, in debt and without the store too.
    pub fn returns(&self) -> bool {
        let purpose = self.reservation().map(|reservation| reservation.purpose);
        let ends = matches!(purpose, Some(Purpose::Settle(_) | Purpose::Undo(_)));
        self.hits < 0 || ends
    }

    /// The thresholds, if its limit has `notify`.
    #[inline]
    pub fn thresholds(&self) -> Option<&Thresholds> {
        self.extras.as_ref()?.thresholds.as_ref()
    }
}

/// Effect of an exceeded limit on the overall code of its request: the fields `shadow_mode` and
/// `quota_mode` of the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// The descriptor's status is OK, also over the limit.
    pub shadow: bool,
    /// The request is over its limit only if all of its quota descriptors are.
    pub quota: bool,
}

impl Checks {
    /// Checks without rules, each with its key: for probes, and for tests of stores.
    pub fn of<'k>(checks: impl IntoIterator<Item = (&'k [u8], Check)>) -> Self {
        let mut all = Self::default();
        for (key, check) in checks {
            let start = all.keys.len();
            all.keys.extend_from_slice(key);
            all.list.push(Check {
                key: start..all.keys.len(),
                fingerprint: Fingerprint::of(key),
                ..check
            });
        }
        all
    }

    /// The data of the check at `index` that few limits need.
    pub(super) fn extras_mut(&mut self, index: CheckIndex) -> &mut Extras {
        self.may_have_extras = true;
        self.list[index.0].extras.get_or_insert_default()
    }

    /// The same checks, of which the one at `index` is of a limit with `track_usage`: for tests of
    /// stores.
    #[must_use]
    pub fn tracked(mut self, index: CheckIndex, tracked: Tracked) -> Self {
        self.extras_mut(index).tracking = Some(tracked);
        self
    }

    /// The same checks, where the one at `index` is a check of a limit of requests in flight by the
    /// request with this id: for tests of stores.
    #[must_use]
    pub fn with_holder(mut self, index: CheckIndex, id: &[u8]) -> Self {
        self.extras_mut(index).holder = Some(HolderId::of(id));
        self
    }

    /// Shortens the life of the holds that the request makes.
    pub fn shorten_holds(&mut self, longest: Span) {
        let all = self.list.iter_mut();
        let reservations = all.filter_map(|check| check.extras.as_mut()?.reservation.as_mut());
        reservations.for_each(|one| one.terms.ttl = one.terms.ttl.min(longest));
    }

    /// The same checks, where the limit of the one at `index` has `reservations`: for tests of
    /// stores.
    #[must_use]
    pub fn with_reservation(
        mut self,
        index: CheckIndex,
        terms: Reservations,
        purpose: Purpose,
    ) -> Self {
        self.extras_mut(index).reservation = Some(Reservation { terms, purpose });
        self
    }

    /// The data that few limits need, of the checks and the trials that have some.
    #[inline]
    fn extras(&self) -> impl Iterator<Item = &Extras> {
        let all = match self.may_have_extras {
            true => &self.list[..],
            false => &[],
        };
        all.iter().filter_map(|check| check.extras.as_deref())
    }

    /// Whether a check or a trial is of a limit with `track_usage`.
    #[inline]
    pub fn is_tracked(&self) -> bool {
        self.extras().any(|extras| extras.tracking.is_some())
    }

    /// Whether a check is of a limit of requests in flight.
    #[inline]
    pub fn has_holders(&self) -> bool {
        self.extras().any(|extras| extras.holder.is_some())
    }

    /// Whether requests can hold hits of a check's limit.
    #[inline]
    pub fn has_holds(&self) -> bool {
        self.extras().any(|extras| extras.reservation.is_some())
    }

    /// Whether metrics count the holders or the holds of a check's limit.
    #[inline]
    pub fn has_effects(&self) -> bool {
        self.extras().any(|extras| extras.limit.is_some())
    }

    /// Whether a check is of a limit with `notify`.
    #[inline]
    pub fn has_thresholds(&self) -> bool {
        self.extras().any(|extras| extras.thresholds.is_some())
    }

    /// The checks that acquire places of limits of requests in flight.
    pub fn acquires(&self) -> impl Iterator<Item = CheckIndex> {
        let acquires = |check: &Check| check.hits > 0 && check.holder().is_some();
        let all = self.indexed().filter(move |(_, check)| acquires(check));
        all.map(|(index, _)| index)
    }

    /// The acquires at `picked`, each as the check that takes it back.
    #[must_use]
    pub fn taken_back(&self, picked: &[CheckIndex]) -> Self {
        let mut checks = self.subset(picked, |algorithm| algorithm, |_| true);
        checks.commit = Commit::Each;
        for check in &mut checks.list {
            check.hits = TAKE_BACK;
        }
        checks
    }

    /// The bytes of memory that these checks take.
    pub fn bytes(&self) -> usize {
        let of_each = size_of::<Check>() + size_of::<Extras>();
        size_of::<Self>() + self.keys.capacity() + self.list.len() * of_each
    }

    /// Decides a check on the state of its key. A limit with holds has more than a state.
    pub fn step(&self, index: CheckIndex, state: Option<State>, at: Arrival) -> (Step, Effect) {
        let check = &self[index];
        let own = check.reservation().copied();
        if own.is_none() && !matches!(state, Some(State::Holds(_))) {
            return self.step_as(index, &check.algorithm, check.hits, state, at);
        }
        // Holds end also where the limit has no reservations any more.
        let Reservation { terms, purpose } = own.unwrap_or_default();
        let (step, mut change) = terms.step(&check.algorithm, purpose, check.hits, state, at);
        if check.thresholds().is_some()
            && let Some(State::Holds(holds)) = &step.state
        {
            change.open = holds.open_hits(&check.algorithm, at.now);
        }
        (step, change.into())
    }

    /// Decides `hits` hits of a check by another form of its algorithm.
    #[inline]
    pub(super) fn step_as(
        &self,
        index: CheckIndex,
        algorithm: &Algorithm,
        hits: i64,
        state: Option<State>,
        at: Arrival,
    ) -> (Step, Effect) {
        let Algorithm::Concurrency(limit) = algorithm else {
            return (algorithm.step(state, at, hits), Effect::None);
        };
        let holder = self[index].holder().unwrap_or_default();
        let (step, change) = limit.step_by(holder, state, at.now, hits);
        (step, Effect::of_places(hits, change))
    }

    /// The checks and trials of limits with `track_usage`.
    pub fn all_tracking(&self) -> impl Iterator<Item = (CheckIndex, &Tracked)> {
        let all = self.list.iter().enumerate();
        all.filter_map(|(index, check)| Some((CheckIndex(index), check.tracked()?)))
    }

    /// Whether a check or a trial can delay a request.
    pub fn may_delay(&self) -> bool {
        self.list.iter().any(|check| check.algorithm.may_delay())
    }

    /// Whether a check or a trial gives hits back.
    pub fn has_refund(&self) -> bool {
        self.list.iter().any(|check| check.hits < 0)
    }

    /// The number of checks, without trials.
    pub fn len(&self) -> usize {
        self.list.len() - self.trials
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The checks without trials, in the order of their indices.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Check> {
        self.list[..self.len()].iter()
    }

    /// All checks of the request, each with its index.
    pub fn indexed(&self) -> impl ExactSizeIterator<Item = (CheckIndex, &Check)> {
        let all = self.iter().enumerate();
        all.map(|(index, check)| (CheckIndex(index), check))
    }

    /// The indices of the checks without trials.
    pub fn indices(&self) -> CheckIndices {
        (0..self.len()).map(CheckIndex).collect()
    }

    /// The number of checks with trials.
    pub fn total(&self) -> usize {
        self.list.len()
    }

    /// The indices of the checks and of the trials.
    pub fn all(&self) -> CheckIndices {
        (0..self.total()).map(CheckIndex).collect()
    }

    /// The indices of the trials.
    pub fn trials(&self) -> impl ExactSizeIterator<Item = CheckIndex> + use<> {
        (self.len()..self.total()).map(CheckIndex)
    }

    /// Whether a check is a trial.
    pub fn is_trial(&self, index: CheckIndex) -> bool {
        index.0 >= self.len()
    }

    /// The key of a descriptor that an override blocks. It has no algorithm at its end where no
    /// limit applies.
    pub fn blocked_key(&self, &Range { start, end }: &Range<u32>) -> &[u8] {
        let key = self.keys.get(start as usize..end as usize);
        key.unwrap_or_default()
    }

    /// The key of a check, without the window number that a store may append.
    pub fn key(&self, check: &Check) -> &[u8] {
        &self.keys[check.key.clone()]
    }

    /// Whether a refused request counts in none of its checks.
    pub fn is_all_or_none(&self) -> bool {
        self.commit == Commit::AllOrNone
    }

    /// Whether a check may use the Redis for limits per second. Checks of an `all_or_none` domain
    /// have to be decided by one server.
    pub fn is_per_second(&self, index: CheckIndex) -> bool {
        self[index].per_second && (self.commit == Commit::Each || self.is_trial(index))
    }

    /// The number of descriptors without a check that count as quota descriptors. They are never
    /// over a limit.
    pub const fn passing_quotas(&self) -> usize {
        self.passing_quotas
    }

    /// Whether all checks became peeks, because an override blocks a descriptor of the request and
    /// nothing of it counts.
    pub fn are_peeks(&self) -> bool {
        self.is_blocked && self.commit == Commit::AllOrNone
    }

    /// Turns the first checks, with or without the trials after them, into peeks: neither counters
    /// nor usage are written, and the answers report the remaining hits. A peek that ends holds
    /// which stay charged records their usage.
    pub fn peek_only(&mut self, first: usize) {
        for check in &mut self.list[..first] {
            check.hits = 0;
            if let Some(extras) = &mut check.extras {
                match &mut extras.reservation {
                    Some(reservation) => reservation.purpose = Purpose::Plain,
                    None => extras.tracking = None,
                }
            }
        }
    }

    /// Lets a check that has reserved hits leave its id these.
    pub fn undo(&mut self, CheckIndex(index): CheckIndex, left: u64) {
        let check = &mut self.list[index];
        if let Some(extras) = &mut check.extras
            && let Some(Reservation { purpose, .. }) = &mut extras.reservation
            && let Purpose::Reserve(id) = *purpose
        {
            (check.hits, *purpose) = (left.cast_signed(), Purpose::Undo(id));
        }
    }

    /// Adds this number of hits to the request of a check.
    pub fn draw_ahead(&mut self, CheckIndex(index): CheckIndex, ahead: u64) {
        let hits = &mut self.list[index].hits;
        *hits = hits.saturating_add_unsigned(ahead);
    }

    /// Whether the overall code is OVER_LIMIT, given for each check whether it is allowed: when any
    /// check is over its limit that is neither in shadow mode nor a quota, or when there are quotas
    /// and all of them are over. Source: envoyproxy/ratelimit. Also when an override blocks a
    /// descriptor.
    pub fn is_over_limit(&self, allowed: impl Iterator<Item = bool>) -> bool {
        let (mut quotas, mut quotas_over, mut over) = (self.passing_quotas, 0, self.is_blocked);
        for (check, allowed) in self.iter().zip(allowed) {
            let is_over = !allowed && !check.modes.shadow;
            quotas += usize::from(check.modes.quota);
            quotas_over += usize::from(check.modes.quota && is_over);
            over |= is_over && !check.modes.quota;
        }
        over || (quotas > 0 && quotas == quotas_over)
    }

    /// The checks at `picked`, with the algorithms that `change` returns for them, as a separate
    /// list with its own indices.
    ///
    /// The others are left out except their quotas: a quota for which `passes` is true counts as
    /// passing, because a request is not refused for the picked quotas alone. Usage is not tracked,
    /// and no threshold is crossed.
    #[must_use]
    pub fn subset(
        &self,
        picked: &[CheckIndex],
        change: impl Fn(Algorithm) -> Algorithm,
        passes: impl Fn(CheckIndex) -> bool,
    ) -> Self {
        let rest = self.indexed().filter(|(index, _)| !picked.contains(index));
        let passing = rest.filter(|&(index, check)| check.modes.quota && passes(index));
        let check = |&index: &CheckIndex| {
            let mut check = self[index].clone();
            check.algorithm = change(check.algorithm);
            if let Some(extras) = &mut check.extras {
                (extras.tracking, extras.thresholds) = (None, None);
            }
            check
        };
        Self {
            list: picked.iter().map(check).collect(),
            trials: picked.iter().filter(|&&index| self.is_trial(index)).count(),
            keys: self.keys.clone(),
            commit: self.commit,
            passing_quotas: self.passing_quotas + passing.count(),
            may_have_extras: self.may_have_extras,
            is_blocked: self.is_blocked,
        }
    }
}

impl Index<CheckIndex> for Checks {
    type Output = Check;

    fn index(&self, index: CheckIndex) -> &Check {
        &self.list[index.0]
    }
}
