//! What the process counts apart from limits: requests, how long they took, errors.

use std::time::Duration;

use tonic::Code;

use super::cells::{Cells, Core};
use super::families::{Durations, Families, Sample};

/// The only method that is counted, as the label `grpc_method` has it.
const METHOD: &str = "ShouldRateLimit";

/// Names of gRPC's codes, by number.
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

/// Upper bounds of the response times in seconds. 0.02 is Envoy's default timeout.
const BOUNDS: [f64; 14] = [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0];
const BUCKETS: usize = BOUNDS.len() + 1;
/// The buckets and, last, the sum in nanoseconds.
const TIMES: usize = BUCKETS + 1;

#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    StoreFailed,
    ServiceFailed,
    GlobalShadow,
    Free,
    NotExecuted,
    OutcomeUnknown,
    StoredData,
    OutageError,
    OutageAllow,
    OutageDeny,
    OutageLocal,
    DenialCache,
}
const COUNTS: usize = Count::DenialCache as usize + 1;

/// A label's name and value.
type Label = Option<(&'static str, &'static str)>;

const OUTAGE_HELP: &str = "Checks that the store did not answer, by what became of them.";

/// Name, label and help of each [`Count`], in its order.
const COUNT_NAMES: [(&str, Label, &str); COUNTS] = [
    ("ratelimit_service_should_rate_limit_error", Some(("err_type", "redis_error")), "Requests that failed."),
    ("ratelimit_service_should_rate_limit_error", Some(("err_type", "service_error")), "Requests that failed."),
    ("ratelimit_service_global_shadow_mode", None, "Requests that were over a limit and let pass by SHADOW_MODE."),
    ("weir_free_descriptors_total", None, "Descriptors of known domains that nothing limited: no match, or replaced."),
    ("weir_store_errors_total", Some(("kind", "not_executed")), "Checks that the store did not answer."),
    ("weir_store_errors_total", Some(("kind", "unknown")), "Checks that the store did not answer."),
    ("weir_store_errors_total", Some(("kind", "data")), "Checks that the store did not answer."),
    ("weir_outage_answers_total", Some(("policy", "error")), OUTAGE_HELP),
    ("weir_outage_answers_total", Some(("policy", "allow")), OUTAGE_HELP),
    ("weir_outage_answers_total", Some(("policy", "deny")), OUTAGE_HELP),
    ("weir_outage_answers_total", Some(("policy", "local")), OUTAGE_HELP),
    ("weir_denial_cache_answers_total", None, "Checks that the denial cache refused; the store was not asked."),
];

/// Counters of the process, a row for each core.
#[derive(Debug)]
pub(super) struct Process {
    counts: Cells<COUNTS>,
    codes: Cells<{ CODES.len() }>,
    times: Cells<TIMES>,
}

impl Process {
    pub(super) fn new(cores: usize) -> Self {
        Self { counts: Cells::new(cores), codes: Cells::new(cores), times: Cells::new(cores) }
    }

    pub(super) fn count(&self, core: Core, count: Count) {
        self.counts.add(core, count as usize, 1);
    }

    pub(super) fn request(&self, core: Core, status: Code, took: Duration) {
        self.codes.add(core, status as usize, 1);
        let secs = took.as_secs_f64();
        self.times.add(core, BOUNDS.partition_point(|&bound| bound < secs), 1);
        self.times.add(core, BUCKETS, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn gather(&self, families: &mut Families) {
        for ((name, label, help), count) in COUNT_NAMES.into_iter().zip(self.counts.sums()) {
            let labels = label.map(|(name, value)| (name, value.to_owned())).into_iter().collect();
            families.add(Sample::counter(name, help, labels, count));
        }
        let method = || vec![("grpc_method", METHOD.to_owned())];
        let codes = self.codes.sums();
        families.add(Sample::counter("ratelimit_service_total_requests", "Requests that were answered.", method(), codes.iter().sum()));
        for (&code, &count) in CODES.iter().zip(&codes).filter(|&(&code, &count)| code == CODES[0] || count > 0) {
            let labels = vec![("code", code.to_owned())];
            families.add(Sample::counter("weir_requests_total", "Requests that were answered, by gRPC code.", labels, count));
        }
        let times = self.times.sums();
        families.add_durations(Durations {
            name: "ratelimit_service_response_time_seconds",
            help: "From a request that has arrived to its answer, in seconds.",
            labels: method(),
            bounds: &BOUNDS,
            counts: &times[..BUCKETS],
            sum_seconds: Duration::from_nanos(times[BUCKETS]).as_secs_f64(),
        });
    }
}
