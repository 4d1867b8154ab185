//! What can go wrong with Redis, by name: one table says for each whether the command ran, and what a person should look at.
//!
//! The names are labels of metrics and stay as they are. The text that a server sends is never logged or passed on: it may repeat what we
//! sent, and that may have been a password.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bb8_redis::redis::ServerError;
use tokio::time::{Duration, Instant};

use crate::breaker::Why;
use crate::verdict::StoreError;

/// Between two warnings of the same name.
const QUIET: Duration = Duration::from_secs(1);

/// Not by its deadline; whether it ran depends on how far it came.
pub(crate) const TIMEOUT: &str = "timeout";
/// No connection could be made.
pub(crate) const CONNECT: &str = "connect";
/// A connection could not be made in time.
pub(crate) const CONNECT_TIMEOUT: &str = "connect_timeout";
/// A connection broke.
pub(crate) const IO: &str = "io";
/// Redis closed a connection that nobody was using.
pub(crate) const IDLE_CLOSED: &str = "idle_closed";
/// The reply is not one to what was asked.
pub(crate) const PROTOCOL: &str = "protocol";
/// User name or password are refused.
pub(crate) const AUTH: &str = "auth";
/// One of the two does not trust the other's certificate.
pub(crate) const TLS_CERTIFICATE: &str = "tls_certificate";
/// Anything else about TLS.
pub(crate) const TLS: &str = "tls";
/// There is no such database.
pub(crate) const DATABASE: &str = "database";
/// The server does not know a command that we need.
pub(crate) const UNSUPPORTED: &str = "unsupported";
/// The user may not use a command or a key.
pub(crate) const NO_PERMISSION: &str = "noperm";
/// The script is not in the server's cache.
pub(crate) const NO_SCRIPT: &str = "noscript";
/// The server is a replica.
pub(crate) const READONLY: &str = "readonly";
/// The node of a cluster does not have the slot.
pub(crate) const MOVED: &str = "moved";
/// The node of a cluster gives the slot away, and this key is gone already.
pub(crate) const ASK: &str = "ask";
/// The node of a cluster gives the slot away, and some of the keys are gone already.
pub(crate) const TRY_AGAIN: &str = "tryagain";
/// No node of the cluster has the slot, or the cluster says that it is down.
pub(crate) const CLUSTER_DOWN: &str = "clusterdown";
/// Nobody has told yet who is the primary, or who has which slots.
pub(crate) const NO_PRIMARY: &str = "no_primary";
/// A transaction was refused.
pub(crate) const EXEC_ABORT: &str = "execabort";
/// A script came after its deadline.
const LATE: &str = "late";
/// Too many requests wait already, for the time that there is.
pub(crate) const QUEUE_FULL: &str = "queue_full";
/// What is stored is no whole number.
pub(crate) const NOT_AN_INTEGER: &str = "not_an_integer";
/// A counter is below zero.
pub(crate) const RANGE: &str = "range";
/// A counter is at the most that Redis counts to; means "over the limit" and leaves this room as a verdict.
pub(crate) const OVERFLOW: &str = "overflow";

const MAY_NOT: &str = "the Redis user needs the commands MULTI, EXEC, TIME, INCRBY, EXPIRE, GET, MGET, SET, GETRANGE, SETRANGE, STRLEN, \
                       PEXPIRE, EVALSHA and EVAL on the keys of Weir";

const NODE: &str =
    "this Redis is a node of a cluster: set REDIS_TYPE=cluster; if it is set, the slot moves on faster than it can be followed";

const LOGIN: &str = "Redis refuses the user name or password: check REDIS_AUTH, REDIS_AUTH_FILE and REDIS_URL";

const NO_DATABASE: &str = "Redis has no database of that number: check the end of REDIS_URL";

pub(crate) const SERVER_ERROR: &str = "server_error";

/// Why there is no connection.
#[derive(Debug)]
pub(crate) struct ConnectError {
    pub(crate) name: &'static str,
    /// For the log: what the system or TLS says, or a hint of ours; never what the server says.
    pub(crate) cause: Option<String>,
}

impl From<StoreError> for ConnectError {
    fn from(error: StoreError) -> Self {
        Self { name: name(error), cause: None }
    }
}

