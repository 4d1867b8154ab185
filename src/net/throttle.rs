//! Throttle of log lines about events that clients and servers can cause at any rate.

use std::time::{Duration, Instant};

/// The lines of one kind. The time is an argument.
#[derive(Clone, Debug)]
pub struct Throttle {
    interval: Duration,
    last: Option<Instant>,
    kept_back: u64,
}

impl Default for Throttle {
    /// One line a minute.
    fn default() -> Self {
        Self::new(Duration::from_secs(60))
    }
}

impl Throttle {
    /// One line in each interval.
    pub const fn new(interval: Duration) -> Self {
        Self {
            interval,
            last: None,
            kept_back: 0,
        }
    }

    /// Whether a line may be written now.
    pub fn is_due(&self, now: impl Into<Instant>) -> bool {
        let now = now.into();
        self.last
            .is_none_or(|last| now.saturating_duration_since(last) >= self.interval)
    }

    /// Admits a line: the number of lines suppressed since the last one, or `None` if this one is
    /// suppressed too.
    pub fn admit(&mut self, now: impl Into<Instant>) -> Option<u64> {
        let now = now.into();
        if !self.is_due(now) {
            self.kept_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_tells_how_many_were_kept_back() {
        let (mut throttle, begin) = (Throttle::default(), Instant::now());
        let mut at = |secs| throttle.admit(begin + Duration::from_secs(secs));
        assert_eq!(at(0), Some(0), "the first at once");
        assert_eq!([at(0), at(1), at(59)], [None; 3]);
        assert_eq!(at(60), Some(3));
        assert_eq!(
            at(119),
            None,
            "a minute after the line, not after the first"
        );
        assert_eq!(at(500), Some(1));
        assert!(!throttle.is_due(begin + Duration::from_secs(559)));
        assert!(throttle.is_due(begin + Duration::from_secs(560)));
    }
}
