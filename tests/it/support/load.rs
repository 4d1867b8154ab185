//! An open-loop load: requests are sent when they are due, whether or not earlier ones were
//! answered, like those of an Envoy.
//!
//! Latency counts from the instant at which a request was due, so that a stall delays all requests
//! that were due meanwhile. The load runs on its own thread and runtime. It only keeps records;
//! tests evaluate them through the [`Report`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::weir::core::proto::rate_limit_response::Code;
use ::weir::core::proto::{RateLimitRequest, RateLimitResponse};
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};

use super::wait::TIMEOUT;
use super::{Client, Weir};

/// Connections to each service, as many as a small Envoy has worker threads.
const CONNECTIONS: usize = 4;

/// The number of consecutive good answers that counts as a recovery.
const IN_A_ROW: usize = 10;

/// How long a scenario runs, and how strict its times are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Short, while other tests run: counts are strict, times are not.
    Ci,
    /// By `tests/faults.sh`, while nothing else runs: times are those of the goals.
    Script,
}

impl Pace {
    /// The pace that `WEIR_FAULTS` selects.
    pub fn here() -> Self {
        match std::env::var("WEIR_FAULTS").as_deref() {
            Ok("script") => Self::Script,
            Err(_) => Self::Ci,
            Ok(other) => panic!("WEIR_FAULTS={other}: there is only `script`"),
        }
    }

    /// The value for this pace.
    pub fn pick<T>(self, ci: T, script: T) -> T {
        match self {
            Self::Ci => ci,
            Self::Script => script,
        }
    }

    /// The bound for a goal's time: ten times as wide in CI.
    pub fn bound(self, goal: Duration) -> Duration {
        goal * self.pick(10, 1)
    }
}

/// A request and its label in the report.
pub struct LoadRequest {
    pub label: &'static str,
    pub request: RateLimitRequest,
}

/// What to send, where, and how often.
pub struct Options {
    /// The services, which get the requests in turn.
    pub services: Vec<SocketAddr>,
    pub per_second: u32,
    /// The value of `grpc-timeout`; the client waits no longer either.
    pub timeout: Duration,
    /// Makes the request with this number.
    pub request: Box<dyn Fn(u64) -> LoadRequest + Send>,
}

impl Options {
    /// A load with Envoy's timeout of 20 ms in the script, and with a long one in CI.
    pub fn new(services: &[Weir], request: impl Fn(u64) -> LoadRequest + Send + 'static) -> Self {
        let pace = Pace::here();
        Self {
            services: services.iter().map(Weir::grpc_addr).collect(),
            // Services, Redis and client share two cores, and the client waits for 20 ms only.
            per_second: pace.pick(500, 2_000),
            timeout: pace.pick(Duration::from_secs(2), Duration::from_millis(20)),
            request: Box::new(request),
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Over,
    Failed(tonic::Code),
}

/// A request and its outcome.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub label: &'static str,
    /// When it was due.
    pub due: Instant,
    /// The time from `due` to the answer.
    pub latency: Duration,
    pub outcome: Outcome,
    /// What remains for its first descriptor.
    pub remaining: u32,
}

impl Record {
    fn new(
        label: &'static str,
        due: Instant,
        answer: Result<Response<RateLimitResponse>, Status>,
    ) -> Self {
        let (outcome, remaining) = match answer {
            Err(status) => (Outcome::Failed(status.code()), 0),
            Ok(answer) => {
                let answer = answer.into_inner();
                let left = answer
                    .statuses
                    .first()
                    .map_or(0, |status| status.limit_remaining);
                (
                    if answer.overall_code() == Code::Ok {
                        Outcome::Ok
                    } else {
                        Outcome::Over
                    },
                    left,
                )
            }
        };
        Self {
            label,
            due,
            latency: due.elapsed(),
            outcome,
            remaining,
        }
    }

    pub fn is_ok(&self) -> bool {
        self.outcome == Outcome::Ok
    }

    pub fn is_failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_))
    }

    /// Whether the client gave up waiting.
    pub fn gave_up(&self) -> bool {
        self.outcome == Outcome::Failed(tonic::Code::Cancelled)
    }

    /// Whether the service answered with an error.
    pub fn is_error(&self) -> bool {
        self.is_failed() && !self.gave_up()
    }
}

/// A load that runs until it is stopped.
pub struct Load {
    records: Arc<Mutex<Vec<Record>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    pub fn start(options: Options) -> Self {
        let (records, stop) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicBool::new(false)),
        );
        let run = send(options, Arc::clone(&records), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime")
                .block_on(run);
        });
        Self {
            records,
            stop,
            thread: Some(thread),
        }
    }

    /// The requests that have ended so far.
    pub fn so_far(&self) -> Report {
        Report::new(
            self.records
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        )
    }

    /// Stops sending, and waits for the outstanding answers.
    pub fn stop(mut self) -> Report {
        self.end();
        self.so_far()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the load runs");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
        self.stop.store(true, Ordering::Relaxed);
    }
}

