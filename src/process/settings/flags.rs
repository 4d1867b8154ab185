//! The flags and environment variables of `weir serve`: one field each, with its help text, type
//! and bounds.
//!
//! A flag is named like its variable, and a variable like envoyproxy/ratelimit's. `settings`
//! decides what several of them mean together. The value name is the type and the unit;
//! `deploy/settings.md` is generated from all of this.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::Backend;
use super::exporters::ExporterFlags;
use super::listeners::{DebugFlags, ListenerFlags};
use super::parse;
use super::redis::RedisFlags;
use super::responses::ResponseFlags;
use super::setting::no_effect;
use super::telemetry::{LogFlags, TracingFlags};
use super::xds::XdsFlags;
use crate::limiter::replicas::Source;
use crate::limiter::{denial_cache, failure_policies};
use crate::limits::rules::Commit;
use crate::limits::rules::compile::{self, ProcessDefaults};
use crate::limits::rules::limit::OnStoreFailure;
use crate::limits::rules::region::RegionShare;
use crate::live::files;
use crate::service::rls::DecisionFilter;
use crate::store::memory;
use crate::store::redis::Topology;

/// The settings of `weir serve`. A flag comes before its variable.
#[derive(Args, Clone, Debug)]
#[command(mut_args = parse::switch)]
pub struct Flags {
    /// Folder of limit files, or one file [default: ./config, or the path that the RUNTIME_
    /// variables give]
    ///
    /// Weir reads every file below the folder, whatever its name, except README, pages (*.md) and
    /// backup files (*~, *.bak, *.swp).
    #[arg(long, help_heading = "Limit files", value_name = "PATH")]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) listeners: ListenerFlags,
    /// Where counters are kept [default: redis if REDIS_URL is set, else memory]
    #[arg(long, env, help_heading = "Store", value_name = "redis|memory")]
    pub(super) backend_type: Option<String>,
    /// Text before every key in Redis; no braces
    ///
    /// Services with different prefixes can share a Redis.
    #[arg(long, env, default_value = "", help_heading = "Store")]
    #[arg(value_name = "TEXT")]
    pub(super) cache_key_prefix: String,
    /// Longest wait for the store; 1ms to 1h
    ///
    /// A client's own deadline (grpc-timeout) comes first if it is shorter.
    // A shorter one would fail most requests, and no client waits for an hour.
    #[arg(long, env, default_value = "500ms", value_parser = parse::duration_from("1ms"))]
    #[arg(help_heading = "Store", value_name = "DURATION")]
    pub(super) store_timeout: Duration,
    /// Keys in the memory store at most; 1000 to 4000000000
    ///
    /// A full store drops the keys that recover soonest and counts them in
    /// weir_memory_evicted_total.
    #[arg(long, env, default_value_t = memory::Options::default().max_keys)]
    #[arg(help_heading = "Store", value_name = "COUNT")]
    #[arg(value_parser = parse::number(parse::KEYS))]
    pub(super) memory_max_keys: usize,
    /// Memory of the keys in the memory store, in bytes; 1048576 to 1099511627776 [default: the
    /// store's part of MEMORY_LIMIT, less MEMORY_USAGE_BYTES]
    ///
    /// A key counts as 48 bytes, one of a log, of buckets or of requests in flight as more. A full
    /// store drops keys, as with MEMORY_MAX_KEYS. The failure policy local has the same bound.
    #[arg(long, env, help_heading = "Store", value_name = "BYTES")]
    #[arg(value_parser = parse::number(parse::STORE_BYTES))]
    pub(super) memory_max_bytes: Option<usize>,
    /// Memory of the usage records in the memory store, in bytes; 1048576 to 1099511627776
    /// [default: 67108864, or a quarter of the store's part of MEMORY_LIMIT if that is less]
    ///
    /// Limits with track_usage have a record for each subject. When the memory is full, the record
    /// that was idle for longest is dropped and counted in weir_usage_evicted_total.
    #[arg(long, env, help_heading = "Store", value_name = "BYTES")]
    #[arg(value_parser = parse::number(parse::STORE_BYTES))]
    pub(super) memory_usage_bytes: Option<usize>,
    /// Memory that Weir may use, such as 512Mi, 1Gi or bytes; at least 64Mi [default: the limit of
    /// the control group, or the machine's memory]
    ///
    /// Bounds on connections, on what clients leave unfinished, on counters in memory and on what a
    /// control plane sends follow from it. It should be the limit at which the container or the
    /// service is killed.
    #[arg(long, env, value_parser = parse::memory_limit, help_heading = "Process")]
    #[arg(value_name = "MEMORY")]
    pub(super) memory_limit: Option<u64>,
    /// Threads that answer requests; 1 to 1024 [default: one per core]
    #[arg(long, env, value_parser = parse::count, help_heading = "Process", value_name = "COUNT")]
    pub(super) workers: Option<usize>,
    /// Refuse calls that have waited too long in the socket
    ///
    /// A call that has waited in the socket for longer than its deadline (grpc-timeout) is answered
    /// with RESOURCE_EXHAUSTED. A connection whose calls have all waited for more than a quarter of
    /// theirs is read when the thread has nothing else to do.
    #[arg(long, env, default_value = "true", help_heading = "Process")]
    #[arg(value_name = "BOOL")]
    pub(super) load_shedding_enabled: bool,
    /// Least severe log lines to write: error, warn, info, debug, trace or off
    ///
    /// A list of targets with levels, such as `info,weir=debug`, is possible too.
    #[arg(long, env, default_value = "info", help_heading = "Process")]
    #[arg(value_name = "LEVEL")]
    pub(super) log_level: String,
    /// Format of log lines: text for people, json for log collectors
    #[arg(long, env, default_value = "text", help_heading = "Process")]
    #[arg(value_name = "text|json")]
    pub(super) log_format: String,
    /// Log each decision about these descriptors, at debug level: DOMAIN, DOMAIN,KEY or
    /// DOMAIN,KEY=VALUE
    ///
    /// For a domain, or its descriptors with an entry of that key, or of that key and value;
    /// several entries may follow each other. `*` is any domain. It needs LOG_LEVEL=debug. Long
    /// keys and values are cut.
    #[arg(long, env, value_parser = DecisionFilter::try_new, help_heading = "Process")]
    #[arg(value_name = "TEXT")]
    pub(super) log_decisions: Option<DecisionFilter>,
    #[command(flatten)]
    pub(super) logs: LogFlags,
    /// Time between SIGTERM and the end of connections; 0 to 1h
    ///
    /// During this time Weir is unhealthy and still answers, so that clients find another replica.
    #[arg(long, env, default_value = "5s", value_parser = parse::duration_from("0"))]
    #[arg(help_heading = "Process", value_name = "DURATION")]
    pub(super) drain_delay: Duration,
    #[command(flatten)]
    pub(super) redis: RedisFlags,
    #[command(flatten)]
    pub(super) outage: OutageFlags,
    #[command(flatten)]
    pub(super) files: FileFlags,
    #[command(flatten)]
    pub(super) xds: XdsFlags,
    #[command(flatten)]
    pub(super) answers: AnswerFlags,
    #[command(flatten)]
    pub(super) responses: ResponseFlags,
    #[command(flatten)]
    pub(super) tracing: TracingFlags,
    #[command(flatten)]
    pub(super) exporters: ExporterFlags,
    #[command(flatten)]
    pub(super) debug: DebugFlags,
}

