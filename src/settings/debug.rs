//! The settings of the debug listener.

use clap::{ArgAction, Args};

use super::listeners::address;
use super::{SettingError, parse};
use crate::server::TcpAddress;

/// The debug listener.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Debug listener")]
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
pub(super) struct DebugFlags {
    /// Open the debug listener, which shows the limits in force and the counters
    #[arg(long, env = "DEBUG_ENABLED", default_value = "true", value_parser = parse::boolean, value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    debug_enabled: bool,
    /// Address of the debug listener; 0.0.0.0 for all addresses
    ///
    /// It has neither authentication nor TLS, and shows the keys and values of limits.
    #[arg(long, env = "DEBUG_HOST", default_value = "127.0.0.1", value_name = "ADDRESS")]
    debug_host: String,
    /// Port of the debug listener; 0 takes a free port. If it is in use, Weir starts without the debug listener
    #[arg(long, env = "DEBUG_PORT", default_value_t = 6070, value_name = "PORT")]
    debug_port: u16,
}

impl DebugFlags {
    /// Where the debug listener listens, if it is on.
    pub(super) fn address(&self) -> Result<Option<TcpAddress>, SettingError> {
        self.debug_enabled.then(|| address("DEBUG_HOST", Some(&self.debug_host), self.debug_port)).transpose()
    }
}
