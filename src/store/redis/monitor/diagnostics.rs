//! What about a Redis server could be better, judged from what it says of itself.
//!
//! Pure: it is told facts and gives advice, each piece with a name that stays as it is, because alerts are built on it. Advice is never a
//! reason not to serve. Of what a server says only plain words and numbers are passed on.

use std::borrow::Cow;

use crate::store::redis::topology::status::{Diagnostic, Report, Urgency};

/// The oldest version that Weir is made for.
const OLDEST: (u32, u32) = (6, 2);

/// From this share of its memory on Redis is nearly full, until it is below the second.
const NEARLY_FULL_PERCENT: u64 = 80;
const ROOM_AGAIN_PERCENT: u64 = 75;

/// Clocks that differ by more are worth a word.
const CLOCK_OFFSET_MICROS: u64 = 1_000_000;

/// What CONFIG GET says; `None` where it may not be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) takes_snapshots: Option<bool>,
    pub(crate) stops_writes: Option<bool>,
    pub(crate) needs_full_coverage: Option<bool>,
}

/// Commands that requests need and the server refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingAccess {
    /// The user may not use them.
    pub(crate) denied: Vec<&'static str>,
    /// The user may not use the keys of Weir.
    pub(crate) keys: bool,
    /// The server does not know them.
    pub(crate) commands: Vec<&'static str>,
}

impl MissingAccess {
    pub(crate) fn is_nothing(&self) -> bool {
        self.denied.is_empty() && self.commands.is_empty() && !self.keys
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.denied.extend(other.denied);
        self.commands.extend(other.commands);
        self.keys |= other.keys;
    }
}

/// All that is known of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) report: Report,
    pub(crate) config: Config,
    pub(crate) missing: MissingAccess,
    /// Beside the clock of this machine, in microseconds.
    pub(crate) clock_ahead: Option<i64>,
}

