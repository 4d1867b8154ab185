//! The table of errors of Redis and of the connections to it: for each error its name, whether the
//! command ran, and what an operator can do.
//!
//! A retry is safe only after an error that proves that the command did not run, and a circuit
//! breaker must not open for an error that concerns one key. Both are decided here, in one place,
//! and tested against the error lines of a real server.
//!
//! The names are label values of metrics (`error="..."`), and must not change. The text that a
//! server sends must not be logged or passed on, because it may repeat a part of the command, which
//! may be a password.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use bb8_redis::redis::ServerError;
use tokio::time::Duration;

use crate::core::breaker::Why;
use crate::core::lock;
use crate::core::verdict::StoreError;
use crate::store::Budget;

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
/// The server does not have a command that Weir needs.
pub(crate) const UNSUPPORTED: &str = "unsupported";
/// The Redis user has no permission for a command or a key.
pub(crate) const NO_PERMISSION: &str = "noperm";
/// The script is not in the server's cache (NOSCRIPT).
pub(crate) const NO_SCRIPT: &str = "noscript";
/// The server is a replica (READONLY).
pub(crate) const READONLY: &str = "readonly";
/// The node of a cluster does not own the slot (MOVED).
pub(crate) const MOVED: &str = "moved";
/// The server refuses keys of several hash slots together (CROSSSLOT).
pub(crate) const CROSS_SLOT: &str = "crossslot";
/// The server refuses a key to a script, because the script does not declare it or the node does
/// not have it.
pub(crate) const NON_LOCAL_KEY: &str = "non_local_key";
/// The slot is being migrated, and the node does not have this key (ASK).
pub(crate) const ASK: &str = "ask";
/// The slot is being migrated, and the node does not have all keys of the command (TRYAGAIN).
pub(crate) const TRY_AGAIN: &str = "tryagain";
/// No node of the cluster owns the slot, or the cluster is down (CLUSTERDOWN).
pub(crate) const CLUSTER_DOWN: &str = "clusterdown";
/// The primary, or the owners of the slots, have not been found yet.
pub(crate) const NO_PRIMARY: &str = "no_primary";
/// The cluster has more primaries than Weir follows, or its CLUSTER SLOTS has too many bytes.
pub(crate) const CLUSTER_SIZE: &str = "cluster_size";
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

/// An error that is not in the table.
pub(crate) const SERVER_ERROR: &str = "server_error";

/// Failure of a server or of an attempt to connect, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisFailure {
    /// The name of the error, as in metrics.
    pub error: &'static str,
    /// The message of the operating system or of TLS, or a hint by Weir; never text of the server.
    pub cause: Option<Arc<str>>,
    /// The times of the latest request that failed with this error, if the server was too slow for
    /// it.
    pub times: Option<Times>,
}

/// The times of a request for which a server was too slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The time that the server takes: the mean of its batches or the latest inspection, whichever
    /// is longer. `None` if nothing was measured.
    pub round_trip: Option<Duration>,
    /// The time that the request had for it.
    pub allowed: Duration,
    /// The caller's own deadline.
    pub caller: Option<Duration>,
}

impl RedisFailure {
    /// An error without a further cause.
    pub const fn new(error: &'static str) -> Self {
        Self::with(error, None)
    }

    /// An error, perhaps with its cause.
    pub(crate) const fn with(error: &'static str, cause: Option<Arc<str>>) -> Self {
        Self {
            error,
            cause,
            times: None,
        }
    }

    pub(crate) fn because(error: &'static str, cause: impl Into<Arc<str>>) -> Self {
        Self::with(error, Some(cause.into()))
    }

    /// The same error, with the address of the one of several servers in its cause.
    pub(crate) fn of(self, server: &impl fmt::Display) -> Self {
        let cause = self
            .cause
            .map_or_else(|| server.to_string(), |cause| format!("{server}: {cause}"));
        Self::because(self.error, cause)
    }

    /// Meaning of the error, and the remedy.
    pub fn meaning(&self) -> &'static str {
        meaning(self.error)
    }
}

