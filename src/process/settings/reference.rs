//! Settings of envoyproxy/ratelimit that have no effect in Weir, with the reasons.
//!
//! Users of envoyproxy/ratelimit can keep their settings. These settings change no decision, and
//! Weir logs a warning for each, unless it has its default value. Settings that are only proposed
//! there, in its open pull requests, are in the table too.

use super::setting::without_effect;

/// A name, and the values in lower case that cause no warning. An empty value never causes one.
pub(super) type Setting = (&'static str, &'static [&'static str]);

const OFF: &[&str] = &["0", "f", "false"];
const EMPTY: &[&str] = &[];
const NO_TIME: &[&str] = &["0", "0s", "0ms", "0us"];

/// The reasons, each with the settings that have no effect because of it.
pub(super) const NOT_ACTED_ON: &[(&str, &[Setting])] = &[
    (
        "TRACING_EXPORTER_PROTOCOL chooses the protocol, and the scheme of the endpoint whether \
         there is TLS; there is no compression",
        &[
            ("OTEL_EXPORTER_OTLP_PROTOCOL", EMPTY),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", EMPTY),
            ("OTEL_EXPORTER_OTLP_INSECURE", EMPTY),
            ("OTEL_EXPORTER_OTLP_TRACES_INSECURE", EMPTY),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", &["none"]),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", &["none"]),
        ],
    ),
    (
        "STORE_TIMEOUT is the longest wait for Redis",
        &[
            ("REDIS_TIMEOUT", &["10s"]),
            ("REDIS_PERSECOND_TIMEOUT", &["10s"]),
        ],
    ),
    (
        "Weir sends all requests that wait for Redis together, without a timer",
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
        "a request waits for a free connection until its deadline",
        &[
            ("REDIS_POOL_ON_EMPTY_BEHAVIOR", &["wait"]),
            ("REDIS_POOL_ON_EMPTY_WAIT_DURATION", EMPTY),
            ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", &["wait"]),
        ],
    ),
    (
        "Weir starts without Redis, and connects as soon as Redis is reachable",
        &[
            ("REDIS_STARTUP_INITIAL_INTERVAL", &["1s"]),
            ("REDIS_STARTUP_MAX_INTERVAL", &["30s"]),
            ("REDIS_STARTUP_MAX_ELAPSED_TIME", NO_TIME),
        ],
    ),
    (
        "only proposed for envoyproxy/ratelimit; deploy/migration.md has what Weir does instead",
        &[
            ("ENABLE_NEGATIVE_HITS", EMPTY),
            ("GRPC_MAX_CONCURRENT_STREAMS", &["0"]),
            ("MAX_CONCURRENT_REQUESTS", &["0"]),
            ("REDIS_AWS_IAM_AUTH", OFF),
            ("REDIS_PERSECOND_AWS_IAM_AUTH", OFF),
            ("REQUEST_TIMEOUT", NO_TIME),
        ],
    ),
    (
        "Weir closes a connection to Redis on READONLY in any case",
        &[("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", OFF)],
    ),
    (
        "Weir has no memcache; it keeps counters in Redis or in memory",
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

/// The names of these settings.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let settings = NOT_ACTED_ON.iter().flat_map(|(_, settings)| *settings);
    settings.map(|(name, _)| *name)
}

/// The warnings about these settings in `environment`: one for each reason, which names its
/// settings but not their values.
pub(super) fn check(environment: &[(String, String)]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (reason, settings) in NOT_ACTED_ON {
        let is_set = |(name, value): &&(String, String)| {
            let value = value.to_ascii_lowercase();
            let mut known = settings.iter().filter(|_| !value.is_empty());
            known.any(|(known, harmless)| known == name && !harmless.contains(&value.as_str()))
        };
        let set = environment.iter().filter(is_set);
        let mut names: Vec<_> = set.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        warnings.extend(without_effect(&names, reason));
    }
    warnings
}

/// Every variable of envoyproxy/ratelimit, its default, and what Weir does with another value;
/// `tests/it/service/variables.rs` walks it too.
#[cfg(test)]
const VARIABLES: &str = include_str!("../../../tests/vectors/reference_variables.txt");

/// [`VARIABLES`] as names and defaults.
#[cfg(test)]
pub(super) fn variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    let row = |line: &'static str| {
        line.split_once(' ')
            .and_then(|(name, rest)| Some((name, rest.split_once(' ')?.0)))
    };
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
    use crate::process::settings::Flags;

    /// Each variable is either acted on or in the table above: none is ignored without a report.
    #[test]
    fn every_setting_of_the_reference_is_known() {
        let command = Flags::augment_args(Command::new("weir"));
        let acted_on: HashSet<_> = command
            .get_arguments()
            .filter_map(|argument| argument.get_env()?.to_str())
            .collect();
        assert!(
            variables().count() > 100,
            "the list is complete: {}",
            variables().count()
        );
        for (name, default) in variables() {
            let checked = |value: &str| check(&[(name.to_owned(), value.to_owned())]);
            if !default.is_empty() {
                assert_eq!(
                    checked(default),
                    Vec::<String>::new(),
                    "{name}={default} is what the reference does anyway"
                );
            }
            let reported = checked("7-of-9").join("\n");
            // Their names depend on another variable; settings/exporters.rs reads them.
            let is_read = acted_on.contains(name) || name.starts_with("DOG_STATSD_MOGRIFIER_");
            assert!(
                is_read || reported.starts_with(name),
                "{name} is ignored without a report"
            );
        }
    }

    /// Of its open pull requests.
    #[test]
    fn a_proposed_setting_is_named_unless_it_is_off() {
        for (name, value, is_named) in [
            ("GRPC_MAX_CONCURRENT_STREAMS", "100", true),
            ("MAX_CONCURRENT_REQUESTS", "100", true),
            ("MAX_CONCURRENT_REQUESTS", "0", false),
            ("REQUEST_TIMEOUT", "1s", true),
            ("REQUEST_TIMEOUT", "0", false),
            ("ENABLE_NEGATIVE_HITS", "true", true),
            ("REDIS_AWS_IAM_AUTH", "true", true),
            ("REDIS_AWS_IAM_AUTH", "false", false),
            ("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "true", true),
        ] {
            let warnings = check(&[(name.to_owned(), value.to_owned())]);
            let expected = usize::from(is_named);
            assert_eq!(warnings.len(), expected, "{name}={value}: {warnings:?}");
            assert!(warnings.iter().all(|line| line.starts_with(name)));
        }
    }

    #[test]
    fn one_line_names_all_settings_of_one_reason_and_none_of_their_values() {
        let set = [
            ("MEMCACHE_SRV", "hunter2"),
            ("MEMCACHE_TLS", "true"),
            ("STATSD_HOST", "localhost"),
            ("HOME", "/"),
        ];
        let warnings = check(&set.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(
            warnings,
            [
                "MEMCACHE_SRV, MEMCACHE_TLS have no effect: Weir has no memcache; it keeps \
                 counters in Redis or in memory"
            ]
        );
    }
}
