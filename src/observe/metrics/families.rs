//! The metric families: their names, types, labels and help texts. Other modules add the values.
//! The families of features that only some limits have are in `tallies/features/`.
//!
//! The doc comment of a family is its help text on `/metrics`. Names and labels of
//! envoyproxy/ratelimit are kept where it has the metric, because dashboards and alerts depend on
//! them; Weir's own begin with `weir_`. A family without a sample is not shown.

use std::borrow::Cow;

/// The type of a family, in Prometheus's words. Source: Prometheus, "Metric types".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// It only grows while the process lives.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Observations counted by their size, with their sum.
    Histogram,
}

impl MetricType {
    /// As the text format writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The declaration of a metric family.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// The name on `/metrics`.
    pub name: &'static str,
    /// The type of all samples.
    pub metric_type: MetricType,
    /// The names of the labels, in the order in which they are written.
    pub labels: &'static [&'static str],
    /// Meaning and unit of the values, in one sentence.
    pub help: &'static str,
}

/// One value of one series, made by [`Family::sample`] or [`Family::count`], or one histogram, made
/// by [`Family::histogram`].
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The family that it belongs to.
    pub family: &'static Family,
    /// The values of the family's labels, in their order.
    pub labels: Vec<String>,
    pub value: Value,
}

/// Value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a counter or a gauge.
    Number(f64),
    /// Of a histogram.
    Observations(Observations),
}

/// The observations of one histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct Observations {
    /// Upper bounds of the buckets, in seconds unless the family has another unit.
    pub bounds: Cow<'static, [f64]>,
    /// Observations in each bucket (not cumulative), and last those above all bounds.
    pub counts: Vec<u64>,
    /// All of them together, in the unit of the bounds.
    pub sum: f64,
}

impl Family {
    /// Whether envoyproxy/ratelimit has a metric of this name.
    pub fn is_of_the_reference(&self) -> bool {
        self.name.starts_with("ratelimit_")
    }

    /// A sample with these values of the labels, in their declared order. Values may hold any text.
    pub fn sample(&'static self, labels: &[&str], value: f64) -> Sample {
        self.with(labels, Value::Number(value))
    }

    /// The observations of one series of a histogram; labels as for [`Family::sample`].
    pub fn histogram(&'static self, labels: &[&str], observations: Observations) -> Sample {
        self.with(labels, Value::Observations(observations))
    }

    fn with(&'static self, labels: &[&str], value: Value) -> Sample {
        debug_assert_eq!(labels.len(), self.labels.len(), "{}", self.name);
        debug_assert_eq!(
            matches!(value, Value::Observations(_)),
            self.metric_type == MetricType::Histogram,
            "{}",
            self.name
        );
        Sample {
            family: self,
            labels: labels.iter().map(|&value| value.to_owned()).collect(),
            value,
        }
    }

    /// A sample whose value is a whole number, exact up to 2^53.
    pub fn count(&'static self, labels: &[&str], count: u64) -> Sample {
        self.sample(labels, count as f64)
    }
}

