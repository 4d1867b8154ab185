//! Settings: flags and environment variables, typed and checked. Only this module reads the
//! environment.
//!
//! Variables have the names of envoyproxy/ratelimit. Each module declares its own options with their
//! defaults and reasons; this file fills them in. No message here shows a secret.

#![expect(
    clippy::disallowed_methods,
    reason = "only this module reads the environment"
)]
#![expect(
    clippy::struct_excessive_bools,
    clippy::struct_field_names,
    reason = "each field of the flags is a setting of its own, and has its name"
)]

mod exporters;
mod flags;
mod listeners;
mod parse;
mod redis;
mod reference;
mod responses;
mod setting;
mod sources;
mod telemetry;
mod xds;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::admin::api;
use crate::limiter;
use crate::limiter::{denial_cache, failure_policies};
use crate::limits::plan;
use crate::limits::rules::domains::XdsOptions;
use crate::live::{files, xds as xds_client};
use crate::net::bounds::{Shares, memory as memory_limit};
use crate::net::tls::TlsError;
use crate::observe::exporters::statsd;
use crate::observe::metrics;
use crate::observe::telemetry::Format;
use crate::observe::traces;
use crate::service::{rls, server};
use crate::store;
use crate::store::memory;

pub use exporters::PrometheusPort;
pub use flags::{Flags, ReadFlags};
pub use listeners::{ListenerFlags, LocalGrpc};
pub use setting::SettingSources;
use setting::Warnings;
pub use sources::{name_variables, without_empty_variables};

/// The store of the counters, with its options.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub enum Backend {
    /// In the memory of this process.
    Memory(memory::Options),
    Redis {
        /// The Redis of all limits, or of all that are not per second.
        main: store::redis::Options,
        /// The Redis of limits per second, if they have one of their own.
        per_second: Option<store::redis::Options>,
    },
}

/// All settings of the process, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the gRPC listener.
    pub grpc: server::Address,
    /// The certificates of the gRPC listener; `None`: it speaks no TLS.
    pub certificates: Option<Arc<server::Certificates>>,
    /// Address of the HTTP listener.
    pub http: server::TcpAddress,
    /// Whether it decides requests in JSON.
    pub http_json: bool,
    /// The path of the limit files, and how they are read.
    pub files: files::Options,
    /// The control plane, if limits come from one; then the files are not read.
    pub xds: Option<xds_client::Options>,
    /// Whether to start although the limit files cannot be used, or before the control plane sent
    /// limits.
    pub start_without_limits: bool,
    /// Whether the process is unhealthy while the rules have no domain.
    pub needs_a_domain: bool,
    /// The store of the counters.
    pub backend: Backend,
    /// Whether the process is unhealthy while Redis cannot be used.
    pub redis_health: bool,
    /// Time limits of the store.
    pub limiter: limiter::Options,
    /// The denial cache in front of Redis.
    pub denials: denial_cache::Options,
    /// The failure policy `local`.
    pub outage: failure_policies::Options,
    /// How requests are read and answered.
    pub rls: rls::Options,
    /// Bounds of the gRPC listener.
    pub server: server::Options,
    /// The memory of the process in parts, and where its limit comes from.
    pub memory: (Shares, &'static str),
    /// The number of threads that answer requests.
    pub workers: usize,
    /// How traces are recorded and exported; `None`: not at all.
    pub traces: Option<traces::Options>,
    /// How limits are shown in metrics.
    pub metrics: metrics::Options,
    /// Prometheus's port of envoyproxy/ratelimit, if it is on.
    pub prometheus: Option<PrometheusPort>,
    /// The StatsD server that gets the metrics, if there is one.
    pub statsd: Option<statsd::Options>,
    /// Address of the debug listener, if it is on.
    pub debug: Option<server::TcpAddress>,
    /// The tokens of the admin API, if it accepts changes.
    pub admin_tokens: Option<api::Tokens>,
    /// The file of overrides, with the memory store.
    pub overrides_file: Option<PathBuf>,
    /// The least severe log lines that are written.
    pub log_level: String,
    /// The format of log lines.
    pub log_format: Format,
    /// The time between SIGTERM and the end of connections.
    pub drain_delay: Duration,
    /// Warnings about settings without effect.
    pub warnings: Vec<String>,
    /// How the settings were given, for further messages about them.
    pub sources: SettingSources,
}

/// A setting that cannot be used: its name, the problem, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(String);

impl From<TlsError> for SettingError {
    fn from(error: TlsError) -> Self {
        Self(error.to_string())
    }
}