impl From<StoreError> for RedisFailure {
    fn from(error: StoreError) -> Self {
        Self::new(name(error))
    }
}

use StoreError::{Data, NotExecuted, Unknown};

/// Whether a command ran, of a named error.
type ErrorOf = fn(&'static str) -> StoreError;

/// Error lines of a server: their code, and the rest or a part of it; the name of the error, and
/// whether the command ran. The first row that matches counts.
static REPLIES: [(&str, &str, ErrorOf); 33] = [
    ("NOSCRIPT", NO_SCRIPT, NotExecuted),
    ("LOADING", "loading", NotExecuted),
    ("BUSY", "busy", NotExecuted),
    ("OOM", "oom", NotExecuted),
    ("MISCONF", "misconf", NotExecuted),
    ("NOREPLICAS", "noreplicas", NotExecuted),
    ("READONLY", READONLY, NotExecuted),
    ("MASTERDOWN", "masterdown", NotExecuted),
    ("NOAUTH", AUTH, NotExecuted),
    ("WRONGPASS", AUTH, NotExecuted),
    ("ERR AUTH <password>", AUTH, NotExecuted),
    ("ERR invalid password", AUTH, NotExecuted),
    ("NOPERM", NO_PERMISSION, NotExecuted),
    // Raised inside a script, which may have written before with a command that is permitted.
    ("ERR executing the script can't", NO_PERMISSION, Unknown),
    // The same since Redis 7.2.
    ("ERR ACL failure in script", NO_PERMISSION, Unknown),
    ("ERR unknown command", UNSUPPORTED, NotExecuted),
    ("ERR cluster support disabled", "no_cluster", NotExecuted),
    ("DENIED", "denied", NotExecuted),
    ("ERR max number of clients", "maxclients", NotExecuted),
    ("ERR DB index", DATABASE, NotExecuted),
    ("MOVED", MOVED, NotExecuted),
    ("ASK", ASK, NotExecuted),
    ("CROSSSLOT", CROSS_SLOT, NotExecuted),
    ("CLUSTERDOWN", CLUSTER_DOWN, NotExecuted),
    // Of a command in a script. If it fails the whole script, nothing was written: the first access
    // to each key is a pcall, or an MGET before all writes, and whether a server has a key does not
    // change while a script runs.
    ("ERR access a non local key", NON_LOCAL_KEY, NotExecuted),
    ("ERR do not hash to the same slot", CROSS_SLOT, NotExecuted),
    // The script may have written before.
    ("ERR while the cluster is down", CLUSTER_DOWN, Unknown),
    ("TRYAGAIN", TRY_AGAIN, NotExecuted),
    ("LATE", LATE, NotExecuted),
    ("EXECABORT", EXEC_ABORT, NotExecuted),
    ("WRONGTYPE", "wrongtype", Data),
    ("ERR not an integer", NOT_AN_INTEGER, Data),
    ("ERR would overflow", OVERFLOW, Data),
];

/// The error of an error reply.
pub(crate) fn classify(error: &ServerError) -> StoreError {
    find(error.code(), error.details().unwrap_or_default())
}

/// The error of an error line: its code, a space, its text.
pub(crate) fn classify_line(line: &[u8]) -> StoreError {
    let line = String::from_utf8_lossy(line.strip_prefix(b"-").unwrap_or(line));
    let (code, text) = line.split_once(' ').unwrap_or((&line, ""));
    find(code, text)
}

/// The error of a check that failed in a script by itself. The script has written nothing for it,
/// whatever became of the other checks.
pub(crate) fn classify_failed_check(line: &[u8]) -> StoreError {
    match classify_line(line) {
        Unknown(name) => NotExecuted(name),
        error => error,
    }
}

/// Whether a server did not execute a check because of the other keys of its transaction or call,
/// or because the call does not declare its key.
pub(crate) fn refuses_slots(error: StoreError) -> bool {
    matches!(error, NotExecuted(CROSS_SLOT | NON_LOCAL_KEY))
}

/// Whether a check that a call across slots did not execute has to be sent by itself, with its key
/// declared: Redis refuses writes, which not all checks need, or refuses its key for another reason.
pub(crate) fn needs_own_call(error: StoreError) -> bool {
    matches!(
        error,
        NotExecuted("oom" | "misconf" | "noreplicas" | SERVER_ERROR)
    )
}

fn find(code: &str, text: &str) -> StoreError {
    // Redis 7 names the error because of which it discarded the transaction.
    if let ("EXECABORT", Some((_, cause))) = (code, text.split_once("because of: ")) {
        return classify_line(cause.as_bytes());
    }
    let matches = |line: &str| {
        let (own_code, part) = line.split_once(' ').unwrap_or((line, ""));
        code == own_code && text.contains(part)
    };
    let row = REPLIES.iter().find(|(line, ..)| matches(line));
    row.map_or(Unknown(SERVER_ERROR), |&(_, name, outcome)| outcome(name))
}

/// Whether a connection that returned this error has to be closed.
pub(crate) fn breaks_connection(error: StoreError) -> bool {
    matches!(name(error), READONLY | "masterdown" | AUTH | PROTOCOL)
}

/// The kind of failure that the circuit breaker of the server counts for this error. `None` for
/// errors that prove nothing about the server as a whole: errors of one key or one command,
/// redirects, and errors that Weir causes itself.
pub(crate) fn server_failure(error: StoreError) -> Option<Why> {
    match error {
        Data(_) => None,
        NotExecuted(
            NO_SCRIPT | MOVED | ASK | CROSS_SLOT | NON_LOCAL_KEY | TRY_AGAIN | LATE | EXEC_ABORT
            | QUEUE_FULL | IDLE_CLOSED,
        ) => None,
        // One algorithm may need a permission that the others do not need. The monitor reports what
        // is missing.
        NotExecuted(NO_PERMISSION | UNSUPPORTED) | Unknown(NO_PERMISSION) => None,
        NotExecuted(name) | Unknown(name) => Some(failure_kind(name)),
    }
}

/// The kind of failure that the circuit breaker counts for an error of this name: for some an
/// operator has to change a setting before they end.
pub(crate) fn failure_kind(name: &str) -> Why {
    match name {
        AUTH | NO_PERMISSION | UNSUPPORTED | DATABASE | TLS | TLS_CERTIFICATE | "no_cluster"
        | "denied" => Why::Config,
        _ => Why::Outage,
    }
}

/// Whether a retry is safe and useful: the command certainly did not run, and may run when it is
/// sent once more.
pub(crate) fn is_retryable(error: StoreError) -> bool {
    matches!(
        error,
        NotExecuted(
            MOVED | ASK | NON_LOCAL_KEY | TRY_AGAIN | READONLY | EXEC_ABORT | IO | IDLE_CLOSED
        )
    )
}

/// Whether a slot is being migrated: the command may succeed in a moment.
pub(crate) fn is_of_migration(error: StoreError) -> bool {
    matches!(error, NotExecuted(TRY_AGAIN | NON_LOCAL_KEY))
}

/// The name of an error: its label value in metrics.
pub(crate) fn name(error: StoreError) -> &'static str {
    let (NotExecuted(name) | Unknown(name) | Data(name)) = error;
    name
}

