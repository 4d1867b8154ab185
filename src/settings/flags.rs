//! The flags and the environment variable of each: what can be written, and the bounds of what may be.
//!
//! A flag is spelled as its variable of envoyproxy/ratelimit. What several of them mean together is decided in `settings`.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, value_parser};

use super::parse;
use super::redis::RedisFlags;
use crate::limiter::outage;
use crate::live::files;
use crate::rules::compile;
use crate::rules::limit::OnStoreFailure;
use crate::store::memory;

/// What `weir serve` can be told. A flag wins over its variable.
#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// Folder (or one file) of limits [default: ./config, or what the RUNTIME_ variables say]
    #[arg(long, value_name = "PATH")]
    pub(super) config: Option<PathBuf>,
    /// Address of the gRPC listener
    #[arg(long, env = "GRPC_HOST", default_value = "0.0.0.0")]
    pub(super) grpc_host: String,
    /// Port of the gRPC listener; 0 takes a free one
    #[arg(long, env = "GRPC_PORT", default_value_t = 8081)]
    pub(super) grpc_port: u16,
    /// Address of the HTTP listener: health, metrics, JSON
    #[arg(long, env = "HOST", default_value = "0.0.0.0")]
    pub(super) host: String,
    /// Port of the HTTP listener; 0 takes a free one
    #[arg(long, env = "PORT", default_value_t = 8080)]
    pub(super) port: u16,
    /// Where counters are: `redis` or `memory` [default: redis if REDIS_URL is set]
    #[arg(long, env = "BACKEND_TYPE")]
    pub(super) backend_type: Option<String>,
    /// Goes in front of every key in Redis
    #[arg(long, env = "CACHE_KEY_PREFIX", default_value = "")]
    pub(super) cache_key_prefix: String,
    /// The longest wait for the store, whatever the caller's own patience; 1ms to 1h
    #[arg(long, env = "STORE_TIMEOUT", default_value = "500ms", value_parser = parse::store_timeout)]
    pub(super) store_timeout: Duration,
    /// Keys that the memory store holds at most; 1000 to 4000000000
    #[arg(long, env = "MEMORY_MAX_KEYS", default_value_t = memory::Options::default().max_keys as u64)]
    #[arg(value_parser = value_parser!(u64).range(parse::KEYS))]
    pub(super) memory_max_keys: u64,
    /// Threads that answer requests [default: one per core]
    #[arg(long, env = "WORKERS")]
    pub(super) workers: Option<usize>,
    /// Refuse calls that waited too long to be read, while all of a connection do: too long for the `grpc-timeout` that its calls tell
    #[arg(long, env = "LOAD_SHEDDING_ENABLED", default_value = "true", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(super) load_shedding_enabled: bool,
    /// error, warn, info, debug or trace
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    pub(super) log_level: String,
    /// `text` or `json`
    #[arg(long, env = "LOG_FORMAT", default_value = "text")]
    pub(super) log_format: String,
    /// After SIGTERM, keep serving for so long while clients are told to go elsewhere; up to 1h
    #[arg(long, env = "DRAIN_DELAY", default_value = "5s", value_parser = parse::drain_delay)]
    pub(super) drain_delay: Duration,
    #[command(flatten)]
    pub(super) redis: RedisFlags,
    #[command(flatten)]
    pub(super) outage: OutageFlags,
    #[command(flatten)]
    pub(super) files: FileFlags,
    #[command(flatten)]
    pub(super) answers: AnswerFlags,
}

/// What happens around Redis, and when it cannot answer.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "When Redis fails, and denied keys")]
pub(super) struct OutageFlags {
    /// What answers while Redis cannot, for limits and domains that say nothing: `error`, `allow`, `deny` or `local`
    #[arg(long, env = "ON_STORE_FAILURE", default_value = "error", value_parser = parse::on_store_failure)]
    pub(super) on_store_failure: OnStoreFailure,
    /// How many replicas share the limits: `local` lets each pass its part of a limit
    #[arg(long, env = "REPLICAS", default_value = "1")]
    pub(super) replicas: NonZeroU32,
    /// Keys that `local` counts at most; 1000 to 4000000000
    #[arg(long, env = "LOCAL_MAX_KEYS", default_value_t = outage::Options::default().max_keys as u64)]
    #[arg(value_parser = value_parser!(u64).range(parse::KEYS))]
    pub(super) local_max_keys: u64,
    /// Room for keys that Redis has just refused, so that it is not asked again; 0 for none [default: 8388608]
    #[arg(long, env = "LOCAL_CACHE_SIZE_IN_BYTES", value_parser = parse::cache_bytes)]
    pub(super) local_cache_size_in_bytes: Option<usize>,
}

/// Where envoyproxy/ratelimit looks for limits unless told, when one of its variables says that limits are where it would look.
const THEIR_ROOT: &str = "/srv/runtime_data/current";
const APP_DIRECTORY: &str = "config";

