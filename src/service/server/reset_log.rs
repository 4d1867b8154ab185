//! One line a minute at most about the calls and connections that HTTP/2 ended: how many, by
//! reason.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::net::throttle::Throttle;
use crate::observe::metrics::{Ended, Metrics};

/// The time between two looks at the counters.
const POLL: Duration = Duration::from_secs(1);

/// What was logged, and when.
#[derive(Debug, Default)]
struct Log {
    lines: Throttle,
    calls: Vec<Ended>,
    connections: Vec<Ended>,
}

/// A line of the log: how many ended since the line before, by reason.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    calls: String,
    connections: String,
}

/// Writes the lines. Endless.
pub async fn log(metrics: Arc<Metrics>) {
    let mut log = Log::default();
    loop {
        sleep(POLL).await;
        let http2 = metrics.http2();
        if let Some(Line { calls, connections }) = log.observe(
            Instant::now(),
            http2.streams().collect(),
            http2.connections().collect(),
        ) {
            tracing::warn!(
                calls,
                connections,
                "HTTP/2 ended calls or connections for errors of their clients; no limit was \
                 applied to these calls, and Envoy's failure mode decided"
            );
        }
    }
}

impl Log {
    /// The line to write now.
    fn observe(
        &mut self,
        now: Instant,
        calls: Vec<Ended>,
        connections: Vec<Ended>,
    ) -> Option<Line> {
        if !self.lines.is_due(now) {
            return None;
        }
        let line = Line {
            calls: growth(&self.calls, &calls),
            connections: growth(&self.connections, &connections),
        };
        if line.calls.is_empty() && line.connections.is_empty() {
            return None;
        }
        self.lines.admit(now);
        (self.calls, self.connections) = (calls, connections);
        Some(line)
    }
}

/// What was added to each reason's count, with the reason.
fn growth(before: &[Ended], now: &[Ended]) -> String {
    let mut text = String::new();
    for ended in now {
        let before = before
            .iter()
            .find(|before| before.reason == ended.reason)
            .map_or(0, |before| before.count);
        if ended.count > before {
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{comma}{} {}", ended.reason, ended.count - before);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended<const N: usize>(counts: [(&'static str, u64); N]) -> Vec<Ended> {
        counts.map(|(reason, count)| Ended { reason, count }).into()
    }

    #[expect(clippy::unnecessary_wraps, reason = "what observe returns")]
    fn line(calls: &str, connections: &str) -> Option<Line> {
        Some(Line {
            calls: calls.to_owned(),
            connections: connections.to_owned(),
        })
    }

    #[test]
    fn one_line_a_minute_has_all_that_ended_since_the_last_one() {
        let (mut log, start) = (Log::default(), Instant::now());
        let mut at = |secs, calls: [u64; 2], connections: u64| {
            let calls = ended([("protocol_error", calls[0]), ("refused_stream", calls[1])]);
            log.observe(
                start + Duration::from_secs(secs),
                calls,
                ended([("no_pong", connections)]),
            )
        };
        assert_eq!(at(0, [0, 0], 0), None, "nothing has ended");
        assert_eq!(
            at(1, [1, 0], 0),
            line("protocol_error 1", ""),
            "the first one at once"
        );
        assert_eq!(
            [at(2, [900, 0], 0), at(60, [900, 5], 1)],
            [None, None],
            "the minute is not over"
        );
        assert_eq!(
            at(61, [900, 5], 1),
            line("protocol_error 899, refused_stream 5", "no_pong 1")
        );
        assert_eq!(
            [at(62, [900, 5], 1), at(500, [900, 5], 1)],
            [None, None],
            "nothing more has ended"
        );
        assert_eq!(at(501, [900, 5], 2), line("", "no_pong 1"));
    }
}
