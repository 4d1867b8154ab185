//! Waiting for a condition, with a timeout.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The longest time that a test waits for a condition. Nothing takes longer on the slowest machine:
/// unoptimized code needs 7 s of CPU for 100,000 limits, at a low priority beside other tests.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Calls `poll` until it returns a value, for at most [`TIMEOUT`]. `None` means that the time is
/// over.
pub fn eventually<T>(poll: impl FnMut() -> Option<T>) -> Option<T> {
    eventually_within(TIMEOUT, poll)
}

/// As [`eventually`], for at most `timeout`.
#[expect(clippy::disallowed_methods, reason = "for tests without a runtime")]
pub fn eventually_within<T>(timeout: Duration, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        let answer = poll();
        if answer.is_some() || begin.elapsed() > timeout {
            return answer;
        }
        std::thread::sleep(PAUSE);
    }
}

/// As [`eventually`], for tests whose own runtime must keep running.
pub async fn eventually_async<T>(poll: impl FnMut() -> Option<T>) -> Option<T> {
    eventually_async_within(TIMEOUT, poll).await
}

/// As [`eventually_async`], for at most `timeout`.
pub async fn eventually_async_within<T>(
    timeout: Duration,
    mut poll: impl FnMut() -> Option<T>,
) -> Option<T> {
    let begin = Instant::now();
    loop {
        let answer = poll();
        if answer.is_some() || begin.elapsed() > timeout {
            return answer;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for the next minute when fewer than ten seconds of this one are left, so that all requests
/// of a test fall into one window.
#[expect(
    clippy::disallowed_methods,
    reason = "the limits of the example files are per minute of the real clock"
)]
pub fn away_from_the_end_of_a_minute() {
    let second = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs()
        % 60;
    if second >= 50 {
        std::thread::sleep(Duration::from_secs(60 - second));
    }
}
