//! The table of errors of Redis and of the connections to it: for each error its name, whether the
//! command ran, and what an operator can do.
//!
//! A retry is safe only after an error that proves that the command did not run, and a circuit
//! breaker must not open for an error that concerns one key. Both are decided here, in one place,
//! and tested against the error lines of a real server.
//!
//! The names are label values of metrics (`error="..."`), and must not change. The text that a
//! server sends must not be logged or passed on, because it may repeat what Weir sent, which may
//! have been a password.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use bb8_redis::redis::ServerError;

use crate::core::breaker::Why;
use crate::core::lock;
use crate::core::verdict::StoreError;

/// No reply before the deadline. The command did not run if no byte of it was sent.
pub(crate) const TIMEOUT: &str = "timeout";
/// The host name has no address, or no DNS server answers in time.
pub(crate) const DNS: &str = "dns";
/// No connection could be made.
pub(crate) const CONNECT: &str = "connect";
/// A connection could not be made in time.
pub(crate) const CONNECT_TIMEOUT: &str = "connect_timeout";
/// A connection broke. The command did not run if no byte of it was sent.
pub(crate) const IO: &str = "io";
/// Redis closed an idle connection.
pub(crate) const IDLE_CLOSED: &str = "idle_closed";
/// The reply does not fit the command, or is not RESP.
pub(crate) const PROTOCOL: &str = "protocol";
/// The user name or the password is wrong.
pub(crate) const AUTH: &str = "auth";
/// Weir or the server does not trust the other's certificate.
pub(crate) const TLS_CERTIFICATE: &str = "tls_certificate";
/// Any other TLS error.
pub(crate) const TLS: &str = "tls";
/// The server has no database of that number.
pub(crate) const DATABASE: &str = "database";
/// The server does not know a command that Weir needs.
pub(crate) const UNSUPPORTED: &str = "unsupported";
/// The Redis user has no permission for a command or a key.
pub(crate) const NO_PERMISSION: &str = "noperm";
/// The script is not in the server's cache (NOSCRIPT).
pub(crate) const NO_SCRIPT: &str = "noscript";
/// The server is a replica (READONLY).
pub(crate) const READONLY: &str = "readonly";
/// The node of a cluster does not own the slot (MOVED).
pub(crate) const MOVED: &str = "moved";
/// The slot is being migrated, and the node does not have this key (ASK).
pub(crate) const ASK: &str = "ask";
/// The slot is being migrated, and the node does not have all keys of the command (TRYAGAIN).
pub(crate) const TRY_AGAIN: &str = "tryagain";
/// No node of the cluster owns the slot, or the cluster is down (CLUSTERDOWN).
pub(crate) const CLUSTER_DOWN: &str = "clusterdown";
/// The primary, or the owners of the slots, are not known yet.
pub(crate) const NO_PRIMARY: &str = "no_primary";
/// A transaction was discarded (EXECABORT).
pub(crate) const EXEC_ABORT: &str = "execabort";
/// The script ran after the caller's deadline, and counted nothing.
pub(crate) const LATE: &str = "late";
/// Too many requests wait for the server, given the time left until the deadline.
pub(crate) const QUEUE_FULL: &str = "queue_full";
/// The stored value is not an integer.
pub(crate) const NOT_AN_INTEGER: &str = "not_an_integer";
/// A counter is below zero.
pub(crate) const RANGE: &str = "range";
/// An INCRBY would overflow 64 bits. The batch turns this error into a verdict: over the limit.
pub(crate) const OVERFLOW: &str = "overflow";

const MISSING_PERMISSION: &str = "the Redis user needs the commands MULTI, EXEC, TIME, INCRBY, \
    EXPIRE, GET, MGET, SET, GETRANGE, SETRANGE, STRLEN, PEXPIRE, EVALSHA and EVAL on the keys of \
    Weir";

const CLUSTER_NODE: &str = "this Redis is a node of a cluster: set REDIS_TYPE=cluster; if that is \
    set, the slot moved again before Weir could follow";

const REFUSED_LOGIN: &str =
    "Redis refuses the login: check REDIS_AUTH, REDIS_AUTH_FILE and REDIS_URL";

const NO_DATABASE: &str = "Redis has no database of that number: check the end of REDIS_URL";