/// One kind of error.
#[derive(Debug)]
pub(crate) struct ErrorKind {
    /// The first word of the error.
    code: &'static str,
    /// What its text holds; empty = any.
    text: &'static str,
    pub(crate) name: &'static str,
    outcome: fn(&'static str) -> StoreError,
    /// Another connection may lead to a server that does better.
    breaks_connection: bool,
    /// A person has to change a setting, here or in Redis, before it gets better.
    is_config: bool,
    /// For the log: what it means and what to do.
    means: &'static str,
}

const fn kind(
    code: &'static str,
    text: &'static str,
    name: &'static str,
    outcome: fn(&'static str) -> StoreError,
    means: &'static str,
) -> ErrorKind {
    ErrorKind { code, text, name, outcome, breaks_connection: false, is_config: false, means }
}

const fn breaking(mut kind: ErrorKind) -> ErrorKind {
    kind.breaks_connection = true;
    kind
}

const fn config(mut kind: ErrorKind) -> ErrorKind {
    kind.is_config = true;
    kind
}

use StoreError::{Data, NotExecuted, Unknown};

/// The first line that fits counts.
static KINDS: [ErrorKind; 43] = [
    // What a server says.
    kind("NOSCRIPT", "", NO_SCRIPT, NotExecuted, "Redis did not know a script even when its text was sent along"),
    kind("LOADING", "", "loading", NotExecuted, "Redis is loading its data; it answers when it is done"),
    kind("BUSY", "", "busy", NotExecuted, "somebody's slow script blocks Redis"),
    kind("OOM", "", "oom", NotExecuted, "Redis is full (maxmemory) and may not evict: give it more memory"),
    kind("MISCONF", "", "misconf", NotExecuted, "Redis refuses writes because it cannot save to disk: look at its log"),
    kind("NOREPLICAS", "", "noreplicas", NotExecuted, "Redis refuses writes because too few replicas are in sync (min-replicas-to-write)"),
    breaking(kind("READONLY", "", READONLY, NotExecuted, "this Redis is a replica: connect to the primary")),
    breaking(kind("MASTERDOWN", "", "masterdown", NotExecuted, "this Redis is a replica that lost its primary: connect to the primary")),
    config(breaking(kind("NOAUTH", "", AUTH, NotExecuted, LOGIN))),
    config(breaking(kind("WRONGPASS", "", AUTH, NotExecuted, LOGIN))),
    config(breaking(kind("ERR", "AUTH <password>", AUTH, NotExecuted, LOGIN))),
    config(kind("ERR", "invalid password", AUTH, NotExecuted, LOGIN)),
    config(kind("NOPERM", "", NO_PERMISSION, NotExecuted, MAY_NOT)),
    // From inside of a script, which may have written with a command that it may use.
    config(kind("ERR", "executing the script can't", NO_PERMISSION, Unknown, MAY_NOT)),
    config(kind("ERR", "unknown command", UNSUPPORTED, NotExecuted, "the server does not know MULTI, TIME or EVALSHA, which Weir needs")),
    config(kind("ERR", "cluster support disabled", "no_cluster", NotExecuted, "this Redis is no cluster: set REDIS_TYPE=single")),
    config(kind("DENIED", "", "denied", NotExecuted, "Redis is in protected mode: give it a password, or bind it to its network")),
    kind("ERR", "max number of clients", "maxclients", NotExecuted, "Redis has no room for more connections (maxclients)"),
    config(kind("ERR", "DB index", DATABASE, NotExecuted, NO_DATABASE)),
    kind("MOVED", "", MOVED, NotExecuted, NODE),
    kind("ASK", "", ASK, NotExecuted, NODE),
    kind("CROSSSLOT", "", "crossslot", NotExecuted, NODE),
    kind("CLUSTERDOWN", "", CLUSTER_DOWN, NotExecuted, "the Redis cluster is down, or nobody has the slot"),
    kind("TRYAGAIN", "", TRY_AGAIN, NotExecuted, "the Redis cluster is moving a slot"),
    kind("LATE", "", LATE, NotExecuted, "Redis came to a script after its deadline; nothing was counted"),
    kind("EXECABORT", "", EXEC_ABORT, NotExecuted, "Redis refused a transaction"),
    kind(
        "WRONGTYPE",
        "",
        "wrongtype",
        Data,
        "a counter's key holds something that is no counter: another program writes under the same prefix",
    ),
    kind(
        "ERR",
        "not an integer",
        NOT_AN_INTEGER,
        Data,
        "a counter's key holds something that is no counter: another program writes under the same prefix",
    ),
    kind("ERR", "would overflow", OVERFLOW, Data, "a counter is at the most that Redis counts to"),
    // What we see ourselves; no server sends an empty code.
    kind("", TIMEOUT, TIMEOUT, Unknown, "Redis did not answer in time"),
    kind("", CONNECT, CONNECT, NotExecuted, "no connection to Redis: check that it runs and that REDIS_URL is right"),
    kind("", CONNECT_TIMEOUT, CONNECT_TIMEOUT, NotExecuted, "no connection to Redis in time: it hangs, or something drops the packets"),
    kind("", IO, IO, Unknown, "a connection to Redis broke"),
    kind("", IDLE_CLOSED, IDLE_CLOSED, NotExecuted, "Redis closed a connection that was idle"),
    breaking(kind("", PROTOCOL, PROTOCOL, Unknown, "a reply is not one of Redis: check what listens at the address of REDIS_URL")),
    config(kind("", AUTH, AUTH, NotExecuted, LOGIN)),
    kind("", NO_PRIMARY, NO_PRIMARY, NotExecuted, "no Sentinel or node has told where the primaries are: check REDIS_URL and REDIS_TYPE"),
    kind("", QUEUE_FULL, QUEUE_FULL, NotExecuted, "more requests wait for Redis than it can answer in time: it is too slow for this load"),
    kind("", RANGE, RANGE, Data, "a counter is below zero: another program writes under the same prefix"),
    config(kind(
        "",
        TLS_CERTIFICATE,
        TLS_CERTIFICATE,
        NotExecuted,
        "a certificate is refused: check REDIS_TLS_CACERT, REDIS_TLS_CLIENT_CERT, and the name and dates of Redis's certificate",
    )),
    config(kind("", TLS, TLS, NotExecuted, "TLS to Redis fails: check that the port of REDIS_URL speaks it, and REDIS_TLS")),
    config(kind("", DATABASE, DATABASE, NotExecuted, NO_DATABASE)),
    // Anything else, and versions to come.
    kind("", "", SERVER_ERROR, Unknown, "Redis answered with an error that Weir does not know"),
];

impl ErrorKind {
    /// What a caller is told.
    pub(crate) fn error(&self) -> StoreError {
        (self.outcome)(self.name)
    }
}

/// The kind of an error reply.
pub(crate) fn classify(error: &ServerError) -> &'static ErrorKind {
    find(error.code(), error.details().unwrap_or_default())
}

/// The kind of an error as a line: its code, a space, its text.
pub(crate) fn classify_line(line: &[u8]) -> &'static ErrorKind {
    let line = String::from_utf8_lossy(line.strip_prefix(b"-").unwrap_or(line));
    let (code, text) = line.split_once(' ').unwrap_or((&line, ""));
    find(code, text)
}

