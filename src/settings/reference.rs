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
        Refuse(
            "Weir reads its limits from files; unset it and mount them (a client that needs xDS, such as Envoy Gateway, cannot use Weir)",
        ),
        &[("CONFIG_TYPE", &["file"])],
    ),
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

/// Every variable of envoyproxy/ratelimit, its default, and what Weir does with another value; `tests/it/variables.rs` walks it too.
#[cfg(test)]
const VARIABLES: &str = include_str!("../../tests/vectors/reference_variables.txt");

/// [`VARIABLES`] as names and defaults.
#[cfg(test)]
pub(super) fn variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    let row = |line: &'static str| line.split_once(' ').and_then(|(name, rest)| Some((name, rest.split_once(' ')?.0)));
    VARIABLES
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(row)
        .map(|(name, default)| (name, if default == "-" { "" } else { default }))
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
            if !default.is_empty() {
                assert_eq!(checked(default), Ok(Vec::new()), "{name}={default} is what the reference does anyway");
            }
            let reported = match checked("7-of-9") {
                Ok(warnings) => warnings.join("\n"),
                Err(refusal) => refusal,
            };
            // Their names depend on another variable; settings/exporters.rs reads them.
            let is_read = acted_on.contains(name) || name.starts_with("DOG_STATSD_MOGRIFIER_");
            assert!(is_read || reported.starts_with(name), "{name} is ignored without a report");
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
