//! The queries of an inspection: INFO, a few settings, and one form of each command that requests
//! need.
//!
//! Rights are checked by trying the commands, because ACL DRYRUN needs Redis 7.0 and an
//! administrator. No query changes anything. A server may refuse any of them, as managed servers
//! do. Sources: redis.io, the pages of INFO, CONFIG GET and "ACL".

use bb8_redis::redis::Value;

use crate::store::redis::connection::options::Topology;
use crate::store::redis::error;
use crate::store::redis::features::{self, KEY, Purpose, Query, Uses};
use crate::store::redis::wire::commands::CommandBuffer;

/// Placeholder argument for a key of another node of the cluster, or of another hash slot.
const FOREIGN_KEY: &str = "{foreign key}";

pub(super) const INFO: Query = &["INFO"];
pub(super) const SAVE: Query = &["CONFIG GET", "save"];
pub(super) const STOPS_WRITES: Query = &["CONFIG GET", "stop-writes-on-bgsave-error"];
pub(super) const FULL_COVERAGE: Query = &["CONFIG GET", "cluster-require-full-coverage"];

/// Reads a key of the node and one of another node in a script that declares neither.
pub(super) const CROSS_SLOT: Query = &[
    "EVAL",
    "return {redis.pcall('GET', ARGV[1]), redis.pcall('GET', ARGV[2])}",
    "0",
    KEY,
    FOREIGN_KEY,
];

/// Declares keys of two slots to a script.
pub(super) const TWO_SLOTS: Query = &["EVAL", "return 1", "2", KEY, FOREIGN_KEY];

/// The effect if a command of requests is missing.
pub(super) const NO_ANSWER: &str = "limits that need these commands get no answer";

/// The commands that every request may need, except MULTI, EXEC and TIME, which every inspection
/// sends first. The commands of scripts are among them, because a script has the rights of its
/// user.
const REQUESTS: Purpose = (
    NO_ANSWER,
    &[
        // A user with the right gets an error about the value, which is not an integer.
        &["INCRBY", KEY, "x"],
        &["EXPIRE", KEY, "1"],
        &["GET", KEY],
        &["MGET", KEY],
        &["SET", KEY, "0", "XX", "PX", "1"],
        &["GETRANGE", KEY, "0", "0"],
        &["SETRANGE", KEY, "0", ""],
        &["STRLEN", KEY],
        &["PEXPIRE", KEY, "1"],
        &["EVAL", "return 1", "0"],
        // The hash of the script above.
        &["EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"],
    ],
);

/// Distinguishes a primary from a replica. Source: redis.io, the page of ROLE.
const BEHIND_SENTINELS: Purpose = (NO_ANSWER, &[&["ROLE"]]);

/// Discovery of the slots, and redirects. ASKING is last, because it applies to the command that
/// follows, which is MULTI and has no key.
const IN_A_CLUSTER: Purpose = (NO_ANSWER, &[&["PING"], &["CLUSTER SLOTS"], &["ASKING"]]);

/// The purposes of a deployment for which commands are needed.
pub(super) fn purposes(topology: &Topology, uses: Uses) -> Vec<Purpose> {
    let of_topology = match topology {
        Topology::Single(_) => None,
        Topology::Sentinel { .. } => Some(BEHIND_SENTINELS),
        Topology::Cluster(_) => Some(IN_A_CLUSTER),
    };
    let further = of_topology.into_iter().chain(features::commands(uses));
    std::iter::once(REQUESTS).chain(further).collect()
}

/// Encodes a query. Placeholders become `key` and `foreign_key`.
pub(super) fn write(query: Query, key: &[u8], foreign_key: &[u8], out: &mut CommandBuffer) {
    let command = out.begin();
    for word in query[0].split(' ') {
        command.arg(word);
    }
    for &argument in &query[1..] {
        match argument {
            KEY => command.arg(key),
            FOREIGN_KEY => command.arg(foreign_key),
            _ => command.arg(argument),
        };
    }
    out.end();
}

/// The settings of a server, as CONFIG GET reports them; `None` for one that the server does not
/// report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerConfig {
    /// Whether `save` has a schedule.
    pub(crate) takes_snapshots: Option<bool>,
    /// `stop-writes-on-bgsave-error`.
    pub(crate) stops_writes: Option<bool>,
    /// `cluster-require-full-coverage`.
    pub(crate) requires_full_coverage: Option<bool>,
}

/// The commands and keys that requests need and that the server refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingAccess {
    /// Commands that the user has no right to.
    pub(crate) denied: Vec<&'static str>,
    /// Features that do not work without them.
    pub(crate) effects: Vec<&'static str>,
    /// Whether the user has no right to Weir's keys.
    pub(crate) keys: bool,
    /// Commands that the server does not have.
    pub(crate) unknown: Vec<&'static str>,
}

impl MissingAccess {
    pub(crate) fn is_empty(&self) -> bool {
        self.denied.is_empty() && self.unknown.is_empty() && !self.keys
    }