/// Failure policies, and the denial cache in front of Redis.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Failure policies and denial cache")]
pub(super) struct OutageFlags {
    /// Failure policy of limits and domains that declare none
    ///
    /// It decides checks that the store does not answer in time. error: the request gets
    /// UNAVAILABLE, and Envoy's failure_mode_deny decides. allow: the limit is ignored. deny: the
    /// request is over the limit. local: Weir counts in its own memory, against 1/REPLICAS of the
    /// limit.
    #[arg(long, env, default_value = "error")]
    #[arg(value_name = "error|allow|deny|local")]
    #[arg(value_parser = parse::named(&OnStoreFailure::NAMED))]
    pub(super) on_store_failure: OnStoreFailure,
    /// Number of Weir replicas that share the limits: 1 or more, or dns:NAME to count the addresses
    /// of a name
    ///
    /// For the failure policy local, which allows each replica its share of a limit, at least one
    /// hit, and for limits with lease, which draw fewer hits at a time. With dns:NAME, such as
    /// dns:ratelimit-headless, Weir resolves the name every 5 s and counts its addresses (A or AAAA,
    /// whichever are more). A larger number counts at once, a smaller one after 30 s; without an
    /// answer the number stays. dns://ADDRESS:PORT/NAME asks this DNS server instead of those of
    /// /etc/resolv.conf.
    #[arg(long, env, default_value = "1", value_parser = Source::try_new)]
    #[arg(value_name = "COUNT|dns:NAME")]
    pub(super) replicas: Source,
    /// Keys that the failure policy local counts at most; 1000 to 4000000000
    #[arg(long, env, default_value_t = failure_policies::Options::default().max_keys)]
    #[arg(value_name = "COUNT", value_parser = parse::number(parse::KEYS))]
    pub(super) local_max_keys: usize,
    /// Memory of the denial cache in bytes; 0 turns it off, more than 268435456 means that
    /// [default: 8388608]
    ///
    /// The denial cache keeps keys that Redis has refused, until they are allowed again and at most
    /// for one second. Weir refuses them without asking Redis.
    #[arg(long, env, value_parser = parse::integer, value_name = "BYTES")]
    local_cache_size_in_bytes: Option<i64>,
}