impl Settings {
    /// Checks the flags, and the environment for settings of envoyproxy/ratelimit that Weir does
    /// not act on.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn try_new(flags: Flags, sources: SettingSources) -> Result<Self, SettingError> {
        let text = |text: OsString| text.to_string_lossy().into_owned();
        let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        let environment: Vec<_> = environment.collect();
        let all = Vec::new();
        let warnings = Warnings { sources, all };
        let mut settings = Self::from_flags(flags, warnings, &environment)?;
        for warning in &mut settings.warnings {
            *warning = settings.sources.name(warning);
        }
        Ok(settings)
    }

    fn from_flags(
        flags: Flags,
        mut warnings: Warnings,
        environment: &[(String, String)],
    ) -> Result<Self, SettingError> {
        warnings.all.extend(reference::check(environment));
        warnings.all.extend(sources::misspelled(environment));
        let set = flags.memory_limit.map(|limit| (limit, "MEMORY_LIMIT"));
        let (limit, limit_source) = set.unwrap_or_else(memory_limit::limit_of_this_process);
        let shares = Shares::of(limit);
        let memory = memory_options(&flags, shares.store as usize);
        let backend = backend(&flags, memory, &mut warnings)?;
        flags.files.read.counting.warn(&backend, &mut warnings);
        flags.outage.warn(&backend, &mut warnings);
        let overrides_file = flags.debug.overrides_file(&backend, &mut warnings);
        let rules = XdsOptions {
            merge_domains: flags.files.read.merge_domain_config,
            process: flags.files.read.counting.process(),
            ..XdsOptions::default()
        };
        let xds = flags.xds.options(rules, shares.resources, &mut warnings)?;
        check_key_prefix(&flags.cache_key_prefix)?;
        warn_of_near_limit_ratio(flags.answers.near_limit_ratio, &mut warnings);
        let log_format = checked_log_format(&flags.log_format, &mut warnings);
        let prometheus = flags.exporters.prometheus()?;
        let statsd = flags.exporters.statsd(environment, &mut warnings)?;
        let rls = rls_options(&flags, &mut warnings)?;
        let tls = flags.listeners.tls(&mut warnings)?;
        let certificates = tls.map(server::Certificates::read).transpose()?;
        let server = server_options(&flags, shares.connections, certificates.is_some());
        let outage = failure_policies::Options {
            replicas: flags.outage.replicas.clone(),
            max_keys: flags.outage.local_max_keys,
            max_bytes: memory.max_bytes,
        };
        let files = flags.files;
        let mut read = files.options(flags.config);
        read.compile.max_memory = Some(shares.resources);
        Ok(Self {
            grpc: flags.listeners.grpc()?,
            certificates,
            http: flags.listeners.http()?,
            http_json: flags.listeners.http_json(),
            files: read,
            xds,
            start_without_limits: files.force_start_without_initial_config,
            needs_a_domain: files.healthy_with_at_least_one_config_loaded,
            backend,
            redis_health: flags.redis.redis_health_check_active_connection,
            limiter: limiter::Options {
                store_timeout: flags.store_timeout,
                ..Default::default()
            },
            denials: flags.outage.denials(&mut warnings),
            outage,
            rls,
            server,
            memory: (shares, limit_source),
            workers: flags.workers.unwrap_or_else(default_workers),
            traces: flags.tracing.options()?,
            metrics: metrics::Options {
                near_limit_ratio: flags.answers.near_limit_ratio,
                omits_unused_limits: flags.answers.metrics_omit_unused_limits,
            },
            log_format,
            prometheus,
            statsd,
            debug: flags.debug.address()?,
            admin_tokens: flags.debug.tokens()?,
            overrides_file,
            log_level: flags.log_level,
            drain_delay: flags.drain_delay,
            warnings: warnings.all,
            sources: warnings.sources,
        })
    }
}

fn check_key_prefix(prefix: &str) -> Result<(), SettingError> {
    if prefix.contains(['{', '}']) {
        return Err(SettingError(String::from(
            "CACHE_KEY_PREFIX: braces change the slot of keys in a Redis Cluster; leave them out",
        )));
    }
    Ok(())
}

/// The format of log lines; adds a warning about an unknown one.
fn checked_log_format(text: &str, warnings: &mut Warnings) -> Format {
    let known = ["", "text", "json"];
    if !known.iter().any(|known| text.eq_ignore_ascii_case(known)) {
        warnings.push("LOG_FORMAT is neither text nor json: the log is text");
    }
    log_format(text)
}

