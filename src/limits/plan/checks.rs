//! The checks of one request, as stores decide them. They do not depend on the rules or on the
//! response. They are plain data, to which no store writes: a clone is a copy.

use std::ops::{Index, Range};

use smallvec::SmallVec;

use super::Options;
use super::features::Extras;
use crate::core::algorithm::Algorithm;
pub use crate::core::answer::CheckIndex;
use crate::core::fingerprint::Fingerprint;
use crate::core::time::Unit;
use crate::limits::rules::Commit;
use crate::limits::rules::limit::{Amount, LimitId, LimitInForce, OnStoreFailure};

/// Some checks of a request, in ascending order.
pub type CheckIndices = SmallVec<[CheckIndex; 4]>;

/// All checks of one request, in the order of its descriptors, and their keys.
///
/// After the checks that take part in the decision come those apart, in the same order. A store
/// counts each of them, but iteration leaves them out: only an index or [`Checks::all`] leads to
/// one, and it cannot affect the decision on the request by mistake.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// Indexed by [`CheckIndex`].
    pub(super) list: SmallVec<[Check; 4]>,
    /// Number of checks at the end that take no part in the decision.
    pub(super) apart: usize,
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
    pub draws_ahead: bool,
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
            draws_ahead: false,
            extras: None,
        }
    }

    /// The limit whose places or holds metrics count, if it has some.
    #[inline]
    pub fn limit(&self) -> Option<LimitId> {
        self.extras.as_ref()?.limit
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
            all.push(start..all.keys.len(), check);
        }
        all
    }

    /// Adds a check of this limit, or of one of the request's own, whose key is written already.
    #[inline]
    pub(super) fn add(
        &mut self,
        key: Range<usize>,
        limit: Option<LimitInForce<'_>>,
        amount: &Amount,
        hits: i64,
        options: &Options,
    ) -> CheckIndex {
        let on_store_failure = limit.and_then(LimitInForce::on_store_failure);
        let modes = Modes {
            shadow: limit.is_some_and(LimitInForce::shadow_mode),
            quota: options.quota_mode || limit.is_some_and(|found| found.limit.quota_mode),
        };
        let check = Check {
            on_store_failure: on_store_failure.unwrap_or(options.on_store_failure),
            per_second: amount.rate.unit == Unit::Second,
            draws_ahead: amount.lease,
            extras: Extras::of(limit, amount),
            ..Check::new(amount.algorithm, hits, modes)
        };
        self.push(key, check)
    }

    /// Adds a check with this key.
    #[inline]
    pub(super) fn push(&mut self, key: Range<usize>, check: Check) -> CheckIndex {
        self.may_have_extras |= check.extras.is_some();
        let fingerprint = Fingerprint::of(&self.keys[key.clone()]);
        self.list.push(Check {
            key,
            fingerprint,
            ..check
        });
        CheckIndex(self.list.len() - 1)
    }

    /// The data of the check at `index` that few limits need.
    pub(super) fn extras_mut(&mut self, index: CheckIndex) -> &mut Extras {
        self.may_have_extras = true;
        self.list[index.0].extras.get_or_insert_default()
    }

    /// Whether a check may be of a limit with a feature that few limits need.
    #[inline]
    pub const fn may_have_features(&self) -> bool {
        self.may_have_extras
    }

    /// The data that few limits need, of all checks that have some.
    #[inline]
    pub(super) fn extras(&self) -> impl Iterator<Item = &Extras> {
        let all = match self.may_have_extras {
            true => &self.list[..],
            false => &[],
        };
        all.iter().filter_map(|check| check.extras.as_deref())
    }

    /// Whether metrics count the places or the holds of a check's limit.
    #[inline]
    pub fn has_effects(&self) -> bool {
        self.extras().any(|extras| extras.limit.is_some())
    }

    /// The bytes of memory that these checks take.
    pub fn bytes(&self) -> usize {
        let of_each = size_of::<Check>() + size_of::<Extras>();
        size_of::<Self>() + self.keys.capacity() + self.list.len() * of_each
    }

    /// Whether one of all checks has a delay.
    pub fn may_delay(&self) -> bool {
        self.list.iter().any(|check| check.algorithm.may_delay())
    }

    /// Whether one of all checks gives hits back.
    pub fn has_refund(&self) -> bool {
        self.list.iter().any(|check| check.hits < 0)
    }

    /// The number of checks that take part in the decision.
    pub fn len(&self) -> usize {
        self.list.len() - self.apart
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The checks that take part, in the order of their indices.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Check> {
        self.list[..self.len()].iter()
    }

    /// The checks that take part, each with its index.
    pub fn indexed(&self) -> impl ExactSizeIterator<Item = (CheckIndex, &Check)> {
        let all = self.iter().enumerate();
        all.map(|(index, check)| (CheckIndex(index), check))
    }

    /// The indices of the checks that take part.
    pub fn indices(&self) -> CheckIndices {
        (0..self.len()).map(CheckIndex).collect()
    }

    /// The number of all checks.
    pub fn total(&self) -> usize {
        self.list.len()
    }

    /// The indices of all checks.
    pub fn all(&self) -> CheckIndices {
        (0..self.total()).map(CheckIndex).collect()
    }

    /// The indices of the checks apart.
    pub fn apart(&self) -> impl ExactSizeIterator<Item = CheckIndex> + use<> {
        (self.len()..self.total()).map(CheckIndex)
    }

    /// Whether a check takes no part in the decision.
    pub fn is_apart(&self, index: CheckIndex) -> bool {
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
        self[index].per_second && (self.commit == Commit::Each || self.is_apart(index))
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

    /// Turns the first checks, with or without those apart, into peeks: neither counters nor usage
    /// are written, and the answers report the remaining hits.
    pub fn peek_only(&mut self, first: usize) {
        for check in &mut self.list[..first] {
            check.hits = 0;
            if let Some(extras) = &mut check.extras {
                extras.peek();
            }
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
    /// passing, because a request is not refused for the picked quotas alone. Reports leave the
    /// picked ones out.
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
                extras.leave_out_reports();
            }
            check
        };
        Self {
            list: picked.iter().map(check).collect(),
            apart: picked.iter().filter(|&&index| self.is_apart(index)).count(),
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
