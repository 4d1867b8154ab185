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
use super::setting::Warnings;
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
    /// Read limits from this folder, or from this one file [default: ./config, or the path in the
    /// RUNTIME_ variables]
    ///
    /// Weir reads every file below the folder, whatever its name, except README, pages (*.md) and
    /// backup files (*~, *.bak, *.swp).
    #[arg(long, help_heading = "Limit files", value_name = "PATH")]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) listeners: ListenerFlags,
    /// Keep counters in Redis or in memory [default: redis if REDIS_URL is set, else memory]
    #[arg(long, env, help_heading = "Store", value_name = "redis|memory")]
    pub(super) backend_type: Option<String>,
    /// Begin every key in Redis with this text; braces are rejected
    ///
    /// Services with different prefixes can share a Redis.
    #[arg(long, env, default_value = "", help_heading = "Store")]
    #[arg(value_name = "TEXT")]
    pub(super) cache_key_prefix: String,
    /// Wait at most this long for the store; 1ms to 1h
    ///
    /// A client's own deadline (grpc-timeout) applies instead if it is shorter.
    // A shorter one would fail most requests, and no client waits for an hour.
    #[arg(long, env, default_value = "500ms", value_parser = parse::duration_from("1ms"))]
    #[arg(help_heading = "Store", value_name = "DURATION")]
    pub(super) store_timeout: Duration,
    /// Keep at most this many keys in the memory store; 1000 to 4000000000
    ///
    /// A full store drops the keys that recover soonest and counts them in
    /// weir_memory_evicted_total.
    #[arg(long, env, default_value_t = memory::Options::default().max_keys)]
    #[arg(help_heading = "Store", value_name = "COUNT")]
    #[arg(value_parser = parse::number(parse::KEYS))]
    pub(super) memory_max_keys: usize,
    /// Use at most this many bytes for keys in the memory store; 1048576 to 1099511627776 [default:
    /// the store's part of MEMORY_LIMIT, less MEMORY_USAGE_BYTES]
    ///
    /// A key counts as 48 bytes; keys of logs, of buckets and of requests in flight count as more.
    /// A full store drops keys, as with MEMORY_MAX_KEYS. The failure policy local has the same
    /// bound.
    #[arg(long, env, help_heading = "Store", value_name = "BYTES")]
    #[arg(value_parser = parse::number(parse::STORE_BYTES))]
    pub(super) memory_max_bytes: Option<usize>,
    /// Use at most this many bytes for usage records in the memory store; 1048576 to 1099511627776
    /// [default: 67108864, or a quarter of the store's part of MEMORY_LIMIT if that is less]
    ///
    /// Limits with track_usage have a record for each subject. When the memory is full, Weir drops
    /// the record that was idle for longest and counts it in weir_usage_evicted_total.
    #[arg(long, env, help_heading = "Store", value_name = "BYTES")]
    #[arg(value_parser = parse::number(parse::STORE_BYTES))]
    pub(super) memory_usage_bytes: Option<usize>,
    /// Set the memory that Weir may use: bytes, or a size such as 512Mi or 1Gi; at least 64Mi
    /// [default: the limit of the control group, or the machine's memory]
    ///
    /// Weir derives from it the bounds on connections, on unfinished requests, on counters in
    /// memory and on the configuration of a control plane. Set it to the limit at which the
    /// container or the service is killed.
    #[arg(long, env, value_parser = parse::memory_limit, help_heading = "Process")]
    #[arg(value_name = "MEMORY")]
    pub(super) memory_limit: Option<u64>,
    /// Answer requests in this many threads; 1 to 1024 [default: one per core]
    #[arg(long, env, help_heading = "Process", value_name = "COUNT")]
    #[arg(value_parser = parse::number(1..=1_024_usize))]
    pub(super) workers: Option<usize>,
    /// Reject calls that have waited too long in the socket
    ///
    /// A call that has waited in the socket for longer than its deadline (grpc-timeout) gets
    /// RESOURCE_EXHAUSTED. If all calls of a connection have waited for more than a quarter of
    /// their deadlines, the thread reads this connection only when it has nothing else to do.
    #[arg(long, env, default_value = "true", help_heading = "Process")]
    #[arg(value_name = "BOOL")]
    pub(super) load_shedding_enabled: bool,
    /// Write log lines of this and more severe levels: error, warn, info, debug, trace; off writes
    /// none
    ///
    /// A list of targets with levels is valid too, such as `info,weir=debug`. A release build writes
    /// no trace events, of Weir or of its libraries.
    #[arg(long, env, default_value = "info", help_heading = "Process")]
    #[arg(value_name = "LEVEL")]
    pub(super) log_level: String,
    /// Write log lines as text for humans, or as json for log collectors
    #[arg(long, env, default_value = "text", help_heading = "Process")]
    #[arg(value_name = "text|json")]
    pub(super) log_format: String,
    /// Log each decision about these descriptors at debug level: DOMAIN, DOMAIN,KEY or
    /// DOMAIN,KEY=VALUE
    ///
    /// DOMAIN selects all descriptors of a domain; `*` is any domain. Each KEY or KEY=VALUE that
    /// follows selects descriptors with such an entry. LOG_LEVEL=debug is required. Long keys and
    /// values are truncated.
    #[arg(long, env, value_parser = DecisionFilter::try_new, help_heading = "Process")]
    #[arg(value_name = "TEXT")]
    pub(super) log_decisions: Option<DecisionFilter>,
    #[command(flatten)]
    pub(super) logs: LogFlags,
    /// Keep serving for this long after SIGTERM before closing connections; 0 to 1h
    ///
    /// During this time Weir reports unhealthy, and clients move to another replica.
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
    /// Apply this failure policy to limits and domains that declare none
    ///
    /// The policy decides checks that the store does not answer in time. error: the request gets
    /// UNAVAILABLE, and Envoy's failure_mode_deny decides. allow: the limit is ignored. deny: the
    /// request is over the limit. local: Weir counts in its own memory, against 1/REPLICAS of the
    /// limit.
    #[arg(long, env, default_value = "error")]
    #[arg(value_name = "error|allow|deny|local")]
    #[arg(value_parser = parse::named(&OnStoreFailure::NAMED))]
    pub(super) on_store_failure: OnStoreFailure,
    /// Set the number of Weir replicas that share the limits: 1 or more, or dns:NAME to count
    /// addresses
    ///
    /// With the failure policy local, each replica admits its share of a limit, at least one hit.
    /// Limits with lease draw fewer hits at a time. For dns:NAME, such as dns:ratelimit-headless,
    /// Weir resolves the name every 5 s and counts its addresses (A or AAAA, whichever are more).
    /// An increase applies at once, a decrease after 30 s; without an answer the number does not
    /// change.
    #[arg(long, env, default_value = "1", value_parser = Source::try_new)]
    #[arg(value_name = "COUNT|dns:NAME")]
    pub(super) replicas: Source,
    /// Count at most this many keys with the failure policy local; 1000 to 4000000000
    #[arg(long, env, default_value_t = failure_policies::Options::default().max_keys)]
    #[arg(value_name = "COUNT", value_parser = parse::number(parse::KEYS))]
    pub(super) local_max_keys: usize,
    /// Use at most this many bytes for the denial cache; 0 turns it off, the maximum is 268435456
    /// [default: 8388608]
    ///
    /// The denial cache keeps keys that Redis has refused until they are allowed again, for one
    /// second or less. Weir refuses them without querying Redis. A larger size has the effect of
    /// the maximum.
    #[arg(long, env, value_parser = parse::integer, value_name = "BYTES")]
    local_cache_size_in_bytes: Option<i64>,
}

