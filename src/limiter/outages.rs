//! The log of Redis's failures: nothing else logs them.
//!
//! It reads the state of all servers and the counts of errors at intervals, and logs changes: an
//! ERROR when a server begins to fail or fails with another error, and a line with totals when all
//! servers are in use again. Errors of single requests, while all servers are in use, are a warning
//! for each name. There are few lines even if many requests fail or a server fails often: other
//! errors of a server, ends of outages and warnings of one name are logged at most once a minute. It
//! decides nothing: the circuit breakers do.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep};

use crate::core::text::list;
use crate::net::throttle::Throttle;
use crate::observe::metrics::PolicyAnswers;
use crate::store::redis::{Deployment, FailingServer, RedisFailure};

/// The interval of polls, which are atomic reads. A server has to fail in two polls in a row before
/// the log has a line, because a probe has found the cause by then. An opened circuit stays open
/// for more than half a second, which is longer than two polls.
const POLL: Duration = Duration::from_millis(250);

/// An outage is over when all servers were in use for this time, and no end was logged within the
/// last minute. A shorter time would log an end while servers fail in turn. Another error of a server
/// is its cause after the same time.
const CALM: Duration = Duration::from_secs(1);

/// Maximum number of servers of one outage that have a line, and that the line of its end names. A
/// large cluster must not fill the log.
const MAX_SERVERS: usize = 10;

/// Maximum number of servers of one outage that are counted: in a long one, the servers of a
/// cluster may be replaced by others again and again.
const MAX_KNOWN_SERVERS: usize = 1_000;

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    /// A server begins to fail.
    Began(FailingServer),
    /// A server that fails does so with another error.
    Changed(FailingServer),
    /// All servers are in use again.
    Ended {
        /// Those that failed, and the errors that have a line.
        servers: String,
        errors: String,
        lasted: Duration,
        /// Answers of failure policies during the outage.
        answers: PolicyAnswers,
    },
    /// Requests failed while all servers were in use: the error, with the cause of the latest
    /// request that had one, and the number of failures since the last line about it.
    Errors(RedisFailure, u64),
}

impl Line {
    fn log(&self) {
        match self {
            Self::Began(one) => log_server(one, "outage"),
            Self::Changed(one) => log_server(one, "outage goes on"),
            Self::Errors(failure, times) => {
                let (error, cause) = (failure.error, failure.cause.as_deref());
                let (meaning, [round_trip, allowed, deadline]) = described(failure);
                tracing::warn!(%error, times, cause, round_trip, allowed, deadline,
                    "Redis: {meaning}");
            }
            Self::Ended {
                servers,
                errors,
                lasted,
                answers,
            } => {
                let lasted_secs = (lasted.as_secs_f64() * 10.0).round() / 10.0;
                let (failed, allowed) = (answers.failed, answers.allowed);
                let (denied, counted_locally) = (answers.denied, answers.counted_locally);
                tracing::info!(redis = %servers, errors, lasted_secs, failed, allowed, denied,
                    counted_locally, "Redis outage ended");
            }
        }
    }
}

fn log_server(FailingServer { server, failure }: &FailingServer, what: &str) {
    let (error, cause) = (failure.error, failure.cause.as_deref());
    let (meaning, [round_trip, allowed, deadline]) = described(failure);
    tracing::error!(redis = %server, error, cause, round_trip, allowed, deadline,
        "Redis {what}: {meaning}");
}

/// The meaning of a failure, and of the request that had it: the round trip of its server, the time
/// that it was allowed, and the deadline of its caller.
fn described(failure: &RedisFailure) -> (&'static str, [Option<String>; 3]) {
    let millis = |time: Duration| format!("{}ms", (time.as_secs_f64() * 1e4).round() / 10.0);
    let times = failure.times;
    let known = [
        times.and_then(|times| times.round_trip),
        times.map(|times| times.allowed),
        times.and_then(|times| times.caller),
    ];
    (failure.meaning(), known.map(|time| time.map(millis)))
}

/// Start of the outage under way, if there is one, and the answers of failure policies before it.
pub type UnderWay = watch::Sender<Option<(Instant, PolicyAnswers)>>;

/// Watches the servers of all deployments, and logs. Never returns. `answers` are those since the
/// start of the process.
pub async fn watch(
    deployments: Vec<Arc<Deployment>>,
    answers: impl Fn() -> PolicyAnswers,
    under_way: UnderWay,
) {
    let mut outages = OutageLog::new(Instant::now(), answers());
    loop {
        sleep(POLL).await;
        let all = || deployments.iter();
        let observed = Observed {
            failing: all().flat_map(|one| one.failing_servers()).collect(),
            errors: all().flat_map(|one| one.failures()).collect(),
            answers: answers(),
        };
        let lines = outages.observe(Instant::now(), observed);
        lines.iter().for_each(Line::log);
        under_way.send_replace(outages.is_failing().then_some(outages.calm));
    }
}

/// Result of one poll.
#[derive(Debug, Default)]
struct Observed {
    failing: Vec<FailingServer>,
    /// All errors since the start. Each deployment has its own entry for a name.
    errors: Vec<(RedisFailure, u64)>,
    answers: PolicyAnswers,
}

