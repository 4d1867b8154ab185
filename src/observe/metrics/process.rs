//! The counters of the whole process: requests, response times, errors.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tonic::Code;

use super::cells::{Cells, Core};
use super::families::{self, Family, Observations, Sample};

/// The label `grpc_method`: the only method that is counted.
const METHOD: &str = "ShouldRateLimit";

/// The names of gRPC's status codes, by number. Source: gRPC, "Status codes and their use in gRPC".
const CODES: [&str; 17] = [
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

/// Upper bounds of the response-time buckets, in seconds: those of envoyproxy/ratelimit, which are
/// Prometheus's default (0.005 to 10), and shorter ones; 0.02 is Envoy's default timeout.
static BOUNDS: [f64; 18] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.025, 0.05, 0.1,
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
const BUCKETS: usize = BOUNDS.len() + 1;
/// The buckets, and last the sum in nanoseconds.
const TIMES: usize = BUCKETS + 1;

/// Events that are counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    StoreFailed,
    ServiceFailed,
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
    /// `error`: their requests failed.
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
    /// Those since `earlier`.
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
pub(super) struct Process {
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

    pub(super) fn count(&self, core: Core, count: Count) {
        self.counts.add(core, count as usize, 1);
    }

    pub(super) fn policy_answers(&self) -> PolicyAnswers {
        let counts = self.counts.sums();
        let of = |count: Count| counts[count as usize];
        PolicyAnswers {
            failed: of(Count::OutageError),
            allowed: of(Count::OutageAllow),
            denied: of(Count::OutageDeny),
            counted_locally: of(Count::OutageLocal),
        }
    }

    pub(super) fn request(&self, core: Core, status: Code, took: Duration) {
        self.codes.add(core, status as usize, 1);
        let secs = took.as_secs_f64();
        self.times
            .add(core, BOUNDS.partition_point(|&bound| bound < secs), 1);
        self.times.add(
            core,
            BUCKETS,
            u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
        );
    }

    pub(super) fn gather(&self, samples: &mut Vec<Sample>) {
        for (&(family, label), count) in COUNT_SERIES.iter().zip(self.counts.sums()) {
            samples.push(family.count(label.as_slice(), count));
        }
        let codes = self.codes.sums();
        samples.push(families::TOTAL_REQUESTS.count(&[METHOD], codes.iter().sum()));
        for (&code, &count) in CODES
            .iter()
            .zip(&codes)
            .filter(|&(&code, &count)| code == CODES[0] || count > 0)
        {
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
