//! The log of Redis's failures: the only place that logs them.
//!
//! It reads the state of all servers and the counts of errors at intervals, and logs changes: an
//! ERROR when a server begins to fail, and a line with totals when all servers are in use again.
//! Errors of single requests, while all servers are in use, are a warning for each name. However
//! many requests fail, and however often a server does, there are few lines: ends of outages and
//! warnings of one name come at most once a minute. It decides nothing: the circuit breakers do.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep};

use crate::net::throttle::Throttle;
use crate::observe::metrics::PolicyAnswers;
use crate::store::redis::{Deployment, FailingServer, RedisFailure};

/// The time between two looks, which are atomic reads. Two in a row have to find a failure, because
/// a probe has found its cause by then. A circuit that opens is not closed again within half a
/// second, which is longer.
const POLL: Duration = Duration::from_millis(250);

/// An outage is over when all servers were in use for this time, and no end was logged within the
/// last minute.
const CALM: Duration = Duration::from_secs(1);

/// Servers of one outage that have a line, and that the line of its end names.
const MAX_SERVERS: usize = 10;

/// Servers of one outage that are counted: in a long one, the servers of a cluster may be replaced
/// by others again and again.
const MAX_KNOWN_SERVERS: usize = 1_000;

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    /// A server begins to fail.
    Began(FailingServer),
    /// All servers are in use again.
    Ended {
        /// Those that failed.
        servers: String,
        lasted: Duration,
        /// What failure policies answered meanwhile.
        answers: PolicyAnswers,
    },
    /// Requests failed while all servers were in use: the error, with the cause of the latest one
    /// that had one, and how many since the last line about it.
    Errors(RedisFailure, u64),
}

impl Line {
    fn log(&self) {
        let millis = |time: Duration| format!("{}ms", (time.as_secs_f64() * 1e4).round() / 10.0);
        let slow = |failure: &RedisFailure| {
            let times = failure.times;
            let round_trip = times.and_then(|times| times.round_trip).map(millis);
            let deadline = times.and_then(|times| times.caller).map(millis);
            (
                round_trip,
                times.map(|times| millis(times.allowed)),
                deadline,
            )
        };
        match self {
            Self::Began(FailingServer { server, failure }) => {
                let (round_trip, allowed, deadline) = slow(failure);
                tracing::error!(
                    redis = server,
                    error = failure.error,
                    cause = failure.cause.as_deref(),
                    round_trip,
                    allowed,
                    deadline,
                    "Redis outage: {}",
                    failure.meaning()
                );
            }
            Self::Ended {
                servers,
                lasted,
                answers,
            } => tracing::info!(
                redis = servers,
                lasted_secs = (lasted.as_secs_f64() * 10.0).round() / 10.0,
                failed = answers.failed,
                allowed = answers.allowed,
                denied = answers.denied,
                counted_locally = answers.counted_locally,
                "the Redis outage is over"
            ),
            Self::Errors(failure, times) => {
                let (round_trip, allowed, deadline) = slow(failure);
                tracing::warn!(
                    error = failure.error,
                    times,
                    cause = failure.cause.as_deref(),
                    round_trip,
                    allowed,
                    deadline,
                    "Redis: {}",
                    failure.meaning()
                );
            }
        }
    }
}

/// When the outage under way began, if there is one, and the answers of failure policies before it.
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
        let outage = outages.outage.as_ref();
        let outage = outage.filter(|outage| outage.calm_since.is_none());
        under_way.send_replace(outage.map(|outage| (outage.began, outage.before)));
    }
}

/// What one look found.
#[derive(Debug, Default)]
struct Observed {
    failing: Vec<FailingServer>,
    /// All errors since the start. Two deployments may have the same name each.
    errors: Vec<(RedisFailure, u64)>,
    answers: PolicyAnswers,
}

/// The state between two looks.
#[derive(Debug)]
struct OutageLog {
    outage: Option<Outage>,
    /// The servers that failed at the last look.
    suspects: Vec<String>,
    /// The last look at which no server failed and no outage was under way, and the answers then.
    calm: (Instant, PolicyAnswers),
    ends: Throttle,
    errors: BTreeMap<&'static str, Errors>,
}

/// An outage under way.
#[derive(Debug)]
struct Outage {
    began: Instant,
    /// The answers before it began.
    before: PolicyAnswers,
    /// All that failed in it.
    servers: Vec<String>,
    /// Since when all servers are in use.
    calm_since: Option<Instant>,
}

/// The lines about one error of single requests.
#[derive(Debug, Default)]
struct Errors {
    /// The count at the last look.
    seen: u64,
    /// The count as of the latest line or outage.
    logged: u64,
    lines: Throttle,
}

impl OutageLog {
    fn new(now: Instant, answers: PolicyAnswers) -> Self {
        Self {
            outage: None,
            suspects: Vec::new(),
            calm: (now, answers),
            ends: Throttle::default(),
            errors: BTreeMap::new(),
        }
    }

    /// The lines to write now.
    fn observe(&mut self, now: Instant, observed: Observed) -> Vec<Line> {
        let was_failing = self.is_failing();
        let servers = observed.failing.iter().map(|one| one.server.clone());
        let suspects = std::mem::replace(&mut self.suspects, servers.collect());
        if self.suspects.is_empty() && self.outage.is_none() {
            self.calm = (now, observed.answers);
        }
        let mut confirmed = observed.failing;
        confirmed.retain(|one| suspects.contains(&one.server));
        let mut lines = self.observe_servers(now, confirmed, observed.answers);
        let is_failing = was_failing || self.is_failing();
        self.observe_errors(now, observed.errors, is_failing, &mut lines);
        lines
    }

    fn is_failing(&self) -> bool {
        let outage = self.outage.as_ref();
        outage.is_some_and(|outage| outage.calm_since.is_none())
    }

    fn observe_servers(
        &mut self,
        now: Instant,
        failing: Vec<FailingServer>,
        answers: PolicyAnswers,
    ) -> Vec<Line> {
        let mut lines = Vec::new();
        let (began, before) = self.calm;
        if failing.is_empty() && self.outage.is_none() {
            return lines;
        }
        let outage = self.outage.get_or_insert_with(|| Outage {
            began,
            before,
            servers: Vec::new(),
            calm_since: None,
        });
        let since = outage.calm_since.unwrap_or(now);
        outage.calm_since = failing.is_empty().then_some(since);
        for one in failing {
            if !outage.servers.contains(&one.server) && outage.servers.len() < MAX_KNOWN_SERVERS {
                outage.servers.push(one.server.clone());
                if outage.servers.len() <= MAX_SERVERS {
                    lines.push(Line::Began(one));
                }
            }
        }
        let is_calm = outage.calm_since.is_some() && now.duration_since(since) >= CALM;
        if is_calm && self.ends.admit(now).is_some() {
            lines.push(Line::Ended {
                servers: listed(&outage.servers),
                lasted: since.duration_since(outage.began),
                answers: answers.since(outage.before),
            });
            self.outage = None;
            self.calm = (now, answers);
        }
        lines
    }

    /// Errors while a server fails belong to the outage. A line is one look late, because the next
    /// look may find that a server fails.
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

/// The first servers, and the number of the others.
fn listed(servers: &[String]) -> String {
    let (named, others) = servers.split_at(servers.len().min(MAX_SERVERS));
    match others.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests;
