//! What the monitor saw of a server last: whether it answers, what it says of itself, and what could be better about it.
//!
//! Only data: `monitor` fills it in, metrics and health read it, and no request waits for it. Of what a server says only plain words and
//! numbers are kept.

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::time::Duration;

/// A word of a server that is passed on has at most this many characters.
const LONGEST_WORD: usize = 32;

/// What the latest inspection of a server found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStatus {
    /// Whether it answered; not before the first look.
    pub is_up: bool,
    /// From sending MULTI, TIME and EXEC to their replies.
    pub round_trip: Option<Duration>,
    /// How far its clock is ahead of this machine's, in microseconds.
    pub clock_ahead_micros: Option<i64>,
    /// What it says of itself.
    pub report: Report,
    /// What could be better.
    pub diagnostics: Vec<Diagnostic>,
}

/// The latest status of a server, for metrics and health.
#[derive(Debug, Default)]
pub(crate) struct LatestStatus(ArcSwap<ServerStatus>);

impl LatestStatus {
    pub(crate) fn load(&self) -> Arc<ServerStatus> {
        self.0.load_full()
    }

    pub(crate) fn store(&self, status: ServerStatus) {
        self.0.store(Arc::new(status));
    }
}

/// Something that could be better about a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Stays the same over versions.
    pub name: &'static str,
    /// Whether it is only for information.
    pub(crate) urgency: Urgency,
    /// What it means, and what to do.
    pub(crate) text: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Counts may be lost or limits go unanswered.
    Warning,
    /// Good to know.
    Information,
}

/// What a server says of itself; `None` where it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Of Redis, or of what takes its place.
    pub version: Option<String>,
    /// In the database that Weir uses.
    pub keys: Option<u64>,
    /// What its data takes.
    pub used_memory_bytes: Option<u64>,
    /// What it may take; 0 for as much as there is.
    pub max_memory_bytes: Option<u64>,
    /// Keys that it dropped because it was full, since it started.
    pub evicted_keys: Option<u64>,
    pub(crate) policy: Option<String>,
    pub(crate) replicas: Option<u64>,
    pub(crate) needs_replicas: bool,
    pub(crate) has_append_only_file: Option<bool>,
    pub(crate) last_snapshot_failed: bool,
    pub(crate) is_of_a_cluster: bool,
}

impl Report {
    /// Reads the reply to INFO.
    pub(crate) fn read(info: &str, database: u32) -> Self {
        let mut report = Self::default();
        let database = format!("db{database}");
        for (name, value) in info.lines().filter_map(|probe| probe.trim().split_once(':')) {
            match name {
                "redis_version" => report.version = report.version.or_else(|| word(value)),
                "valkey_version" => report.version = word(value),
                "used_memory" => report.used_memory_bytes = value.parse().ok(),
                "maxmemory" => report.max_memory_bytes = value.parse().ok(),
                "maxmemory_policy" => report.policy = word(value),
                "evicted_keys" => report.evicted_keys = value.parse().ok(),
                "connected_slaves" => report.replicas = value.parse().ok(),
                // Only there when replicas are required.
                "min_slaves_good_slaves" => report.needs_replicas = true,
                "aof_enabled" => report.has_append_only_file = Some(value == "1"),
                "rdb_last_bgsave_status" => report.last_snapshot_failed = value == "err",
                "cluster_enabled" => report.is_of_a_cluster = value == "1",
                name if name == database => report.keys = value.split(',').find_map(|part| part.strip_prefix("keys=")?.parse().ok()),
                _ => {}
            }
        }
        if report.version.is_some() {
            // A database without keys is not listed.
            report.keys = report.keys.or(Some(0));
        }
        report
    }
}

/// A word that cannot be anything else.
fn word(text: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!text.is_empty() && text.len() <= LONGEST_WORD && text.chars().all(is_plain)).then(|| text.to_owned())
}
