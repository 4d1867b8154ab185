//! What time it is at Redis, without asking: windows are numbered by Redis's clock, and the number is part of the key that is sent.
//!
//! Every reply that brings a TIME says how far that clock is ahead of ours; the answer was already a little old when it came, so the largest
//! difference of the last seconds is the truest. Nothing here trusts the clock of this machine except to measure how much time has passed.

use std::sync::{Mutex, PoisonError};

use tokio::time::{Duration, Instant};

use crate::time::Micros;

/// Differences are kept in two turns of this length, so that none counts for longer than twice as long (10 s).
const TURN: Duration = Duration::from_secs(5);

/// An estimate of the clock of one Redis, shared by all threads.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
    ahead: Mutex<Option<Ahead>>,
}

/// How far Redis's clock is ahead of the time that has passed since `origin`, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    turn_began: Instant,
    this_turn: i64,
    last_turn: Option<i64>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), ahead: Mutex::default() }
    }

    /// A reply that came in at `at` says that Redis's clock showed `time`.
    pub(crate) fn observe(&self, time: Micros, at: Instant) {
        let seen = self.ahead(time, at);
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        *ahead = Some(match *ahead {
            Some(known) if at.saturating_duration_since(known.turn_began) < TURN => Ahead { this_turn: known.this_turn.max(seen), ..known },
            Some(known) => {
                let is_recent = at.saturating_duration_since(known.turn_began) < 2 * TURN;
                Ahead { turn_began: at, this_turn: seen, last_turn: is_recent.then_some(known.this_turn) }
            }
            None => Ahead { turn_began: at, this_turn: seen, last_turn: None },
        });
    }

    /// Forgets what was known, because a new connection may lead to another machine, and starts from its first TIME.
    pub(crate) fn restart(&self, time: Micros, at: Instant) {
        let seen = self.ahead(time, at);
        *self.ahead.lock().unwrap_or_else(PoisonError::into_inner) = Some(Ahead { turn_began: at, this_turn: seen, last_turn: None });
    }

    /// Forgets what was known: the server is another one from now on.
    pub(crate) fn forget(&self) {
        *self.ahead.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What Redis's clock shows at `at`; `None` before the first connection.
    pub(crate) fn read(&self, at: Instant) -> Option<Micros> {
        let known = (*self.ahead.lock().unwrap_or_else(PoisonError::into_inner))?;
        let ahead = known.last_turn.map_or(known.this_turn, |last| last.max(known.this_turn));
        u64::try_from(ahead.saturating_add(self.passed(at))).ok().map(Micros)
    }

    fn ahead(&self, time: Micros, at: Instant) -> i64 {
        i64::try_from(time.0).unwrap_or(i64::MAX).saturating_sub(self.passed(at))
    }

    fn passed(&self, at: Instant) -> i64 {
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
        let clock = Clock::new();
        let now = clock.origin;
        assert_eq!(clock.read(now), None);
        clock.restart(Micros(START), now);
        clock.observe(Micros(START + 1_000_000), now + millis(1_500));
        assert_eq!(clock.read(now + millis(2_000)), Some(Micros(START + 2_000_000)), "a slow reply changes nothing");
        clock.observe(Micros(START + 2_003_000), now + millis(2_000));
        assert_eq!(clock.read(now + millis(2_000)), Some(Micros(START + 2_003_000)), "a faster one does");
    }

    #[test]
    fn a_clock_that_was_set_back_is_believed_after_ten_seconds() {
        let clock = Clock::new();
        let now = clock.origin;
        clock.restart(Micros(START), now);
        for second in 1..=10 {
            clock.observe(Micros(START + second * 1_000_000 - 500_000_000), now + millis(second * 1_000));
            let seen = clock.read(now + millis(second * 1_000)).expect("it was observed");
            assert_eq!(seen.0 < START, second == 10, "after {second} s: {seen:?}");
        }
    }

    #[test]
    fn a_new_connection_is_believed_at_once() {
        let clock = Clock::new();
        let now = clock.origin;
        clock.observe(Micros(START), now);
        clock.restart(Micros(START - 3_600_000_000), now);
        assert_eq!(clock.read(now), Some(Micros(START - 3_600_000_000)));
    }
}
