//! The counters of one series: hits as envoyproxy/ratelimit divides them, then outcomes of checks.

use super::families::{self, Family};

pub(super) const TOTAL_HITS: usize = 0;
pub(super) const WITHIN_LIMIT: usize = 1;
pub(super) const NEAR_LIMIT: usize = 2;
pub(super) const OVER_LIMIT: usize = 3;
pub(super) const SHADOW_MODE: usize = 4;
pub(super) const OVER_LIMIT_WITH_LOCAL_CACHE: usize = 5;

/// The families of hits, in the order of their counters: five of envoyproxy/ratelimit, and what the
/// denial cache refused.
pub(super) static HITS: [&Family; 6] = [
    &families::TOTAL_HITS,
    &families::WITHIN_LIMIT,
    &families::NEAR_LIMIT,
    &families::OVER_LIMIT,
    &families::SHADOW_MODE,
    &families::DENIAL_CACHE_REFUSED_HITS,
];

pub(super) const NEGATIVE_HITS: usize = HITS.len();

/// The counter of the first outcome.
pub(super) const DECISIONS: usize = NEGATIVE_HITS + 1;

/// What was decided about a descriptor, as `weir_decisions_total` counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    Ok,
    OverLimit,
    ShadowOverLimit,
    Unlimited,
    Error,
    OutageAllowed,
    OutageDenied,
    Blocked,
    Exempt,
}

/// The values of the label `outcome`, in the order of [`Label`].
pub(super) const OUTCOMES: [&str; 9] = [
    "ok",
    "over_limit",
    "shadow_over_limit",
    "unlimited",
    "error",
    "outage_allowed",
    "outage_denied",
    "blocked",
    "exempt",
];

/// How many counters a series has. Sixteen fill the cache lines of a core's row.
pub(super) const COUNTERS: usize = DECISIONS + OUTCOMES.len();

/// The values of all counters of a series.
pub(super) type Counts = [u64; COUNTERS];

/// Adds `counts` to `sums`, counter by counter.
pub(super) fn add_up(sums: &mut Counts, counts: &Counts) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum = sum.wrapping_add(*count);
    }
}
