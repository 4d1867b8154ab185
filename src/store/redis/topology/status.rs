//! The status of a server as of its latest inspection: whether it answers, what INFO reports, and
//! the diagnostics.
//!
//! It is only data: `monitor` writes it, metrics and health read it, and no request waits for it.
//! Of a server's text it may keep only numbers and short names without special characters, because
//! the text may hold anything and ends up in logs and labels.

use std::borrow::Cow;

use tokio::time::Duration;

use crate::store::redis::error::RedisFailure;

/// The longest name in a server's text that is kept, in bytes.
const MAX_NAME_LEN: usize = 32;

/// The result of the latest inspection of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStatus {
    /// Whether the server answered. `false` before the first inspection.
    pub is_up: bool,
    /// Why the latest inspection could not reach the server.
    pub failure: Option<RedisFailure>,
    /// The time from sending MULTI, TIME and EXEC to the last of their replies; `None` if the
    /// server did not answer.
    pub round_trip: Option<Duration>,
    /// How far the server's clock is ahead of the wall clock of this machine, in microseconds;
    /// `None` if it is unknown.
    pub clock_ahead_micros: Option<i64>,
    /// What INFO reports.
    pub report: InfoReport,
    /// The conditions that an operator should know of.
    pub diagnostics: Vec<Diagnostic>,
}

/// A condition of a server that an operator should know of. The label `advice` of
/// `weir_redis_advice` has its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The name of the condition, which is the same in all versions, because alerts match it.
    pub name: &'static str,
    /// The level of its log line.
    pub(crate) urgency: Urgency,
    /// What the condition means, and how to end it.
    pub(crate) text: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Counters may be lost, or limits get no answer.
    Warning,
    /// No counter is at risk while Redis runs.
    Information,
}

/// The fields of INFO that Weir uses; `None` for a field that the server did not send. Source:
/// redis.io, the page of INFO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfoReport {
    /// The version of Redis or Valkey (`redis_version`, `valkey_version`).
    pub version: Option<String>,
    /// The number of keys in the database that Weir uses.
    pub keys: Option<u64>,
    /// The memory that the server uses, in bytes (`used_memory`).
    pub used_memory_bytes: Option<u64>,
    /// The limit of that memory, in bytes; 0 means no limit (`maxmemory`).
    pub max_memory_bytes: Option<u64>,
    /// The number of keys that the server evicted since it started, because its memory was full
    /// (`evicted_keys`).
    pub evicted_keys: Option<u64>,
    /// What the server evicts when its memory is full (`maxmemory_policy`).
    pub(crate) eviction_policy: Option<String>,
    pub(crate) connected_replicas: Option<u64>,
    /// Whether writes need connected replicas (`min-replicas-to-write`).
    pub(crate) requires_replicas: bool,
    pub(crate) aof_enabled: Option<bool>,
    pub(crate) last_snapshot_failed: bool,
    pub(crate) cluster_enabled: bool,
}

impl InfoReport {
    /// Reads the reply to INFO. A field of another form counts as absent.
    pub(crate) fn read(info: &str, database: u32) -> Self {
        let mut report = Self::default();
        let database = format!("db{database}");
        for (name, value) in info.lines().filter_map(|line| line.trim().split_once(':')) {
            match name {
                "redis_version" => report.version = report.version.or_else(|| plain_name(value)),
                // Valkey sends in redis_version the version of Redis with which it is compatible.
                "valkey_version" => report.version = plain_name(value),
                "used_memory" => report.used_memory_bytes = value.parse().ok(),
                "maxmemory" => report.max_memory_bytes = value.parse().ok(),
                "maxmemory_policy" => report.eviction_policy = plain_name(value),
                "evicted_keys" => report.evicted_keys = value.parse().ok(),
                "connected_slaves" => report.connected_replicas = value.parse().ok(),
                // Redis sends this field only if min-replicas-to-write is above 0.
                "min_slaves_good_slaves" => report.requires_replicas = true,
                "aof_enabled" => report.aof_enabled = Some(value == "1"),
                "rdb_last_bgsave_status" => report.last_snapshot_failed = value == "err",
                "cluster_enabled" => report.cluster_enabled = value == "1",
                name if name == database => {
                    report.keys = value
                        .split(',')
                        .find_map(|part| part.strip_prefix("keys=")?.parse().ok());
                }
                _ => {}
            }
        }
        if report.version.is_some() {
            // INFO does not list a database without keys.
            report.keys = report.keys.or(Some(0));
        }
        report
    }
}

/// The text, if it is a short name of ASCII letters, digits, `.`, `-` and `_`.
fn plain_name(text: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!text.is_empty() && text.len() <= MAX_NAME_LEN && text.chars().all(is_plain))
        .then(|| text.to_owned())
}
