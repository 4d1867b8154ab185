//! The counters of one series: hits as envoyproxy/ratelimit divides them, then outcomes of checks.
//!
//! A counter that all cores share moves its cache line between them at each request. In `Cells`
//! every core has a row of its own, on cache lines of its own, and an addition is a load and a
//! store; a scrape sums the rows.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::families::{self, Family};
use crate::core::algorithm::Algorithm;
use crate::core::time::MAX_SAFE_INTEGER;
use crate::core::verdict::Verdict;

pub(super) const TOTAL_HITS: usize = 0;
pub(super) const WITHIN_LIMIT: usize = 1;
pub(super) const NEAR_LIMIT: usize = 2;
pub(super) const OVER_LIMIT: usize = 3;
pub(super) const SHADOW_MODE: usize = 4;
pub(super) const OVER_LIMIT_WITH_LOCAL_CACHE: usize = 5;

/// The families of hits, in the order of their counters: five of envoyproxy/ratelimit, and the
/// refusals of the denial cache.
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

/// Decision about a descriptor, as `weir_decisions_total` counts it.
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

/// Number of counters of a series. Sixteen fill the cache lines of a core's row.
pub(super) const COUNTERS: usize = DECISIONS + OUTCOMES.len();

/// The values of all counters of a series.
pub(super) type Counts = [u64; COUNTERS];

/// Adds `counts` to `sums`, counter by counter.
pub(super) fn add_up(sums: &mut Counts, counts: &Counts) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum = sum.wrapping_add(*count);
    }
}

/// The row that a thread adds to. Each thread that decides requests has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core(pub usize);

/// `N` counters, a row of them for each core. Two threads must not write one row at once, or
/// additions are lost (nothing worse).
#[derive(Debug)]
pub(super) struct Cells<const N: usize> {
    rows: Box<[CoreCounters<N>]>,
}

/// Many processors fetch two cache lines of 64 bytes together.
#[derive(Debug)]
#[repr(align(128))]
struct CoreCounters<const N: usize>([AtomicU64; N]);

impl<const N: usize> Cells<N> {
    /// All zero, for at least one core.
    pub(super) fn new(cores: usize) -> Self {
        Self {
            rows: (0..cores.max(1))
                .map(|_| CoreCounters(std::array::from_fn(|_| AtomicU64::new(0))))
                .collect(),
        }
    }

    /// Adds `amount` to one counter; an index out of bounds is the last core or counter.
    pub(super) fn add(&self, core: Core, counter: usize, amount: u64) {
        let row = &self.rows[core.0.min(self.rows.len() - 1)];
        let cell = &row.0[counter.min(N - 1)];
        let sum = cell.load(Ordering::Relaxed).wrapping_add(amount);
        cell.store(sum, Ordering::Relaxed);
    }

    /// The counters, summed over all cores.
    pub(super) fn sums(&self) -> [u64; N] {
        std::array::from_fn(|counter| {
            self.rows.iter().fold(0_u64, |sum, row| {
                sum.wrapping_add(row.0[counter].load(Ordering::Relaxed))
            })
        })
    }
}

/// Counters whose rows the first addition makes: most limits of a large configuration are never
/// used, and a row for each core is the largest part of a limit.
#[derive(Debug, Default)]
pub(super) struct LazyCells<const N: usize>(OnceLock<Cells<N>>);

impl<const N: usize> LazyCells<N> {
    /// The rows, of so many `cores` if there are none yet.
    #[inline]
    pub(super) fn rows(&self, cores: usize) -> &Cells<N> {
        self.0.get_or_init(|| Cells::new(cores))
    }

    pub(super) fn sums(&self) -> [u64; N] {
        self.0.get().map_or([0; N], Cells::sums)
    }
}

/// The parts of one check's hits. They need not add up to the hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HitPartition {
    /// Hits of a check that is within the limit as a whole.
    pub within: u64,
    /// Hits between the share of the limit that is near it and the limit.
    pub near: u64,
    /// Hits beyond the limit.
    pub over: u64,
}

/// The hits from which on a check is near the limit: `ratio` of it, in single precision and rounded
/// down, as in envoyproxy/ratelimit.
fn near_bound(limit: u64, ratio: f32) -> u64 {
    (limit as f32 * ratio).floor() as u64
}