    /// Records that the user has no right to a command, which has this effect.
    pub(crate) fn deny(&mut self, name: &'static str, effect: &'static str) {
        for (list, text) in [(&mut self.denied, name), (&mut self.effects, effect)] {
            if !list.contains(&text) {
                list.push(text);
            }
        }
    }

    /// Records the reply to the command `name`, which shows whether the user may use it and whether
    /// the server has it. Returns the name of any other error.
    pub(crate) fn record(
        &mut self,
        name: &'static str,
        effect: &'static str,
        reply: &Value,
    ) -> Option<&'static str> {
        let Value::ServerError(error) = reply else {
            return None;
        };
        let text = error.details().unwrap_or_default();
        match error::name(error::classify(error)) {
            // An error about a command has "to run the 'get' command". Any other NOPERM is about
            // keys.
            error::NO_PERMISSION if text.contains("to run the") => self.deny(name, effect),
            error::NO_PERMISSION => self.keys = true,
            error::UNSUPPORTED => self.unknown.push(name),
            other => return Some(other),
        }
        None
    }
}

/// Whether the reply to [`TWO_SLOTS`] or [`CROSS_SLOT`] shows that a script may use keys of several
/// slots; undeclared ones of the node, and no others, because a service that ran the script anywhere
/// would count on the wrong server. `None` if it shows neither, as while the cluster is down.
pub(super) fn spans_slots(reply: &Value) -> Option<bool> {
    let of_error = |error| error::name(error::classify(error));
    match reply {
        Value::Int(_) => Some(true),
        Value::ServerError(error) => match of_error(error) {
            error::SERVER_ERROR | error::CROSS_SLOT | error::NON_LOCAL_KEY => Some(false),
            _ => None,
        },
        Value::Array(values) => match &values[..] {
            [Value::Nil, Value::ServerError(error)] => {
                Some(of_error(error) == error::NON_LOCAL_KEY)
            }
            [Value::Nil, _] => Some(false),
            [Value::ServerError(error), _] if of_error(error) == error::SERVER_ERROR => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// Reads the reply to CONFIG GET of one setting, which is its name and its value. A reply of
/// another form changes nothing.
pub(super) fn read_config(config: &mut ServerConfig, query: Query, reply: &Value) {
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

#[cfg(test)]
mod tests {
    use bb8_redis::redis::parse_redis_value;

    use super::*;

    /// deploy/redis.md grants the commands of every purpose, and no others but those of overrides.
    #[test]
    fn the_page_of_rights_has_the_commands_of_every_purpose() {
        let page = crate::testing::repository_file("deploy/redis.md");
        let (_, rights) = page.split_once("## Rights").expect("a section");
        let (rights, _) = rights.split_once("\n## ").expect("an end");
        for (begin, purpose) in [
            ("+time ", REQUESTS),
            ("behind\nSentinels", BEHIND_SENTINELS),
            ("in a cluster", IN_A_CLUSTER),
            ("`algorithm: concurrency` need `", features::FEATURES[0].1),
            ("`track_usage` need `", features::FEATURES[2].1),
        ] {
            let names = purpose.1.iter().map(|query| query[0].to_lowercase());
            let names: Vec<_> = names.map(|name| name.replace(' ', "|")).collect();
            let granted = |name: &String| rights.contains(&format!("+{name}"));
            assert!(names.iter().all(granted), "{begin}: {names:?}");
            if begin.ends_with('`') {
                let (_, list) = rights.split_once(begin).expect("a list");
                let (list, _) = list.split_once('`').expect("an end");
                let mut list: Vec<_> = list.split(' ').map(|name| &name[1..]).collect();
                let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
                list.sort_unstable();
                names.sort_unstable();
                assert_eq!(list, names);
            }
        }
    }

    #[test]
    fn a_node_has_to_run_undeclared_keys_of_its_own_and_to_refuse_others() {
        let foreign = "-ERR Script attempted to access a non local key in a cluster node\r\n";
        let down = "-ERR Script attempted to execute a command while the cluster is down\r\n";
        for (reply, expected) in [
            (format!("*2\r\n$-1\r\n{foreign}"), Some(true)),
            ("*2\r\n$-1\r\n$-1\r\n".to_owned(), Some(false)),
            (
                "*2\r\n-ERR undeclared key\r\n-ERR undeclared key\r\n".to_owned(),
                Some(false),
            ),
            (
                "-ERR Number of keys can't be zero\r\n".to_owned(),
                Some(false),
            ),
            ("-CROSSSLOT Keys\r\n".to_owned(), Some(false)),
            (format!("*2\r\n{foreign}{foreign}"), None),
            (foreign.to_owned(), Some(false)),
            (":1\r\n".to_owned(), Some(true)),
            (format!("*2\r\n{down}{down}"), None),
            ("-LOADING x\r\n".to_owned(), None),
            ("-NOPERM x\r\n".to_owned(), None),
            ("$-1\r\n".to_owned(), None),
        ] {
            let value = parse_redis_value(reply.as_bytes()).expect("a reply");
            assert_eq!(spans_slots(&value), expected, "{reply}");
        }
    }
}
