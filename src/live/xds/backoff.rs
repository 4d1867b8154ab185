//! The waits between attempts to reach the control plane.

use std::time::Duration;

/// The waits. envoyproxy/ratelimit's own default (10 s, for ever) leaves a process without limits
/// for long after a short outage.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The wait after the first failure; each further one doubles it.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// The part of each wait that is random, from 0 to 1: with 1, replicas that lost their control
    /// plane together return spread over the whole wait.
    pub random_share: f64,
    /// The wait after a connection that could not be opened, instead of the growing one.
    pub after_failed_connect: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            longest: Duration::from_secs(30),
            random_share: 1.0,
            after_failed_connect: None,
        }
    }
}

/// How the last attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// There was no connection.
    NotConnected,
    /// The stream ended before anything was received.
    Empty,
    /// The stream ended after it delivered something.
    Delivered,
}

/// The waits so far.
#[derive(Debug)]
pub(super) struct Backoff {
    options: Options,
    wait: Duration,
}

impl Backoff {
    pub(super) fn new(options: Options) -> Self {
        Self {
            wait: options.first,
            options,
        }
    }

    /// The wait before the next attempt. `random` is from 0 to 1.
    pub(super) fn next(&mut self, ended: Ended, random: f64) -> Duration {
        if ended == Ended::Delivered {
            self.wait = self.options.first;
        }
        let wait = self.wait;
        self.wait = (wait * 2).min(self.options.longest);
        let wait = match (ended, self.options.after_failed_connect) {
            (Ended::NotConnected, Some(fixed)) => fixed,
            _ => wait,
        };
        wait.mul_f64(1.0 - self.options.random_share * random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn waits_double_up_to_the_longest_and_begin_anew_after_a_stream_that_delivered() {
        let mut backoff = Backoff::new(Options::default());
        let waits: Vec<_> = (0..9)
            .map(|_| backoff.next(Ended::NotConnected, 0.0).as_millis())
            .collect();
        assert_eq!(
            waits,
            [
                500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000
            ]
        );
        assert_eq!(
            backoff.next(Ended::Empty, 0.0),
            millis(30_000),
            "a stream that delivers nothing is no success"
        );
        assert_eq!(backoff.next(Ended::Delivered, 0.0), millis(500));
        assert_eq!(backoff.next(Ended::NotConnected, 0.0), millis(1_000));
    }

    #[test]
    fn the_random_part_is_the_whole_wait_or_what_the_settings_say() {
        let mut full = Backoff::new(Options::default());
        assert_eq!(full.next(Ended::Delivered, 1.0), Duration::ZERO);
        let mut half = Backoff::new(Options {
            random_share: 0.5,
            ..Options::default()
        });
        assert_eq!(half.next(Ended::Delivered, 1.0), millis(250));
        assert_eq!(half.next(Ended::Delivered, 0.0), millis(500));
    }

    #[test]
    fn a_connection_that_cannot_be_opened_may_have_a_wait_of_its_own() {
        let options = Options {
            after_failed_connect: Some(millis(3_000)),
            random_share: 0.0,
            ..Options::default()
        };
        let mut backoff = Backoff::new(options);
        for _ in 0..5 {
            assert_eq!(backoff.next(Ended::NotConnected, 0.7), millis(3_000));
        }
        assert_eq!(backoff.next(Ended::Delivered, 0.7), millis(500));
    }
}