/// The number of threads that answer requests unless a setting has another: one per CPU.
fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Warns of a ratio above 1.
fn warn_of_near_limit_ratio(ratio: f32, warnings: &mut Warnings) {
    if ratio > 1.0 {
        warnings.push(format!(
            "NEAR_LIMIT_RATIO={ratio}: no hits count as near their limit in metrics; write 0 to 1"
        ));
    }
}

fn rls_options(flags: &Flags, warnings: &mut Warnings) -> Result<rls::Options, SettingError> {
    let logged_values = flags.logs.values(warnings)?;
    let responses = flags.responses.clone();
    Ok(rls::Options {
        plan: plan::Options {
            key_prefix: flags.cache_key_prefix.clone(),
            on_store_failure: flags.outage.on_store_failure,
            calendar_months: flags.files.read.counting.use_calendar_month_rate_limit,
            quota_mode: flags.answers.quota_mode,
        },
        respond: responses.options(flags.answers.shadow_mode, warnings)?,
        logged: flags.log_decisions.clone(),
        refusals: flags.logs.refusals(&logged_values),
        logged_values,
        ..rls::Options::default()
    })
}

/// Bounds of the gRPC listener, whose connections have so many bytes.
fn server_options(flags: &Flags, connections: u64, is_tls: bool) -> server::Options {
    server::Options {
        sheds_load: flags.load_shedding_enabled,
        max_connection_age: flags.answers.grpc_max_connection_age,
        max_connection_age_grace: flags.answers.grpc_max_connection_age_grace,
        ..server::Options::default().within(connections, is_tls)
    }
}

/// Options of the memory store for so many bytes, which its keys and its usage records share.
fn memory_options(flags: &Flags, bytes: usize) -> memory::Options {
    let usage_bytes = memory::Options::default().usage_bytes.min(bytes / 4);
    let usage_bytes = flags.memory_usage_bytes.unwrap_or(usage_bytes);
    let max_bytes = bytes.saturating_sub(usage_bytes).max(bytes / 4);
    memory::Options {
        max_keys: flags.memory_max_keys,
        max_bytes: flags.memory_max_bytes.unwrap_or(max_bytes),
        usage_bytes,
    }
}

fn backend(
    flags: &Flags,
    memory: memory::Options,
    warnings: &mut Warnings,
) -> Result<Backend, SettingError> {
    let backend_type = flags.backend_type.as_deref().unwrap_or_default();
    let backend_type = backend_type.to_ascii_lowercase();
    match backend_type.as_str() {
        "memory" => Ok(Backend::Memory(memory)),
        "" if !flags.redis.is_set(&warnings.sources)? => Ok(Backend::Memory(memory)),
        "redis" | "" => flags.redis.backend(&flags.cache_key_prefix, warnings),
        "memcache" | "memcached" => Err(SettingError(format!(
            "BACKEND_TYPE={backend_type}: {NO_MEMCACHED}"
        ))),
        other => Err(SettingError(format!(
            "BACKEND_TYPE={other}: write redis or memory"
        ))),
    }
}

/// Error about memcached, and the replacement.
const NO_MEMCACHED: &str = "memcached cannot check and count in one step: limits would be \
    exceeded; write BACKEND_TYPE=redis and REDIS_URL=host:6379 with a Redis or Valkey, or \
    BACKEND_TYPE=memory for a single replica";

/// The format of log lines that these arguments of `weir serve` and the environment select, for an
/// error in the arguments themselves. Text if they select none.
pub fn log_format_of(arguments: &[OsString]) -> Format {
    const FLAG: &str = "--log-format";
    let texts = arguments.iter().map(|text| text.to_string_lossy());
    let texts: Vec<_> = texts.collect();
    let beside = |index: usize| texts.get(index + 1).map(ToString::to_string);
    let flag =
        texts
            .iter()
            .enumerate()
            .rev()
            .find_map(|(index, text)| match text.strip_prefix(FLAG)? {
                "" => beside(index),
                rest => rest.strip_prefix('=').map(str::to_owned),
            });
    let written = flag
        .or_else(|| std::env::var("LOG_FORMAT").ok())
        .unwrap_or_default();
    log_format(&written)
}

/// As in envoyproxy/ratelimit, everything but `json` is text.
fn log_format(text: &str) -> Format {
    if text.eq_ignore_ascii_case("json") {
        Format::Json
    } else {
        Format::Text
    }
}

#[cfg(test)]
mod page_tests;
#[cfg(test)]
mod tests;
