//! The queries of an inspection: INFO, a few settings, and one form of each command that requests
//! need.
//!
//! Rights are checked by trying the commands, because ACL DRYRUN needs Redis 7.0 and an
//! administrator. No query changes anything. A server may refuse any of them, as managed servers
//! do. Sources: redis.io, the pages of INFO, CONFIG GET and "ACL".

use bb8_redis::redis::Value;

use super::diagnostics::{Config, MissingAccess, USAGE_COMMANDS};
use crate::store::redis::connection::options::Topology;
use crate::store::redis::error;
use crate::store::redis::wire::commands::CommandBuffer;

/// One query of an inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Query {
    Info,
    /// CONFIG GET of the setting with this name.
    Config(&'static str),
    /// Shows whether the user may use the command.
    Required(RequiredCommand),
}

pub(super) const SAVE: Query = Query::Config("save");
pub(super) const STOPS_WRITES: Query = Query::Config("stop-writes-on-bgsave-error");
pub(super) const FULL_COVERAGE: Query = Query::Config("cluster-require-full-coverage");

/// A command that requests need, in a form that changes nothing. If it has a key, that key does not
/// exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequiredCommand {
    pub(super) name: &'static str,
    pub(super) has_key: bool,
    arguments: &'static [&'static str],
}

const fn on_key(name: &'static str, arguments: &'static [&'static str]) -> RequiredCommand {
    RequiredCommand {
        name,
        has_key: true,
        arguments,
    }
}

const fn without_key(name: &'static str, arguments: &'static [&'static str]) -> RequiredCommand {
    RequiredCommand {
        name,
        has_key: false,
        arguments,
    }
}

/// The commands that every request may need, except MULTI, EXEC and TIME, which every inspection
/// sends first. The commands of scripts are among them, because a script has the rights of its
/// user.
pub(super) const REQUIRED: [RequiredCommand; 11] = [
    // A user with the right gets an error about the value, which is not an integer.
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
    // The hash of the script above.
    without_key(
        "EVALSHA",
        &["e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"],
    ),
];

/// Tells a primary from a replica. Source: redis.io, the page of ROLE.
pub(super) const REQUIRED_BEHIND_SENTINELS: RequiredCommand = without_key("ROLE", &[]);

/// Discovery of the slots, and redirects. ASKING is last, because it applies to the command that
/// follows, which is MULTI and has no key.
pub(super) const REQUIRED_IN_A_CLUSTER: [RequiredCommand; 3] = [
    without_key("PING", &[]),
    without_key("CLUSTER SLOTS", &[]),
    without_key("ASKING", &[]),
];

/// The commands of the index of usage, for a deployment with limits that have `track_usage`.
const REQUIRED_FOR_USAGE: [RequiredCommand; 5] = {
    let [zadd, zremrangebyrank, zrange, zrem, zcard] = USAGE_COMMANDS;
    [
        on_key(zadd, &["XX", "0", "x"]),
        on_key(zremrangebyrank, &["0", "0"]),
        on_key(zrange, &["0", "0", "REV"]),
        on_key(zrem, &["x"]),
        on_key(zcard, &[]),
    ]
};

pub(super) fn required_commands(
    topology: &Topology,
    has_usage: bool,
) -> impl Iterator<Item = RequiredCommand> {
    let further: &[RequiredCommand] = match topology {
        Topology::Single(_) => &[],
        Topology::Sentinel { .. } => &[REQUIRED_BEHIND_SENTINELS],
        Topology::Cluster(_) => &REQUIRED_IN_A_CLUSTER,
    };
    let usage = if has_usage {
        &REQUIRED_FOR_USAGE[..]
    } else {
        &[]
    };
    REQUIRED.iter().chain(further).chain(usage).copied()
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

/// Reads the reply to CONFIG GET of one setting, which is its name and its value. A reply of
/// another form changes nothing.
pub(super) fn read_config(config: &mut Config, query: Query, reply: &Value) {
    let Value::Array(pair) = reply else { return };
    let [_, Value::BulkString(value)] = pair.as_slice() else {
        return;
    };
    let is_yes = Some(value == b"yes");
    match query {
        SAVE => config.takes_snapshots = Some(!value.is_empty()),
        STOPS_WRITES => config.stops_writes = is_yes,
        FULL_COVERAGE => config.requires_full_coverage = is_yes,
        _ => {}
    }
}

/// Why a command failed.
pub(super) enum CommandError {
    /// The user or the server lacks something that only an operator can change.
    NoAccess(MissingAccess),
    /// Another error, by its name.
    Other(&'static str),
}

/// Checks whether the reply to the command `name` shows that the user may use it and that the
/// server knows it.
///
/// # Errors
/// Any error reply.
pub(super) fn check_access(name: &'static str, reply: &Value) -> Result<(), CommandError> {
    let Value::ServerError(error) = reply else {
        return Ok(());
    };
    let mut missing = MissingAccess::default();
    match error::name(error::classify(error)) {
        // An error about a command says "to run the 'get' command". Any other NOPERM is about keys.
        error::NO_PERMISSION
            if error
                .details()
                .is_some_and(|text| text.contains("to run the")) =>
        {
            missing.denied.push(name);
        }
        error::NO_PERMISSION => missing.keys = true,
        error::UNSUPPORTED => missing.unknown.push(name),
        other => return Err(CommandError::Other(other)),
    }
    Err(CommandError::NoAccess(missing))
}