/// What could be better. `before` is the advice of the last time: what is on the border stays as it was.
pub(crate) fn judge(facts: &Facts, before: &[Diagnostic]) -> Vec<Diagnostic> {
    let was_full = before.iter().any(|advice| advice.name == "memory");
    let full_percent = if was_full { ROOM_AGAIN_PERCENT } else { NEARLY_FULL_PERCENT };
    let Facts { report, config, missing, clock_ahead } = facts;
    [
        memory(report, full_percent),
        persistence(report, config),
        version(report),
        rights(missing),
        commands(missing),
        (report.replicas.is_some_and(|count| count > 0) && !report.needs_replicas).then(|| {
            information(
                "replicas",
                "min-replicas-to-write is 0: a primary that was cut off from its replicas goes on counting, and what it counted is lost \
                 when it is found again; set it to 1",
            )
        }),
        (report.is_of_a_cluster && config.needs_full_coverage == Some(true)).then(|| {
            information(
                "full_coverage",
                "cluster-require-full-coverage is yes: when one shard is lost, all others refuse too; set it to no",
            )
        }),
        clock_ahead.is_some_and(|ahead| ahead.unsigned_abs() > CLOCK_OFFSET_MICROS).then(|| {
            information(
                "clock_offset",
                "the clock of Redis is more than a second away from this machine's; Weir counts by Redis's clock, so that only what is \
                 compared with other clocks is affected",
            )
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn memory(report: &Report, full_percent: u64) -> Option<Diagnostic> {
    let most = report.max_memory_bytes.filter(|&most| most > 0)?;
    let then = match report.policy.as_deref()? {
        "noeviction" => "it refuses to count (OOM)",
        // What ends soonest is worth least; whoever sets this knows what they do.
        "volatile-ttl" => "it drops the counters that would end soonest",
        policy => {
            let text = format!(
                "with maxmemory-policy {policy} Redis drops any counters when it is full, and whoever had one starts from nothing: set \
                 noeviction, or volatile-ttl to lose those that would end soonest, and enough maxmemory"
            );
            return Some(warning("eviction_policy", text));
        }
    };
    let is_nearly_full = report.used_memory_bytes? >= most / 100 * full_percent;
    is_nearly_full.then(|| warning("memory", format!("Redis is nearly full; when it is, {then}: give it more maxmemory")))
}

fn persistence(report: &Report, config: &Config) -> Option<Diagnostic> {
    let stops_writes = config.stops_writes == Some(true) && config.takes_snapshots == Some(true);
    if stops_writes && report.last_snapshot_failed {
        return Some(warning(
            "persistence",
            "the last snapshot failed, and Redis refuses to count until one succeeds: see to its disk, or set \
             stop-writes-on-bgsave-error to no",
        ));
    }
    if stops_writes {
        return Some(information(
            "persistence",
            "stop-writes-on-bgsave-error is yes: should a snapshot fail, Redis refuses to count; counters do not need that, set it to no",
        ));
    }
    let keeps_nothing = config.takes_snapshots == Some(false) && report.has_append_only_file == Some(false) && report.replicas == Some(0);
    keeps_nothing.then(|| {
        information("persistence", "no snapshots, no append-only file and no replica: when Redis restarts, all counters start from nothing")
    })
}

fn version(report: &Report) -> Option<Diagnostic> {
    let text = report.version.as_deref()?;
    let mut numbers = text.split('.').map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next()?, numbers.next().unwrap_or_default());
    (version < OLDEST).then(|| warning("version", format!("this is version {text}; Weir is made for 6.2 and later: upgrade")))
}

fn rights(missing: &MissingAccess) -> Option<Diagnostic> {
    if !missing.denied.is_empty() {
        let grants: Vec<_> = missing.denied.iter().map(|name| format!("+{}", name.to_ascii_lowercase().replace(' ', "|"))).collect();
        let text = format!("the Redis user lacks rights, and limits that need them get no answer: grant it {}", grants.join(" "));
        return Some(warning("rights", text));
    }
    missing
        .keys
        .then(|| warning("rights", "the Redis user may not use the keys of Weir: grant it ~w1*, with CACHE_KEY_PREFIX before the w1"))
}

fn commands(missing: &MissingAccess) -> Option<Diagnostic> {
    (!missing.commands.is_empty()).then(|| {
        let text = format!(
            "what answers does not know {}, which Weir needs: is it a proxy? connect to Redis itself, with REDIS_TYPE=cluster if it is one",
            missing.commands.join(", ")
        );
        warning("unsupported_command", text)
    })
}

fn warning(name: &'static str, text: impl Into<Cow<'static, str>>) -> Diagnostic {
    Diagnostic { name, urgency: Urgency::Warning, text: text.into() }
}

fn information(name: &'static str, text: impl Into<Cow<'static, str>>) -> Diagnostic {
    Diagnostic { name, urgency: Urgency::Information, text: text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as redis-server 7.0.15 sends them.
    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\n\r\n# Memory\r\nused_memory:90\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n\
                        # Persistence\r\nrdb_last_bgsave_status:ok\r\naof_enabled:0\r\n# Stats\r\nevicted_keys:5\r\n# Replication\r\n\
                        role:master\r\nconnected_slaves:0\r\n# Cluster\r\ncluster_enabled:0\r\n# Keyspace\r\ndb0:keys=3,expires=3,avg_ttl=1\r\n\
                        db3:keys=7,expires=7,avg_ttl=1\r\n";

    /// Lines that INFO says beside those above, what CONFIG says, and the advice: its name, and whether it is a warning.
    type Row = (&'static str, Config, &'static [(&'static str, bool)]);

    fn names(facts: &Facts) -> Vec<(&'static str, bool)> {
        judge(facts, &[]).iter().map(|advice| (advice.name, advice.urgency == Urgency::Warning)).collect()
    }

    fn facts(changes: &str, config: Config) -> Facts {
        Facts { report: Report::read(&format!("{INFO}maxmemory:0\r\n{changes}"), 0), config, ..Facts::default() }
    }

    #[test]
    fn what_info_says_is_read() {
        let report = Report::read(INFO, 3);
        assert_eq!((report.version.as_deref(), report.keys, report.evicted_keys), (Some("7.0.15"), Some(7), Some(5)));
        assert_eq!((report.used_memory_bytes, report.max_memory_bytes, report.replicas), (Some(90), Some(100), Some(0)));
        assert_eq!(Report::read(INFO, 1).keys, Some(0));
        let valkey = Report::read(&format!("{INFO}valkey_version:8.1.0\r\n"), 0);
        assert_eq!(valkey.version.as_deref(), Some("8.1.0"), "the version that it takes for Redis's own is behind");
        assert_eq!(Report::read("redis_version:s3 cret\r\nmaxmemory:x\r\n:\r\n", 0), Report::default(), "no words, no numbers");
    }

    #[test]
    fn each_fact_has_its_advice() {
        let config = |takes_snapshots, stops_writes, needs_full_coverage| Config {
            takes_snapshots: Some(takes_snapshots),
            stops_writes: Some(stops_writes),
            needs_full_coverage: Some(needs_full_coverage),
        };
        let none = Config::default;
        let table: [Row; 15] = [
            ("", none(), &[]),
            ("maxmemory_policy:allkeys-lru\n", none(), &[]),
            ("maxmemory_policy:allkeys-lru\nmaxmemory:1000\n", none(), &[("eviction_policy", true)]),
            ("maxmemory_policy:volatile-lru\nmaxmemory:1000\n", none(), &[("eviction_policy", true)]),
            ("maxmemory_policy:volatile-ttl\nmaxmemory:1000\n", none(), &[]),
            ("maxmemory_policy:volatile-ttl\nmaxmemory:100\n", none(), &[("memory", true)]),
            ("maxmemory:1000\n", none(), &[]),
            ("maxmemory:100\n", none(), &[("memory", true)]),
            ("", config(false, true, true), &[("persistence", false)]),
            ("aof_enabled:1\n", config(false, true, false), &[]),
            ("", config(true, false, false), &[]),
            ("", config(true, true, false), &[("persistence", false)]),
            ("rdb_last_bgsave_status:err\n", config(true, true, false), &[("persistence", true)]),
            ("connected_slaves:2\n", none(), &[("replicas", false)]),
            ("connected_slaves:2\nmin_slaves_good_slaves:2\ncluster_enabled:1\n", config(true, false, true), &[("full_coverage", false)]),
        ];
        for (changes, config, expected) in table {
            assert_eq!(names(&facts(changes, config)), expected, "{changes}");
        }
        for (version, is_old) in [("6.0.16", true), ("5.0.14", true), ("6.2.0", false), ("7.0.15", false), ("10.1", false), ("x", false)] {
            let report = Report { version: Some(version.to_owned()), ..Report::default() };
            assert_eq!(!names(&Facts { report, ..Facts::default() }).is_empty(), is_old, "{version}");
        }
        for (clock_ahead, is_off) in [(Some(1_000_001), true), (Some(-1_000_001), true), (Some(900_000), false), (None, false)] {
            assert_eq!(!names(&Facts { clock_ahead, ..Facts::default() }).is_empty(), is_off, "{clock_ahead:?}");
        }
    }

    #[test]
    fn what_is_lacking_is_named() {
        let advise = |missing| judge(&Facts { missing, ..Facts::default() }, &[]).remove(0);
        let rights = advise(MissingAccess { denied: vec!["GET", "CLUSTER SLOTS"], ..MissingAccess::default() });
        assert!(rights.name == "rights" && rights.text.ends_with("+get +cluster|slots"), "{rights:?}");
        assert!(advise(MissingAccess { keys: true, ..MissingAccess::default() }).text.contains("~w1*"));
        let unknown = advise(MissingAccess { commands: vec!["MULTI"], ..MissingAccess::default() });
        assert!(unknown.name == "unsupported_command" && unknown.text.contains("MULTI"), "{unknown:?}");
    }

    #[test]
    fn on_the_border_nothing_flaps() {
        let at = |used: u64| facts(&format!("maxmemory:1000\nused_memory:{used}\n"), Config::default());
        let full = judge(&at(800), &[]);
        assert_eq!(full.len(), 1);
        assert_eq!(judge(&at(760), &full), full);
        assert!(judge(&at(760), &[]).is_empty() && judge(&at(740), &full).is_empty());
    }
}
