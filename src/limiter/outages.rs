//! The log of Redis's failures: the only place that logs them.
//!
//! It reads the state of all servers and the counts of errors at intervals, and writes few lines,
//! however many requests fail. An outage of servers is an ERROR when it begins, a summary after ten
//! seconds and then each minute, and a line when it ends. Errors of single requests, while all
//! servers are in use, are a warning of the same rhythm for each name. It decides nothing: the
//! circuit breakers do.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::{Duration, Instant, sleep};

use crate::observe::metrics::PolicyAnswers;
use crate::store::redis::{Deployment, FailingServer, RedisFailure};

/// Servers that one line names, and servers of one outage that get lines of their own.
const MAX_SERVERS: usize = 10;

/// Servers of one outage that are counted: in a long one, the servers of a cluster may be replaced
/// by others again and again.
const MAX_KNOWN_SERVERS: usize = 1_000;

/// The rhythm of the lines.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The time between two looks at the servers. Two in a row have to find a failure, so that a
    /// probe has found its cause by then.
    pub poll: Duration,
    /// The time from the beginning to the first summary.
    pub first_summary: Duration,
    /// The time between two summaries.
    pub summary_interval: Duration,
    /// An outage is over when all servers were in use for this time. The time doubles with each
    /// outage that follows the one before within `summary_interval`, so that a server that fails
    /// each few seconds does not fill the log.
    pub calm: Duration,
}

impl Default for Options {
    /// Polls are atomic reads. A circuit that opens is not closed again within half a second, so
    /// that no outage of a server is missed.
    fn default() -> Self {
        Self {
            poll: Duration::from_millis(250),
            first_summary: Duration::from_secs(10),
            summary_interval: Duration::from_secs(60),
            calm: Duration::from_secs(1),
        }
    }
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A server fails, the first one or a further one.
    Began {
        /// The server, with the cause.
        failing: FailingServer,
    },
    /// Servers still fail.
    Continues {
        /// Their addresses.
        servers: String,
        /// Why the first of them fails.
        failure: RedisFailure,
        /// Since the outage began.
        lasts: Duration,
        /// What failure policies answered since then.
        answers: PolicyAnswers,
    },
    /// A server does not fail any more, while others do.
    Recovered {
        /// Its address.
        server: String,
    },
    /// All servers are in use again.
    Ended {
        /// The servers that failed.
        servers: String,
        /// From the beginning to the end.
        lasted: Duration,
        /// What failure policies answered from the beginning on.
        answers: PolicyAnswers,
    },
    /// Requests failed while all servers were in use.
    Errors {
        /// The error, with the cause of the latest one that had one.
        failure: RedisFailure,
        /// How many since the last line about this error.
        times: u64,
    },
}

impl Line {
    /// Writes the line.
    pub fn log(&self) {
        match self {
            Self::Began {
                failing: FailingServer { server, failure },
            } => tracing::error!(
                redis = server,
                error = failure.error,
                cause = failure.cause.as_deref(),
                "Redis outage: {}",
                failure.meaning()
            ),
            Self::Continues {
                servers,
                failure,
                lasts,
                answers,
            } => tracing::warn!(
                redis = servers,
                error = failure.error,
                cause = failure.cause.as_deref(),
                lasts_secs = lasts.as_secs(),
                failed = answers.failed,
                allowed = answers.allowed,
                denied = answers.denied,
                counted_locally = answers.counted_locally,
                "the Redis outage continues"
            ),
            Self::Recovered { server } => tracing::info!(
                redis = server,
                "this Redis server does not fail any more; others still do"
            ),
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
            Self::Errors { failure, times } => tracing::warn!(
                error = failure.error,
                times,
                cause = failure.cause.as_deref(),
                "Redis: {}",
                failure.meaning()
            ),
        }
    }
}

