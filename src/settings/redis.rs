//! The settings of Redis: their flags, and what several of them mean together. Each variable of the main Redis has a twin for the one of
//! per-second limits; certificates are shared.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::{Backend, SettingError, parse};
use crate::store::redis::{NameCheck, Options, RawOptions, TlsFiles, Topology};

/// Where Redis is, and how it is reached.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Redis")]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(super) struct RedisFlags {
    /// What REDIS_URL leads to: `single`, `sentinel` or `cluster`
    #[arg(long, env = "REDIS_TYPE", default_value = "single")]
    redis_type: String,
    /// host:port, a path of a unix socket, or redis[s]://[user:password@]host:port[/db]; for Sentinel MASTER,host:port,...; for Cluster
    /// host:port,...
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    redis_url: Option<String>,
    /// `tcp` or `unix` [default: what REDIS_URL looks like]
    #[arg(long, env = "REDIS_SOCKET_TYPE")]
    redis_socket_type: Option<String>,
    /// Connections to each server, per thread [default: 10]
    #[arg(long, env = "REDIS_POOL_SIZE")]
    redis_pool_size: Option<NonZeroU32>,
    /// `password` or `user:password`
    #[arg(long, env = "REDIS_AUTH", hide_env_values = true)]
    redis_auth: Option<String>,
    /// A file that holds the password, read anew for every connection; REDIS_AUTH may then be `user:`
    #[arg(long, env = "REDIS_AUTH_FILE", value_name = "PATH")]
    redis_auth_file: Option<String>,
    /// As REDIS_AUTH, for sentinels
    #[arg(long, env = "REDIS_SENTINEL_AUTH", hide_env_values = true)]
    redis_sentinel_auth: Option<String>,
    /// As REDIS_AUTH_FILE, for sentinels
    #[arg(long, env = "REDIS_SENTINEL_AUTH_FILE", value_name = "PATH")]
    redis_sentinel_auth_file: Option<String>,
    /// Speak TLS; so does rediss:// in REDIS_URL
    #[arg(long, env = "REDIS_TLS", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    redis_tls: bool,
    /// Trust only these authorities (PEM) [default: those of the system]
    #[arg(long, env = "REDIS_TLS_CACERT", value_name = "PATH")]
    redis_tls_cacert: Option<String>,
    /// Show this certificate (PEM) to Redis
    #[arg(long, env = "REDIS_TLS_CLIENT_CERT", value_name = "PATH")]
    redis_tls_client_cert: Option<String>,
    /// Its private key (PEM)
    #[arg(long, env = "REDIS_TLS_CLIENT_KEY", value_name = "PATH")]
    redis_tls_client_key: Option<String>,
    /// Accept a trusted certificate for any name
    #[arg(long, env = "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    redis_tls_skip_hostname_verification: bool,
    /// Keys live up to this much longer than needed, so that they do not all expire at once [default: 300]
    #[arg(long, env = "EXPIRATION_JITTER_MAX_SECONDS")]
    expiration_jitter_max_seconds: Option<u32>,
    /// Send fixed windows as scripts, which count nothing when they come too late; costs Redis more
    #[arg(long, env = "FIXED_WINDOWS_BY_SCRIPT", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    fixed_windows_by_script: bool,
    /// Be unhealthy while no connection to Redis is open
    #[arg(long, env = "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(super) redis_health_check_active_connection: bool,
    #[command(flatten)]
    per_second: PerSecondFlags,
}

