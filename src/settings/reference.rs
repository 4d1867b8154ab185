//! Settings of envoyproxy/ratelimit that Weir does not act on (yet), and what becomes of a process that has them.
//!
//! Whoever comes from there changes nothing: a setting that would only look different is named in the log, one that would make the service
//! less safe or decide otherwise stops the start.

/// What a setting that is not acted on means.
pub(super) enum Verdict {
    /// Starting all the same would surprise: a reason, and what to do.
    Refuse(&'static str),
    /// Worth a line in the log.
    Warn(&'static str),
}

use Verdict::{Refuse, Warn};

/// The setting, the values that change nothing (in lower case), and what any other value means.
pub(super) const NOT_ACTED_ON: &[(&str, &[&str], Verdict)] = &[
    ("BACKEND_TYPE", &["", "redis", "memory"], Refuse("Weir keeps counters in `redis` or in `memory`")),
    ("CONFIG_TYPE", &["", "file"], Refuse("Weir reads its limits from files; unset it")),
    ("GRPC_UDS", &[""], Refuse("Weir listens on TCP only; set GRPC_HOST and GRPC_PORT")),
    ("GRPC_SERVER_USE_TLS", OFF, Refuse("Weir does not speak TLS itself yet; let a sidecar or the mesh do it")),
    ("GRPC_CLIENT_TLS_CACERT", &[""], Refuse("Weir does not check client certificates yet; let a sidecar or the mesh do it")),
    ("REDIS_TYPE", &["", "single"], Refuse("Weir speaks to a single Redis so far")),
    ("REDIS_TLS", OFF, Refuse("Weir does not speak TLS to Redis yet")),
    ("REDIS_PERSECOND", OFF, Refuse("Weir has one Redis for all units so far")),
    ("USE_CALENDAR_MONTH_RATE_LIMIT", OFF, Refuse("a month is 30 days in Weir")),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", OFF, Warn("refused requests count here")),
    ("LOCAL_CACHE_SIZE_IN_BYTES", &["", "0"], Warn("there is no cache of refused keys yet")),
    ("USE_STATSD", OFF, Warn("metrics are at /metrics on the HTTP port; there is no statsd")),
    ("USE_DOG_STATSD", OFF, Warn("metrics are at /metrics on the HTTP port; there is no statsd")),
    ("USE_PROMETHEUS", OFF, Warn("metrics are always at /metrics on the HTTP port; PROMETHEUS_ADDR opens no other")),
    ("EXTRA_TAGS", &[""], Warn("let Prometheus add labels when it scrapes")),
    ("TRACING_ENABLED", OFF, Warn("there is no tracing yet")),
    ("REDIS_SENTINEL_AUTH", &[""], Warn("Weir speaks to a single Redis so far")),
];

const OFF: &[&str] = &["", "0", "f", "false"];

/// What `lookup` finds of them: refusals (`Err`) and warnings (`Ok`), each with its setting.
pub(super) fn judge(lookup: impl Fn(&str) -> Option<String>) -> Vec<Result<String, String>> {
    let found = |&(name, harmless, ref verdict): &(&str, &[&str], Verdict)| {
        let value = lookup(name)?;
        if harmless.contains(&value.to_ascii_lowercase().as_str()) {
            return None;
        }
        Some(match verdict {
            Refuse(reason) => Err(format!("{name}={value}: {reason}")),
            Warn(reason) => Ok(format!("{name} has no effect: {reason}")),
        })
    };
    NOT_ACTED_ON.iter().filter_map(found).collect()
}