async fn send(options: Options, records: Arc<Mutex<Vec<Record>>>, stop: Arc<AtomicBool>) {
    // Connects before the first request is due, so that latencies do not include connecting.
    let mut clients = Vec::new();
    for number in 0..options.services.len() * CONNECTIONS {
        let address = options.services[number % options.services.len()];
        let endpoint =
            Endpoint::from_shared(format!("http://{address}")).expect("an address is a URI");
        clients.push(Client::new(
            endpoint.connect().await.expect("a service listens"),
        ));
    }
    let (mut calls, begin, mut number) = (tokio::task::JoinSet::new(), Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        loop {
            let due = begin + Duration::from_secs(number) / options.per_second;
            if due > Instant::now() {
                break;
            }
            let LoadRequest { label, request } = (options.request)(number);
            let mut request = Request::new(request);
            request.set_timeout(options.timeout);
            let mut client = clients[number as usize % clients.len()].clone();
            let records = Arc::clone(&records);
            calls.spawn(async move {
                let record = Record::new(label, due, client.should_rate_limit(request).await);
                records
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(record);
            });
            number += 1;
        }
        while calls.try_join_next().is_some() {}
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    calls.join_all().await;
}

/// A client for tests without a runtime: one request at a time.
pub struct BlockingClient {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl BlockingClient {
    pub fn new(service: &Weir) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(service.client());
        Self { runtime, client }
    }

    /// Sends a request with a long timeout.
    pub fn call(&mut self, request: RateLimitRequest) -> Record {
        let due = Instant::now();
        let mut request = Request::new(request);
        request.set_timeout(TIMEOUT);
        Record::new(
            "",
            due,
            self.runtime
                .block_on(self.client.should_rate_limit(request)),
        )
    }

    /// Repeats a request until it is allowed. Returns how long that took.
    pub fn ask_until_ok(&mut self, request: &RateLimitRequest) -> Duration {
        let began = Instant::now();
        while !self.call(request.clone()).is_ok() {
            assert!(began.elapsed() < TIMEOUT, "no good answer in {TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        began.elapsed()
    }
}

/// Records, in the order in which they were due.
#[derive(Clone, Debug)]
pub struct Report(Vec<Record>);

impl Report {
    fn new(mut records: Vec<Record>) -> Self {
        records.sort_by_key(|record| record.due);
        Self(records)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The records for which `keep` is true.
    pub fn filter(&self, keep: impl Fn(&Record) -> bool) -> Self {
        Self(
            self.0
                .iter()
                .filter(|record| keep(record))
                .copied()
                .collect(),
        )
    }

    /// The records with this label.
    pub fn of(&self, label: &str) -> Self {
        self.filter(|record| record.label == label)
    }

    /// The records that were due at or after `from` and before `to`.
    pub fn between(&self, from: Instant, to: Instant) -> Self {
        self.filter(|record| record.due >= from && record.due < to)
    }

    pub fn count(&self, counts: impl Fn(&Record) -> bool) -> usize {
        self.0.iter().filter(|record| counts(record)).count()
    }

    /// The number of records by outcome.
    pub fn outcomes(&self) -> BTreeMap<String, usize> {
        let mut outcomes = BTreeMap::new();
        for record in &self.0 {
            *outcomes.entry(format!("{:?}", record.outcome)).or_default() += 1;
        }
        outcomes
    }

    /// The latency at this quantile.
    pub fn quantile(&self, part: f64) -> Duration {
        let mut latencies: Vec<_> = self.0.iter().map(|record| record.latency).collect();
        latencies.sort();
        let index =
            ((latencies.len() as f64 * part) as usize).min(latencies.len().saturating_sub(1));
        latencies.get(index).copied().unwrap_or_default()
    }

    pub fn longest(&self) -> Duration {
        self.0
            .iter()
            .map(|record| record.latency)
            .max()
            .unwrap_or_default()
    }

    /// The time from `event` to the first of ten consecutive good answers; zero when no answer was
    /// bad, `None` when there was no recovery.
    pub fn recovery_after(&self, event: Instant) -> Option<Duration> {
        let later = &self.0[self.0.partition_point(|record| record.due < event)..];
        let first = later
            .windows(IN_A_ROW)
            .find(|row| row.iter().all(Record::is_ok))?[0];
        let bad_before = later[0].due != first.due;
        Some(if bad_before {
            first.due + first.latency - event
        } else {
            Duration::ZERO
        })
    }

    /// The longest time from the first to the last of consecutive records for which `of` is true.
    pub fn longest_series(&self, of: impl Fn(&Record) -> bool) -> Duration {
        let series = self
            .0
            .chunk_by(|left, right| of(left) == of(right))
            .filter(|series| of(&series[0]));
        series
            .map(|series| series[series.len() - 1].due - series[0].due)
            .max()
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: Instant, due_ms: u64, outcome: Outcome) -> Record {
        Record {
            label: "x",
            due: at + Duration::from_millis(due_ms),
            latency: Duration::from_millis(due_ms % 7),
            outcome,
            remaining: 0,
        }
    }

    #[test]
    fn a_report_finds_the_recovery() {
        let at = Instant::now();
        let bad = |ms| (100..300).contains(&ms) || ms == 350;
        let outcome = |ms| {
            if bad(ms) {
                Outcome::Failed(tonic::Code::Unavailable)
            } else {
                Outcome::Ok
            }
        };
        let report = Report::new(
            (0..100)
                .rev()
                .map(|n| record(at, n * 10, outcome(n * 10)))
                .collect(),
        );
        assert_eq!(report.recovery_after(at), Some(Duration::ZERO));
        // The five good answers from 300 ms on are too few.
        let again = report.recovery_after(at + Duration::from_millis(100));
        assert_eq!(again, Some(Duration::from_millis(260 + 360 % 7)));
        assert_eq!(report.recovery_after(at + Duration::from_millis(950)), None);
        assert_eq!(
            report.longest_series(Record::is_failed),
            Duration::from_millis(190)
        );
        assert_eq!(report.count(Record::is_failed), 21);
        assert_eq!(report.outcomes()["Ok"], 79);
        assert_eq!(
            report.between(at, at + Duration::from_millis(100)).len(),
            10
        );
        assert_eq!(
            (report.quantile(0.0), report.quantile(1.0)),
            (Duration::ZERO, report.longest())
        );
    }
}
