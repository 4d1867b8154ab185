//! What an inspection asks a server: INFO, a few settings, and whether the user may use each command that requests need.
//!
//! No query changes anything. A server may refuse any of them, as managed servers do. Source of the reply formats: redis.io, the pages of INFO,
//! CONFIG GET and ACL.

use bb8_redis::redis::Value;

use super::diagnostics::{Config, MissingAccess};
use crate::store::redis::connection::options::Topology;
use crate::store::redis::error;
use crate::store::redis::wire::commands::CommandBuffer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Query {
    Info,
    /// A name for CONFIG GET.
    Config(&'static str),
    /// Whether the user may use it.
    Required(RequiredCommand),
}

pub(super) const SAVE: Query = Query::Config("save");
pub(super) const STOPS_WRITES: Query = Query::Config("stop-writes-on-bgsave-error");
pub(super) const FULL_COVERAGE: Query = Query::Config("cluster-require-full-coverage");

/// A command as requests use it, in a form that changes nothing, on a key that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequiredCommand {
    pub(super) name: &'static str,
    pub(super) has_key: bool,
    arguments: &'static [&'static str],
}

const fn on_key(name: &'static str, arguments: &'static [&'static str]) -> RequiredCommand {
    RequiredCommand { name, has_key: true, arguments }
}

const fn without_key(name: &'static str, arguments: &'static [&'static str]) -> RequiredCommand {
    RequiredCommand { name, has_key: false, arguments }
}

/// MULTI, EXEC and TIME are asked in every look. Scripts may use no more than their user, so that their commands are among these.
pub(super) const REQUIRED: [RequiredCommand; 11] = [
    // Refused as no number, if not before.
    on_key("INCRBY", &["x"]),
    on_key("EXPIRE", &["1"]),
    on_key("GET", &[]),
    on_key("MGET", &[]),
    on_key("SET", &["0", "XX", "PX", "1"]),
    on_key("GETRANGE", &["0", "0"]),
    on_key("SETRANGE", &["0", ""]),
    on_key("STRLEN", &[]),
    on_key("PEXPIRE", &["1"]),
    without_key("EVAL", &["return 1", "0"]),
    // The script before.
    without_key("EVALSHA", &["e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"]),
];

/// How a primary is told from a replica.
pub(super) const REQUIRED_BEHIND_SENTINELS: RequiredCommand = without_key("ROLE", &[]);

/// How slots are found; ASKING is last, because it is meant for what follows it, and MULTI does not mind.
pub(super) const REQUIRED_IN_A_CLUSTER: [RequiredCommand; 3] =
    [without_key("PING", &[]), without_key("CLUSTER SLOTS", &[]), without_key("ASKING", &[])];

pub(super) fn required_commands(topology: &Topology) -> impl Iterator<Item = RequiredCommand> {
    let further: &[RequiredCommand] = match topology {
        Topology::Single(_) => &[],
        Topology::Sentinel { .. } => &[REQUIRED_BEHIND_SENTINELS],
        Topology::Cluster(_) => &REQUIRED_IN_A_CLUSTER,
    };
    REQUIRED.iter().chain(further).copied()
}

impl Query {
    pub(super) fn write(self, key: &[u8], out: &mut CommandBuffer) {
        match self {
            Self::Info => drop(out.command("INFO")),
            Self::Config(name) => drop(out.command("CONFIG").arg("GET").arg(name)),
            Self::Required(command) => {
                let out_command = out.begin();
                for word in command.name.split(' ') {
                    out_command.arg(word);
                }
                if command.has_key {
                    out_command.arg(key);
                }
                for argument in command.arguments {
                    out_command.arg(*argument);
                }
            }
        }
        out.end();
    }
}

/// The reply to CONFIG GET: name and value.
pub(super) fn read_config(config: &mut Config, query: Query, reply: &Value) {
    let Value::Array(pair) = reply else { return };
    let [_, Value::BulkString(value)] = pair.as_slice() else { return };
    let is_yes = Some(value == b"yes");
    match query {
        SAVE => config.takes_snapshots = Some(!value.is_empty()),
        STOPS_WRITES => config.stops_writes = is_yes,
        FULL_COVERAGE => config.needs_full_coverage = is_yes,
        _ => {}
    }
}

/// Why a command was refused.
pub(super) enum Refusal {
    /// As it will be every time.
    Access(MissingAccess),
    /// By an error of this name.
    Otherwise(&'static str),
}

pub(super) fn check_access(name: &'static str, reply: &Value) -> Result<(), Refusal> {
    let Value::ServerError(error) = reply else { return Ok(()) };
    let mut missing = MissingAccess::default();
    match error::classify(error).name {
        // "... to run the 'get' command", or else it is about keys.
        error::NO_PERMISSION if error.details().is_some_and(|text| text.contains("to run the")) => missing.denied.push(name),
        error::NO_PERMISSION => missing.keys = true,
        error::UNSUPPORTED => missing.commands.push(name),
        kind => return Err(Refusal::Otherwise(kind)),
    }
    Err(Refusal::Access(missing))
}