/// The state between two polls.
#[derive(Debug)]
struct OutageLog {
    /// The last poll in which no server failed and no outage was under way, and the answers then.
    /// An outage is measured from here, because its first failures may precede the poll that finds
    /// them.
    calm: (Instant, PolicyAnswers),
    /// The servers that failed in the last poll.
    suspects: Vec<String>,
    /// All servers that failed in the outage under way; empty without an outage.
    servers: Vec<FailedServer>,
    /// The errors of their lines.
    causes: Vec<&'static str>,
    /// Start of the time in which all servers are in use again, in an outage.
    calm_since: Option<Instant>,
    ends: Throttle,
    errors: BTreeMap<&'static str, Errors>,
}

/// A server that failed in the outage under way.
#[derive(Debug)]
struct FailedServer {
    name: String,
    /// The error of its latest line, and another one with the time of the first poll since when
    /// it fails with that.
    error: &'static str,
    other: Option<(&'static str, Instant)>,
    changes: Throttle,
}

impl FailedServer {
    /// Whether the error of this poll is a new cause that gets a line.
    fn changes(&mut self, error: &'static str, now: Instant) -> bool {
        let other = self.other.filter(|(other, _)| *other == error);
        let since = other.map_or(now, |(_, since)| since);
        self.other = Some((error, since)).filter(|_| error != self.error);
        let changes = self.other.is_some()
            && now.duration_since(since) >= CALM
            && self.changes.admit(now).is_some();
        if changes {
            self.error = error;
        }
        changes
    }
}

/// The lines about one error of single requests.
#[derive(Debug, Default)]
struct Errors {
    /// The count at the last poll.
    seen: u64,
    /// The count as of the latest line or outage.
    logged: u64,
    lines: Throttle,
}

impl OutageLog {
    fn new(now: Instant, answers: PolicyAnswers) -> Self {
        Self {
            calm: (now, answers),
            suspects: Vec::new(),
            servers: Vec::new(),
            causes: Vec::new(),
            calm_since: None,
            ends: Throttle::default(),
            errors: BTreeMap::new(),
        }
    }

    /// The lines to write now.
    fn observe(&mut self, now: Instant, observed: Observed) -> Vec<Line> {
        let (was_failing, mut lines) = (self.is_failing(), Vec::new());
        let servers = observed.failing.iter().map(|one| one.server.clone());
        let suspects = std::mem::replace(&mut self.suspects, servers.collect());
        if self.suspects.is_empty() && self.servers.is_empty() {
            self.calm = (now, observed.answers);
        }
        let mut since = Some(self.calm_since.unwrap_or(now));
        let failing = observed.failing.into_iter();
        for one in failing.filter(|one| suspects.contains(&one.server)) {
            since = None;
            let error = one.failure.error;
            let mut servers = self.servers.iter();
            let known = servers.position(|known| known.name == one.server);
            let line = match known {
                Some(index) => self.servers[index]
                    .changes(error, now)
                    .then_some(Line::Changed(one)),
                None if self.servers.len() < MAX_KNOWN_SERVERS => {
                    self.servers.push(FailedServer {
                        name: one.server.clone(),
                        error,
                        other: None,
                        changes: Throttle::default(),
                    });
                    Some(Line::Began(one))
                }
                None => None,
            };
            let is_logged = known.unwrap_or(self.servers.len() - 1) < MAX_SERVERS;
            if let Some(line) = line.filter(|_| is_logged) {
                lines.push(line);
                if !self.causes.contains(&error) {
                    self.causes.push(error);
                }
            }
        }
        self.calm_since = since.filter(|_| !self.servers.is_empty());
        let is_failing = was_failing || self.is_failing();
        if let Some(since) = self.calm_since
            && now.duration_since(since) >= CALM
            && self.ends.admit(now).is_some()
        {
            let ((began, before), answers) = (self.calm, observed.answers);
            let servers = std::mem::take(&mut self.servers);
            let servers: Vec<_> = servers.into_iter().map(|server| server.name).collect();
            let (named, others) = servers.split_at(servers.len().min(MAX_SERVERS));
            lines.push(Line::Ended {
                servers: list(named, others.len()),
                errors: std::mem::take(&mut self.causes).join(", "),
                lasted: since.duration_since(began),
                answers: answers.since(before),
            });
            (self.calm_since, self.calm) = (None, (now, answers));
        }
        self.observe_errors(now, observed.errors, is_failing, &mut lines);
        lines
    }

    fn is_failing(&self) -> bool {
        !self.servers.is_empty() && self.calm_since.is_none()
    }

    /// Errors while a server fails belong to the outage. A line is one poll late, because the next
    /// poll may find that a server fails.
    fn observe_errors(
        &mut self,
        now: Instant,
        errors: Vec<(RedisFailure, u64)>,
        is_failing: bool,
        lines: &mut Vec<Line>,
    ) {
        let mut sums: BTreeMap<&'static str, (RedisFailure, u64)> = BTreeMap::new();
        for (failure, count) in errors {
            let sum = sums.entry(failure.error).or_insert_with(|| (failure, 0));
            sum.1 += count;
        }
        for (name, (failure, count)) in sums {
            let known = self.errors.entry(name).or_default();
            let seen = std::mem::replace(&mut known.seen, count);
            if is_failing {
                known.logged = count;
            }
            let times = seen.saturating_sub(known.logged);
            if times > 0 && self.suspects.is_empty() && known.lines.admit(now).is_some() {
                known.logged = seen;
                lines.push(Line::Errors(failure, times));
            }
        }
    }
}

#[cfg(test)]
mod tests;
