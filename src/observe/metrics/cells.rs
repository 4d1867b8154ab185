//! Cells: counters with one row per core, summed when a scrape reads them.
//!
//! A counter that all cores share moves its cache line between them at each request. Here every
//! core has a row of its own, on cache lines of its own, and an addition is a load and a store. Two
//! threads must not write one row at once, or additions are lost (nothing worse).

use std::sync::atomic::{AtomicU64, Ordering};

/// The row that a thread adds to. Each thread that decides requests has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core(pub usize);

/// `N` counters, a row of them for each core.
#[derive(Debug)]
pub(super) struct Cells<const N: usize> {
    rows: Box<[Row<N>]>,
}

/// Many processors fetch two cache lines of 64 bytes together.
#[derive(Debug)]
#[repr(align(128))]
struct Row<const N: usize>([AtomicU64; N]);

impl<const N: usize> Cells<N> {
    /// All zero, for at least one core.
    pub(super) fn new(cores: usize) -> Self {
        Self {
            rows: (0..cores.max(1))
                .map(|_| Row(std::array::from_fn(|_| AtomicU64::new(0))))
                .collect(),
        }
    }

    /// Adds `amount` to one counter; an index out of bounds stands for the last core or counter.
    pub(super) fn add(&self, core: Core, counter: usize, amount: u64) {
        let row = &self.rows[core.0.min(self.rows.len() - 1)];
        let cell = &row.0[counter.min(N - 1)];
        cell.store(
            cell.load(Ordering::Relaxed).wrapping_add(amount),
            Ordering::Relaxed,
        );
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
