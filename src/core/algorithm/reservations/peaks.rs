//! The highest levels of a token bucket since its open holds were made.
//!
//! A bucket that was full would have been as full without a hold: what was refilled since then is
//! not refunded again. A hold of `d` units therefore gives back at most what the level lacked at its
//! highest since the reservation.

/// The most levels that are kept; of more, two holds share the higher one.
const MOST: usize = 64;

/// The highest level from an instant on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// In microseconds.
    pub since: u64,
    /// In units.
    pub level: i64,
}

/// The peaks of a bucket, the oldest first: levels fall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// The units of a hit, when the levels were written.
    pub per_hit: i64,
    pub list: Vec<Peak>,
}

impl Peaks {
    /// Takes note of a level, before hits are taken from it.
    pub(super) fn rise(&mut self, level: i64, per_hit: i64) {
        if self.per_hit != per_hit {
            // Whole hits, rounded up: too little comes back rather than too much.
            for peak in &mut self.list {
                let hits = peak.level.div_euclid(self.per_hit)
                    + i64::from(peak.level.rem_euclid(self.per_hit) > 0);
                peak.level = hits.saturating_mul(per_hit);
            }
            self.per_hit = per_hit;
        }
        let first = self.list.partition_point(|peak| peak.level > level);
        if let Some(since) = self.list.get(first).map(|peak| peak.since) {
            self.list.truncate(first);
            self.list.push(Peak { since, level });
        }
    }

    /// Begins a hold, after its hits were taken. Returns its place.
    pub(super) fn begin(&mut self, now: u64, level: i64) -> u64 {
        let last = self.list.last().map_or(0, |peak| peak.since);
        let since = now.max(last);
        if since == last {
            self.list.pop();
        }
        self.list.push(Peak { since, level });
        if self.list.len() > MOST {
            self.list.remove(1);
        }
        since
    }

    /// The units that a hold made at `since` gives back of so many, to a bucket of this level that
    /// is full with `full`.
    pub(in crate::core::algorithm) fn give_back(
        &mut self,
        since: u64,
        units: i64,
        level: i64,
        full: i64,
    ) -> i64 {
        let after = self.list.partition_point(|peak| peak.since <= since);
        let own = after.checked_sub(1);
        let peak = own.map_or(level, |own| self.list[own].level);
        let units = units.min(full - peak).max(0);
        for (index, other) in self.list.iter_mut().enumerate() {
            other.level = match own {
                Some(own) if index >= own => other.level + units,
                _ => other.level.max(peak + units),
            };
        }
        units
    }
}