/// Divides the `hits` of a check (more than 0) with the store's `verdict` under `algorithm`.
///
/// The verdict decides whether hits are within the limit or over it; near is measured against the
/// capacity, which may be more than the hits of a window (`burst`, `max_delay`). For `fixed_window`
/// the rules are the same as in envoyproxy/ratelimit, because its dashboards must go on working. One
/// of them is unexpected: of refused hits that cross the limit, the part below it counts as near or
/// not at all, never as within.
pub(super) fn partition(
    algorithm: &Algorithm,
    near_limit_ratio: f32,
    hits: u64,
    verdict: &Verdict,
) -> HitPartition {
    let capacity = algorithm.capacity();
    let near_bound = near_bound(capacity, near_limit_ratio);
    if verdict.allowed {
        let before = verdict.used.saturating_sub(hits);
        let near = if before >= near_bound {
            hits
        } else {
            verdict.used.saturating_sub(near_bound)
        };
        return HitPartition {
            within: hits,
            near,
            over: 0,
        };
    }
    // A fixed window counts at most `MAX_SAFE_INTEGER` hits of one check. `before` is computed with
    // that bound, everything else with the hits of the request.
    let before = verdict.used.saturating_sub(hits.min(MAX_SAFE_INTEGER));
    // Otherwise the algorithm did not count the refused hits, or none of them was below the limit.
    let crosses = matches!(algorithm, Algorithm::FixedWindow(_))
        && verdict.used > capacity
        && before < capacity;
    if !crosses {
        return HitPartition {
            over: hits,
            ..HitPartition::default()
        };
    }
    HitPartition {
        within: 0,
        near: capacity.saturating_sub(near_bound.max(before)),
        over: before.saturating_add(hits) - capacity,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_core_adds_alone_and_the_sum_has_all() {
        let cells = Cells::<3>::new(4);
        std::thread::scope(|scope| {
            for core in 0..4 {
                let cells = &cells;
                scope.spawn(move || (0..10_000).for_each(|_| cells.add(Core(core), 1, 2)));
            }
        });
        cells.add(Core(99), 2, 7);
        assert_eq!(cells.sums(), [0, 80_000, 7]);
    }

    #[test]
    fn rows_share_no_cache_line() {
        let cells = Cells::<1>::new(2);
        let gap = std::ptr::from_ref(&cells.rows[1]) as usize
            - std::ptr::from_ref(&cells.rows[0]) as usize;
        assert!(gap >= 128);
    }
}

#[cfg(test)]
mod partition_tests {
    use super::*;
    use crate::core::algorithm::FixedWindow;
    use crate::core::time::{Period, Span};
    use crate::core::verdict::Wait;

    fn verdict(limit: u64, used: u64) -> Verdict {
        Verdict {
            delay: Span::ZERO,
            allowed: used <= limit,
            remaining: 0,
            used,
            reset_after: Span::from_secs(1),
            retry_after: Wait::For(Span::from_secs(1)),
        }
    }

    const MINUTE: Span = Span::from_secs(60);

    fn fixed(limit: u64) -> Algorithm {
        Algorithm::FixedWindow(FixedWindow {
            limit,
            window: Period::Even(MINUTE),
            count_denied: true,
        })
    }

    #[test]
    fn hits_fall_into_parts_as_in_the_reference() {
        // limit, used before, hits: within, near, over; near begins at 8 of 10.
        let table = [
            (10, 0, 1, (1, 0, 0)),
            (10, 7, 1, (1, 0, 0)),
            (10, 8, 1, (1, 1, 0)),
            (10, 9, 1, (1, 1, 0)),
            (10, 5, 5, (5, 2, 0)),
            (10, 0, 10, (10, 2, 0)),
            (10, 10, 1, (0, 0, 1)),
            (10, 25, 4, (0, 0, 4)),
            (10, 9, 3, (0, 1, 2)),
            (10, 5, 8, (0, 2, 3)),
            (10, 0, 11, (0, 2, 1)),
            (0, 0, 1, (0, 0, 1)),
            (1, 0, 1, (1, 1, 0)),
            (3, 1, 1, (1, 0, 0)),
            (3, 2, 1, (1, 1, 0)),
        ];
        for (limit, before, hits, (within, near, over)) in table {
            let parts = partition(&fixed(limit), 0.8, hits, &verdict(limit, before + hits));
            assert_eq!(
                parts,
                HitPartition { within, near, over },
                "limit {limit}, {before} before, {hits} hits"
            );
        }
    }

    #[test]
    fn hits_that_the_store_clamped_count_as_asked() {
        assert_eq!(
            partition(&fixed(10), 0.8, 100, &verdict(10, 100)),
            HitPartition {
                within: 0,
                near: 2,
                over: 90
            }
        );
        let twenty_and_all = verdict(10, MAX_SAFE_INTEGER + 20);
        assert_eq!(
            partition(&fixed(10), 0.8, u64::MAX, &twenty_and_all),
            HitPartition {
                within: 0,
                near: 0,
                over: u64::MAX
            }
        );
        let all = verdict(u32::MAX.into(), MAX_SAFE_INTEGER);
        assert_eq!(
            partition(&fixed(u32::MAX.into()), 0.0, u64::MAX, &all).over,
            u64::MAX - u64::from(u32::MAX)
        );
    }

    #[test]
    fn a_refusal_that_took_nothing_is_wholly_over() {
        let refused = Verdict {
            allowed: false,
            ..verdict(10, 9)
        };
        assert_eq!(
            partition(&fixed(10), 0.8, 3, &refused),
            HitPartition {
                within: 0,
                near: 0,
                over: 3
            }
        );
    }

    #[test]
    fn the_bound_is_cut_off_in_single_precision() {
        assert_eq!(near_bound(10, 0.8), 8);
        assert_eq!(near_bound(15, 0.8), 12);
        assert_eq!(near_bound(9, 0.8), 7);
        assert_eq!(near_bound(0, 0.8), 0);
        // 16,777,217 is no f32; it becomes 16,777,216.
        assert_eq!(near_bound(16_777_217, 1.0), 16_777_216);
    }
}