/// A Redis of their own for limits per second, which are most of the load.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Redis for limits per second")]
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
struct PerSecondFlags {
    /// Keep limits per second in another Redis
    #[arg(long, env = "REDIS_PERSECOND", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    redis_persecond: bool,
    /// As REDIS_TYPE
    #[arg(long, env = "REDIS_PERSECOND_TYPE", default_value = "single")]
    redis_persecond_type: String,
    /// As REDIS_URL
    #[arg(long, env = "REDIS_PERSECOND_URL", hide_env_values = true)]
    redis_persecond_url: Option<String>,
    /// As REDIS_SOCKET_TYPE
    #[arg(long, env = "REDIS_PERSECOND_SOCKET_TYPE")]
    redis_persecond_socket_type: Option<String>,
    /// As REDIS_POOL_SIZE
    #[arg(long, env = "REDIS_PERSECOND_POOL_SIZE")]
    redis_persecond_pool_size: Option<NonZeroU32>,
    /// As REDIS_AUTH
    #[arg(long, env = "REDIS_PERSECOND_AUTH", hide_env_values = true)]
    redis_persecond_auth: Option<String>,
    /// As REDIS_AUTH_FILE
    #[arg(long, env = "REDIS_PERSECOND_AUTH_FILE", value_name = "PATH")]
    redis_persecond_auth_file: Option<String>,
    /// As REDIS_SENTINEL_AUTH
    #[arg(long, env = "REDIS_PERSECOND_SENTINEL_AUTH", hide_env_values = true)]
    redis_persecond_sentinel_auth: Option<String>,
    /// As REDIS_SENTINEL_AUTH_FILE
    #[arg(long, env = "REDIS_PERSECOND_SENTINEL_AUTH_FILE", value_name = "PATH")]
    redis_persecond_sentinel_auth_file: Option<String>,
    /// As REDIS_TLS; the certificates are those of the other Redis
    #[arg(long, env = "REDIS_PERSECOND_TLS", default_value = "false", value_parser = parse::boolean)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    redis_persecond_tls: bool,
}

fn text(set: Option<&str>) -> &str {
    set.unwrap_or_default()
}

impl RedisFlags {
    /// Whether somebody said where Redis is.
    pub(super) fn is_set(&self) -> Result<bool, SettingError> {
        let is_single = ["", "single"].contains(&self.redis_type.trim().to_ascii_lowercase().as_str());
        match text(self.redis_url.as_deref()) {
            "" if is_single => match self.tells_of_a_redis() {
                Some(name) => Err(SettingError(format!(
                    "{name} needs REDIS_URL; write REDIS_URL=host:6379, or BACKEND_TYPE=memory to count in memory"
                ))),
                None => Ok(false),
            },
            "" => Err(SettingError("REDIS_TYPE needs REDIS_URL; write REDIS_URL=host:6379, or the list of servers".to_owned())),
            _ => Ok(true),
        }
    }