/// Where limits are read from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Files of limits")]
pub(super) struct FileFlags {
    /// Limits are in RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY if one of them is set [default: /srv/runtime_data/current then]
    #[arg(long, env = "RUNTIME_ROOT")]
    pub(super) runtime_root: Option<String>,
    /// See RUNTIME_ROOT
    #[arg(long, env = "RUNTIME_SUBDIRECTORY", default_value = "")]
    pub(super) runtime_subdirectory: String,
    /// See RUNTIME_ROOT
    #[arg(long, env = "RUNTIME_APPDIRECTORY", default_value = APP_DIRECTORY)]
    pub(super) runtime_appdirectory: String,
    /// Accepted and not needed: every kind of change is noticed either way
    #[arg(long, env = "RUNTIME_WATCH_ROOT", default_value = "true", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(super) runtime_watch_root: bool,
    #[command(flatten)]
    pub(super) read: ReadFlags,
    /// Start although the files cannot be used; requests are errors until they can
    #[arg(long, env = "FORCE_START_WITHOUT_INITIAL_CONFIG", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(super) force_start_without_initial_config: bool,
    /// Be unhealthy while there is no domain
    #[arg(long, env = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(super) healthy_with_at_least_one_config_loaded: bool,
}

/// How files of limits are read: the same for serving and for checking them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Files of limits")]
pub struct ReadFlags {
    /// Do not read files whose name begins with a dot
    #[arg(long, env = "RUNTIME_IGNOREDOTFILES", default_value = "true", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    runtime_ignoredotfiles: bool,
    /// Several files may speak of one domain
    #[arg(long, alias = "merge_domain_configs", env = "MERGE_DOMAIN_CONFIG", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    merge_domain_config: bool,
}

impl ReadFlags {
    /// Reads `path` so.
    #[must_use]
    pub fn options(&self, path: PathBuf, strict: bool) -> files::Options {
        files::Options {
            path,
            ignore_dot_files: self.runtime_ignoredotfiles,
            compile: compile::Options { merge_domains: self.merge_domain_config, strict },
            ..Default::default()
        }
    }
}

impl FileFlags {
    /// Joined as Go's `filepath.Join` does: a part that begins with a slash is no new beginning.
    pub(super) fn folder(&self) -> PathBuf {
        let root = match self.runtime_root.as_deref() {
            Some(root) if !root.is_empty() => root,
            _ if self.runtime_subdirectory.is_empty() && self.runtime_appdirectory == APP_DIRECTORY => return PathBuf::from("config"),
            _ => THEIR_ROOT,
        };
        [&self.runtime_subdirectory, &self.runtime_appdirectory]
            .into_iter()
            .map(|part| part.trim_start_matches('/'))
            .filter(|part| !part.is_empty())
            .fold(PathBuf::from(root), |folder, part| folder.join(part))
    }
}

/// What answers hold, and how long connections live.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Answers and connections")]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(super) struct AnswerFlags {
    /// Refuse nothing; statuses and metrics tell what would have been
    #[arg(long, env = "SHADOW_MODE", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(super) shadow_mode: bool,
    /// A request is refused only when all its descriptors are over
    #[arg(long, env = "QUOTA_MODE", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(super) quota_mode: bool,
    /// Share of a limit from which on hits are counted as near it
    #[arg(long, env = "NEAR_LIMIT_RATIO", default_value_t = 0.8)]
    pub(super) near_limit_ratio: f32,
    /// Add headers about the nearest limit to responses
    #[arg(long, env = "LIMIT_RESPONSE_HEADERS_ENABLED", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(super) limit_response_headers_enabled: bool,
    /// Name of the header for the limit
    #[arg(long, env = "LIMIT_LIMIT_HEADER", default_value = "RateLimit-Limit")]
    pub(super) limit_limit_header: String,
    /// Name of the header for what is left
    #[arg(long, env = "LIMIT_REMAINING_HEADER", default_value = "RateLimit-Remaining")]
    pub(super) limit_remaining_header: String,
    /// Name of the header for the seconds until the reset
    #[arg(long, env = "LIMIT_RESET_HEADER", default_value = "RateLimit-Reset")]
    pub(super) limit_reset_header: String,
    /// Add a `retry-after` header to refusals
    #[arg(long, env = "RETRY_AFTER_HEADER_ENABLED", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(super) retry_after_header_enabled: bool,
    /// Return the request and the limits' metadata as dynamic metadata
    #[arg(long, env = "RESPONSE_DYNAMIC_METADATA", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(super) response_dynamic_metadata: bool,
    /// Connections are asked to end at this age, give or take a tenth; 0 for never
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE", default_value = "24h", value_parser = parse::age)]
    pub(super) grpc_max_connection_age: Duration,
    /// Time for what is then in flight; 0 for any
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE_GRACE", default_value = "1h", value_parser = parse::age)]
    pub(super) grpc_max_connection_age_grace: Duration,
}