impl OutageFlags {
    /// Adds a warning if the number of replicas is to be followed for nothing.
    pub(super) fn warn(&self, backend: &Backend, warnings: &mut Vec<String>) {
        let is_followed =
            matches!(self.replicas, Source::Dns(_)) && matches!(backend, Backend::Memory(_));
        let reason = "counters are in memory, each replica has its own, and none of them \
            fails; the name is not resolved";
        no_effect(&[("REPLICAS", &is_followed)], reason, warnings);
    }

    /// The denial cache. Adds a warning where the setting means something else than in
    /// envoyproxy/ratelimit, which allocates any size.
    pub(super) fn denials(&self, warnings: &mut Vec<String>) -> denial_cache::Options {
        let Some(bytes) = self.local_cache_size_in_bytes else {
            return denial_cache::Options::default();
        };
        let used = bytes.clamp(0, denial_cache::MAX_BYTES as i64);
        if used != bytes {
            let reason = "an entry lives for at most one second: more memory is of no use";
            warnings.push(format!(
                "LOCAL_CACHE_SIZE_IN_BYTES={bytes} is taken as {used}: {reason}"
            ));
        }
        denial_cache::Options {
            bytes: used as usize,
        }
    }
}

/// The root of envoyproxy/ratelimit's image. Weir uses it if one of the other variables is set
/// without a root.
const REFERENCE_ROOT: &str = "/srv/runtime_data/current";
const APP_DIRECTORY: &str = "config";

