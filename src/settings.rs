//! Settings: flags and environment variables, typed. The only place that reads the environment.
//!
//! Names of variables are those of envoyproxy/ratelimit. Each room declares its own options with defaults and reasons; this file only fills
//! them. Nothing here prints a secret.

mod parse;
mod reference;

use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::live::files;
use crate::rls::respond::HeaderNames;
use crate::rules::compile;
use crate::store::{memory, redis};
use crate::telemetry::Format;
use crate::{limiter, plan, rls, server};

/// What `weir serve` can be told. A flag wins over its variable.
#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// Folder (or one file) of limits [default: ./config, or what the RUNTIME_ variables say]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Address of the gRPC listener
    #[arg(long, env = "GRPC_HOST", default_value = "0.0.0.0")]
    grpc_host: String,
    /// Port of the gRPC listener; 0 takes a free one
    #[arg(long, env = "GRPC_PORT", default_value_t = 8081)]
    grpc_port: u16,
    /// Address of the HTTP listener: health, metrics, JSON
    #[arg(long, env = "HOST", default_value = "0.0.0.0")]
    host: String,
    /// Port of the HTTP listener; 0 takes a free one
    #[arg(long, env = "PORT", default_value_t = 8080)]
    port: u16,
    /// Where counters are: `redis` or `memory` [default: redis if REDIS_URL is set]
    #[arg(long, env = "BACKEND_TYPE")]
    backend_type: Option<String>,
    /// host:port, a path of a unix socket, or redis://[user:password@]host:port[/db]
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    redis_url: Option<String>,
    /// `tcp` or `unix` [default: what REDIS_URL looks like]
    #[arg(long, env = "REDIS_SOCKET_TYPE")]
    redis_socket_type: Option<String>,
    /// `password` or `user:password`
    #[arg(long, env = "REDIS_AUTH", hide_env_values = true)]
    redis_auth: Option<String>,
    /// Connections to Redis, per thread [default: 10]
    #[arg(long, env = "REDIS_POOL_SIZE")]
    redis_pool_size: Option<NonZeroU32>,
    /// Goes in front of every key in Redis
    #[arg(long, env = "CACHE_KEY_PREFIX", default_value = "")]
    cache_key_prefix: String,
    /// Keys in Redis live up to this much longer than needed, so that they do not all expire at once [default: 300]
    #[arg(long, env = "EXPIRATION_JITTER_MAX_SECONDS")]
    expiration_jitter_max_seconds: Option<u32>,
    /// The longest wait for the store, whatever the caller's own patience
    #[arg(long, env = "STORE_TIMEOUT", default_value = "500ms", value_parser = parse::duration)]
    store_timeout: Duration,
    /// Keys that the memory store holds at most
    #[arg(long, env = "MEMORY_MAX_KEYS", default_value_t = memory::Options::default().max_keys)]
    memory_max_keys: usize,
    /// Threads that answer requests [default: one per core]
    #[arg(long, env = "WORKERS")]
    workers: Option<usize>,
    /// error, warn, info, debug or trace
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    log_level: String,
    /// `text` or `json`
    #[arg(long, env = "LOG_FORMAT", default_value = "text")]
    log_format: String,
    /// After SIGTERM, keep serving for so long while clients are told to go elsewhere
    #[arg(long, env = "DRAIN_DELAY", default_value = "5s", value_parser = parse::duration)]
    drain_delay: Duration,
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    answers: AnswerFlags,
}

