//! The diagnostics of a Redis server: conditions that matter to an operator, found in the reports
//! of the server.
//!
//! A server with the wrong settings works well until its memory is full or it fails, and then loses
//! counters or answers. `diagnose` is a pure function from facts to diagnostics. The name of a
//! diagnostic never changes, because alerts match it. A diagnostic never decides whether Weir
//! serves, and its text never repeats a server's text, except its version and its eviction policy.
//! Sources: redis.io, "Key eviction", "Redis persistence", "Redis replication" and "Scale with
//! Redis Cluster".

use std::borrow::Cow;

use super::queries::{MissingAccess, ServerConfig};
use crate::core::time::Span;
use crate::store::redis::topology::node::{Diagnostic, InfoReport, Urgency};

/// The oldest version that Weir supports.
const OLDEST_VERSION: (u32, u32) = (6, 2);

/// The diagnostic `memory` begins when this share of `maxmemory` is in use, and ends below the
/// second.
const MEMORY_BEGIN_PERCENT: u64 = 80;
const MEMORY_END_PERCENT: u64 = 75;

/// The differences of two clocks that the diagnostic `clock_offset` names, in seconds: few, because
/// each change is a line in the log.
const CLOCK_OFFSETS: [u64; 10] = [1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800];

/// Results of the inspections of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) report: InfoReport,
    pub(crate) config: ServerConfig,
    pub(crate) missing: MissingAccess,
    /// If the server refuses keys of several hash slots, although most servers of its kind accept
    /// them: whether it is a node of a cluster.
    pub(crate) refused_slots: Option<bool>,
    /// Difference of the server's clock to the wall clock of this machine, in microseconds;
    /// positive if it is ahead.
    pub(crate) clock_ahead_micros: Option<i64>,
}