    /// A setting that nobody has who does not mean to count in Redis, and who would not notice that each replica counts for itself.
    fn tells_of_a_redis(&self) -> Option<&'static str> {
        let twin = &self.per_second;
        let texts = [
            ("REDIS_SOCKET_TYPE", &self.redis_socket_type),
            ("REDIS_AUTH", &self.redis_auth),
            ("REDIS_AUTH_FILE", &self.redis_auth_file),
            ("REDIS_TLS_CACERT", &self.redis_tls_cacert),
            ("REDIS_TLS_CLIENT_CERT", &self.redis_tls_client_cert),
            ("REDIS_PERSECOND_URL", &twin.redis_persecond_url),
        ];
        let switches = [("REDIS_TLS", self.redis_tls), ("REDIS_PERSECOND", twin.redis_persecond)];
        let set = texts.into_iter().map(|(name, set)| (name, !text(set.as_deref()).is_empty()));
        set.chain(switches).find_map(|(name, is_set)| is_set.then_some(name))
    }

    /// Both, with the files that they name; what has no effect is added to `warnings`.
    pub(super) fn backend(&self, key_prefix: &str, warnings: &mut Vec<String>) -> Result<Backend, SettingError> {
        if !self.is_set()? {
            return Err(SettingError("BACKEND_TYPE=redis needs REDIS_URL; write REDIS_URL=host:6379".to_owned()));
        }
        let main = self.options("REDIS_", &self.written(), self.redis_pool_size, key_prefix)?;
        let twin = &self.per_second;
        let per_second = match (twin.redis_persecond, text(twin.redis_persecond_url.as_deref())) {
            (false, _) => None,
            (true, "") => {
                return Err(SettingError("REDIS_PERSECOND needs REDIS_PERSECOND_URL; write REDIS_PERSECOND_URL=host:6379".to_owned()));
            }
            (true, _) => Some(self.options("REDIS_PERSECOND_", &twin.written(), twin.redis_persecond_pool_size, key_prefix)?),
        };
        self.warn(&main, per_second.as_ref(), warnings);
        Ok(Backend::Redis { main, per_second })
    }

    fn options(
        &self,
        prefix: &str,
        written: &RawOptions<'_>,
        pool_size: Option<NonZeroU32>,
        key_prefix: &str,
    ) -> Result<Options, SettingError> {
        let options = Options::parse(written, &self.files()).map_err(|error| match error.setting() {
            Some(setting) => SettingError(format!("{prefix}{setting}: {error}")),
            None => SettingError(error.to_string()),
        })?;
        Ok(Options {
            pool_size: pool_size.unwrap_or(options.pool_size),
            expiry_jitter_secs: self.expiration_jitter_max_seconds.unwrap_or(options.expiry_jitter_secs),
            key_prefix: key_prefix.to_owned(),
            fixed_windows_by_script: self.fixed_windows_by_script,
            ..options
        })
    }

    fn written(&self) -> RawOptions<'_> {
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
        let set = |path: &Option<String>| path.as_ref().filter(|path| !path.is_empty()).map(PathBuf::from);
        TlsFiles {
            ca_cert: set(&self.redis_tls_cacert),
            client_cert: set(&self.redis_tls_client_cert),
            client_key: set(&self.redis_tls_client_key),
            name_check: if self.redis_tls_skip_hostname_verification { NameCheck::Skipped } else { NameCheck::Strict },
        }
    }

    fn warn(&self, main: &Options, per_second: Option<&Options>, warnings: &mut Vec<String>) {
        let files = self.files();
        let of_tls = [
            ("REDIS_TLS_CACERT", files.ca_cert.is_some()),
            ("REDIS_TLS_CLIENT_CERT", files.client_cert.is_some()),
            ("REDIS_TLS_CLIENT_KEY", files.client_key.is_some()),
            ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", self.redis_tls_skip_hostname_verification),
        ];
        if main.tls.is_none() && per_second.is_none_or(|options| options.tls.is_none()) {
            no_effect(&of_tls, "nothing speaks TLS; set REDIS_TLS=true, or write rediss:// in REDIS_URL", warnings);
        }
        let twin = &self.per_second;
        let of_sentinel = |is_sentinel: bool, prefix: &str, written: &RawOptions<'_>, warnings: &mut Vec<String>| {
            if !is_sentinel {
                let (auth, file) = (format!("{prefix}SENTINEL_AUTH"), format!("{prefix}SENTINEL_AUTH_FILE"));
                let set = [(auth.as_str(), !written.sentinel_auth.is_empty()), (file.as_str(), !written.sentinel_auth_file.is_empty())];
                no_effect(&set, &format!("{prefix}TYPE is not sentinel"), warnings);
            }
        };
        let is_sentinel = |options: &Options| matches!(options.topology, Topology::Sentinel { .. });
        of_sentinel(is_sentinel(main), "REDIS_", &self.written(), warnings);
        match per_second {
            Some(options) => of_sentinel(is_sentinel(options), "REDIS_PERSECOND_", &twin.written(), warnings),
            None => no_effect(&twin.set(), "REDIS_PERSECOND is not true", warnings),
        }
    }
}

impl PerSecondFlags {
    fn written(&self) -> RawOptions<'_> {
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

    /// Those that say something on which everything else depends; sizes and types are often left in a manifest.
    fn set(&self) -> [(&'static str, bool); 4] {
        let url = text(self.redis_persecond_url.as_deref());
        [
            // That one is the default of envoyproxy/ratelimit.
            ("REDIS_PERSECOND_URL", !url.is_empty() && url != "/var/run/nutcracker/ratelimitpersecond.sock"),
            ("REDIS_PERSECOND_AUTH", !text(self.redis_persecond_auth.as_deref()).is_empty()),
            ("REDIS_PERSECOND_AUTH_FILE", !text(self.redis_persecond_auth_file.as_deref()).is_empty()),
            ("REDIS_PERSECOND_TLS", self.redis_persecond_tls),
        ]
    }
}

/// One line for all that are set.
fn no_effect(settings: &[(&str, bool)], reason: &str, warnings: &mut Vec<String>) {
    let set: Vec<_> = settings.iter().filter(|(_, is_set)| *is_set).map(|&(name, _)| name).collect();
    match set.as_slice() {
        [] => {}
        [name] => warnings.push(format!("{name} has no effect: {reason}")),
        several => warnings.push(format!("{} have no effect: {reason}", several.join(", "))),
    }
}

#[cfg(test)]
mod tests;
