//! The settings of Redis: their flags, and the rules about combinations of them.
//!
//! The Redis of limits per second has the same settings as the main one, under `REDIS_PERSECOND_`.
//! Both use the same certificates. This file decides which settings are needed or have no effect;
//! the forms of addresses and logins belong to the store's `RawOptions`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;

use super::setting::{SettingSources, Warnings, non_empty};
use super::{Backend, SettingError, parse};
use crate::store::redis::{NameCheck, Options, RawOptions, TlsFiles, Topology};

/// The flags of the main Redis, and those that both deployments share.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Redis", mut_args = parse::switch)]
pub(super) struct RedisFlags {
    /// Connect to this kind of Redis deployment at REDIS_URL
    #[arg(long, env, default_value = "single")]
    #[arg(value_name = "single|sentinel|cluster")]
    redis_type: String,
    /// Connect to Redis at this address, for example `localhost:6379`
    ///
    /// single: `host:port`, `redis://[user:password@]host:port[/db]`, `rediss://...` for TLS, or
    /// the path of a unix socket. sentinel: `master,host:port,host:port,...` with the name of the
    /// master and the Sentinels. cluster: `host:port,host:port,...` with some of the servers.
    #[arg(long, env, hide_env_values = true, value_name = "URL")]
    redis_url: Option<String>,
    /// Connect over this kind of socket; has to match REDIS_URL [default: as REDIS_URL]
    #[arg(long, env, value_name = "tcp|unix")]
    redis_socket_type: Option<String>,
    /// Open at most this many connections per thread to each Redis server; 0 means the default
    /// [default: 10]
    ///
    /// A thread uses one connection to a server that answers within a millisecond, and two to a
    /// slower server. It opens more when a full batch waits, when 16 checks wait for a slower
    /// server, and when answers are overdue.
    #[arg(long, env, value_parser = parse::pool_size, value_name = "COUNT")]
    redis_pool_size: Option<u32>,
    /// Authenticate to Redis with this password, or `user:password`; overrides the one in REDIS_URL
    #[arg(long, env, hide_env_values = true, value_name = "PASSWORD")]
    redis_auth: Option<String>,
    /// Read the password for Redis, or `user:password`, from this file, which contains nothing else
    ///
    /// Weir reads it for each new connection. If a user name is in REDIS_URL, or in REDIS_AUTH as
    /// `user:`, the file contains only the password.
    #[arg(long, env, value_name = "PATH")]
    redis_auth_file: Option<String>,
    /// Authenticate to the Sentinels with this password, or `user:password`
    #[arg(long, env, hide_env_values = true, value_name = "PASSWORD")]
    redis_sentinel_auth: Option<String>,
    /// Read the password for the Sentinels from this file; see REDIS_AUTH_FILE
    #[arg(long, env, value_name = "PATH")]
    redis_sentinel_auth_file: Option<String>,
    /// Use TLS for connections to Redis; `rediss://` in REDIS_URL does the same
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    redis_tls: bool,
    /// Trust only the certificate authorities in this PEM file [default: the system's authorities]
    #[arg(long, env, value_name = "PATH")]
    redis_tls_cacert: Option<String>,
    /// Present the client certificate in this PEM file to Redis
    #[arg(long, env, value_name = "PATH")]
    redis_tls_client_cert: Option<String>,
    /// Use the private key in this PEM file for REDIS_TLS_CLIENT_CERT
    #[arg(long, env, value_name = "PATH")]
    redis_tls_client_key: Option<String>,
    /// Accept a certificate for any host name if a trusted authority signed it
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    redis_tls_skip_hostname_verification: bool,
    /// Add up to this many random seconds to the expiry of a fixed window's key; 0 adds none
    /// [default: 300]
    ///
    /// Without it, many keys would expire at the same time. Weir adds one window or less.
    #[arg(long, env, value_parser = parse::jitter_secs, value_name = "SECONDS")]
    expiration_jitter_max_seconds: Option<u32>,
    /// Send fixed windows to Redis as scripts instead of INCRBY
    ///
    /// A script that reaches Redis after its deadline counts nothing. It costs Redis more CPU.
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    fixed_windows_by_script: bool,
    /// Report unhealthy while no Redis server answers probes, or while all circuit breakers are
    /// open
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    pub(super) redis_health_check_active_connection: bool,
    #[command(flatten)]
    per_second: PerSecondFlags,
}