/// An error that the table does not know.
pub(crate) const SERVER_ERROR: &str = "server_error";

/// Why a server cannot be used, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the error, as in metrics.
    pub error: &'static str,
    /// The message of the operating system or of TLS, or a hint by Weir; never text of the server.
    pub cause: Option<Arc<str>>,
}

impl Failure {
    /// An error without a further cause.
    #[must_use]
    pub const fn new(error: &'static str) -> Self {
        Self { error, cause: None }
    }

    /// What the error means, and the remedy.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        meaning(self.error)
    }
}

impl From<&ConnectError> for Failure {
    fn from(error: &ConnectError) -> Self {
        Self {
            error: error.name,
            cause: error.cause.as_deref().map(Arc::from),
        }
    }
}

/// Why an attempt to connect failed.
#[derive(Debug)]
pub(crate) struct ConnectError {
    /// The name of the error in the table.
    pub(crate) name: &'static str,
    /// For the log: the message of the operating system or of TLS, or a hint by Weir; never text of
    /// the server.
    pub(crate) cause: Option<String>,
}

impl ConnectError {
    /// An error without a further cause.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, cause: None }
    }

    /// An error with its cause.
    pub(crate) fn because(name: &'static str, cause: impl Into<String>) -> Self {
        let cause = Some(cause.into());
        Self { name, cause }
    }

    /// The same error, with the address of the one of several servers in its cause.
    pub(crate) fn of(self, server: &impl fmt::Display) -> Self {
        let cause = self
            .cause
            .map_or_else(|| server.to_string(), |cause| format!("{server}: {cause}"));
        Self {
            cause: Some(cause),
            ..self
        }
    }
}