fn find(code: &str, text: &str) -> &'static ErrorKind {
    // Redis 7 names what made it refuse the transaction.
    if let ("EXECABORT", Some((_, cause))) = (code, text.split_once("because of: ")) {
        return classify_line(cause.as_bytes());
    }
    let last = &KINDS[KINDS.len() - 1];
    KINDS.iter().find(|kind| kind.code == code && !code.is_empty() && text.contains(kind.text)).unwrap_or(last)
}

/// Whether the connection that an error came from should not be used again.
pub(crate) fn breaks_connection(error: StoreError) -> bool {
    KINDS.iter().any(|kind| kind.breaks_connection && kind.name == name(error))
}

/// Whether the answer to a request speaks against the server as a whole, and in what way. Not if it is about one key or one command, is a
/// matter of finding the right server, or is our own.
pub(crate) fn server_failure(error: StoreError) -> Option<Why> {
    match error {
        Data(_) => None,
        NotExecuted(NO_SCRIPT | MOVED | ASK | TRY_AGAIN | LATE | EXEC_ABORT | QUEUE_FULL | IDLE_CLOSED) => None,
        // A right that one algorithm needs says nothing about the others; the watch says what is missing.
        NotExecuted(NO_PERMISSION | UNSUPPORTED) | Unknown(NO_PERMISSION) => None,
        NotExecuted(name) | Unknown(name) => Some(failure_kind(name)),
    }
}

/// What it means that no connection can be had, by the name of the reason.
pub(crate) fn failure_kind(name: &str) -> Why {
    if is_config(name) { Why::Config } else { Why::Outage }
}

/// Whether what failed like this did certainly not run, and may well do so when it is asked once more.
pub(crate) fn is_retryable(error: StoreError) -> bool {
    matches!(error, NotExecuted(MOVED | ASK | TRY_AGAIN | READONLY | EXEC_ABORT | IO | IDLE_CLOSED))
}

/// Whether a person has to change a setting before an error of this name ends.
fn is_config(name: &str) -> bool {
    KINDS.iter().any(|kind| kind.is_config && kind.name == name)
}

pub(crate) fn name(error: StoreError) -> &'static str {
    let (NotExecuted(name) | Unknown(name) | Data(name)) = error;
    name
}

pub(crate) fn meaning(name: &str) -> &'static str {
    KINDS.iter().find(|kind| kind.name == name).map_or("", |kind| kind.means)
}

/// How often each error happened; warns of it at most once a second.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters(Mutex<BTreeMap<&'static str, ErrorCounter>>);

#[derive(Debug, Default)]
struct ErrorCounter {
    count: u64,
    warned_at: Option<Instant>,
    warned_of: u64,
}