impl OutageFlags {
    /// Adds a warning if the number of replicas is to be followed for nothing.
    pub(super) fn warn(&self, backend: &Backend, warnings: &mut Warnings) {
        if let (Source::Dns(_), Backend::Memory(_)) = (&self.replicas, backend) {
            let reason = "counters are in memory, where they are not shared and do not fail; the \
                name is not resolved";
            warnings.no_effect("REPLICAS", reason);
        }
    }

    /// The denial cache. Adds a warning where the setting means something else than in
    /// envoyproxy/ratelimit, which allocates any size.
    pub(super) fn denials(&self, warnings: &mut Warnings) -> denial_cache::Options {
        let Some(bytes) = self.local_cache_size_in_bytes else {
            return denial_cache::Options::default();
        };
        let used = bytes.clamp(0, denial_cache::MAX_BYTES as i64);
        if used != bytes {
            let reason = "an entry lives for one second or less: more memory has no effect";
            warnings.push(format!(
                "LOCAL_CACHE_SIZE_IN_BYTES={bytes} counts as {used}: {reason}"
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
    /// Use this root of the limit files, as in envoyproxy/ratelimit [default:
    /// /srv/runtime_data/current if RUNTIME_SUBDIRECTORY or RUNTIME_APPDIRECTORY is set]
    ///
    /// If RUNTIME_ROOT, RUNTIME_SUBDIRECTORY or RUNTIME_APPDIRECTORY is set, limits are in
    /// RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY, and next to it (RUNTIME_WATCH_ROOT).
    /// --config takes precedence.
    #[arg(long, env, value_name = "PATH")]
    pub(super) runtime_root: Option<String>,
    /// Use this folder below RUNTIME_ROOT; see RUNTIME_ROOT
    #[arg(long, env, default_value = "", value_name = "PATH")]
    pub(super) runtime_subdirectory: String,
    /// Read limits from this folder below RUNTIME_SUBDIRECTORY; see RUNTIME_ROOT
    #[arg(long, env, default_value = APP_DIRECTORY, value_name = "PATH")]
    pub(super) runtime_appdirectory: String,
    /// Include siblings of RUNTIME_APPDIRECTORY whose names begin with its name and a dot, such as
    /// config.yaml
    ///
    /// envoyproxy/ratelimit does the same: it reads all files in RUNTIME_ROOT/RUNTIME_SUBDIRECTORY
    /// whose path, joined by dots, begins with RUNTIME_APPDIRECTORY and a dot. Without
    /// RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY, the setting has no effect. With
    /// both values Weir notices changes of files.
    #[arg(long, env, default_value = "true", value_name = "BOOL")]
    pub(super) runtime_watch_root: bool,
    /// Start even if the limit files cannot be used, or before the control plane has sent limits
    ///
    /// Every request is answered with UNAVAILABLE until there are limits. Without this setting,
    /// Weir prints the problems of the files and exits; with a control plane, it is unhealthy until
    /// the first limits.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) force_start_without_initial_config: bool,
    /// Report unhealthy while no domain is loaded
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
    /// Merge the limits of files that declare the same domain
    ///
    /// Without it, such files are an error. Resources of a control plane with the same domain are
    /// merged too; without it, the first by name applies.
    #[arg(long, alias = "merge_domain_configs", env, default_value = "false")]
    #[arg(value_name = "BOOL")]
    pub(super) merge_domain_config: bool,
    #[command(flatten)]
    pub(super) counting: CountingFlags,
}

impl ReadFlags {
    /// The options for reading `path`.
    pub fn options(&self, path: PathBuf) -> files::Options {
        files::Options {
            path,
            ignore_dot_files: self.runtime_ignoredotfiles,
            compile: compile::Options {
                merge_domains: self.merge_domain_config,
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
            ..self.read.options(config.unwrap_or_else(|| self.folder()))
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

/// Decisions, metrics, and the age of connections.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Responses and connections", mut_args = parse::switch)]
pub(super) struct AnswerFlags {
    /// Answer every request with OK, whatever its limits decide
    ///
    /// Statuses and metrics show what would have been refused.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) shadow_mode: bool,
    /// Refuse a request only if all its descriptors are over their limits
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) quota_mode: bool,
    /// Count hits above this share of a limit as near it in metrics; 0 to 1, above 1 counts none
    #[arg(long, env, default_value_t = 0.8, value_parser = parse::ratio(f32::MAX))]
    #[arg(value_name = "RATIO")]
    pub(super) near_limit_ratio: f32,
    /// Omit limits from metrics until their first request
    ///
    /// Each limit has 13 series. With this setting it gets them with its first request, and keeps
    /// them.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) metrics_omit_unused_limits: bool,
    /// Ask the client to close a gRPC connection at this age; 0 means never
    ///
    /// Weir varies the age by a tenth to spread the closes. With a Kubernetes Service, a client
    /// keeps its replica for as long as its connection; within this time the load spreads over new
    /// replicas. The default is not longer than the five minutes that Kubernetes's autoscaler waits
    /// before it removes replicas.
    #[arg(long, env, default_value = "5m", value_parser = parse::age, value_name = "DURATION")]
    pub(super) grpc_max_connection_age: Duration,
    /// Let requests in flight on such a connection finish for this long; 0 means unlimited
    #[arg(long, env, default_value = "1h", value_parser = parse::age, value_name = "DURATION")]
    pub(super) grpc_max_connection_age_grace: Duration,
}

/// How limits count.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Counting", mut_args = parse::switch)]
pub(super) struct CountingFlags {
    /// Count no hits of a refused request, in domains that do not declare `commit`
    ///
    /// Such a domain behaves as if it declared `commit: all_or_none`; one that declares `commit:
    /// each` is not changed. In Redis, all keys of such a domain are in one hash slot, which is on
    /// one node of a cluster, and its limits per second are counted in the main Redis.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    stop_cache_key_increment_when_overlimit: bool,
    /// Count fixed windows per month by the calendar, in UTC
    ///
    /// Without it, a month is 30 days. The two use different counters. Other algorithms have no
    /// windows that begin at a boundary: for them a month is always 30 days, and a year 365 days.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) use_calendar_month_rate_limit: bool,
    /// Set the region of this process, a name in `region_shares`
    ///
    /// Weir admits this region's share of each limit that has `region_shares`. Without a name, such
    /// limits are an error.
    #[arg(long, env, default_value = "", value_name = "TEXT")]
    region: String,
    /// Admit this share of each limit without `region_shares`: above 0%, at most 100%
    ///
    /// Weir multiplies every amount and burst by it and rounds down, but not below 1. The shares of
    /// all regions together have to be 100% or less for the regions to keep to the limit.
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
    pub(super) fn warn(&self, backend: &Backend, warnings: &mut Warnings) {
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