/// The diagnostics of a server. `before` has the diagnostics of the previous inspection, because
/// `memory` should not begin and end with every small change.
pub(crate) fn diagnose(facts: &Facts, before: &[Diagnostic]) -> Vec<Diagnostic> {
    let was_full = before.iter().any(|diagnostic| diagnostic.name == "memory");
    let full_percent = if was_full {
        MEMORY_END_PERCENT
    } else {
        MEMORY_BEGIN_PERCENT
    };
    let (report, config, missing) = (&facts.report, &facts.config, &facts.missing);
    [
        memory(report, full_percent),
        persistence(report, config),
        version(report),
        rights(missing),
        commands(missing),
        replicas(report),
        (report.cluster_enabled && config.requires_full_coverage == Some(true)).then(|| {
            information(
                "full_coverage",
                "cluster-require-full-coverage is yes: when one shard is lost, all other shards \
                 refuse commands too; set it to no",
            )
        }),
        slots(facts.refused_slots),
        facts.clock_ahead_micros.and_then(clock_offset),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn memory(report: &InfoReport, full_percent: u64) -> Option<Diagnostic> {
    let max_memory = report
        .max_memory_bytes
        .filter(|&max_memory| max_memory > 0)?;
    let effect = match report.eviction_policy.as_deref()? {
        "noeviction" => "refuses writes (OOM)",
        // A valid choice: the counters that expire soonest are worth least.
        "volatile-ttl" => "evicts the counters that expire soonest",
        policy => {
            let text = format!(
                "maxmemory-policy is {policy}: a full Redis evicts any counters, which then start \
                 again at zero; set maxmemory-policy to noeviction, or to volatile-ttl to evict \
                 the counters that expire soonest, and maxmemory high enough"
            );
            return Some(warning("eviction_policy", text));
        }
    };
    let is_nearly_full = report.used_memory_bytes? >= max_memory / 100 * full_percent;
    is_nearly_full.then(|| {
        warning(
            "memory",
            format!("the memory is nearly full: a full Redis {effect}; raise maxmemory"),
        )
    })
}

fn replicas(report: &InfoReport) -> Option<Diagnostic> {
    let has_replicas = report.connected_replicas.is_some_and(|count| count > 0);
    (has_replicas && !report.requires_replicas).then(|| {
        information(
            "replicas",
            "min-replicas-to-write is 0: a primary that is cut off from its replicas keeps \
             counting, and those hits are lost when it becomes a replica; set \
             min-replicas-to-write to 1",
        )
    })
}

fn clock_offset(ahead_micros: i64) -> Option<Diagnostic> {
    let offset = ahead_micros.unsigned_abs();
    let is_above = |&&secs: &&u64| offset > secs * 1_000_000;
    let more_than = Span::from_secs(*CLOCK_OFFSETS.iter().rev().find(is_above)?);
    let (side, effect) = match ahead_micros > 0 {
        true => (
            "ahead of",
            "end early, and new ones admit their limits again",
        ),
        false => ("behind", "last longer, and refuse for longer"),
    };
    Some(warning(
        "clock_offset",
        format!(
            "the clock of Redis is more than {more_than} {side} the clock of this machine: windows \
             begin and end by the clock of Redis; if it has jumped, open windows {effect}; set the \
             clocks with NTP"
        ),
    ))
}

fn persistence(report: &InfoReport, config: &ServerConfig) -> Option<Diagnostic> {
    let stops_writes = config.stops_writes == Some(true) && config.takes_snapshots == Some(true);
    if stops_writes && report.last_snapshot_failed {
        return Some(warning(
            "persistence",
            "the last snapshot failed: Redis refuses writes until a snapshot succeeds; check the \
             log and the disk of Redis, or set stop-writes-on-bgsave-error to no",
        ));
    }
    if stops_writes {
        return Some(information(
            "persistence",
            "stop-writes-on-bgsave-error is yes: Redis refuses writes after a snapshot fails, \
             which counters do not need; set it to no",
        ));
    }
    let keeps_nothing = config.takes_snapshots == Some(false)
        && report.aof_enabled == Some(false)
        && report.connected_replicas == Some(0);
    keeps_nothing.then(|| {
        information(
            "persistence",
            "Redis has no snapshots, no append-only file and no replica: all counters start again \
             at zero when it restarts; add a replica, or ignore this if windows are short",
        )
    })
}

fn version(report: &InfoReport) -> Option<Diagnostic> {
    let text = report.version.as_deref()?;
    let mut numbers = text
        .split('.')
        .map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next()?, numbers.next().unwrap_or_default());
    (version < OLDEST_VERSION).then(|| {
        warning(
            "version",
            format!("the version is {text}: Weir supports 6.2 and later; upgrade Redis"),
        )
    })
}

fn slots(refused_by_node: Option<bool>) -> Option<Diagnostic> {
    match refused_by_node? {
        false => Some(information(
            "one_slot",
            "Redis refuses transactions and scripts on keys of several hash slots, as services do \
             whose shards share an address: Weir sends the keys of each hash slot by \
             themselves, which can cost three times as much CPU; use a database without shards or \
             with the OSS Cluster API (REDIS_TYPE=cluster) if that is too much",
        )),
        true => Some(information(
            "declared_keys",
            "the node refuses scripts that declare no keys: Weir calls its script for each \
             hash slot by itself, which can cost the node three times as much CPU; let \
             scripts access undeclared keys if the service has a setting for it",
        )),
    }
}

fn rights(missing: &MissingAccess) -> Option<Diagnostic> {
    if !missing.denied.is_empty() {
        let grants: Vec<_> = missing
            .denied
            .iter()
            .map(|name| format!("+{}", name.to_ascii_lowercase().replace(' ', "|")))
            .collect();
        let text = format!(
            "the Redis user is missing rights: {}; grant it {}",
            missing.effects.join("; "),
            grants.join(" ")
        );
        return Some(warning("rights", text));
    }
    missing.keys.then(|| {
        warning(
            "rights",
            "the Redis user has no right to Weir's keys: limits get no answer; grant it ~w1*, with \
             CACHE_KEY_PREFIX before the w1",
        )
    })
}

fn commands(missing: &MissingAccess) -> Option<Diagnostic> {
    (!missing.unknown.is_empty()).then(|| {
        let text = format!(
            "the server does not know {}, which Weir needs: it may be a proxy; set REDIS_URL to \
             Redis itself, and REDIS_TYPE=cluster if Redis is a cluster",
            missing.unknown.join(", ")
        );
        warning("unsupported_command", text)
    })
}

fn warning(name: &'static str, text: impl Into<Cow<'static, str>>) -> Diagnostic {
    Diagnostic {
        name,
        urgency: Urgency::Warning,
        text: text.into(),
    }
}

fn information(name: &'static str, text: &'static str) -> Diagnostic {
    Diagnostic {
        urgency: Urgency::Information,
        ..warning(name, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of INFO as redis-server 7.0.15 sends them.
    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\n\r\n# \
        Memory\r\nused_memory:90\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n\
                        # Persistence\r\nrdb_last_bgsave_status:ok\r\naof_enabled:0\r\n# \
        Stats\r\nevicted_keys:5\r\n# Replication\r\n\
                        role:master\r\nconnected_slaves:0\r\n# Cluster\r\ncluster_enabled:0\r\n# \
        Keyspace\r\ndb0:keys=3,expires=3,avg_ttl=1\r\n\
                        db3:keys=7,expires=7,avg_ttl=1\r\n";

    /// Further lines of INFO, the settings, and the diagnostics: their names, and whether they are
    /// warnings.
    type Row = (&'static str, ServerConfig, &'static [(&'static str, bool)]);

    fn names(facts: &Facts) -> Vec<(&'static str, bool)> {
        diagnose(facts, &[])
            .iter()
            .map(|diagnostic| (diagnostic.name, diagnostic.urgency == Urgency::Warning))
            .collect()
    }

    fn facts(changes: &str, config: ServerConfig) -> Facts {
        Facts {
            report: InfoReport::read(&format!("{INFO}maxmemory:0\r\n{changes}"), 0),
            config,
            ..Facts::default()
        }
    }

    #[test]
    fn the_fields_of_info_are_read() {
        let report = InfoReport::read(INFO, 3);
        assert_eq!(
            (report.version.as_deref(), report.keys, report.evicted_keys),
            (Some("7.0.15"), Some(7), Some(5))
        );
        assert_eq!(
            (
                report.used_memory_bytes,
                report.max_memory_bytes,
                report.connected_replicas
            ),
            (Some(90), Some(100), Some(0))
        );
        assert_eq!(InfoReport::read(INFO, 1).keys, Some(0));
        let valkey = InfoReport::read(&format!("{INFO}valkey_version:8.1.0\r\n"), 0);
        assert_eq!(
            valkey.version.as_deref(),
            Some("8.1.0"),
            "redis_version of Valkey is that of a compatible Redis"
        );
        assert_eq!(
            InfoReport::read("redis_version:s3 cret\r\nmaxmemory:x\r\n:\r\n", 0),
            InfoReport::default(),
            "neither names nor numbers"
        );
    }

    #[test]
    fn each_condition_has_its_diagnostic() {
        let config = |takes_snapshots, stops_writes, requires_full_coverage| ServerConfig {
            takes_snapshots: Some(takes_snapshots),
            stops_writes: Some(stops_writes),
            requires_full_coverage: Some(requires_full_coverage),
        };
        let none = ServerConfig::default;
        let table: [Row; 15] = [
            ("", none(), &[]),
            ("maxmemory_policy:allkeys-lru\n", none(), &[]),
            (
                "maxmemory_policy:allkeys-lru\nmaxmemory:1000\n",
                none(),
                &[("eviction_policy", true)],
            ),
            (
                "maxmemory_policy:volatile-lru\nmaxmemory:1000\n",
                none(),
                &[("eviction_policy", true)],
            ),
            (
                "maxmemory_policy:volatile-ttl\nmaxmemory:1000\n",
                none(),
                &[],
            ),
            (
                "maxmemory_policy:volatile-ttl\nmaxmemory:100\n",
                none(),
                &[("memory", true)],
            ),
            ("maxmemory:1000\n", none(), &[]),
            ("maxmemory:100\n", none(), &[("memory", true)]),
            ("", config(false, true, true), &[("persistence", false)]),
            ("aof_enabled:1\n", config(false, true, false), &[]),
            ("", config(true, false, false), &[]),
            ("", config(true, true, false), &[("persistence", false)]),
            (
                "rdb_last_bgsave_status:err\n",
                config(true, true, false),
                &[("persistence", true)],
            ),
            ("connected_slaves:2\n", none(), &[("replicas", false)]),
            (
                "connected_slaves:2\nmin_slaves_good_slaves:2\ncluster_enabled:1\n",
                config(true, false, true),
                &[("full_coverage", false)],
            ),
        ];
        for (changes, config, expected) in table {
            assert_eq!(names(&facts(changes, config)), expected, "{changes}");
        }
    }

    #[test]
    fn old_versions_and_wrong_clocks_have_diagnostics() {
        for (version, is_old) in [
            ("6.0.16", true),
            ("5.0.14", true),
            ("6.2.0", false),
            ("7.0.15", false),
            ("10.1", false),
            ("x", false),
        ] {
            let report = InfoReport {
                version: Some(version.to_owned()),
                ..InfoReport::default()
            };
            assert_eq!(
                !names(&Facts {
                    report,
                    ..Facts::default()
                })
                .is_empty(),
                is_old,
                "{version}"
            );
        }
        for (clock_ahead_micros, text) in [
            (Some(1_000_001), Some("more than 1s ahead of the clock")),
            (Some(-1_000_001), Some("more than 1s behind the clock")),
            (
                Some(1_800_000_000),
                Some("more than 15m ahead of the clock"),
            ),
            (Some(i64::MIN), Some("more than 168h behind the clock")),
            (Some(900_000), None),
            (None, None),
        ] {
            let facts = Facts {
                clock_ahead_micros,
                ..Facts::default()
            };
            let found = diagnose(&facts, &[]).pop();
            let is_named = |found: Diagnostic| {
                found.urgency == Urgency::Warning
                    && text.is_some_and(|text| found.text.contains(text))
            };
            assert_eq!(
                found.map(is_named),
                text.map(|_| true),
                "{clock_ahead_micros:?}"
            );
        }
    }

    #[test]
    fn refused_slots_are_named_by_kind_of_server() {
        let named = |refused_slots| {
            names(&Facts {
                refused_slots,
                ..Facts::default()
            })
        };
        assert_eq!(named(None), []);
        assert_eq!(named(Some(false)), [("one_slot", false)]);
        assert_eq!(named(Some(true)), [("declared_keys", false)]);
    }

    #[test]
    fn the_memory_diagnostic_does_not_flap() {
        let at = |used: u64| {
            facts(
                &format!("maxmemory:1000\nused_memory:{used}\n"),
                ServerConfig::default(),
            )
        };
        let full = diagnose(&at(800), &[]);
        assert_eq!(full.len(), 1);
        assert_eq!(diagnose(&at(760), &full), full);
        assert!(diagnose(&at(760), &[]).is_empty() && diagnose(&at(740), &full).is_empty());
    }
}