impl From<StoreError> for ConnectError {
    fn from(error: StoreError) -> Self {
        Self::new(name(error))
    }
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct ErrorKind {
    /// The first word of the server's error line; empty for errors that Weir notices itself.
    code: &'static str,
    /// A part of the rest of the line; empty for any text.
    text: &'static str,
    /// The label value in metrics.
    pub(crate) name: &'static str,
    /// Whether the command ran.
    outcome: fn(&'static str) -> StoreError,
    /// The connection is closed, because a new one may reach a server that works.
    breaks_connection: bool,
    /// An operator has to change a setting of Weir or of Redis.
    is_config: bool,
    /// For the log: the cause and the remedy.
    meaning: &'static str,
}

const fn kind(
    code: &'static str,
    text: &'static str,
    name: &'static str,
    outcome: fn(&'static str) -> StoreError,
    meaning: &'static str,
) -> ErrorKind {
    ErrorKind {
        code,
        text,
        name,
        outcome,
        breaks_connection: false,
        is_config: false,
        meaning,
    }
}

/// Error replies of a server with this code.
const fn reply(
    code: &'static str,
    name: &'static str,
    outcome: fn(&'static str) -> StoreError,
    meaning: &'static str,
) -> ErrorKind {
    kind(code, "", name, outcome, meaning)
}

/// Error replies with the code ERR and this text.
const fn err(
    text: &'static str,
    name: &'static str,
    outcome: fn(&'static str) -> StoreError,
    meaning: &'static str,
) -> ErrorKind {
    kind("ERR", text, name, outcome, meaning)
}

/// An error that Weir notices itself: no server sends an empty code.
const fn own(
    name: &'static str,
    outcome: fn(&'static str) -> StoreError,
    meaning: &'static str,
) -> ErrorKind {
    kind("", name, name, outcome, meaning)
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

/// The first row that matches counts.
static KINDS: [ErrorKind; 45] = [
    // Error replies of a server.
    reply(
        "NOSCRIPT",
        NO_SCRIPT,
        NotExecuted,
        "Redis did not know the script although its text was sent",
    ),
    reply(
        "LOADING",
        "loading",
        NotExecuted,
        "Redis is loading its data set, and will answer when it is loaded",
    ),
    reply(
        "BUSY",
        "busy",
        NotExecuted,
        "a slow script blocks Redis: find the client that runs it",
    ),
    reply(
        "OOM",
        "oom",
        NotExecuted,
        "Redis is out of memory (maxmemory) and may not evict keys: raise maxmemory",
    ),
    reply(
        "MISCONF",
        "misconf",
        NotExecuted,
        "Redis refuses writes because it cannot save to disk: read its log",
    ),
    reply(
        "NOREPLICAS",
        "noreplicas",
        NotExecuted,
        "Redis refuses writes because too few replicas are in sync (min-replicas-to-write)",
    ),
    breaking(reply(
        "READONLY",
        READONLY,
        NotExecuted,
        "this Redis is a replica: connect to the primary",
    )),
    breaking(reply(
        "MASTERDOWN",
        "masterdown",
        NotExecuted,
        "this Redis is a replica without a link to its primary: connect to the primary",
    )),
    config(breaking(reply("NOAUTH", AUTH, NotExecuted, REFUSED_LOGIN))),
    config(breaking(reply(
        "WRONGPASS",
        AUTH,
        NotExecuted,
        REFUSED_LOGIN,
    ))),
    config(breaking(err(
        "AUTH <password>",
        AUTH,
        NotExecuted,
        REFUSED_LOGIN,
    ))),
    config(err("invalid password", AUTH, NotExecuted, REFUSED_LOGIN)),
    config(reply(
        "NOPERM",
        NO_PERMISSION,
        NotExecuted,
        MISSING_PERMISSION,
    )),
    // Raised inside a script, which may have written before with a command that is permitted.
    config(err(
        "executing the script can't",
        NO_PERMISSION,
        Unknown,
        MISSING_PERMISSION,
    )),
    // The same since Redis 7.2.
    config(err(
        "ACL failure in script",
        NO_PERMISSION,
        Unknown,
        MISSING_PERMISSION,
    )),
    config(err(
        "unknown command",
        UNSUPPORTED,
        NotExecuted,
        "the server does not know MULTI, TIME or EVALSHA, which Weir needs",
    )),
    config(err(
        "cluster support disabled",
        "no_cluster",
        NotExecuted,
        "this Redis is no cluster: set REDIS_TYPE=single",
    )),
    config(reply(
        "DENIED",
        "denied",
        NotExecuted,
        "Redis is in protected mode: set a password in Redis, or bind it to a network interface",
    )),
    err(
        "max number of clients",
        "maxclients",
        NotExecuted,
        "Redis accepts no more connections: raise its maxclients",
    ),
    config(err("DB index", DATABASE, NotExecuted, NO_DATABASE)),
    reply("MOVED", MOVED, NotExecuted, CLUSTER_NODE),
    reply("ASK", ASK, NotExecuted, CLUSTER_NODE),
    reply("CROSSSLOT", "crossslot", NotExecuted, CLUSTER_NODE),
    reply(
        "CLUSTERDOWN",
        CLUSTER_DOWN,
        NotExecuted,
        "the Redis cluster is down, or no node owns the slot",
    ),
    reply(
        "TRYAGAIN",
        TRY_AGAIN,
        NotExecuted,
        "the Redis cluster is migrating a slot",
    ),
    reply(
        "LATE",
        LATE,
        NotExecuted,
        "Redis ran a script after its caller's deadline; nothing was counted",
    ),
    reply(
        "EXECABORT",
        EXEC_ABORT,
        NotExecuted,
        "Redis discarded a transaction",
    ),
    reply(
        "WRONGTYPE",
        "wrongtype",
        Data,
        "the value of a counter's key is not a counter: another program writes under the same \
         prefix",
    ),
    err(
        "not an integer",
        NOT_AN_INTEGER,
        Data,
        "the value of a counter's key is not a counter: another program writes under the same \
         prefix",
    ),
    err(
        "would overflow",
        OVERFLOW,
        Data,
        "a counter has the largest value that Redis can count to",
    ),
    // Errors that Weir notices itself.
    own(TIMEOUT, Unknown, "Redis did not answer in time"),
    own(
        DNS,
        NotExecuted,
        "the host name of Redis cannot be resolved: check the name in REDIS_URL, and the DNS \
         server that this machine uses",
    ),
    own(
        CONNECT,
        NotExecuted,
        "no connection to Redis: check that it runs and that REDIS_URL is right",
    ),
    own(
        CONNECT_TIMEOUT,
        NotExecuted,
        "no connection to Redis in time: Redis hangs, or the network drops packets",
    ),
    own(IO, Unknown, "a connection to Redis broke"),
    own(
        IDLE_CLOSED,
        NotExecuted,
        "Redis closed a connection that was idle",
    ),
    breaking(own(
        PROTOCOL,
        Unknown,
        "a reply does not follow the Redis protocol: check what listens at the address of \
         REDIS_URL",
    )),
    config(own(AUTH, NotExecuted, REFUSED_LOGIN)),
    own(
        NO_PRIMARY,
        NotExecuted,
        "no Sentinel or cluster node has named the primaries: check REDIS_URL and REDIS_TYPE",
    ),
    own(
        QUEUE_FULL,
        NotExecuted,
        "more requests wait for Redis than it can answer in time: it is too slow for this load",
    ),
    own(
        RANGE,
        Data,
        "a counter is below zero: another program writes under the same prefix",
    ),
    config(own(
        TLS_CERTIFICATE,
        NotExecuted,
        "a certificate is refused: check REDIS_TLS_CACERT, REDIS_TLS_CLIENT_CERT, and the name and \
         dates of Redis's certificate",
    )),
    config(own(
        TLS,
        NotExecuted,
        "TLS to Redis fails: check REDIS_TLS, and that the port of REDIS_URL speaks TLS",
    )),
    config(own(DATABASE, NotExecuted, NO_DATABASE)),
    // Any other error, and those of future versions.
    kind(
        "",
        "",
        SERVER_ERROR,
        Unknown,
        "Redis answered with an error that Weir does not know",
    ),
];

impl ErrorKind {
    /// The error of the checks that it concerns.
    pub(crate) fn error(&self) -> StoreError {
        (self.outcome)(self.name)
    }
}

/// The kind of an error reply.
pub(crate) fn classify(error: &ServerError) -> &'static ErrorKind {
    find(error.code(), error.details().unwrap_or_default())
}

/// The kind of an error line: its code, a space, its text.
pub(crate) fn classify_line(line: &[u8]) -> &'static ErrorKind {
    let line = String::from_utf8_lossy(line.strip_prefix(b"-").unwrap_or(line));
    let (code, text) = line.split_once(' ').unwrap_or((&line, ""));
    find(code, text)
}

fn find(code: &str, text: &str) -> &'static ErrorKind {
    // Redis 7 names the error because of which it discarded the transaction.
    if let ("EXECABORT", Some((_, cause))) = (code, text.split_once("because of: ")) {
        return classify_line(cause.as_bytes());
    }
    let last = &KINDS[KINDS.len() - 1];
    KINDS
        .iter()
        .find(|kind| kind.code == code && !code.is_empty() && text.contains(kind.text))
        .unwrap_or(last)
}

/// Whether a connection that returned this error has to be closed.
pub(crate) fn breaks_connection(error: StoreError) -> bool {
    KINDS
        .iter()
        .any(|kind| kind.breaks_connection && kind.name == name(error))
}

/// The kind of failure that the circuit breaker of the server counts for this error. `None` for
/// errors that say nothing about the server as a whole: those of one key or one command, redirects,
/// and errors that Weir causes itself.
pub(crate) fn server_failure(error: StoreError) -> Option<Why> {
    match error {
        Data(_) => None,
        NotExecuted(
            NO_SCRIPT | MOVED | ASK | TRY_AGAIN | LATE | EXEC_ABORT | QUEUE_FULL | IDLE_CLOSED,
        ) => None,
        // One algorithm may need a permission that the others do not need. The monitor reports what
        // is missing.
        NotExecuted(NO_PERMISSION | UNSUPPORTED) | Unknown(NO_PERMISSION) => None,
        NotExecuted(name) | Unknown(name) => Some(failure_kind(name)),
    }
}

/// The kind of failure that the circuit breaker counts when no connection can be opened, by the
/// name of the error.
pub(crate) fn failure_kind(name: &str) -> Why {
    if is_config(name) {
        Why::Config
    } else {
        Why::Outage
    }
}

/// Whether a retry is safe and useful: the command certainly did not run, and may run when it is
/// sent once more.
pub(crate) fn is_retryable(error: StoreError) -> bool {
    matches!(
        error,
        NotExecuted(MOVED | ASK | TRY_AGAIN | READONLY | EXEC_ABORT | IO | IDLE_CLOSED)
    )
}

/// Whether an operator has to change a setting before errors of this name end.
fn is_config(name: &str) -> bool {
    KINDS.iter().any(|kind| kind.is_config && kind.name == name)
}

/// The name of an error: its label value in metrics.
pub(crate) fn name(error: StoreError) -> &'static str {
    let (NotExecuted(name) | Unknown(name) | Data(name)) = error;
    name
}

/// The cause and the remedy of errors of this name, for the log.
pub(crate) fn meaning(name: &str) -> &'static str {
    KINDS
        .iter()
        .find(|kind| kind.name == name)
        .map_or("", |kind| kind.meaning)
}

/// What the caller of a request that failed with this error may read: no address, no setting and no
/// text of the server.
pub(crate) fn for_callers(error: StoreError) -> &'static str {
    match name(error) {
        _ if matches!(error, Data(_)) => "a counter in Redis cannot be read",
        CONNECT | DNS | IO | IDLE_CLOSED | NO_PRIMARY | TLS | TLS_CERTIFICATE | PROTOCOL
        | "maxclients" => "Redis cannot be reached",
        TIMEOUT | CONNECT_TIMEOUT | LATE | "busy" => "Redis did not answer in time",
        QUEUE_FULL => "Redis is too slow for this load",
        "loading" => "Redis is loading its data",
        AUTH | NO_PERMISSION | UNSUPPORTED | DATABASE | "no_cluster" | "denied" => {
            "Redis refuses the requests of Weir"
        }
        "oom" | "misconf" | "noreplicas" | READONLY | "masterdown" => "Redis refuses writes",
        CLUSTER_DOWN | MOVED | ASK | TRY_AGAIN | "crossslot" => {
            "the Redis cluster has no server for the counter"
        }
        _ => "Redis answered with an error",
    }
}

/// Whether the Redis user has no right to a command or a key.
pub(crate) fn is_missing_right(error: StoreError) -> bool {
    name(error) == NO_PERMISSION
}

/// Counts errors by name. It logs nothing: `limiter::outages` reads the counts for the log.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters(Mutex<BTreeMap<&'static str, ErrorCounter>>);

#[derive(Debug, Default)]
struct ErrorCounter {
    count: u64,
    /// Of the latest such error that had one.
    cause: Option<Arc<str>>,
}

impl ErrorCounters {
    /// Counts an error.
    pub(crate) fn record(&self, name: &'static str) {
        lock(&self.0).entry(name).or_default().count += 1;
    }