/// Watches the servers of all deployments, and passes each line to `log`. Never returns. `answers`
/// are those since the start of the process.
pub async fn watch(
    deployments: Vec<Arc<Deployment>>,
    answers: impl Fn() -> PolicyAnswers,
    options: Options,
    mut log: impl FnMut(Line),
) {
    let mut outages = OutageLog::new(options, answers());
    loop {
        sleep(options.poll).await;
        let observed = Observed {
            failing: deployments
                .iter()
                .flat_map(|deployment| deployment.failing_servers())
                .collect(),
            errors: deployments
                .iter()
                .flat_map(|deployment| deployment.error_counters.failures())
                .collect(),
            answers: answers(),
        };
        outages
            .observe(Instant::now(), observed)
            .into_iter()
            .for_each(&mut log);
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
    options: Options,
    outage: Option<Outage>,
    /// When failures were first seen; `None` while no server fails.
    suspected_at: Option<Instant>,
    /// The servers that failed at the last look.
    suspects: Vec<String>,
    /// The answers when all servers were last seen in use.
    calm_answers: PolicyAnswers,
    /// When the last outage ended, and the calm that ended it.
    last: Option<(Instant, Duration)>,
    errors: BTreeMap<&'static str, Repeated>,
}

/// An outage under way.
#[derive(Debug)]
struct Outage {
    began: Instant,
    /// The answers before it began.
    before: PolicyAnswers,
    /// Those that fail now.
    failing: Vec<FailingServer>,
    /// All that failed in this outage and were named in a line.
    named: Vec<String>,
    /// Lines about single servers so far.
    lines: usize,
    next_summary: Instant,
    /// Since when all servers are in use.
    calm_since: Option<Instant>,
    /// The calm after which it is over.
    calm: Duration,
}

/// The lines about one error of single requests.
#[derive(Clone, Copy, Debug, Default)]
struct Repeated {
    /// The count as of the latest line or outage.
    logged: u64,
    /// What follows, and when; `None` after a quiet interval.
    next: Option<(Step, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The first line. It waits for one more look, which may find that a server fails.
    First,
    /// The line after `first_summary`.
    Second,
    /// The lines after each `summary_interval`.
    Later,
}

impl OutageLog {
    fn new(options: Options, answers: PolicyAnswers) -> Self {
        Self {
            options,
            outage: None,
            suspected_at: None,
            suspects: Vec::new(),
            calm_answers: answers,
            last: None,
            errors: BTreeMap::new(),
        }
    }

    /// The lines to write now.
    fn observe(&mut self, now: Instant, observed: Observed) -> Vec<Line> {
        let Observed {
            failing,
            errors,
            answers,
        } = observed;
        let was_failing = self.is_failing();
        let mut lines = Vec::new();
        let confirmed = self.confirm(failing, now);
        if self.outage.is_none() && !confirmed.is_empty() {
            self.outage = Some(self.begin(now));
        }
        let is_outage = self.outage.is_some() || self.suspected_at.is_some();
        if let Some(outage) = &mut self.outage {
            outage.observe(
                now,
                confirmed,
                answers,
                self.options.summary_interval,
                &mut lines,
            );
            if outage
                .calm_since
                .is_some_and(|since| now.saturating_duration_since(since) >= outage.calm)
            {
                lines.push(outage.ended(now, answers));
                self.last = Some((now, outage.calm));
                self.outage = None;
                self.calm_answers = answers;
            }
        }
        if !is_outage {
            self.calm_answers = answers;
        }
        let is_failing = was_failing || self.is_failing();
        // The next look shows whether a server fails that failed at this one.
        if is_failing || self.suspected_at.is_none() {
            self.report_errors(now, errors, is_failing, &mut lines);
        }
        lines
    }

    /// The servers that fail now and did so at the last look.
    fn confirm(&mut self, failing: Vec<FailingServer>, now: Instant) -> Vec<FailingServer> {
        self.suspected_at = (!failing.is_empty()).then(|| self.suspected_at.unwrap_or(now));
        let servers = failing.iter().map(|one| one.server.clone()).collect();
        let suspects = std::mem::replace(&mut self.suspects, servers);
        let is_confirmed = |one: &FailingServer| suspects.contains(&one.server);
        failing.into_iter().filter(is_confirmed).collect()
    }

    /// The outage that begins. One soon after another ends after a longer calm.
    fn begin(&self, now: Instant) -> Outage {
        let began = self.suspected_at.unwrap_or(now);
        let Options {
            first_summary,
            summary_interval,
            calm,
            ..
        } = self.options;
        let is_soon = |ended: Instant| began.saturating_duration_since(ended) < summary_interval;
        let calm = match self.last {
            Some((ended, calm)) if is_soon(ended) => (calm * 2).min(summary_interval),
            _ => calm,
        };
        Outage {
            began,
            before: self.calm_answers,
            failing: Vec::new(),
            named: Vec::new(),
            lines: 0,
            next_summary: began + first_summary,
            calm_since: None,
            calm,
        }
    }

    fn is_failing(&self) -> bool {
        self.outage
            .as_ref()
            .is_some_and(|outage| outage.calm_since.is_none())
    }

    /// Errors while a server fails belong to the outage.
    fn report_errors(
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
        let Options {
            poll,
            first_summary,
            summary_interval,
            ..
        } = self.options;
        for (name, (failure, count)) in sums {
            let known = self.errors.entry(name).or_default();
            if is_failing {
                known.logged = count;
            }
            let times = count.saturating_sub(known.logged);
            match known.next {
                None if times > 0 => known.next = Some((Step::First, now + poll)),
                Some((step, at)) if now >= at => {
                    if times > 0 {
                        known.logged = count;
                        lines.push(Line::Errors { failure, times });
                    }
                    known.next = match step {
                        Step::First if times > 0 => Some((Step::Second, now + first_summary)),
                        Step::Second => Some((Step::Later, now + summary_interval)),
                        Step::Later if times > 0 => Some((Step::Later, now + summary_interval)),
                        Step::First | Step::Later => None,
                    };
                }
                None | Some(_) => {}
            }
        }
    }
}

impl Outage {
    fn observe(
        &mut self,
        now: Instant,
        failing: Vec<FailingServer>,
        answers: PolicyAnswers,
        interval: Duration,
        lines: &mut Vec<Line>,
    ) {
        let before = std::mem::replace(&mut self.failing, failing);
        let fails = |all: &[FailingServer], server: &str| {
            all.iter().any(|failing| failing.server == server)
        };
        for failing in &self.failing {
            if !self.named.contains(&failing.server) && self.named.len() < MAX_KNOWN_SERVERS {
                self.named.push(failing.server.clone());
                if self.named.len() <= MAX_SERVERS {
                    lines.push(Line::Began {
                        failing: failing.clone(),
                    });
                }
            }
        }
        if self.failing.is_empty() {
            self.calm_since.get_or_insert(now);
            return;
        }
        self.calm_since = None;
        for recovered in before
            .iter()
            .filter(|server| !fails(&self.failing, &server.server))
        {
            self.lines += 1;
            if self.lines <= MAX_SERVERS {
                lines.push(Line::Recovered {
                    server: recovered.server.clone(),
                });
            }
        }
        if now >= self.next_summary {
            self.next_summary = now + interval;
            let servers = listed(self.failing.iter().map(|failing| failing.server.as_str()));
            let failure = self.failing[0].failure.clone();
            let lasts = now.saturating_duration_since(self.began);
            lines.push(Line::Continues {
                servers,
                failure,
                lasts,
                answers: answers.since(self.before),
            });
        }
    }

    fn ended(&self, now: Instant, answers: PolicyAnswers) -> Line {
        let lasted = self
            .calm_since
            .unwrap_or(now)
            .saturating_duration_since(self.began);
        let servers = listed(self.named.iter().map(String::as_str));
        Line::Ended {
            servers,
            lasted,
            answers: answers.since(self.before),
        }
    }
}

fn listed<'s>(servers: impl ExactSizeIterator<Item = &'s str>) -> String {
    let more = servers.len().saturating_sub(MAX_SERVERS);
    let shown = servers.take(MAX_SERVERS).collect::<Vec<_>>().join(", ");
    if more == 0 {
        shown
    } else {
        format!("{shown} and {more} more")
    }
}

#[cfg(test)]
mod tests;