/// Declares families as statics, and a list of them, in their order.
macro_rules! families {
    ($list:ident: $(
        $(#[doc = $help:literal])+
        $family:ident = $metric_type:ident $name:literal [$($label:literal),*];
    )+) => {
        $($(#[doc = $help])+
        pub static $family: crate::observe::metrics::families::Family =
            crate::observe::metrics::families::Family {
            name: $name,
            metric_type: crate::observe::metrics::families::MetricType::$metric_type,
            labels: &[$($label),*],
            help: concat!($($help),+).trim_ascii(),
        };)+

        pub(crate) static $list: &[&crate::observe::metrics::families::Family] =
            &[$(&$family),+];
    };
}
pub(crate) use families;

families! { UP_TO_PEEKS:
    // Requests and connections.

    /// Requests that were answered.
    TOTAL_REQUESTS = Counter "ratelimit_service_total_requests" ["grpc_method"];
    /// Time from the arrival of a request to its answer, in seconds.
    RESPONSE_TIME = Histogram "ratelimit_service_response_time_seconds" ["grpc_method"];
    /// Requests that were answered, by gRPC status code.
    REQUESTS = Counter "weir_requests_total" ["code"];
    /// Requests that got an error, by its cause: redis_error for any store, service_error for all
    /// else.
    REQUEST_ERRORS = Counter "ratelimit_service_should_rate_limit_error" ["err_type"];
    /// Requests that were over a limit and allowed because of SHADOW_MODE.
    GLOBAL_SHADOW_MODE = Counter "ratelimit_service_global_shadow_mode" [];
    /// Requests for a domain that no file of limits declares; beyond 100 such domains as other.
    DOMAIN_NOT_FOUND = Counter "weir_domain_not_found_total" ["domain"];
    /// Descriptors of known domains that no limit applied to: none matched, or it was replaced.
    FREE_DESCRIPTORS = Counter "weir_free_descriptors_total" ["domain"];
    /// Calls refused with RESOURCE_EXHAUSTED or by a reset because too many were waiting or
    /// unfinished, or because they had waited too long.
    CALLS_REFUSED = Counter "weir_calls_refused_total" [];
    /// Open connections of clients to the gRPC port.
    CONNECTIONS = Gauge "weir_connections" [];
    /// Calls that wait for the store or for a leaky_bucket; one with a message of more than 4 KiB
    /// counts as several. All other calls are answered at once.
    WAITING_CALLS = Gauge "weir_waiting_calls" ["worker"];
    /// Connections that are read last, because their worker cannot keep up and their calls are
    /// late.
    CONNECTIONS_BEHIND = Gauge "weir_connections_behind" ["worker"];
    /// Connections closed because there were too many.
    CONNECTIONS_REFUSED = Counter "weir_connections_refused_total" [];
    /// Connections whose :authority holds a |, as the names of Istio's clusters do; Weir reads it
    /// as +.
    CONNECTIONS_REWRITTEN = Counter "weir_connections_rewritten_total" [];
    /// Calls that HTTP/2 reset for an error of their client, by error code. No limit was applied to
    /// them: Envoy's failure_mode_deny decides.
    HTTP2_STREAM_RESETS = Counter "weir_http2_stream_resets_total" ["reason"];
    /// Connections that Weir closed for an error of their client, with all calls in flight, by
    /// error code of HTTP/2, or header_memory, not_read or no_pong.
    HTTP2_CONNECTION_ERRORS = Counter "weir_http2_connection_errors_total" ["reason"];
    /// TLS handshakes on the gRPC port, by outcome: completed, failed, late (not finished in time)
    /// or displaced (too many were unfinished, and it was the oldest).
    TLS_HANDSHAKES = Counter "weir_tls_handshakes_total" ["outcome"];
    /// TLS handshakes on the gRPC port that are not finished.
    TLS_HANDSHAKES_OPEN = Gauge "weir_tls_handshakes_open" [];
    /// When the certificate of the gRPC port expires, or the first of those above it, in seconds
    /// since 1970.
    CERTIFICATE_EXPIRY = Gauge "weir_certificate_expiry_timestamp_seconds" [];
    /// Changed files of the certificate of the gRPC port, by result: loaded or refused (the
    /// previous one stays in use).
    CERTIFICATE_RELOADS = Counter "weir_certificate_reloads_total" ["result"];
    /// 1 if the files of the certificate of the gRPC port could be used when they changed last, 0
    /// if they were refused.
    CERTIFICATE_LAST_RELOAD_SUCCESSFUL = Gauge "weir_certificate_last_reload_successful" [];

    // Limits. key2 is left out for a limit on the first level.

    /// Hits that requests asked for, without refunds; of reservations their costs and kept holds,
    /// not their estimates.
    TOTAL_HITS = Counter "ratelimit_service_rate_limit_total_hits" ["domain", "key1", "key2"];
    /// Hits of checks that were within the limit as a whole.
    WITHIN_LIMIT = Counter "ratelimit_service_rate_limit_within_limit" ["domain", "key1", "key2"];
    /// Allowed hits above NEAR_LIMIT_RATIO of the limit.
    NEAR_LIMIT = Counter "ratelimit_service_rate_limit_near_limit" ["domain", "key1", "key2"];
    /// Hits beyond the limit, including limits in shadow mode and hits that the denial cache
    /// refused.
    OVER_LIMIT = Counter "ratelimit_service_rate_limit_over_limit" ["domain", "key1", "key2"];
    /// Hits beyond a limit in shadow mode; they were allowed.
    SHADOW_MODE = Counter "ratelimit_service_rate_limit_shadow_mode" ["domain", "key1", "key2"];
    /// Hits beyond the limit that the denial cache refused.
    DENIAL_CACHE_REFUSED_HITS = Counter "weir_denial_cache_refused_hits_total"
        ["domain", "key1", "key2"];
    /// Descriptors that matched a limit, by outcome: ok, over_limit, shadow_over_limit, unlimited,
    /// error, outage_allowed or outage_denied; or, without a check, blocked or exempt by an
    /// override.
    DECISIONS = Counter "weir_decisions_total" ["domain", "limit", "name", "outcome"];
    /// Refunded hits (is_negative_hits), as asked.
    NEGATIVE_HITS = Counter "weir_negative_hits_total" ["domain", "limit", "name"];
    /// Checks of 0 hits, which read a limit and count nothing, except of limits that requests bring
    /// along; from the first of them.
    PEEKS = Counter "weir_peeks_total" ["domain", "limit", "name"];
}

families! { REST:
    /// Descriptors that named no hits and were charged the default_cost of their limit.
    DEFAULT_COSTS = Counter "weir_default_costs_total" [];

    // Overrides.

    /// Descriptors that an override of an operator decided, or whose limit it raised, by its kind:
    /// block, exempt, or raise.
    OVERRIDE_DECISIONS = Counter "weir_override_decisions_total" ["kind"];
    /// Overrides in force, by kind: block, exempt, or raise.
    OVERRIDES = Gauge "weir_overrides" ["kind"];
    /// Overrides that cannot be read where they are kept. The others are in force.
    OVERRIDES_UNREADABLE = Gauge "weir_overrides_unreadable" [];
    /// Seconds since the overrides were last read or found unchanged where they are kept.
    OVERRIDES_AGE = Gauge "weir_overrides_age_seconds" [];
    /// Changes of overrides by operators through this process: set, removed, ended (which needs no
    /// operator), or reset (of a counter).
    OVERRIDE_CHANGES = Counter "weir_override_changes_total" ["change"];

    // Stores.

    /// Checks that the store did not answer, by kind: not_executed, unknown (whether it ran), or
    /// data (not readable).
    STORE_ERRORS = Counter "weir_store_errors_total" ["kind"];
    /// Checks that the store did not answer, by the failure policy that decided them.
    OUTAGE_ANSWERS = Counter "weir_outage_answers_total" ["policy"];
    /// Checks that the denial cache refused; the store was not asked.
    DENIAL_CACHE_ANSWERS = Counter "weir_denial_cache_answers_total" [];
    /// Checks that were looked up in the denial cache, by result: hit or miss.
    DENIAL_CACHE_LOOKUPS = Counter "weir_denial_cache_lookups_total" ["result"];
    /// Keys in the denial cache that are over their limit now.
    DENIAL_CACHE_ENTRIES = Gauge "weir_denial_cache_entries" [];
    /// Checks of limits with lease that were answered with hits drawn ahead; Redis was not asked.
    LEASE_ANSWERS = Counter "weir_lease_answers_total" [];
    /// Requests that asked Redis for hits ahead of others, by result: granted, partial (fewer, near
    /// the limit), refused, or failed (no answer in time).
    LEASE_DRAWS = Counter "weir_lease_draws_total" ["result"];
    /// Hits that were drawn ahead.
    LEASE_DRAWN_HITS = Counter "weir_lease_drawn_hits_total" [];
    /// Hits that were drawn ahead and not used, by reason: window_ended, evicted (the table of
    /// leases was full, or an operator reset a counter), or void (Redis had lost the counter, or
    /// more hits were refunded than were used).
    LEASE_UNUSED_HITS = Counter "weir_lease_unused_hits_total" ["reason"];
    /// Keys of which hits are held now.
    LEASES = Gauge "weir_leases" [];

    /// Keys in the memory store.
    MEMORY_KEYS = Gauge "weir_memory_keys" [];
    /// Bytes of these keys and of their states.
    MEMORY_BYTES = Gauge "weir_memory_bytes" [];
    /// Keys that the memory store dropped because it was full.
    MEMORY_EVICTED = Counter "weir_memory_evicted_total" [];
    /// Usage records of limits with track_usage in the memory store.
    USAGE_RECORDS = Gauge "weir_usage_records" [];
    /// Bytes of these records.
    USAGE_BYTES = Gauge "weir_usage_bytes" [];
    /// Usage records that the memory store dropped because their memory was full.
    USAGE_EVICTED = Counter "weir_usage_evicted_total" [];
    /// Subjects whose totals were not written to the index of their limit in Redis. The next check
    /// of the subject writes them.
    USAGE_INDEX_DROPPED = Counter "weir_usage_index_dropped_total" ["redis"];
    /// Hits refused by the denial cache that are in no usage record, or may not be.
    USAGE_HITS_LOST = Counter "weir_usage_hits_lost_total" ["redis"];
    /// Keys that on_store_failure: local counts in this process.
    LOCAL_KEYS = Gauge "weir_local_keys" [];
    /// Keys that on_store_failure: local dropped because it was full.
    LOCAL_EVICTED = Counter "weir_local_evicted_total" [];
    /// Replicas that share the limits (REPLICAS): on_store_failure: local admits this part of each
    /// limit.
    REPLICAS = Gauge "weir_replicas" [];
    /// Lookups of the name of REPLICAS=dns:NAME, by result: answered or failed (the number of
    /// replicas stays as it was).
    REPLICAS_LOOKUPS = Counter "weir_replicas_lookups_total" ["result"];

    /// Connections to the last known addresses of a name, because it could not be resolved.
    DNS_FALLBACKS = Counter "weir_dns_fallbacks_total" [];

    // Redis. The label `redis` is main or per_second, `server` is its address.

    /// Open connections to Redis.
    REDIS_CONNECTIONS_OPEN = Gauge "ratelimit_redis_pool_cx_active" [];
    /// Connections to Redis opened since the start.
    REDIS_CONNECTIONS_OPENED = Counter "ratelimit_redis_pool_cx_total" [];
    /// Open connections to the Redis of per-second limits.
    REDIS_PER_SECOND_CONNECTIONS_OPEN = Gauge "ratelimit_redis_per_second_pool_cx_active" [];
    /// Connections to the Redis of per-second limits opened since the start.
    REDIS_PER_SECOND_CONNECTIONS_OPENED = Counter "ratelimit_redis_per_second_pool_cx_total" [];
    /// Errors of Redis by name: one for each request that failed with it, and for each failed
    /// attempt to connect.
    REDIS_ERRORS = Counter "weir_redis_errors_total" ["error"];
    /// Requests that Redis may or may not have counted, because its answer was lost or late.
    REDIS_UNKNOWN_OUTCOMES = Counter "weir_redis_unknown_outcomes_total" ["redis"];
    /// Times that a server had lost its counters: the key that marks them was gone or new.
    REDIS_COUNTERS_LOST = Counter "weir_redis_counters_lost_total" ["redis"];
    /// Requests that were sent a second time, because the first attempt certainly did not run.
    REDIS_RETRIES = Counter "weir_redis_retries_total" ["redis"];
    /// State of the circuit breaker: 0 closed, 1 open (no requests are sent), 2 ramp (a growing
    /// share of requests is sent).
    REDIS_BREAKER_STATE = Gauge "weir_redis_breaker_state" ["redis", "server"];
    /// State changes of the circuit breaker, by the new state (open, ramp or closed) and its
    /// reason.
    REDIS_BREAKER_TRANSITIONS = Counter "weir_redis_breaker_transitions_total"
        ["redis", "server", "to", "reason"];
    /// 1 if the server answered the last probe, 0 if it did not. While no server is known, the
    /// label server is the name of the primary for its Sentinels, or a configured address of the
    /// cluster.
    REDIS_UP = Gauge "weir_redis_up" ["redis", "server"];
    /// Round-trip time of the last probe, in seconds.
    REDIS_ROUND_TRIP = Gauge "weir_redis_round_trip_seconds" ["redis", "server"];
    /// Time from sending a batch to its last reply, in seconds.
    REDIS_BATCH_DURATION = Histogram "weir_redis_batch_duration_seconds" ["redis", "server"];
    /// Time by which the server's clock is ahead of this machine's, in seconds.
    REDIS_CLOCK_OFFSET = Gauge "weir_redis_clock_offset_seconds" ["redis", "server"];
    /// Keys in the Redis database that Weir uses, including those of other programs.
    REDIS_KEYS = Gauge "weir_redis_keys" ["redis", "server"];
    /// Memory that the server's data takes (used_memory), in bytes.
    REDIS_USED_MEMORY = Gauge "weir_redis_used_memory_bytes" ["redis", "server"];
    /// Memory that the server's data may take (maxmemory), in bytes; 0 means unlimited.
    REDIS_MAX_MEMORY = Gauge "weir_redis_max_memory_bytes" ["redis", "server"];
    /// Keys that the server evicted because its memory was full, since it started.
    REDIS_EVICTED_KEYS = Counter "weir_redis_evicted_keys_total" ["redis", "server"];
    /// Always 1; the label is the version of the server.
    REDIS_SERVER_INFO = Gauge "weir_redis_server_info" ["redis", "server", "version"];
    /// 1 for each diagnostic of the server's configuration, which the log explains.
    REDIS_ADVICE = Gauge "weir_redis_advice" ["redis", "server", "advice"];
    /// Batches that the server answered.
    REDIS_BATCHES = Counter "weir_redis_batches_total" ["redis", "server"];
    /// Requests in these batches; a request that needs several servers counts at each.
    REDIS_BATCHED_REQUESTS = Counter "weir_redis_batched_requests_total" ["redis", "server"];
    /// Requests that were not sent, because the client had given up or the deadline had passed.
    REDIS_ABANDONED = Counter "weir_redis_abandoned_total" ["redis", "server"];

    // Configuration.

    /// Configurations that were loaded.
    CONFIG_LOAD_SUCCESS = Counter "ratelimit_service_config_load_success" [];
    /// Configurations that were refused; the one in force stayed.
    CONFIG_LOAD_ERROR = Counter "ratelimit_service_config_load_error" [];
    /// 1 if the last configuration was loaded, 0 if it was refused.
    CONFIG_LAST_LOAD_SUCCESSFUL = Gauge "weir_config_last_load_successful" [];
    /// Age in seconds of the oldest change of files, or of the control plane, that may not be in
    /// force; without one, the time since Weir last looked.
    CONFIG_AGE = Gauge "weir_config_age_seconds" [];
    /// When the configuration in force was loaded, in seconds since 1970.
    CONFIG_LOADED_TIMESTAMP = Gauge "weir_config_loaded_timestamp_seconds" [];
    /// Number of the configuration in force, counted from 1 since the start of the process.
    CONFIG_GENERATION = Gauge "weir_config_generation" [];
    /// Limits in force.
    CONFIG_LIMITS = Gauge "weir_config_limits" [];
    /// Always 1; the label is the digest of the limits in force, which is equal in replicas that
    /// decide equally. Missing before the first limits.
    CONFIG_INFO = Gauge "weir_config_info" ["digest"];
    /// Memory of the limits in force, estimated while they were read, in bytes.
    CONFIG_MEMORY = Gauge "weir_config_memory_bytes" [];
    /// Domains in force.
    CONFIG_DOMAINS = Gauge "weir_config_domains" [];

    // The control plane (CONFIG_TYPE=GRPC_XDS_SOTW).

    /// 1 while a stream to the control plane is open.
    XDS_CONNECTED = Gauge "weir_xds_connected" [];
    /// 1 for the state of the connection to the control plane: connecting, waiting (nothing was
    /// received yet), synced, or nacked (the last response was refused, in whole or in part).
    XDS_STATE = Gauge "weir_xds_state" ["state"];
    /// Attempts to connect to the control plane, by result: opened or failed.
    XDS_CONNECTS = Counter "weir_xds_connects_total" ["result"];
    /// Responses of the control plane, by result: accepted, refused (in whole or in part),
    /// superseded (a newer one came before it was compiled), or other_type (it holds no limits).
    XDS_RESPONSES = Counter "weir_xds_responses_total" ["result"];
    /// Always 1; the label is the version of the last response that was accepted as a whole, empty
    /// before the first.
    XDS_ACCEPTED_INFO = Gauge "weir_xds_accepted_info" ["version"];
    /// When a response was last accepted as a whole, in seconds since 1970; 0 for never.
    XDS_ACCEPTED_TIMESTAMP = Gauge "weir_xds_accepted_timestamp_seconds" [];
    /// When a response was last refused, in whole or in part, in seconds since 1970; 0 for never.
    XDS_REFUSED_TIMESTAMP = Gauge "weir_xds_refused_timestamp_seconds" [];
    /// Domains that were refused, by what is in force instead: kept (their last good limits) or
    /// absent (nothing: their requests pass).
    XDS_REFUSED_DOMAINS = Gauge "weir_xds_refused_domains" ["limits"];
    /// Attempts to write CONFIG_GRPC_XDS_CACHE_FILE, by result: written or failed.
    XDS_CACHE_WRITES = Counter "weir_xds_cache_writes_total" ["result"];

    // The process.

    /// Always 1; the labels are the version of Weir and the commit that it was built from, which is
    /// empty if the build did not know it.
    BUILD_INFO = Gauge "weir_build_info" ["version", "commit"];
    /// CPU time of all threads, in seconds.
    PROCESS_CPU_SECONDS = Counter "process_cpu_seconds_total" [];
    /// When the process started, in seconds since 1970.
    PROCESS_START_TIME = Gauge "process_start_time_seconds" [];
    /// Memory of the process that is in RAM, in bytes.
    PROCESS_RESIDENT_MEMORY = Gauge "process_resident_memory_bytes" [];
    /// Address space of the process, in bytes.
    PROCESS_VIRTUAL_MEMORY = Gauge "process_virtual_memory_bytes" [];
    /// Threads of the process.
    PROCESS_THREADS = Gauge "process_threads" [];
    /// Open file descriptors, sockets included.
    PROCESS_OPEN_FDS = Gauge "process_open_fds" [];
    /// File descriptors that the process may open.
    PROCESS_MAX_FDS = Gauge "process_max_fds" [];
    /// CPU time of each worker thread, in seconds: its rate is the busy fraction of the worker.
    WORKER_BUSY_SECONDS = Counter "weir_worker_busy_seconds_total" ["worker"];
    /// Panics that were caught; each one is a defect of Weir.
    PANICS = Counter "weir_panics_total" [];
    /// Log lines that were dropped because stderr was not read in time.
    LOG_LINES_DROPPED = Counter "weir_log_lines_dropped_total" [];
    /// Finished spans of traces by outcome: exported, dropped (the queue was full) or failed (the
    /// collector did not take them).
    SPANS = Counter "weir_spans_total" ["outcome"];
}
