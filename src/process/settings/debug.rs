//! The settings of the debug listener.

use std::path::PathBuf;

use clap::Args;

use super::listeners::address;
use super::setting::{no_effect, written};
use super::{Backend, SettingError, parse};
use crate::desk::admin::Tokens;
use crate::service::server::TcpAddress;

/// Where the debug listener listens unless a setting says otherwise.
const LOOPBACK: &str = "127.0.0.1";

/// The debug listener.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Debug listener", mut_args = parse::switch)]
pub(super) struct DebugFlags {
    /// Open the debug listener, which shows the limits in force and the counters
    #[arg(long, env, default_value = "true", value_name = "BOOL")]
    debug_enabled: bool,
    /// Address of the debug listener; 0.0.0.0 for all addresses
    ///
    /// It has no TLS, and its pages no authentication: they show the keys and values of limits. See
    /// ADMIN_TOKEN_FILE for the admin API.
    #[arg(long, env, default_value = LOOPBACK, value_name = "ADDRESS")]
    debug_host: String,
    /// Port of the debug listener; 0 takes a free port. If it is in use, Weir starts without the
    /// debug listener
    #[arg(long, env, default_value_t = 6070, value_parser = parse::port, value_name = "PORT")]
    debug_port: u16,
    /// File of tokens for the admin API on the debug listener: a line name:token each; a change
    /// needs one
    ///
    /// A token has 16 characters or more. Weir reads the file for each token that it gets, so that
    /// a removed one is refused at once. Without this file the admin API changes nothing, and
    /// answers only on loopback.
    #[arg(long, env, value_name = "PATH")]
    admin_token_file: Option<String>,
    /// File that keeps the overrides of operators, with the memory store [default: they end with
    /// the process]
    ///
    /// Weir replaces the file with each change, and reads it when it changes. With Redis, overrides
    /// are kept there.
    #[arg(long, env, value_name = "PATH")]
    overrides_file: Option<PathBuf>,
}

impl DebugFlags {
    /// The tokens of the admin API, if there are any.
    pub(super) fn tokens(&self) -> Result<Option<Tokens>, SettingError> {
        let path = written(self.admin_token_file.as_ref());
        let tokens = path.map(|path| {
            Tokens::try_new(path.into())
                .map_err(|error| SettingError(format!("ADMIN_TOKEN_FILE: {path} {error}")))
        });
        tokens.transpose()
    }

    /// The file of overrides, with the memory store.
    pub(super) fn overrides_file(
        &self,
        backend: &Backend,
        warnings: &mut Vec<String>,
    ) -> Option<PathBuf> {
        let path = self.overrides_file.clone();
        let is_in_redis = matches!(backend, Backend::Redis { .. });
        no_effect(
            &[("OVERRIDES_FILE", &(path.is_some() && is_in_redis))],
            "overrides are kept in Redis, as the counters are",
            warnings,
        );
        path.filter(|_| !is_in_redis)
    }

    /// Where the debug listener listens, if it is on.
    pub(super) fn address(&self) -> Result<Option<TcpAddress>, SettingError> {
        let host = written(Some(&self.debug_host)).unwrap_or(LOOPBACK);
        self.debug_enabled
            .then(|| address("DEBUG_HOST", Some(host), LOOPBACK, self.debug_port))
            .transpose()
    }
}
