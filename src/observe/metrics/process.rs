//! The counters of the whole process: requests, response times, errors; and the kernel's figures of
//! the process and of the worker threads, which each scrape reads from `/proc`.
//!
//! Without `/proc`, as on macOS, these families have no samples. Source: proc(5), and for the names
//! Prometheus, "Writing client libraries", process metrics.

use std::fs;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tonic::Code;

use super::counts::{Cells, Core};
use super::families::{self, Family, Observations, Sample};
use crate::core::answer::Decision;
use crate::core::text::number_after;
use crate::core::verdict::StoreError;

/// The label `grpc_method`: the only method that is counted.
const METHOD: &str = "ShouldRateLimit";

/// The names of gRPC's status codes, by number. Source: gRPC, "Status codes and their use in gRPC".
pub(crate) const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Upper bounds of the response-time buckets, in seconds: the bounds of envoyproxy/ratelimit, which
/// are Prometheus's default (0.005 to 10), and shorter ones; 0.02 is Envoy's default timeout.
static BOUNDS: [f64; 18] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.025, 0.05, 0.1,
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
const BUCKETS: usize = BOUNDS.len() + 1;
/// The buckets, and last the sum in nanoseconds.
const TIMES: usize = BUCKETS + 1;

/// Events that are counted.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    /// A request got the error of a store.
    StoreFailed,
    /// A request got any other error.
    ServiceFailed,
    /// A request was over a limit, and allowed because the process is in shadow mode.
    GlobalShadow,
    NotExecuted,
    OutcomeUnknown,
    StoredData,
    OutageError,
    OutageAllow,
    OutageDeny,
    OutageLocal,
    DenialCache,
    Lease,
    Blocked,
    Exempt,
    Raised,
    DefaultCost,
}
const COUNTS: usize = Count::DefaultCost as usize + 1;

/// The family of each [`Count`] and the value of its label, in the order of `Count`.
static COUNT_SERIES: [(&Family, Option<&str>); COUNTS] = [
    (&families::REQUEST_ERRORS, Some("redis_error")),
    (&families::REQUEST_ERRORS, Some("service_error")),
    (&families::GLOBAL_SHADOW_MODE, None),
    (&families::STORE_ERRORS, Some("not_executed")),
    (&families::STORE_ERRORS, Some("unknown")),
    (&families::STORE_ERRORS, Some("data")),
    (&families::OUTAGE_ANSWERS, Some("error")),
    (&families::OUTAGE_ANSWERS, Some("allow")),
    (&families::OUTAGE_ANSWERS, Some("deny")),
    (&families::OUTAGE_ANSWERS, Some("local")),
    (&families::DENIAL_CACHE_ANSWERS, None),
    (&families::LEASE_ANSWERS, None),
    (&families::OVERRIDE_DECISIONS, Some("block")),
    (&families::OVERRIDE_DECISIONS, Some("exempt")),
    (&families::OVERRIDE_DECISIONS, Some("raise")),
    (&families::DEFAULT_COSTS, None),
];

/// Checks that failure policies answered, by policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct PolicyAnswers {
    /// `error`: the requests failed.
    #[serde(rename = "error")]
    pub failed: u64,
    /// `allow`.
    #[serde(rename = "allow")]
    pub allowed: u64,
    /// `deny`.
    #[serde(rename = "deny")]
    pub denied: u64,
    /// `local`.
    #[serde(rename = "local")]
    pub counted_locally: u64,
}

impl PolicyAnswers {
    /// Answers since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            failed: self.failed.saturating_sub(earlier.failed),
            allowed: self.allowed.saturating_sub(earlier.allowed),
            denied: self.denied.saturating_sub(earlier.denied),
            counted_locally: self.counted_locally.saturating_sub(earlier.counted_locally),
        }
    }
}

/// The counters, with one row per core.
#[derive(Debug)]
pub struct Process {
    counts: Cells<COUNTS>,
    codes: Cells<{ CODES.len() }>,
    times: Cells<TIMES>,
}

impl Process {
    pub(super) fn new(cores: usize) -> Self {
        Self {
            counts: Cells::new(cores),
            codes: Cells::new(cores),
            times: Cells::new(cores),
        }
    }

    /// Counts an event.
    pub fn count(&self, core: Core, count: Count) {
        self.counts.add(core, count as usize, 1);
    }

    /// Counts a check that the store did not decide, by its error and by the part of Weir that
    /// answered instead.
    #[inline]
    pub(super) fn decided(&self, core: Core, decision: &Decision) {
        let error = decision.store_error().map(|error| match error {
            StoreError::NotExecuted(_) => Count::NotExecuted,
            StoreError::Unknown(_) => Count::OutcomeUnknown,
            StoreError::Data(_) => Count::StoredData,
        });
        let answered_by = match decision {
            Decision::Store(_) => None,
            Decision::Lease(_) => Some(Count::Lease),
            Decision::DenialCache(_) => Some(Count::DenialCache),
            Decision::Local(..) => Some(Count::OutageLocal),
            Decision::PolicyAllows(_) => Some(Count::OutageAllow),
            Decision::PolicyRefuses(_) => Some(Count::OutageDeny),
            Decision::Fails(_) => Some(Count::OutageError),
        };
        for count in [error, answered_by].into_iter().flatten() {
            self.count(core, count);
        }
    }

    /// The answers of failure policies.
    pub fn policy_answers(&self) -> PolicyAnswers {
        let counts = self.counts.sums();
        let of = |count: Count| counts[count as usize];
        PolicyAnswers {
            failed: of(Count::OutageError),
            allowed: of(Count::OutageAllow),
            denied: of(Count::OutageDeny),
            counted_locally: of(Count::OutageLocal),
        }
    }