/// The cause and the remedy of errors of this name, for the log.
pub(crate) fn meaning(name: &str) -> &'static str {
    match name {
        NO_SCRIPT => "Redis did not know the script although its text was sent",
        "loading" => "Redis is loading its data set, and will answer when it is loaded",
        "busy" => "a slow script blocks Redis: find the client that runs it",
        "oom" => "Redis is out of memory (maxmemory) and may not evict keys: raise maxmemory",
        "misconf" => "Redis refuses writes because it cannot save to disk: read its log",
        "noreplicas" => {
            "Redis refuses writes because too few replicas are in sync (min-replicas-to-write)"
        }
        READONLY => "this Redis is a replica: connect to the primary",
        "masterdown" => {
            "this Redis is a replica without a link to its primary: connect to the primary"
        }
        AUTH => "Redis refuses the login: check REDIS_AUTH, REDIS_AUTH_FILE and REDIS_URL",
        NO_PERMISSION => {
            "the Redis user is missing a right: the line with advice=rights names it, and \
             deploy/redis.md lists all rights that Weir needs"
        }
        UNSUPPORTED => "the server does not know MULTI, TIME or EVALSHA, which Weir needs",
        "no_cluster" => "this Redis is not a cluster: set REDIS_TYPE=single",
        "denied" => {
            "Redis is in protected mode: set a password in Redis, or bind it to a network interface"
        }
        "maxclients" => "Redis accepts no more connections: raise its maxclients",
        DATABASE => "Redis has no database with that number: check the end of REDIS_URL",
        CROSS_SLOT => {
            "Redis refuses keys of one hash tag together: check the hashing policy of the database"
        }
        MOVED | ASK => {
            "this Redis is a node of a cluster: set REDIS_TYPE=cluster; if that is set, the slot \
             moved again before Weir could follow"
        }
        CLUSTER_SIZE => {
            "the Redis cluster has more than 1,000 primaries, or its reply to CLUSTER SLOTS is \
             larger than 1 MiB: check what listens at the addresses of REDIS_URL, or spread the \
             limits over smaller clusters (REDIS_PERSECOND)"
        }
        CLUSTER_DOWN => "the Redis cluster is down, or no node owns the slot",
        TRY_AGAIN | NON_LOCAL_KEY => "the Redis cluster is migrating a slot",
        LATE => {
            "Redis ran a script after its caller's deadline, and counted nothing: find what blocks \
             it (SLOWLOG GET, its CPU, the network), or raise the timeout of Envoy's filter"
        }
        EXEC_ABORT => "Redis discarded a transaction",
        "wrongtype" | NOT_AN_INTEGER => {
            "the value of a counter's key is not a counter: another program writes under the same \
             prefix"
        }
        OVERFLOW => "a counter has the largest value that Redis can count to",
        _ => meaning_of_own(name),
    }
}