/// Where limits are read from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Files of limits")]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
struct FileFlags {
    /// With it, limits are in RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY
    #[arg(long, env = "RUNTIME_ROOT")]
    runtime_root: Option<String>,
    /// See RUNTIME_ROOT
    #[arg(long, env = "RUNTIME_SUBDIRECTORY", default_value = "")]
    runtime_subdirectory: String,
    /// See RUNTIME_ROOT
    #[arg(long, env = "RUNTIME_APPDIRECTORY", default_value = "config")]
    runtime_appdirectory: String,
    /// Accepted and not needed: every kind of change is noticed either way
    #[arg(long, env = "RUNTIME_WATCH_ROOT", default_value = "true", value_parser = parse::boolean, action = clap::ArgAction::Set)]
    runtime_watch_root: bool,
    /// Do not read files whose name begins with a dot
    #[arg(long, env = "RUNTIME_IGNOREDOTFILES", default_value = "true", value_parser = parse::boolean, action = clap::ArgAction::Set)]
    runtime_ignoredotfiles: bool,
    /// Several files may speak of one domain
    #[arg(long, env = "MERGE_DOMAIN_CONFIG", default_value = "false", value_parser = parse::boolean, action = clap::ArgAction::Set)]
    merge_domain_config: bool,
    /// Start although the files cannot be used; requests are errors until they can
    #[arg(long, env = "FORCE_START_WITHOUT_INITIAL_CONFIG", default_value = "false", value_parser = parse::boolean, action = clap::ArgAction::Set)]
    force_start_without_initial_config: bool,
    /// Be unhealthy while there is no domain
    #[arg(long, env = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", default_value = "false", value_parser = parse::boolean, action = clap::ArgAction::Set)]
    healthy_with_at_least_one_config_loaded: bool,
}

/// What answers hold, and how long connections live.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Answers and connections")]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
struct AnswerFlags {
    /// Refuse nothing; statuses and metrics tell what would have been
    #[arg(long, env = "SHADOW_MODE", default_value = "false", value_parser = parse::boolean, action = clap::ArgAction::Set)]
    shadow_mode: bool,
    /// A request is refused only when all its descriptors are over
    #[arg(long, env = "QUOTA_MODE", default_value = "false", value_parser = parse::boolean, action = clap::ArgAction::Set)]
    quota_mode: bool,
    /// Share of a limit from which on hits are counted as near it
    #[arg(long, env = "NEAR_LIMIT_RATIO", default_value_t = 0.8)]
    near_limit_ratio: f32,
    /// Add headers about the nearest limit to responses
    #[arg(long, env = "LIMIT_RESPONSE_HEADERS_ENABLED", default_value = "false", value_parser = parse::boolean, action = clap::ArgAction::Set)]
    limit_response_headers_enabled: bool,
    /// Name of the header for the limit
    #[arg(long, env = "LIMIT_LIMIT_HEADER", default_value = "RateLimit-Limit")]
    limit_limit_header: String,
    /// Name of the header for what is left
    #[arg(long, env = "LIMIT_REMAINING_HEADER", default_value = "RateLimit-Remaining")]
    limit_remaining_header: String,
    /// Name of the header for the seconds until the reset
    #[arg(long, env = "LIMIT_RESET_HEADER", default_value = "RateLimit-Reset")]
    limit_reset_header: String,
    /// Add a `retry-after` header to refusals
    #[arg(long, env = "RETRY_AFTER_HEADER_ENABLED", default_value = "false", value_parser = parse::boolean, action = clap::ArgAction::Set)]
    retry_after_header_enabled: bool,
    /// Return the request and the limits' metadata as dynamic metadata
    #[arg(long, env = "RESPONSE_DYNAMIC_METADATA", default_value = "false", value_parser = parse::boolean, action = clap::ArgAction::Set)]
    response_dynamic_metadata: bool,
    /// Connections are asked to end at this age, give or take a tenth
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE", default_value = "24h", value_parser = parse::duration)]
    grpc_max_connection_age: Duration,
    /// Time for what is then in flight
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE_GRACE", default_value = "1h", value_parser = parse::duration)]
    grpc_max_connection_age_grace: Duration,
}

/// Where counters are.
#[derive(Clone, Debug)]
pub enum Backend {
    /// In this process.
    Memory(memory::Options),
    /// In Redis.
    Redis(redis::Options),
}

/// Everything that a process needs to know, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The gRPC listener.
    pub grpc: SocketAddr,
    /// The HTTP listener.
    pub http: SocketAddr,
    /// Where limits are.
    pub files: files::Options,
    /// Start although the limits cannot be used.
    pub start_without_limits: bool,
    /// Be unhealthy while there is no domain.
    pub needs_a_domain: bool,
    /// Where counters are.
    pub backend: Backend,
    /// The wait for the store.
    pub limiter: limiter::Options,
    /// How requests are read and answered.
    pub rls: rls::Options,
    /// Limits of connections.
    pub server: server::Options,
    /// Threads that answer requests.
    pub workers: usize,
    /// See `--near-limit-ratio`.
    pub near_limit_ratio: f32,
    /// The least severe log lines that are written.
    pub log_level: String,
    /// What log lines look like.
    pub log_format: Format,
    /// How long to go on after SIGTERM.
    pub drain_delay: Duration,
    /// What is set and has no effect.
    pub warnings: Vec<String>,
}