/// The flags of the Redis of limits per second.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Redis for limits per second", mut_args = parse::switch)]
struct PerSecondFlags {
    /// Keep limits per second in a separate Redis at REDIS_PERSECOND_URL
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    redis_persecond: bool,
    /// Connect to this kind of Redis deployment at REDIS_PERSECOND_URL
    #[arg(long, env, default_value = "single")]
    #[arg(value_name = "single|sentinel|cluster")]
    redis_persecond_type: String,
    /// Connect to the Redis for limits per second at this address; see REDIS_URL
    #[arg(long, env, hide_env_values = true, value_name = "URL")]
    redis_persecond_url: Option<String>,
    /// Connect over this kind of socket; has to match REDIS_PERSECOND_URL [default: as
    /// REDIS_PERSECOND_URL]
    #[arg(long, env, value_name = "tcp|unix")]
    redis_persecond_socket_type: Option<String>,
    /// Open at most this many connections per thread to each server; see REDIS_POOL_SIZE [default:
    /// 10]
    #[arg(long, env, value_parser = parse::pool_size, value_name = "COUNT")]
    redis_persecond_pool_size: Option<u32>,
    /// Authenticate with this password, or `user:password`; see REDIS_AUTH
    #[arg(long, env, hide_env_values = true, value_name = "PASSWORD")]
    redis_persecond_auth: Option<String>,
    /// Read the password from this file; see REDIS_AUTH_FILE
    #[arg(long, env, value_name = "PATH")]
    redis_persecond_auth_file: Option<String>,
    /// Authenticate to the Sentinels with this password, or `user:password`
    #[arg(long, env, hide_env_values = true, value_name = "PASSWORD")]
    redis_persecond_sentinel_auth: Option<String>,
    /// Read the password for the Sentinels from this file; see REDIS_AUTH_FILE
    #[arg(long, env, value_name = "PATH")]
    redis_persecond_sentinel_auth_file: Option<String>,
    /// Use TLS for connections to this Redis, with the certificates of the main Redis; see
    /// REDIS_TLS
    #[arg(long, env, default_value = "false", value_name = "BOOL")]
    redis_persecond_tls: bool,
}

/// The settings that need `REDIS_URL`. Without it, each replica would silently count in its own
/// memory.
const NEED_URL: &str = "REDIS_SOCKET_TYPE REDIS_AUTH REDIS_AUTH_FILE REDIS_SENTINEL_AUTH \
    REDIS_SENTINEL_AUTH_FILE REDIS_TLS_CACERT REDIS_TLS_CLIENT_CERT REDIS_PERSECOND_URL REDIS_TLS \
    REDIS_PERSECOND";

/// The settings of TLS to Redis.
const TLS: &str = "REDIS_TLS_CACERT REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY \
    REDIS_TLS_SKIP_HOSTNAME_VERIFICATION";

/// The value of a setting; empty if it is not set.
fn text(value: Option<&str>) -> &str {
    value.unwrap_or_default()
}

impl RedisFlags {
    /// Whether `REDIS_URL` is set.
    ///
    /// # Errors
    /// `REDIS_URL` is not set, but another setting needs it.
    pub(super) fn is_set(&self, sources: &SettingSources) -> Result<bool, SettingError> {
        let is_single =
            ["", "single"].contains(&self.redis_type.trim().to_ascii_lowercase().as_str());
        match text(self.redis_url.as_deref()) {
            "" if is_single => match sources.set(NEED_URL).first() {
                Some(name) => Err(SettingError(format!(
                    "{name} needs REDIS_URL; write REDIS_URL=host:6379, or BACKEND_TYPE=memory to \
                     count in memory"
                ))),
                None => Ok(false),
            },
            "" => Err(SettingError(String::from(
                "REDIS_TYPE needs REDIS_URL; write REDIS_URL=host:6379, or the list of servers",
            ))),
            _ => Ok(true),
        }
    }

    /// The options of one or both deployments. Reads the files that the settings name, and adds
    /// settings without effect to `warnings`.
    ///
    /// # Errors
    /// A setting is missing or invalid.
    pub(super) fn backend(
        &self,
        key_prefix: &str,
        warnings: &mut Warnings,
    ) -> Result<Backend, SettingError> {
        if !self.is_set(&warnings.sources)? {
            return Err(SettingError(String::from(
                "BACKEND_TYPE=redis needs REDIS_URL; write REDIS_URL=host:6379",
            )));
        }
        let main = self.options("REDIS_", &self.raw(), self.redis_pool_size, key_prefix)?;
        let flags = &self.per_second;
        let (raw, pool_size) = (flags.raw(), flags.redis_persecond_pool_size);
        let per_second = match (flags.redis_persecond, raw.url) {
            (false, _) => None,
            (true, "") => {
                return Err(SettingError(String::from(
                    "REDIS_PERSECOND needs REDIS_PERSECOND_URL; write \
                     REDIS_PERSECOND_URL=host:6379",
                )));
            }
            (true, _) => Some(self.options("REDIS_PERSECOND_", &raw, pool_size, key_prefix)?),
        };
        self.warn(&main, per_second.as_ref(), warnings);
        Ok(Backend::Redis { main, per_second })
    }

