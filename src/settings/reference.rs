//! Settings of envoyproxy/ratelimit that Weir does not act on, and what they do.
//!
//! Users of envoyproxy/ratelimit can keep their settings. One that changes no decision is a warning in the log; one without which the service
//! would be less safe, or decide otherwise, stops the start. A setting with its default value is ignored.

/// What a setting does that is not acted on; with the reason, and what to do.
pub(super) enum Treatment {
    /// It stops the start, because the service would not do what the setting asks for.
    Refuse(&'static str),
    /// It is a warning in the log.
    Warn(&'static str),
}

use Treatment::{Refuse, Warn};

/// A name (a `*` at its end matches any text) and the values beside the empty one that are ignored, in lower case.
pub(super) type Setting = (&'static str, &'static [&'static str]);

const OFF: &[&str] = &["0", "f", "false"];
const ON: &[&str] = &["1", "t", "true"];
const EMPTY: &[&str] = &[];
const NO_TIME: &[&str] = &["0", "0s", "0ms", "0us"];

/// What each of these settings does with any other value.
pub(super) const NOT_ACTED_ON: &[(Treatment, &[Setting])] = &[
    (
        Refuse("Weir keeps counters in `redis` or in `memory`; write BACKEND_TYPE=redis, and REDIS_URL"),
        &[("BACKEND_TYPE", &["redis", "memory"])],
    ),
    (
        Refuse(
            "Weir reads its limits from files; unset it and mount them (a client that needs xDS, such as Envoy Gateway, cannot use Weir)",
        ),
        &[("CONFIG_TYPE", &["file"])],
    ),
    (Refuse("Weir listens on TCP only; set GRPC_HOST and GRPC_PORT"), &[("GRPC_UDS", EMPTY)]),
    (Refuse("Weir does not speak TLS itself yet; let a sidecar or the mesh do it"), &[("GRPC_SERVER_USE_TLS", OFF)]),
    (
        Refuse("Weir does not check client certificates yet; let a sidecar or the mesh do it"),
        &[("GRPC_CLIENT_TLS_CACERT", EMPTY), ("GRPC_CLIENT_TLS_SAN", EMPTY)],
    ),
    (Refuse("a month is 30 days in Weir; unset it if that is acceptable"), &[("USE_CALENDAR_MONTH_RATE_LIMIT", OFF)]),
    (
        Warn("refused hits count; write `count_denied: false` in a limit, or `commit: all_or_none` in a domain"),
        &[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", OFF)],
    ),
    (Warn("Weir does not speak TLS yet"), &[("GRPC_SERVER_TLS_CERT", EMPTY), ("GRPC_SERVER_TLS_KEY", EMPTY)]),
    (Warn("there is no debug listener"), &[("DEBUG_HOST", &["0.0.0.0"]), ("DEBUG_PORT", &["6070"])]),
    (
        Warn("Weir reads its limits from files"),
        &[
            ("CONFIG_GRPC_XDS_NODE_ID", &["default"]),
            ("CONFIG_GRPC_XDS_NODE_METADATA", EMPTY),
            ("CONFIG_GRPC_XDS_SERVER_URL", &["localhost:18000"]),
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", &["3s"]),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", EMPTY),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", OFF),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", EMPTY),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", EMPTY),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", EMPTY),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", EMPTY),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", &["10s"]),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", &["60s", "1m"]),
            ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", &["0.5"]),
            ("XDS_CLIENT_BACKOFF_JITTER", ON),
            ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", &["0"]),
        ],
    ),
    (
        Warn("metrics are at /metrics on the HTTP port; there is no statsd"),
        &[
            ("USE_STATSD", OFF),
            ("STATSD_HOST", &["localhost"]),
            ("STATSD_PORT", &["8125"]),
            ("STATSD_PROTOCOL", &["tcp"]),
            ("USE_DOG_STATSD", OFF),
            ("USE_DOG_STATSD_MOGRIFIERS", EMPTY),
            ("DOG_STATSD_MOGRIFIER_*", EMPTY),
            ("DOG_STATSD_MOGRIFIERS_*", EMPTY),
            ("STATS_FLUSH_INTERVAL", &["10s"]),
        ],
    ),
    (
        Warn("metrics are always counted, and are at /metrics on the HTTP port"),
        &[("DISABLE_STATS", OFF), ("USE_PROMETHEUS", OFF), ("PROMETHEUS_ADDR", &[":9090"]), ("PROMETHEUS_PATH", &["/metrics"])],
    ),
    (
        Warn("names of metrics and their unit, seconds, are fixed; let Prometheus relabel them"),
        &[("PROMETHEUS_MAPPER_YAML", EMPTY), ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", OFF)],
    ),
    (Warn("let Prometheus add labels when it scrapes"), &[("EXTRA_TAGS", EMPTY)]),
    (
        Warn("there is no tracing yet"),
        &[
            ("TRACING_ENABLED", OFF),
            ("TRACING_SERVICE_NAME", &["ratelimit"]),
            ("TRACING_SERVICE_NAMESPACE", EMPTY),
            ("TRACING_SERVICE_INSTANCE_ID", EMPTY),
            ("TRACING_EXPORTER_PROTOCOL", &["http"]),
            ("TRACING_SAMPLING_RATE", &["1"]),
            ("OTEL_EXPORTER_OTLP_*", EMPTY),
        ],
    ),
    (Warn("STORE_TIMEOUT is the longest wait for Redis"), &[("REDIS_TIMEOUT", &["10s"]), ("REDIS_PERSECOND_TIMEOUT", &["10s"])]),
    (
        Warn("Weir sends all requests that wait for Redis together, without a timer"),
        &[
            ("REDIS_PIPELINE_WINDOW", NO_TIME),
            ("REDIS_PIPELINE_LIMIT", &["0"]),
            ("REDIS_CLUSTER_PIPELINE_PARALLELISM", &["1"]),
            ("REDIS_PERSECOND_PIPELINE_WINDOW", NO_TIME),
            ("REDIS_PERSECOND_PIPELINE_LIMIT", &["0"]),
            ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", &["1"]),
        ],
    ),
    (
        Warn("a request waits for a free connection until its deadline"),
        &[
            ("REDIS_POOL_ON_EMPTY_BEHAVIOR", &["wait"]),
            ("REDIS_POOL_ON_EMPTY_WAIT_DURATION", EMPTY),
            ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", &["wait"]),
        ],
    ),
    (
        Warn("Weir starts without Redis, and connects as soon as Redis is reachable"),
        &[
            ("REDIS_STARTUP_INITIAL_INTERVAL", &["1s"]),
            ("REDIS_STARTUP_MAX_INTERVAL", &["30s"]),
            ("REDIS_STARTUP_MAX_ELAPSED_TIME", NO_TIME),
        ],
    ),
    (
        Warn("Weir has no memcache; it keeps counters in Redis or in memory"),
        &[
            ("MEMCACHE_HOST_PORT", EMPTY),
            ("MEMCACHE_MAX_IDLE_CONNS", &["2"]),
            ("MEMCACHE_SRV", EMPTY),
            ("MEMCACHE_SRV_REFRESH", NO_TIME),
            ("MEMCACHE_TLS", OFF),
            ("MEMCACHE_TLS_CLIENT_CERT", EMPTY),
            ("MEMCACHE_TLS_CLIENT_KEY", EMPTY),
            ("MEMCACHE_TLS_CACERT", EMPTY),
            ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", OFF),
        ],
    ),
];

/// The warnings about these settings in `environment`: one for each reason, which names its settings but not their values.
///
/// # Errors
/// One line for each setting that stops the start.
pub(super) fn check(environment: &[(String, String)]) -> Result<Vec<String>, String> {
    let (mut refusals, mut warnings) = (Vec::new(), Vec::new());
    for (treatment, settings) in NOT_ACTED_ON {
        let mut set: Vec<_> =
            environment.iter().filter(|(name, value)| settings.iter().any(|setting| is_reported(setting, name, value))).collect();
        set.sort();
        match (treatment, set.as_slice()) {
            (_, []) => {}
            (Refuse(reason), set) => refusals.extend(set.iter().map(|(name, value)| format!("{name}={value}: {reason}"))),
            (Warn(reason), [(name, _)]) => warnings.push(format!("{name} has no effect: {reason}")),
            (Warn(reason), several) => {
                let names: Vec<_> = several.iter().map(|(name, _)| name.as_str()).collect();
                warnings.push(format!("{} have no effect: {reason}", names.join(", ")));
            }
        }
    }
    if refusals.is_empty() { Ok(warnings) } else { Err(refusals.join("\n")) }
}

fn is_reported((known, harmless): &Setting, name: &str, value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    let is_it = known.strip_suffix('*').map_or(*known == name, |start| name.starts_with(start));
    is_it && !value.is_empty() && !harmless.contains(&value.as_str())
}

/// Every variable of envoyproxy/ratelimit, with its default where that is not empty.
#[cfg(test)]
const VARIABLES: &str = "
HOST=0.0.0.0 PORT=8080 DEBUG_HOST=0.0.0.0 DEBUG_PORT=6070 GRPC_HOST=0.0.0.0 GRPC_PORT=8081 GRPC_UDS
GRPC_MAX_CONNECTION_AGE=24h GRPC_MAX_CONNECTION_AGE_GRACE=1h GRPC_SERVER_USE_TLS=false GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY
GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN LOG_LEVEL=WARN LOG_FORMAT=text CONFIG_TYPE=FILE FORCE_START_WITHOUT_INITIAL_CONFIG=false
MERGE_DOMAIN_CONFIG=false RUNTIME_ROOT=/srv/runtime_data/current RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY=config
RUNTIME_IGNOREDOTFILES=false RUNTIME_WATCH_ROOT=true CONFIG_GRPC_XDS_NODE_ID=default CONFIG_GRPC_XDS_NODE_METADATA
CONFIG_GRPC_XDS_SERVER_URL=localhost:18000 CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=3s CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS
CONFIG_GRPC_XDS_SERVER_USE_TLS=false CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT
CONFIG_GRPC_XDS_SERVER_TLS_SAN XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=10s XDS_CLIENT_BACKOFF_MAX_INTERVAL=60s
XDS_CLIENT_BACKOFF_RANDOM_FACTOR=0.5 XDS_CLIENT_BACKOFF_JITTER=true XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=0 USE_STATSD=true
STATSD_HOST=localhost STATSD_PORT=8125 STATSD_PROTOCOL=tcp USE_DOG_STATSD=false USE_DOG_STATSD_MOGRIFIERS
DOG_STATSD_MOGRIFIER_1_PATTERN DOG_STATSD_MOGRIFIER_1_NAME DOG_STATSD_MOGRIFIER_1_TAGS EXTRA_TAGS STATS_FLUSH_INTERVAL=10s
DISABLE_STATS=false USE_PROMETHEUS=false PROMETHEUS_ADDR=:9090 PROMETHEUS_PATH=/metrics PROMETHEUS_MAPPER_YAML
PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=false EXPIRATION_JITTER_MAX_SECONDS=300 LOCAL_CACHE_SIZE_IN_BYTES=0 NEAR_LIMIT_RATIO=0.8
CACHE_KEY_PREFIX BACKEND_TYPE=redis STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=false SHADOW_MODE=false QUOTA_MODE=false
RESPONSE_DYNAMIC_METADATA=false USE_CALENDAR_MONTH_RATE_LIMIT LIMIT_RESPONSE_HEADERS_ENABLED=false LIMIT_LIMIT_HEADER=RateLimit-Limit
LIMIT_REMAINING_HEADER=RateLimit-Remaining LIMIT_RESET_HEADER=RateLimit-Reset HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=false
REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=false REDIS_SOCKET_TYPE=unix REDIS_TYPE=SINGLE REDIS_URL=/var/run/nutcracker/ratelimit.sock
REDIS_POOL_SIZE=10 REDIS_AUTH REDIS_TLS=false REDIS_SENTINEL_AUTH REDIS_PIPELINE_WINDOW=0 REDIS_PIPELINE_LIMIT=0
REDIS_CLUSTER_PIPELINE_PARALLELISM=1 REDIS_TIMEOUT=10s REDIS_POOL_ON_EMPTY_BEHAVIOR=WAIT REDIS_PERSECOND_SOCKET_TYPE=unix
REDIS_PERSECOND_TYPE=SINGLE REDIS_PERSECOND_URL=/var/run/nutcracker/ratelimitpersecond.sock REDIS_PERSECOND_POOL_SIZE=10
REDIS_PERSECOND_AUTH REDIS_PERSECOND_TLS=false REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_PIPELINE_WINDOW=0
REDIS_PERSECOND_PIPELINE_LIMIT=0 REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM=1 REDIS_PERSECOND_TIMEOUT=10s
REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR=WAIT REDIS_PERSECOND=false REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT
REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=false REDIS_STARTUP_INITIAL_INTERVAL=1s REDIS_STARTUP_MAX_INTERVAL=30s
REDIS_STARTUP_MAX_ELAPSED_TIME=0 MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS=2 MEMCACHE_SRV MEMCACHE_SRV_REFRESH=0 MEMCACHE_TLS=false
MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION=false TRACING_ENABLED=false
TRACING_SERVICE_NAME=RateLimit TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID TRACING_EXPORTER_PROTOCOL=http
TRACING_SAMPLING_RATE=1 OTEL_EXPORTER_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_HEADERS OTEL_EXPORTER_OTLP_TIMEOUT
";

/// [`VARIABLES`] as names and defaults.
#[cfg(test)]
pub(super) fn variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    VARIABLES.split_whitespace().map(|word| word.split_once('=').unwrap_or((word, "")))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::{Args, Command};

    use super::*;
    use crate::settings::Flags;

    /// Each variable is either acted on or in the table above, so that none is ignored without a report.
    #[test]
    fn every_setting_of_the_reference_is_known() {
        let command = Flags::augment_args(Command::new("weir"));
        let acted_on: HashSet<_> = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str()).collect();
        assert!(variables().count() > 100, "the list is complete: {}", variables().count());
        for (name, default) in variables() {
            let checked = |value: &str| check(&[(name.to_owned(), value.to_owned())]);
            if !default.is_empty() && !["USE_STATSD"].contains(&name) {
                assert_eq!(checked(default), Ok(Vec::new()), "{name}={default} is what the reference does anyway");
            }
            let reported = match checked("7-of-9") {
                Ok(warnings) => warnings.join("\n"),
                Err(refusal) => refusal,
            };
            assert!(acted_on.contains(name) || reported.starts_with(name), "{name} is ignored without a report");
        }
    }

    #[test]
    fn one_line_names_all_settings_of_one_reason_and_none_of_their_values() {
        let set = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hunter2"),
            ("TRACING_ENABLED", "true"),
            ("STATSD_HOST", "localhost"),
            ("HOME", "/"),
        ];
        let warnings = check(&set.map(|(name, value)| (name.to_owned(), value.to_owned()))).expect("nothing that stops the start");
        assert_eq!(warnings, ["OTEL_EXPORTER_OTLP_HEADERS, TRACING_ENABLED have no effect: there is no tracing yet"]);
    }
}