    /// Counts a call with its status and duration.
    pub fn request(&self, core: Core, status: Code, took: Duration) {
        self.codes.add(core, status as usize, 1);
        let (secs, nanos) = (took.as_secs_f64(), took.as_nanos());
        let bucket = BOUNDS.partition_point(|&bound| bound < secs);
        self.times.add(core, bucket, 1);
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.times.add(core, BUCKETS, nanos);
    }

    pub(super) fn gather(&self, samples: &mut Vec<Sample>) {
        for (&(family, label), count) in COUNT_SERIES.iter().zip(self.counts.sums()) {
            samples.push(family.count(label.as_slice(), count));
        }
        let codes = self.codes.sums();
        samples.push(families::TOTAL_REQUESTS.count(&[METHOD], codes.iter().sum()));
        let named = CODES.iter().zip(codes);
        for (&code, count) in named.filter(|&(&code, count)| code == CODES[0] || count > 0) {
            samples.push(families::REQUESTS.count(&[code], count));
        }
        let times = self.times.sums();
        let sum = Duration::from_nanos(times[BUCKETS]).as_secs_f64();
        let observations = Observations {
            bounds: BOUNDS.as_slice().into(),
            counts: times[..BUCKETS].to_vec(),
            sum,
        };
        samples.push(families::RESPONSE_TIME.histogram(&[METHOD], observations));
    }
}

/// Ticks per second of the times in `/proc`: USER_HZ, which is 100 on every architecture that Rust
/// supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// Prefix of the worker threads' names, before a number.
const WORKER: &str = "weir-";

/// The fields of a `stat` file that are used; times in ticks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProcStat {
    name: String,
    pub(crate) cpu_ticks: u64,
    /// Since the machine booted.
    started_ticks: u64,
}

/// Adds the samples of the process and of its worker threads.
pub(super) fn gather(samples: &mut Vec<Sample>) {
    if let Some(stat) = read("/proc/self/stat").and_then(|text| stat_of(&text)) {
        let seconds = stat.cpu_ticks as f64 / TICKS_PER_SECOND;
        samples.push(families::PROCESS_CPU_SECONDS.sample(&[], seconds));
        if let Some(booted) = number("/proc/stat", "btime") {
            let started = booted as f64 + stat.started_ticks as f64 / TICKS_PER_SECOND;
            samples.push(families::PROCESS_START_TIME.sample(&[], started));
        }
    }
    if let Some(status) = read("/proc/self/status") {
        for (name, family) in [
            ("VmRSS:", &families::PROCESS_RESIDENT_MEMORY),
            ("VmSize:", &families::PROCESS_VIRTUAL_MEMORY),
            ("Threads:", &families::PROCESS_THREADS),
        ] {
            if let Some(value) = number_after(&status, name) {
                let unit = if name == "Threads:" { 1 } else { 1_024 };
                samples.push(family.count(&[], value * unit));
            }
        }
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // Without the descriptor that reads the folder.
        let count = (files.count() as u64).saturating_sub(1);
        samples.push(families::PROCESS_OPEN_FDS.count(&[], count));
    }
    if let Some(most) = number("/proc/self/limits", "Max open files") {
        samples.push(families::PROCESS_MAX_FDS.count(&[], most));
    }
    for (worker, busy_seconds) in busy_workers() {
        samples.push(families::WORKER_BUSY_SECONDS.sample(&[&worker], busy_seconds));
    }
}

/// The CPU time of each worker thread in seconds, with the worker's number.
fn busy_workers() -> Vec<(String, f64)> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let workers = threads.filter_map(|thread| {
        let stat = stat_of(&fs::read_to_string(thread.ok()?.path().join("stat")).ok()?)?;
        let worker = stat.name.strip_prefix(WORKER)?;
        worker.parse::<usize>().ok()?;
        Some((worker.to_owned(), stat.cpu_ticks as f64 / TICKS_PER_SECOND))
    });
    workers.collect()
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn number(path: &str, name: &str) -> Option<u64> {
    number_after(&read(path)?, name)
}

/// Reads a `stat` file. The name is in parentheses and may contain any byte. Therefore the numbers
/// begin after the last parenthesis.
pub(crate) fn stat_of(text: &str) -> Option<ProcStat> {
    let (head, numbers) = text.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    // Fields are numbered from 1, and the state, which is the first one here, is field 3.
    let field = |number: usize| {
        let mut fields = numbers.split_ascii_whitespace();
        fields.nth(number - 3)?.parse::<u64>().ok()
    };
    Some(ProcStat {
        name: name.to_owned(),
        cpu_ticks: field(14)? + field(15)?,
        started_ticks: field(22)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let text = "4242 (a) b (c) S 1 4242 4242 0 -1 4194560 900 0 3 0 120 30 0 0 20 0 9 0 777000 \
            300000000 6000 18446744073709551615";
        assert_eq!(
            stat_of(text),
            Some(ProcStat {
                name: "a) b (c".to_owned(),
                cpu_ticks: 150,
                started_ticks: 777_000
            })
        );
        assert_eq!((stat_of(""), stat_of("1 (weir) S 1 2")), (None, None));
    }

    #[test]
    fn values_stand_behind_their_names() {
        let text = "VmPeak:\t  900 kB\nVmRSS:\t   512 kB\nMax open files            \
            1024                 4096                 files\n";
        assert_eq!(number_after(text, "VmRSS:"), Some(512));
        assert_eq!(number_after(text, "Max open files"), Some(1_024));
        assert_eq!(
            (
                number_after(text, "VmSwap:"),
                number_after("Max open files unlimited", "Max open files")
            ),
            (None, None)
        );
    }
}