/// A setting that cannot be: its name, what is wrong, and what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Wrong(String);

impl Settings {
    /// Checks the flags, and the environment for settings of the reference that Weir does not act on.
    ///
    /// # Errors
    /// The first setting that cannot be.
    #[expect(clippy::disallowed_methods, reason = "the place where the environment is read")]
    pub fn try_new(flags: Flags) -> Result<Self, Wrong> {
        Self::from_flags(flags, |name| std::env::var(name).ok())
    }

    fn from_flags(flags: Flags, environment: impl Fn(&str) -> Option<String>) -> Result<Self, Wrong> {
        let warnings = reference::judge(environment).into_iter().collect::<Result<_, _>>().map_err(Wrong)?;
        let backend = backend(&flags)?;
        if flags.cache_key_prefix.contains(['{', '}']) {
            return Err(Wrong("CACHE_KEY_PREFIX: braces would move keys to another slot of a Redis Cluster; leave them out".to_owned()));
        }
        let workers = flags.workers.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        if !(1..=1_024).contains(&workers) {
            return Err(Wrong(format!("WORKERS: {workers} threads are not possible; write 1 to 1024")));
        }
        let (files, answers) = (flags.files, flags.answers);
        if !(0.0..=1.0).contains(&answers.near_limit_ratio) {
            return Err(Wrong(format!("NEAR_LIMIT_RATIO: {} is no share; write 0 to 1", answers.near_limit_ratio)));
        }
        let headers = answers.limit_response_headers_enabled.then_some(HeaderNames {
            limit: answers.limit_limit_header,
            remaining: answers.limit_remaining_header,
            reset: answers.limit_reset_header,
        });
        Ok(Self {
            grpc: address("GRPC_HOST", &flags.grpc_host, flags.grpc_port)?,
            http: address("HOST", &flags.host, flags.port)?,
            files: files::Options {
                path: flags.config.unwrap_or_else(|| files.folder()),
                ignore_dot_files: files.runtime_ignoredotfiles,
                compile: compile::Options { merge_domains: files.merge_domain_config, ..Default::default() },
                ..Default::default()
            },
            start_without_limits: files.force_start_without_initial_config,
            needs_a_domain: files.healthy_with_at_least_one_config_loaded,
            backend,
            limiter: limiter::Options { store_timeout: flags.store_timeout, ..Default::default() },
            rls: rls::Options {
                plan: plan::Options { key_prefix: flags.cache_key_prefix, quota_mode: answers.quota_mode },
                respond: rls::respond::Options {
                    shadow_mode: answers.shadow_mode,
                    headers,
                    retry_after: answers.retry_after_header_enabled,
                    dynamic_metadata: answers.response_dynamic_metadata,
                },
            },
            server: server::Options {
                max_connection_age: answers.grpc_max_connection_age,
                max_connection_age_grace: answers.grpc_max_connection_age_grace,
                ..Default::default()
            },
            workers,
            near_limit_ratio: answers.near_limit_ratio,
            log_format: log_format(&flags.log_format)?,
            log_level: flags.log_level,
            drain_delay: flags.drain_delay,
            warnings,
        })
    }
}

impl FileFlags {
    fn folder(&self) -> PathBuf {
        match &self.runtime_root {
            Some(root) if !root.is_empty() => PathBuf::from(root).join(&self.runtime_subdirectory).join(&self.runtime_appdirectory),
            _ => PathBuf::from("config"),
        }
    }
}