    /// The options of the deployment whose settings begin with `prefix`.
    fn options(
        &self,
        prefix: &str,
        raw: &RawOptions<'_>,
        pool_size: Option<u32>,
        key_prefix: &str,
    ) -> Result<Options, SettingError> {
        let options =
            Options::parse(raw, &self.files()).map_err(|error| match error.setting() {
                Some(setting) => SettingError(format!("{prefix}{setting}: {error}")),
                None => SettingError(error.to_string()),
            })?;
        let pool_size = pool_size.and_then(NonZeroU32::new);
        let jitter = self.expiration_jitter_max_seconds;
        Ok(Options {
            pool_size: pool_size.unwrap_or(options.pool_size),
            expiry_jitter_secs: jitter.unwrap_or(options.expiry_jitter_secs),
            key_prefix: key_prefix.to_owned(),
            fixed_windows_by_script: self.fixed_windows_by_script,
            ..options
        })
    }

    fn raw(&self) -> RawOptions<'_> {
        RawOptions {
            kind: &self.redis_type,
            url: text(self.redis_url.as_deref()),
            socket_type: text(self.redis_socket_type.as_deref()),
            auth: text(self.redis_auth.as_deref()),
            auth_file: text(self.redis_auth_file.as_deref()),
            sentinel_auth: text(self.redis_sentinel_auth.as_deref()),
            sentinel_auth_file: text(self.redis_sentinel_auth_file.as_deref()),
            tls: self.redis_tls,
        }
    }

    fn files(&self) -> TlsFiles {
        let set = |path: &Option<String>| non_empty(path.as_ref()).map(PathBuf::from);
        TlsFiles {
            ca_cert: set(&self.redis_tls_cacert),
            client_cert: set(&self.redis_tls_client_cert),
            client_key: set(&self.redis_tls_client_key),
            name_check: match self.redis_tls_skip_hostname_verification {
                true => NameCheck::Skipped,
                false => NameCheck::Strict,
            },
        }
    }

    /// Adds a warning for each group of settings that have no effect.
    fn warn(&self, main: &Options, per_second: Option<&Options>, warnings: &mut Warnings) {
        if main.tls.is_none() && per_second.is_none_or(|options| options.tls.is_none()) {
            let reason = "TLS to Redis is off; set REDIS_TLS=true, or write rediss:// in REDIS_URL";
            warnings.no_effect(TLS, reason);
        }
        let is_sentinel = |options: &Options| matches!(options.topology, Topology::Sentinel { .. });
        if !is_sentinel(main) {
            let names = "REDIS_SENTINEL_AUTH REDIS_SENTINEL_AUTH_FILE";
            warnings.no_effect(names, "REDIS_TYPE is not sentinel");
        }
        match per_second {
            Some(options) if is_sentinel(options) => {}
            Some(_) => {
                let names = "REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_SENTINEL_AUTH_FILE";
                warnings.no_effect(names, "REDIS_PERSECOND_TYPE is not sentinel");
            }
            None => self.per_second.warn_of_no_effect(warnings),
        }
    }
}

impl PerSecondFlags {
    fn raw(&self) -> RawOptions<'_> {
        RawOptions {
            kind: &self.redis_persecond_type,
            url: text(self.redis_persecond_url.as_deref()),
            socket_type: text(self.redis_persecond_socket_type.as_deref()),
            auth: text(self.redis_persecond_auth.as_deref()),
            auth_file: text(self.redis_persecond_auth_file.as_deref()),
            sentinel_auth: text(self.redis_persecond_sentinel_auth.as_deref()),
            sentinel_auth_file: text(self.redis_persecond_sentinel_auth_file.as_deref()),
            tls: self.redis_persecond_tls,
        }
    }

    /// Warns of settings that have no effect without REDIS_PERSECOND. It ignores sizes and types,
    /// because they often stay in a manifest, and the default address of envoyproxy/ratelimit.
    fn warn_of_no_effect(&self, warnings: &mut Warnings) {
        let url = text(self.redis_persecond_url.as_deref());
        let more = "REDIS_PERSECOND_AUTH REDIS_PERSECOND_AUTH_FILE REDIS_PERSECOND_TLS";
        let names = match url {
            "/var/run/nutcracker/ratelimitpersecond.sock" => more.to_owned(),
            _ => format!("REDIS_PERSECOND_URL {more}"),
        };
        warnings.no_effect(&names, "REDIS_PERSECOND is not true");
    }
}

#[cfg(test)]
mod tests;
