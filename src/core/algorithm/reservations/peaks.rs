//! The highest levels of a token bucket since its open holds were made.
//!
//! A bucket that was full would have been as full without a hold: what was refilled since then is
//! not refunded again. A hold of `d` units therefore gives back at most what the level lacked at its
//! highest since the reservation.

use crate::core::algorithm::Part;

/// The most levels that are kept. Of more open holds the newest share one, and may get back less.
pub const MOST_PEAKS: usize = 1_000;

/// The highest level from an instant on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// In microseconds.
    pub since: u64,
    /// In units.
    pub level: i64,
    /// The open parts of holds that begin here: not before it, and before the next peak.
    pub holds: u64,
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
        if first < self.list.len() {
            let higher = Peak {
                level,
                holds: self.list[first..].iter().map(|peak| peak.holds).sum(),
                ..self.list[first]
            };
            self.list.truncate(first);
            self.list.push(higher);
        }
    }

    /// Begins a part of a hold, after its hits were taken. Returns its place.
    pub(super) fn begin(&mut self, now: u64, level: i64) -> u64 {
        let full = self.list.len() >= MOST_PEAKS;
        match self.list.last_mut() {
            Some(last) if now <= last.since || full => {
                last.holds += 1;
                if now <= last.since {
                    last.level = level;
                    return last.since;
                }
            }
            _ => self.list.push(Peak {
                since: now,
                level,
                holds: 1,
            }),
        }
        now
    }

    /// The highest level since a place, of a bucket that has this one now.
    pub(super) fn highest(&self, place: u64, level: i64) -> i64 {
        let after = self.list.partition_point(|peak| peak.since <= place);
        let own = after.checked_sub(1).map(|own| self.list[own].level);
        own.map_or(level, |own| own.max(level))
    }

    /// The units that parts give back, each at most so many, to a bucket of this level that is full
    /// with `full`. Their places ascend.
    pub(in crate::core::algorithm) fn refund_at(
        &mut self,
        parts: impl Iterator<Item = (u64, i64)>,
        level: i64,
        full: i64,
    ) -> i64 {
        let (mut next, mut given) = (0, 0);
        for (place, units) in parts {
            while let Some(peak) = self.list.get_mut(next).filter(|peak| peak.since <= place) {
                peak.level += given;
                next += 1;
            }
            let mut own = next.checked_sub(1).map(|own| &mut self.list[own]);
            let highest = own.as_ref().map_or(level + given, |own| own.level);
            let units = units.min(full - highest).max(0);
            if let Some(own) = &mut own {
                own.level += units;
            }
            given += units;
        }
        for peak in &mut self.list[next..] {
            peak.level += given;
        }
        for index in (1..self.list.len()).rev() {
            self.list[index - 1].level = self.list[index - 1].level.max(self.list[index].level);
        }
        given
    }

    /// Ends parts of holds. Their places ascend.
    pub(super) fn end(&mut self, parts: &[Part]) {
        for part in parts {
            let after = self.list.partition_point(|peak| peak.since <= part.place);
            if let Some(own) = after.checked_sub(1) {
                self.list[own].holds = self.list[own].holds.saturating_sub(1);
            }
        }
        self.list.retain(|peak| peak.holds > 0);
    }
}