fn backend(flags: &Flags) -> Result<Backend, Wrong> {
    let url = flags.redis_url.as_deref().filter(|url| !url.is_empty());
    let kind = flags.backend_type.as_deref().unwrap_or_default().to_ascii_lowercase();
    match (kind.as_str(), url) {
        ("memory", _) | ("", None) => Ok(Backend::Memory(memory::Options { max_keys: flags.memory_max_keys })),
        ("redis", None) => Err(Wrong("BACKEND_TYPE=redis needs REDIS_URL; write REDIS_URL=host:6379".to_owned())),
        ("redis" | "", Some(url)) => {
            let set = |text: &'_ Option<String>| text.clone().filter(|text| !text.is_empty());
            let (socket_type, auth) = (set(&flags.redis_socket_type), set(&flags.redis_auth));
            let options = redis::Options::parse(url, socket_type.as_deref(), auth.as_deref());
            let options = options.map_err(|error| Wrong(format!("REDIS_URL: {error}")))?;
            Ok(Backend::Redis(redis::Options {
                pool_size: flags.redis_pool_size.unwrap_or(options.pool_size),
                expiry_jitter_secs: flags.expiration_jitter_max_seconds.unwrap_or(options.expiry_jitter_secs),
                ..options
            }))
        }
        (other, _) => Err(Wrong(format!("BACKEND_TYPE={other}: Weir keeps counters in `redis` or in `memory`"))),
    }
}

fn address(name: &str, host: &str, port: u16) -> Result<SocketAddr, Wrong> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let resolved = (host, port).to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    resolved.ok_or_else(|| Wrong(format!("{name}: `{host}` is no address of this machine; write 0.0.0.0, :: or 127.0.0.1")))
}

fn log_format(text: &str) -> Result<Format, Wrong> {
    match text.to_ascii_lowercase().as_str() {
        "text" | "" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        _ => Err(Wrong(format!("LOG_FORMAT: `{text}` is no format; write text or json"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        flags: Flags,
    }

    /// Flags only: the variables of the machine that runs the test do not matter, because each one that does is given as a flag.
    fn read(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Settings, Wrong> {
        let flags = Cli::try_parse_from([&["weir"], arguments].concat()).expect("flags").flags;
        let lookup = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Settings::from_flags(flags, lookup)
    }

    #[test]
    fn limits_are_where_the_reference_has_them() {
        let istio = ["--runtime-root", "/data", "--runtime-subdirectory", "ratelimit"];
        assert_eq!(read(&istio, &[]).expect("settings").files.path, PathBuf::from("/data/ratelimit/config"));
        assert_eq!(read(&[], &[]).expect("settings").files.path, PathBuf::from("config"));
        assert_eq!(read(&["--config", "x.yaml"], &[]).expect("settings").files.path, PathBuf::from("x.yaml"));
    }

    #[test]
    fn the_backend_follows_the_url() {
        assert!(matches!(read(&[], &[]).expect("settings").backend, Backend::Memory(_)));
        assert!(matches!(read(&["--redis-url", "r:6379"], &[]).expect("settings").backend, Backend::Redis(_)));
        assert!(matches!(read(&["--redis-url", "r:6379", "--backend-type", "memory"], &[]).expect("settings").backend, Backend::Memory(_)));
        assert!(read(&["--backend-type", "redis"], &[]).expect_err("no URL").to_string().contains("REDIS_URL=host:6379"));
        assert!(read(&["--backend-type", "memcache"], &[]).is_err());
    }

    #[test]
    fn what_weir_does_not_act_on_is_said_or_refused() {
        assert_eq!(read(&[], &[("USE_STATSD", "true")]).expect("settings").warnings.len(), 1);
        assert!(read(&[], &[("USE_STATSD", "false"), ("REDIS_TYPE", "SINGLE")]).expect("settings").warnings.is_empty());
        assert!(read(&[], &[("GRPC_SERVER_USE_TLS", "true")]).expect_err("no TLS").to_string().starts_with("GRPC_SERVER_USE_TLS=true: "));
    }

    #[test]
    fn wrong_values_say_how_to_write_them() {
        for (arguments, hint) in [
            (["--cache-key-prefix", "{x}"], "leave them out"),
            (["--workers", "0"], "1 to 1024"),
            (["--near-limit-ratio", "2"], "0 to 1"),
            (["--log-format", "xml"], "text or json"),
            (["--host", "no such host"], "0.0.0.0"),
        ] {
            assert!(read(&arguments, &[]).expect_err("wrong").to_string().contains(hint), "{arguments:?}");
        }
    }
}