/// Meaning of errors that Weir notices itself, and of errors that are not in the table.
fn meaning_of_own(name: &str) -> &'static str {
    match name {
        TIMEOUT => {
            "Redis did not answer in time: find what blocks it (SLOWLOG GET, its CPU, the \
             network); if it always takes longer than allowed, raise the timeout of Envoy's \
             filter, or STORE_TIMEOUT if that is shorter"
        }
        DNS => {
            "the host name of Redis cannot be resolved: check the name in REDIS_URL, and the DNS \
             server that this machine uses"
        }
        CONNECT => "no connection to Redis: check that it runs and that REDIS_URL is right",
        CONNECT_TIMEOUT => {
            "no connection to Redis in time: Redis hangs, or the network drops packets; check its \
             CPU, and firewalls"
        }
        IO => "a connection to Redis broke",
        IDLE_CLOSED => "Redis closed a connection that was idle",
        PROTOCOL => {
            "a reply does not follow the Redis protocol: check what listens at the address of \
             REDIS_URL"
        }
        NO_PRIMARY => {
            "no Sentinel or cluster node has named the primaries: check REDIS_URL and REDIS_TYPE"
        }
        QUEUE_FULL => {
            "more requests wait for Redis than it can answer in time: find what slows it (SLOWLOG \
             GET, its CPU), or spread the limits over a second Redis (REDIS_PERSECOND) or a cluster"
        }
        RANGE => "a counter is below zero: another program writes under the same prefix",
        TLS_CERTIFICATE => {
            "a certificate is refused: check REDIS_TLS_CACERT, REDIS_TLS_CLIENT_CERT, and the name \
             and dates of Redis's certificate"
        }
        TLS => "TLS to Redis fails: check REDIS_TLS, and that the port of REDIS_URL speaks TLS",
        _ => "Redis answered with an error that Weir does not know",
    }
}

/// Whether a server with this error answers, and refuses writes.
pub(crate) fn refuses_writes(name: &str) -> bool {
    matches!(name, "oom" | "misconf" | "noreplicas")
}

/// Text of this error for the caller of a failed request: it has no address, no setting and no text
/// of the server.
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
        CLUSTER_DOWN | CLUSTER_SIZE | MOVED | ASK | TRY_AGAIN | CROSS_SLOT | NON_LOCAL_KEY => {
            "the Redis cluster has no server for the counter"
        }
        _ => "Redis answered with an error",
    }
}

