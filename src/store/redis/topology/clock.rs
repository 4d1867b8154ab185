//! An estimate of a Redis server's clock, without a query: windows are numbered by that clock, and
//! the number is part of the key that a request sends.
//!
//! Each reply to TIME shows how far that clock is ahead of the monotonic clock of this machine. A
//! reply is old by its transit time when it arrives, which makes the difference too small.
//! Therefore the largest difference of the last seconds is the most accurate one. The wall clock of
//! this machine is never used: replicas of Weir with wrong clocks have to number the same windows.
//! Source: redis.io, the page of TIME.

use std::sync::Mutex;

use tokio::time::{Duration, Instant};

use crate::core::lock;
use crate::core::time::Micros;
use crate::store::redis::wire::call::ClockReading;

/// The length of a period. The largest differences of the current and the previous period count.
/// Therefore a difference counts for at most two periods.
const PERIOD: Duration = Duration::from_secs(5);

/// An estimate of the clock of one Redis server, shared by all threads.
#[derive(Debug)]
pub(crate) struct ServerClock {
    origin: Instant,
    ahead: Mutex<Option<Ahead>>,
}

/// Difference of Redis's clock to the time since `origin`, in microseconds: the largest of each
/// period, because a delayed reply makes it smaller.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    period_began: Instant,
    current: i64,
    /// The least number if there was no period before.
    previous: i64,
}

impl Ahead {
    fn begin(at: Instant, seen: i64) -> Self {
        Self {
            period_began: at,
            current: seen,
            previous: i64::MIN,
        }
    }
}

impl ServerClock {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
            ahead: Mutex::default(),
        }
    }

    /// Updates the estimate with a reply that arrived at `at` and has the `time` of Redis's clock.
    pub(crate) fn observe(&self, time: Micros, at: Instant) {
        let seen = self.ahead(time, at);
        let mut ahead = lock(&self.ahead);
        let age = |known: Ahead| at.saturating_duration_since(known.period_began);
        *ahead = Some(match *ahead {
            Some(known) if age(known) < PERIOD => Ahead {
                current: known.current.max(seen),
                ..known
            },
            Some(known) if age(known) < 2 * PERIOD => Ahead {
                previous: known.current,
                ..Ahead::begin(at, seen)
            },
            _ => Ahead::begin(at, seen),
        });
    }

    /// Starts a new estimate from the first TIME of a new connection, which may lead to another
    /// machine.
    pub(crate) fn restart(&self, time: Micros, at: Instant) {
        let seen = self.ahead(time, at);
        *lock(&self.ahead) = Some(Ahead::begin(at, seen));
    }

    /// Drops the estimate, because another server has replaced this one.
    pub(crate) fn forget(&self) {
        *lock(&self.ahead) = None;
    }

    /// Time of Redis's clock at `at`, by the estimate; `None` without an estimate, or if that clock
    /// shows a time before 1970.
    fn read(&self, at: Instant) -> Option<Micros> {
        let known = (*lock(&self.ahead))?;
        let ahead = known.current.max(known.previous);
        let time = u64::try_from(ahead.saturating_add(self.elapsed_micros(at)));
        time.ok().map(Micros)
    }

    /// Current time of Redis's clock.
    pub(crate) fn reading(&self) -> Option<ClockReading> {
        let at = Instant::now();
        let time = self.read(at)?;
        Some(ClockReading { time, at })
    }

    fn ahead(&self, time: Micros, at: Instant) -> i64 {
        i64::try_from(time.0)
            .unwrap_or(i64::MAX)
            .saturating_sub(self.elapsed_micros(at))
    }

    fn elapsed_micros(&self, at: Instant) -> i64 {
        i64::try_from(at.saturating_duration_since(self.origin).as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_800_000_000_000_000;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_fastest_reply_of_the_last_seconds_counts() {
        let clock = ServerClock::new();
        let now = clock.origin;
        assert_eq!(clock.read(now), None);
        clock.restart(Micros(START), now);
        clock.observe(Micros(START + 1_000_000), now + millis(1_500));
        assert_eq!(
            clock.read(now + millis(2_000)),
            Some(Micros(START + 2_000_000)),
            "a slow reply changes nothing"
        );
        clock.observe(Micros(START + 2_003_000), now + millis(2_000));
        assert_eq!(
            clock.read(now + millis(2_000)),
            Some(Micros(START + 2_003_000)),
            "a faster one does"
        );
    }

    #[test]
    fn the_estimate_follows_a_clock_that_was_set_back_after_ten_seconds() {
        let clock = ServerClock::new();
        let now = clock.origin;
        clock.restart(Micros(START), now);
        for second in 1..=10 {
            clock.observe(
                Micros(START + second * 1_000_000 - 500_000_000),
                now + millis(second * 1_000),
            );
            let estimate = clock
                .read(now + millis(second * 1_000))
                .expect("a TIME was observed");
            assert_eq!(
                estimate.0 < START,
                second == 10,
                "after {second} s: {estimate:?}"
            );
        }
    }

    #[test]
    fn the_estimate_follows_a_new_connection_at_once() {
        let clock = ServerClock::new();
        let now = clock.origin;
        clock.observe(Micros(START), now);
        clock.restart(Micros(START - 3_600_000_000), now);
        assert_eq!(clock.read(now), Some(Micros(START - 3_600_000_000)));
    }
}
