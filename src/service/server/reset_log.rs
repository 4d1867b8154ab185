//! One line a minute at most about the calls and connections that HTTP/2 ended: how many, by
//! reason.

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
    /// Calls and connections.
    ended: [Vec<Ended>; 2],
}

/// Writes the lines. Endless.
pub async fn log(metrics: Arc<Metrics>) {
    let mut log = Log::default();
    loop {
        sleep(POLL).await;
        let http2 = metrics.http2();
        let ended = [http2.streams().collect(), http2.connections().collect()];
        if let Some([calls, connections]) = log.observe(Instant::now(), ended) {
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
    /// How many calls and connections ended since the line before, by reason; `None`: no line is
    /// written now.
    fn observe(&mut self, now: Instant, ended: [Vec<Ended>; 2]) -> Option<[String; 2]> {
        if !self.lines.is_due(now) {
            return None;
        }
        let grown = [0, 1].map(|kind| growth(&self.ended[kind], &ended[kind]));
        if grown.iter().all(String::is_empty) {
            return None;
        }
        self.lines.admit(now);
        self.ended = ended;
        Some(grown)
    }
}

/// What was added to each reason's count, with the reason.
fn growth(before: &[Ended], now: &[Ended]) -> String {
    let grown = now.iter().filter_map(|ended| {
        let mut before = before.iter();
        let before = before.find(|before| before.reason == ended.reason);
        let more = ended
            .count
            .saturating_sub(before.map_or(0, |before| before.count));
        (more > 0).then(|| format!("{} {more}", ended.reason))
    });
    grown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended<const N: usize>(counts: [(&'static str, u64); N]) -> Vec<Ended> {
        counts.map(|(reason, count)| Ended { reason, count }).into()
    }

    #[expect(clippy::unnecessary_wraps, reason = "what observe returns")]
    fn line(calls: &str, connections: &str) -> Option<[String; 2]> {
        Some([calls, connections].map(str::to_owned))
    }

    #[test]
    fn one_line_a_minute_has_all_that_ended_since_the_last_one() {
        let (mut log, start) = (Log::default(), Instant::now());
        let mut at = |secs, calls: [u64; 2], connections: u64| {
            let calls = ended([("protocol_error", calls[0]), ("refused_stream", calls[1])]);
            let connections = ended([("no_pong", connections)]);
            log.observe(start + Duration::from_secs(secs), [calls, connections])
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