/// Where limit files are.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limit files", mut_args = parse::switch)]
pub(super) struct FileFlags {
    /// Root of the limit files, as in envoyproxy/ratelimit [default: /srv/runtime_data/current if
    /// RUNTIME_SUBDIRECTORY or RUNTIME_APPDIRECTORY is set]
    ///
    /// If RUNTIME_ROOT, RUNTIME_SUBDIRECTORY or RUNTIME_APPDIRECTORY is set, limits are in
    /// RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY, and next to it (RUNTIME_WATCH_ROOT).
    /// --config takes precedence.
    #[arg(long, env, value_name = "PATH")]
    pub(super) runtime_root: Option<String>,
    /// Folder below RUNTIME_ROOT; see there
    #[arg(long, env, default_value = "", value_name = "PATH")]
    pub(super) runtime_subdirectory: String,
    /// Folder of limit files below RUNTIME_SUBDIRECTORY; see RUNTIME_ROOT
    #[arg(long, env, default_value = APP_DIRECTORY, value_name = "PATH")]
    pub(super) runtime_appdirectory: String,
    /// Also read files and folders next to that folder whose names begin with its name and a dot,
    /// such as config.yaml
    ///
    /// As envoyproxy/ratelimit does with this setting: it reads all in
    /// RUNTIME_ROOT/RUNTIME_SUBDIRECTORY whose path, joined by dots, begins with
    /// RUNTIME_APPDIRECTORY and a dot. Without RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and
    /// RUNTIME_APPDIRECTORY there is no such folder. Weir notices changes either way.
    #[arg(long, env, default_value = "true", value_name = "BOOL")]
    pub(super) runtime_watch_root: bool,
    /// Start although the limit files cannot be used, or before the control plane has sent limits
    ///
    /// Every request is answered with UNAVAILABLE until there are limits. Without this setting,
    /// Weir prints the problems of the files and exits; with a control plane it is unhealthy until
    /// the first limits.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) force_start_without_initial_config: bool,
    /// Be unhealthy while no domain is loaded
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) healthy_with_at_least_one_config_loaded: bool,
    // The last, because its headings stay for what follows.
    #[command(flatten)]
    pub(super) read: ReadFlags,
}

/// How limit files are read, by `weir serve` and by the commands that read them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limit files", mut_args = parse::switch)]
pub struct ReadFlags {
    /// Ignore files and folders whose name begins with a dot
    ///
    /// Names that begin with two dots are always ignored.
    #[arg(long, env, default_value = "true", value_name = "BOOL")]
    runtime_ignoredotfiles: bool,
    /// Allow several files to declare the same domain; their limits are merged
    ///
    /// Without it, that is an error. The same holds for resources of a control plane, of which the
    /// first by name applies without it.
    #[arg(long, alias = "merge_domain_configs", env, default_value = "false")]
    #[arg(value_name = "BOOL")]
    pub(super) merge_domain_config: bool,
    #[command(flatten)]
    pub(super) counting: CountingFlags,
}

impl ReadFlags {
    /// The options for reading `path`; `strict` makes errors of warnings.
    pub fn options(&self, path: PathBuf, strict: bool) -> files::Options {
        files::Options {
            path,
            ignore_dot_files: self.runtime_ignoredotfiles,
            compile: compile::Options {
                merge_domains: self.merge_domain_config,
                strict,
                process: self.counting.process(),
                ..Default::default()
            },
            ..Default::default()
        }
    }
}

impl FileFlags {
    /// Where limit files are, and how they are read; `config` takes precedence.
    pub(super) fn options(&self, config: Option<PathBuf>) -> files::Options {
        let beside = self.runtime_watch_root && config.is_none() && !self.is_default();
        files::Options {
            beside: beside && !self.runtime_appdirectory.trim_matches('/').is_empty(),
            ..self
                .read
                .options(config.unwrap_or_else(|| self.folder()), false)
        }
    }

    /// Whether no variable names a folder.
    fn is_default(&self) -> bool {
        self.runtime_root.as_deref().unwrap_or_default().is_empty()
            && self.runtime_subdirectory.is_empty()
            && self.runtime_appdirectory == APP_DIRECTORY
    }

    /// The folder of limit files. Joined as Go's `filepath.Join` does: a slash at the start of a
    /// part does not make it absolute.
    fn folder(&self) -> PathBuf {
        let root = match self.runtime_root.as_deref() {
            Some(root) if !root.is_empty() => root,
            _ if self.is_default() => return PathBuf::from(APP_DIRECTORY),
            _ => REFERENCE_ROOT,
        };
        [&self.runtime_subdirectory, &self.runtime_appdirectory]
            .into_iter()
            .map(|part| part.trim_start_matches('/'))
            .filter(|part| !part.is_empty())
            .fold(PathBuf::from(root), |folder, part| folder.join(part))
    }
}