    /// Counts a failed attempt to connect.
    pub(crate) fn record_failed_connect(&self, error: &ConnectError) {
        let mut counters = lock(&self.0);
        let counter = counters.entry(error.name).or_default();
        counter.count += 1;
        counter.cause = error.cause.as_deref().map(Arc::from);
    }

    /// All counts since the start, by name.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let count = |(&name, counter): (&&'static str, &ErrorCounter)| (name, counter.count);
        lock(&self.0).iter().map(count).collect()
    }

    /// All counts since the start, each with the cause of the latest such error.
    pub(crate) fn failures(&self) -> Vec<(Failure, u64)> {
        let failure = |(&error, counter): (&&'static str, &ErrorCounter)| {
            let cause = counter.cause.clone();
            (Failure { error, cause }, counter.count)
        };
        lock(&self.0).iter().map(failure).collect()
    }
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::{Value, parse_redis_value};

    use super::*;

    /// Error lines that redis-server 7.0.15 has sent, and their outcomes.
    const CAPTURED: [(&str, StoreError); 30] = [
        (
            "NOSCRIPT No matching script. Please use EVAL.",
            NotExecuted("noscript"),
        ),
        (
            "LOADING Redis is loading the dataset in memory",
            NotExecuted("loading"),
        ),
        (
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN \
             NOSAVE.",
            NotExecuted("busy"),
        ),
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            NotExecuted("oom"),
        ),
        (
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to \
             persist to disk.",
            NotExecuted("misconf"),
        ),
        (
            "NOREPLICAS Not enough good replicas to write.",
            NotExecuted("noreplicas"),
        ),
        (
            "READONLY You can't write against a read only replica.",
            NotExecuted("readonly"),
        ),
        (
            "MASTERDOWN Connection with MASTER is down and replica-serve-stale-data is set to \
             'no'.",
            NotExecuted("masterdown"),
        ),
        ("NOAUTH Authentication required.", NotExecuted("auth")),
        (
            "WRONGPASS invalid username-password pair or user is disabled.",
            NotExecuted("auth"),
        ),
        (
            "ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
            NotExecuted("auth"),
        ),
        (
            "NOPERM this user has no permissions to run the 'incrby' command",
            NotExecuted("noperm"),
        ),
        (
            // Redis 7.0, and 7.2 and newer.
            "ERR The user executing the script can't run this command or subcommand script: \
             5f, on @user_script:1.",
            Unknown("noperm"),
        ),
        (
            "ERR ACL failure in script: User weir has no permissions to run the 'get' command \
             script: 5f, on @user_script:1.",
            Unknown("noperm"),
        ),
        (
            "ERR unknown command 'EVALSHA', with args beginning with: 'x' ",
            NotExecuted("unsupported"),
        ),
        (
            "ERR max number of clients reached",
            NotExecuted("maxclients"),
        ),
        ("ERR DB index is out of range", NotExecuted("database")),
        ("MOVED 3999 127.0.0.1:6381", NotExecuted("moved")),
        ("ASK 3999 127.0.0.1:6381", NotExecuted("ask")),
        (
            "CROSSSLOT Keys in request don't hash to the same slot",
            NotExecuted("crossslot"),
        ),
        (
            "CLUSTERDOWN The cluster is down",
            NotExecuted("clusterdown"),
        ),
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            NotExecuted("tryagain"),
        ),
        (
            "EXECABORT Transaction discarded because of previous errors.",
            NotExecuted("execabort"),
        ),
        (
            "EXECABORT Transaction discarded because of: OOM command not allowed when used \
             memory > 'maxmemory'.",
            NotExecuted("oom"),
        ),
        (
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            Data("wrongtype"),
        ),
        (
            "ERR value is not an integer or out of range",
            Data("not_an_integer"),
        ),
        (
            "ERR increment or decrement would overflow",
            Data("overflow"),
        ),
        ("ERR something new", Unknown("server_error")),
        ("FUTURE error", Unknown("server_error")),
        ("", Unknown("server_error")),
    ];

    #[test]
    fn captured_error_lines_have_the_right_outcome() {
        for (line, expected) in CAPTURED {
            let Ok(Value::ServerError(error)) =
                parse_redis_value(format!("-{line}\r\n").as_bytes())
            else {
                panic!("{line}")
            };
            assert_eq!(classify(&error).error(), expected, "{line}");
            assert_eq!(classify_line(line.as_bytes()).error(), expected, "{line}");
        }
    }

    #[test]
    fn every_kind_has_a_name_and_a_meaning() {
        for kind in &KINDS {
            assert!(
                !kind.name.is_empty() && !meaning(kind.name).is_empty(),
                "{kind:?}"
            );
        }
        for (name, breaks) in [
            ("readonly", true),
            ("masterdown", true),
            ("auth", true),
            ("loading", false),
            ("oom", false),
        ] {
            assert_eq!(breaks_connection(NotExecuted(name)), breaks, "{name}");
        }
    }

    #[test]
    fn errors_that_an_operator_has_to_mend_are_marked() {
        let mut marked: Vec<_> = KINDS
            .iter()
            .map(|kind| kind.name)
            .filter(|name| is_config(name))
            .collect();
        marked.sort_unstable();
        marked.dedup();
        assert_eq!(
            marked,
            [
                "auth",
                "database",
                "denied",
                "no_cluster",
                "noperm",
                "tls",
                "tls_certificate",
                "unsupported"
            ]
        );
        // All rows of a name agree.
        for kind in &KINDS {
            assert_eq!(kind.is_config, is_config(kind.name), "{kind:?}");
        }
    }

    #[test]
    fn errors_are_counted_with_their_latest_cause() {
        let error_counters = ErrorCounters::default();
        for _ in 0..1_000 {
            error_counters.record(IO);
        }
        for cause in ["first", "second"] {
            error_counters.record_failed_connect(&ConnectError {
                name: CONNECT,
                cause: Some(cause.to_owned()),
            });
        }
        assert_eq!(error_counters.counts(), [(CONNECT, 2), (IO, 1_000)]);
        let connect = Failure {
            error: CONNECT,
            cause: Some("second".into()),
        };
        assert_eq!(
            error_counters.failures(),
            [(connect, 2), (Failure::new(IO), 1_000)]
        );
    }
}