impl ErrorCounters {
    /// Counts an error. `cause` is for the log and must hold nothing that we sent.
    pub(crate) fn record(&self, name: &'static str, cause: Option<&str>) {
        let now = Instant::now();
        let times = {
            let mut error_counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let counter = error_counters.entry(name).or_default();
            counter.count += 1;
            if counter.warned_at.is_some_and(|at| now.saturating_duration_since(at) < QUIET) {
                return;
            }
            counter.warned_at = Some(now);
            counter.count - std::mem::replace(&mut counter.warned_of, counter.count)
        };
        tracing::warn!(error = name, times, cause, "Redis: {}", meaning(name));
    }

    /// Counts an attempt to connect that failed.
    pub(crate) fn record_failed_connect(&self, error: &ConnectError) {
        self.record(error.name, error.cause.as_deref());
    }

    /// All counts, by name.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let error_counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        error_counters.iter().map(|(&name, counter)| (name, counter.count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::{Value, parse_redis_value};

    use super::*;

    /// Lines as redis-server 7.0.15 sends them, and what is made of them.
    #[test]
    fn captured_errors_have_the_right_outcome() {
        let table = [
            ("NOSCRIPT No matching script. Please use EVAL.", NotExecuted("noscript")),
            ("LOADING Redis is loading the dataset in memory", NotExecuted("loading")),
            ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", NotExecuted("busy")),
            ("OOM command not allowed when used memory > 'maxmemory'.", NotExecuted("oom")),
            ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", NotExecuted("misconf")),
            ("NOREPLICAS Not enough good replicas to write.", NotExecuted("noreplicas")),
            ("READONLY You can't write against a read only replica.", NotExecuted("readonly")),
            ("MASTERDOWN Connection with MASTER is down and replica-serve-stale-data is set to 'no'.", NotExecuted("masterdown")),
            ("NOAUTH Authentication required.", NotExecuted("auth")),
            ("WRONGPASS invalid username-password pair or user is disabled.", NotExecuted("auth")),
            (
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
                NotExecuted("auth"),
            ),
            ("NOPERM this user has no permissions to run the 'incrby' command", NotExecuted("noperm")),
            ("ERR unknown command 'EVALSHA', with args beginning with: 'x' ", NotExecuted("unsupported")),
            ("ERR max number of clients reached", NotExecuted("maxclients")),
            ("ERR DB index is out of range", NotExecuted("database")),
            ("MOVED 3999 127.0.0.1:6381", NotExecuted("moved")),
            ("ASK 3999 127.0.0.1:6381", NotExecuted("ask")),
            ("CROSSSLOT Keys in request don't hash to the same slot", NotExecuted("crossslot")),
            ("CLUSTERDOWN The cluster is down", NotExecuted("clusterdown")),
            ("TRYAGAIN Multiple keys request during rehashing of slot", NotExecuted("tryagain")),
            ("EXECABORT Transaction discarded because of previous errors.", NotExecuted("execabort")),
            ("EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.", NotExecuted("oom")),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Data("wrongtype")),
            ("ERR value is not an integer or out of range", Data("not_an_integer")),
            ("ERR increment or decrement would overflow", Data("overflow")),
            ("ERR something new", Unknown("server_error")),
            ("FUTURE error", Unknown("server_error")),
            ("", Unknown("server_error")),
        ];
        for (line, expected) in table {
            let Ok(Value::ServerError(error)) = parse_redis_value(format!("-{line}\r\n").as_bytes()) else { panic!("{line}") };
            assert_eq!(classify(&error).error(), expected, "{line}");
            assert_eq!(classify_line(line.as_bytes()).error(), expected, "{line}");
        }
    }

    #[test]
    fn every_kind_has_a_name_and_a_meaning() {
        for kind in &KINDS {
            assert!(!kind.name.is_empty() && !meaning(kind.name).is_empty(), "{kind:?}");
        }
        for (name, breaks) in [("readonly", true), ("masterdown", true), ("auth", true), ("loading", false), ("oom", false)] {
            assert_eq!(breaks_connection(NotExecuted(name)), breaks, "{name}");
        }
    }

    #[test]
    fn what_a_person_has_to_mend_is_marked() {
        let mut marked: Vec<_> = KINDS.iter().map(|kind| kind.name).filter(|name| is_config(name)).collect();
        marked.sort_unstable();
        marked.dedup();
        assert_eq!(marked, ["auth", "database", "denied", "no_cluster", "noperm", "tls", "tls_certificate", "unsupported"]);
        // A name is of one sort, whichever line of the table it comes from.
        for kind in &KINDS {
            assert_eq!(kind.is_config, is_config(kind.name), "{kind:?}");
        }
    }

    #[test]
    fn counts_go_on_while_the_log_is_quiet() {
        let error_counters = ErrorCounters::default();
        for _ in 0..1_000 {
            error_counters.record(IO, None);
        }
        error_counters.record(TIMEOUT, Some("late"));
        assert_eq!(error_counters.counts(), [(IO, 1_000), (TIMEOUT, 1)]);
    }
}