/// Counts errors by name. It logs nothing: `limiter::outages` reads the counts for the log.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters(Mutex<BTreeMap<&'static str, (RedisFailure, u64)>>);

impl ErrorCounters {
    /// Counts an error.
    pub(crate) fn record(&self, name: &'static str) {
        self.count_and(name, |_| {});
    }

    /// Counts an error of a request.
    pub(crate) fn record_request(&self, name: &'static str, budget: Budget) {
        self.count_and(name, |latest| {
            if matches!(name, TIMEOUT | LATE | QUEUE_FULL) && !budget.allowed.is_zero() {
                latest.times = Some(Times {
                    round_trip: None,
                    allowed: budget.allowed,
                    caller: budget.caller,
                });
            }
        });
    }

    /// Counts a failed attempt to connect.
    pub(crate) fn record_failed_connect(&self, failure: &RedisFailure) {
        self.count_and(failure.error, |latest| {
            latest.cause.clone_from(&failure.cause);
        });
    }

    fn count_and(&self, name: &'static str, update: impl FnOnce(&mut RedisFailure)) {
        let (mut counters, new) = (lock(&self.0), || (RedisFailure::new(name), 0));
        let (latest, count) = counters.entry(name).or_insert_with(new);
        *count += 1;
        update(latest);
    }

    /// The times of the latest request that failed with this error.
    pub(crate) fn times(&self, name: &str) -> Option<Times> {
        lock(&self.0).get(name)?.0.times
    }

    /// Number of times that this error happened.
    pub(crate) fn count(&self, name: &str) -> u64 {
        lock(&self.0).get(name).map_or(0, |(_, count)| *count)
    }

    /// All counts since the start, by name, each with the cause and the times of the latest such
    /// error.
    pub(crate) fn failures(&self) -> Vec<(RedisFailure, u64)> {
        lock(&self.0).values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::{Value, parse_redis_value};

    use super::*;

    /// Error lines that redis-server 7.0.15 has sent, and their outcomes.
    const CAPTURED: [(&str, StoreError); 32] = [
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
            "ERR Script attempted to access a non local key in a cluster node script: 5f, on \
             @user_script:1.",
            NotExecuted("non_local_key"),
        ),
        (
            "ERR Script attempted to execute a write command while the cluster is down and \
             readonly",
            Unknown("clusterdown"),
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
            assert_eq!(classify(&error), expected, "{line}");
            assert_eq!(classify_line(line.as_bytes()), expected, "{line}");
        }
    }

    /// The names of all errors.
    fn names() -> impl Iterator<Item = &'static str> {
        let own = [
            TIMEOUT,
            DNS,
            CONNECT,
            CONNECT_TIMEOUT,
            IO,
            IDLE_CLOSED,
            PROTOCOL,
            NO_PRIMARY,
            QUEUE_FULL,
            RANGE,
            TLS_CERTIFICATE,
            TLS,
            SERVER_ERROR,
        ];
        REPLIES.iter().map(|&(_, name, _)| name).chain(own)
    }

    #[test]
    fn every_kind_has_a_name_and_a_meaning() {
        for name in names().filter(|&name| name != SERVER_ERROR) {
            assert!(!name.is_empty(), "an error has a name");
            assert_ne!(meaning(name), meaning(SERVER_ERROR), "{name}");
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
        let mut marked: Vec<_> = names()
            .filter(|name| failure_kind(name) == Why::Config)
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
    }

    #[test]
    fn errors_are_counted_with_their_latest_cause() {
        let error_counters = ErrorCounters::default();
        for _ in 0..1_000 {
            error_counters.record(IO);
        }
        for cause in ["first", "second"] {
            error_counters.record_failed_connect(&RedisFailure::because(CONNECT, cause));
        }
        let connect = RedisFailure::because(CONNECT, "second");
        assert_eq!(
            error_counters.failures(),
            [(connect, 2), (RedisFailure::new(IO), 1_000)]
        );
    }
}