/// What requests are decided to, what metrics show, and the age of connections.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Responses and connections", mut_args = parse::switch)]
pub(super) struct AnswerFlags {
    /// Refuse nothing
    ///
    /// Every request is answered with OK. Statuses and metrics show what would have been refused.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) shadow_mode: bool,
    /// Refuse a request only if all its descriptors are over their limits
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) quota_mode: bool,
    /// Share of a limit above which hits count as near it in metrics; above 1, none do
    #[arg(long, env, default_value_t = 0.8, value_parser = parse::ratio, value_name = "RATIO")]
    pub(super) near_limit_ratio: f32,
    /// Leave limits that have not been asked yet out of metrics
    ///
    /// Each limit has 13 series. With this setting it gets them with its first request, and keeps
    /// them.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) metrics_omit_unused_limits: bool,
    /// Age at which Weir asks a gRPC connection to close; 0 means never
    ///
    /// The age is varied by a tenth, so that connections do not all end together. Behind a
    /// Kubernetes Service a client keeps its replica as long as its connection; after this time the
    /// load has spread over new replicas. It is not longer than the five minutes that Kubernetes's
    /// autoscaler waits before it takes replicas away.
    #[arg(long, env, default_value = "5m", value_parser = parse::age, value_name = "DURATION")]
    pub(super) grpc_max_connection_age: Duration,
    /// Grace period for in-flight requests of such a connection; 0 means unlimited
    #[arg(long, env, default_value = "1h", value_parser = parse::age, value_name = "DURATION")]
    pub(super) grpc_max_connection_age_grace: Duration,
}

/// How limits count.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Counting", mut_args = parse::switch)]
pub(super) struct CountingFlags {
    /// Count a refused request nowhere, in domains that do not declare `commit`
    ///
    /// These domains are then as if they declared `commit: all_or_none`; one that declares
    /// `commit: each` is not changed. In Redis, all keys of such a domain are in one hash slot, which
    /// is on one node of a cluster, and its limits per second are counted in the main Redis.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    stop_cache_key_increment_when_overlimit: bool,
    /// Count fixed windows per month by the calendar, in UTC
    ///
    /// Without it a month is 30 days. The counters of the two are apart. Other algorithms have no
    /// windows that begin at a boundary: for them a month is 30 days in any case, and so is a
    /// year 365.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) use_calendar_month_rate_limit: bool,
    /// Name of the region of this process in `region_shares`
    ///
    /// Weir admits this region's share of each limit that has `region_shares`. Without a name such
    /// limits are an error.
    #[arg(long, env, default_value = "", value_name = "TEXT")]
    region: String,
    /// Share of this region of each limit without `region_shares`: a percentage such as 40%
    ///
    /// Every amount and burst is multiplied by it and rounded down, to 1 at least. The shares of all
    /// regions together are at most 100% for the regions to keep to the limit.
    #[arg(long, env, default_value = "100%", value_name = "PERCENT")]
    region_share: RegionShare,
}

impl CountingFlags {
    /// The part of these settings that applies to all limits, whatever their source.
    pub(super) fn process(&self) -> ProcessDefaults {
        let commit = match self.stop_cache_key_increment_when_overlimit {
            true => Commit::AllOrNone,
            false => Commit::Each,
        };
        ProcessDefaults {
            commit,
            calendar_months: self.use_calendar_month_rate_limit,
            region: Some(self.region.as_str().into()).filter(|name: &Arc<str>| !name.is_empty()),
            region_share: self.region_share,
        }
    }

    /// Adds what these settings cost with this backend.
    pub(super) fn warn(&self, backend: &Backend, warnings: &mut Vec<String>) {
        let Backend::Redis { main, per_second } = backend else {
            return;
        };
        if !self.stop_cache_key_increment_when_overlimit {
            return;
        }
        let mut costs = Vec::new();
        if matches!(main.topology, Topology::Cluster(_)) {
            costs.push(
                "all counters of a domain are in one hash slot, on one node of the Redis Cluster",
            );
        }
        if per_second.is_some() {
            costs.push(
                "limits per second are counted in the Redis of REDIS_URL, not in that of \
                 REDIS_PERSECOND_URL",
            );
        }
        if !costs.is_empty() {
            let costs = costs.join("; ");
            warnings.push(format!(
                "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true has a cost in domains that do not \
                 declare `commit: each`: {costs}"
            ));
        }
    }
}
