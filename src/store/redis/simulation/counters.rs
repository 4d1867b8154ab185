//! The database of the fake server: its counters, the few commands that Weir sends, and a record of
//! every check that was executed.
//!
//! Every check has a number of hits that no other check has, by which the record identifies it. One
//! `INCRBY` may count several checks: the checks whose count was answered are found by it, and the
//! rest has to be the sum of others. The script is not interpreted but imitated: fixed windows are
//! decided as in `lua/fixed_window.lua`; for other algorithms the check is recorded, and the state
//! is always empty.
//!
//! Nothing here knows what the store answered: the comparison is in `callers`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use tokio::time::Instant;

use super::super::wire::script;
use super::wire::{Command, RespReply};
use crate::core::algorithm::LARGEST_COUNT;
use crate::core::time::Micros;

/// Keys with this prefix hold a value that is not a counter.
pub(super) const WRONG_TYPE_PREFIX: &str = "wrongtype";

/// Of keys with this prefix one INCRBY may count several checks.
pub(super) const SHARED_KEY_PREFIX: &str = "{window";

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// A check that the server executed.
#[derive(Clone, Debug)]
pub(super) struct Execution {
    pub(super) key: Vec<u8>,
    /// The count in the reply.
    pub(super) used: i64,
    /// Decision of the script; `None` for INCRBY, which decides nothing.
    pub(super) allowed: Option<bool>,
    pub(super) at: Instant,
}

/// An INCRBY that was executed, of one check or of several.
#[derive(Debug)]
struct Increment {
    key: Vec<u8>,
    before: i64,
    after: i64,
    at: Instant,
    /// The part that no check explains.
    rest: i64,
}

/// The counters, and the record of what happened to them.
#[derive(Debug)]
pub(super) struct FakeCounters {
    values: BTreeMap<Vec<u8>, i64>,
    /// The values of each key, and since when it had them.
    pub(super) history: BTreeMap<Vec<u8>, Vec<(Instant, i64)>>,
    /// Executed checks by their hits.
    pub(super) executed: BTreeMap<i64, Vec<Execution>>,
    increments: Vec<Increment>,
    /// The hits of received checks, executed or not, and when the server read them.
    pub(super) received: BTreeMap<i64, Instant>,
    /// Whether the script is in the cache.
    pub(super) knows_script: bool,
    pub(super) password: Option<&'static str>,
    origin: Instant,
    /// The clock's time at `origin`.
    pub(super) clock: Micros,
}

/// The state of one connection.
#[derive(Debug, Default)]
pub(super) struct Session {
    has_logged_in: bool,
    transaction: Option<Vec<Command>>,
    /// A command of the transaction, or MULTI itself, was answered with an error.
    has_refused_command: bool,
}

/// A check as the script receives it.
struct ReceivedCheck<'c> {
    key: &'c [u8],
    code: u8,
    modes: u8,
    hits: i64,
    counts_denied: bool,
    limit: i64,
    /// Of a token bucket.
    burst: i64,
}

impl FakeCounters {
    pub(super) fn new(clock: Micros, password: Option<&'static str>) -> Self {
        Self {
            values: BTreeMap::new(),
            history: BTreeMap::new(),
            executed: BTreeMap::new(),
            increments: Vec::new(),
            received: BTreeMap::new(),
            knows_script: false,
            password,
            origin: Instant::now(),
            clock,
        }
    }

    pub(super) fn now(&self) -> Micros {
        Micros(self.clock.0 + self.origin.elapsed().as_micros() as u64)
    }

    /// Records the hits of a received command.
    pub(super) fn record_received(&mut self, command: &Command) {
        let at = Instant::now();
        match &command[0][..] {
            b"INCRBY" => {
                self.received.insert(whole(&command[2]), at);
            }
            b"EVAL" | b"EVALSHA" => {
                for check in parse_requests(command)
                    .iter()
                    .flat_map(|request| &request.checks)
                {
                    self.received.insert(check.hits, at);
                }
            }
            _ => {}
        }
    }

    /// Executes a command, or answers it with the error line `refusal`.
    pub(super) fn execute(
        &mut self,
        session: &mut Session,
        command: Command,
        refusal: Option<&str>,
    ) -> RespReply {
        let name = String::from_utf8_lossy(&command[0]).into_owned();
        let refuses_all = |line: &&str| {
            line.starts_with("NOAUTH") || (line.starts_with("NOPERM") && name == "MULTI")
        };
        if let Some(line) = refusal.filter(refuses_all) {
            session.has_refused_command = true;
            return RespReply::Error(line.to_owned());
        }
        if name == "AUTH" {
            session.has_logged_in = self.password.is_some_and(|password| {
                command
                    .last()
                    .is_some_and(|text| text == password.as_bytes())
            });
            return match session.has_logged_in {
                true => RespReply::SimpleString("OK"),
                false => RespReply::Error(
                    "WRONGPASS invalid username-password pair or user is disabled.".to_owned(),
                ),
            };
        }
        if self.password.is_some() && !session.has_logged_in {
            return RespReply::Error("NOAUTH Authentication required.".to_owned());
        }
        match name.as_str() {
            "MULTI" => {
                session.transaction = Some(Vec::new());
                session.has_refused_command = false;
                RespReply::SimpleString("OK")
            }
            "EXEC" => {
                let Some(commands) = session.transaction.take() else {
                    return RespReply::Error("ERR EXEC without MULTI".to_owned());
                };
                if session.has_refused_command {
                    return RespReply::Error(
                        "EXECABORT Transaction discarded because of previous errors.".to_owned(),
                    );
                }
                // The transaction of the handshake, which is TIME alone, is never refused.
                if let (Some(line), true) = (refusal, commands.len() > 1) {
                    return RespReply::Error(format!(
                        "EXECABORT Transaction discarded because of: {line}"
                    ));
                }
                check_expiries(&commands);
                RespReply::Array(commands.iter().map(|command| self.run(command)).collect())
            }
            _ if refusal.is_some()
                && !matches!(name.as_str(), "TIME" | "ROLE" | "SELECT" | "PING") =>
            {
                session.has_refused_command = true;
                RespReply::Error(refusal.unwrap_or_default().to_owned())
            }
            _ => match &mut session.transaction {
                Some(commands) => {
                    commands.push(command);
                    RespReply::SimpleString("QUEUED")
                }
                None => {
                    // After a refused MULTI each command is executed by itself, and EXPIRE follows.
                    let is_plain = name == "INCRBY" && !session.has_refused_command;
                    let is_bare = is_plain
                        && !self.values.contains_key(&command[1])
                        && !has_wrong_type(&command[1]);
                    assert!(!is_bare, "a counter is made without an expiry: {command:?}");
                    self.run(&command)
                }
            },
        }
    }

    fn run(&mut self, command: &Command) -> RespReply {
        let name = String::from_utf8_lossy(&command[0]).into_owned();
        match name.as_str() {
            "TIME" => {
                let now = self.now().0;
                RespReply::Array(vec![
                    RespReply::bulk_string(&(now / 1_000_000)),
                    RespReply::bulk_string(&(now % 1_000_000)),
                ])
            }
            "ROLE" => RespReply::Array(vec![
                RespReply::bulk_string("master"),
                RespReply::Integer(0),
                RespReply::Array(Vec::new()),
            ]),
            "SELECT" | "ASKING" => RespReply::SimpleString("OK"),
            "PING" => RespReply::SimpleString("PONG"),
            "EXPIRE" => RespReply::Integer(1),
            "GET" | "INCRBY" if has_wrong_type(&command[1]) => {
                RespReply::Error(WRONG_TYPE.to_owned())
            }
            "GET" => self
                .values
                .get(&command[1])
                .map_or(RespReply::Null, RespReply::bulk_string),
            "INCRBY" => {
                let (key, hits) = (&command[1], whole(&command[2]));
                let before = self.values.get(key).copied().unwrap_or(0);
                let after = before + hits;
                if key.starts_with(SHARED_KEY_PREFIX.as_bytes()) {
                    self.increments.push(Increment {
                        key: key.clone(),
                        before,
                        after,
                        at: Instant::now(),
                        rest: hits,
                    });
                } else {
                    self.count(hits, key, after, None);
                }
                self.put(key, after);
                RespReply::Integer(after)
            }
            "EVALSHA" if !self.knows_script || command[1] != script::SCRIPT.hash.as_bytes() => {
                RespReply::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned())
            }
            "EVAL" | "EVALSHA" => {
                self.knows_script = true;
                self.decide(command)
            }
            _ => RespReply::Error(format!("ERR unknown command '{name}'")),
        }
    }

    /// The script.
    fn decide(&mut self, command: &Command) -> RespReply {
        let now = self.now().0;
        let mut reply = ScriptReply::default();
        for request in parse_requests(command) {
            if now as i64 > request.deadline {
                request.checks.iter().for_each(|_| reply.failed("LATE"));
                continue;
            }
            if request.is_all_or_none {
                self.decide_all_or_none(&request, &mut reply);
                continue;
            }
            for check in &request.checks {
                match self.step(check) {
                    Ok((allowed, used)) => {
                        self.count(check.hits, check.key, used, Some(allowed));
                        if check.code == b'F'
                            && self.values.get(check.key) != Some(&used)
                            && check.hits != 0
                        {
                            self.put(check.key, used);
                        }
                        reply.decided(check.code, (allowed, used));
                    }
                    Err(line) => reply.failed(line),
                }
            }
        }
        reply.into_reply(now)
    }

    /// A request that counts nothing if any of its checks is refused. If it passes, refused hits
    /// count after all others.
    fn decide_all_or_none(&mut self, request: &ReceivedRequest<'_>, reply: &mut ScriptReply) {
        let before = self.values.clone();
        let mut results: Vec<_> = request
            .checks
            .iter()
            .map(|check| {
                self.take(&ReceivedCheck {
                    counts_denied: false,
                    ..*check
                })
            })
            .collect();
        let error = results.iter().find_map(|result| result.err());
        let refuses = |(check, result): (&ReceivedCheck<'_>, &Result<(bool, i64), _>)| {
            check.modes < 2 && result.is_ok_and(|(allowed, _)| !allowed)
        };
        let is_refused = error.is_some() || request.checks.iter().zip(&results).any(refuses);
        if is_refused {
            self.values = before;
        } else {
            for (check, result) in request
                .checks
                .iter()
                .zip(&mut results)
                .filter(|(_, result)| result.is_ok_and(|(allowed, _)| !allowed))
            {
                *result = self.take(check);
            }
        }
        for (check, result) in request.checks.iter().zip(results) {
            match (error, result) {
                (Some(line), result) => reply.failed(result.err().unwrap_or(line)),
                (None, Ok((allowed, used))) => {
                    let value = self.values.get(check.key).copied().unwrap_or(0);
                    let used = if is_refused && allowed { value } else { used };
                    self.count(check.hits, check.key, used, Some(allowed));
                    if !is_refused {
                        self.put(check.key, value);
                    }
                    reply.decided(check.code, (allowed, used));
                }
                (None, Err(_)) => unreachable!("an error was found"),
            }
        }
    }

    /// Steps a check of a request that commits all or none.
    fn take(&mut self, check: &ReceivedCheck<'_>) -> Result<(bool, i64), &'static str> {
        let (allowed, used) = self.step(check)?;
        self.values.insert(check.key.to_vec(), used);
        Ok((allowed, used))
    }

    /// Whether a check is allowed, and the value of its key afterwards.
    fn step(&self, check: &ReceivedCheck<'_>) -> Result<(bool, i64), &'static str> {
        if has_wrong_type(check.key) {
            return Err(WRONG_TYPE);
        }
        if check.code != b'F' {
            // A bucket that is always full.
            let allowed = check.hits <= check.burst;
            return Ok((allowed, if allowed { check.hits.max(0) } else { 0 }));
        }
        let before = self.values.get(check.key).copied().unwrap_or(0);
        let after = (before + check.hits).clamp(0, LARGEST_COUNT.cast_signed());
        let allowed = check.hits < 0 || after <= check.limit;
        Ok((
            allowed,
            if allowed || check.counts_denied {
                after
            } else {
                before
            },
        ))
    }

    fn put(&mut self, key: &[u8], value: i64) {
        self.values.insert(key.to_vec(), value);
        self.history
            .entry(key.to_vec())
            .or_default()
            .push((Instant::now(), value));
    }

    /// Records the check of these hits that an INCRBY counted: it took them from `used - hits` to
    /// `used`, in this time.
    pub(super) fn find(&mut self, name: &str, hits: i64, used: i64, time: RangeInclusive<Instant>) {
        let found = self.increments.iter_mut().find(|increment| {
            increment.key.starts_with(name.as_bytes())
                && increment.before <= used - hits
                && used <= increment.after
                && time.contains(&increment.at)
                && hits <= increment.rest
        });
        if let Some(Increment { key, at, rest, .. }) = found {
            *rest -= hits;
            let (key, at) = (key.clone(), *at);
            self.executed.entry(hits).or_default().push(Execution {
                key,
                used,
                allowed: None,
                at,
            });
        }
    }

    /// Asserts that the counts of increments other than the checks that [`FakeCounters::find`]
    /// found are the sum of some of `others`: names, hits, and when they were sent.
    pub(super) fn verify_rests(&self, others: &[(&str, i64, Instant)]) {
        for Increment { key, at, rest, .. } in &self.increments {
            let mut sums = BTreeSet::from([0]);
            for (_, hits, _) in others
                .iter()
                .filter(|(name, _, began)| key.starts_with(name.as_bytes()) && began <= at)
            {
                let more: Vec<_> = sums.iter().map(|sum| sum + hits).collect();
                sums.extend(more.into_iter().filter(|sum| sum <= rest));
            }
            assert!(
                sums.contains(rest),
                "{rest} hits of no check were counted at {at:?} under {}",
                key.escape_ascii()
            );
        }
    }

    /// Records an executed check.
    fn count(&mut self, hits: i64, key: &[u8], used: i64, allowed: Option<bool>) {
        if hits != 0 {
            self.executed.entry(hits).or_default().push(Execution {
                key: key.to_vec(),
                used,
                allowed,
                at: Instant::now(),
            });
        }
    }
}

/// The checks of one request, as the script receives them.
struct ReceivedRequest<'c> {
    is_all_or_none: bool,
    deadline: i64,
    checks: Vec<ReceivedCheck<'c>>,
}

/// Parses the requests of a call, in the format that `lua/frame.lua` describes.
fn parse_requests(command: &Command) -> Vec<ReceivedRequest<'_>> {
    let count = whole(&command[2]) as usize;
    let (mut keys, arguments) = command[3..].split_at(count);
    let ([given, uses, limits, runs, requests] | [given, uses, limits, runs, requests, _]) =
        arguments
    else {
        panic!("a call has five arguments or six")
    };
    assert!(given.is_empty(), "no time is given");
    let short = |bytes: &[u8]| usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let mut checks = runs
        .chunks_exact(20)
        .flat_map(|run| std::iter::repeat_n(run, short(&run[2..])));
    let mut parsed = Vec::new();
    let (earliest, requests) = requests.split_at(8);
    for request in requests.chunks_exact(13) {
        assert_eq!(
            short(&request[3..]),
            0,
            "these plans have no passing quotas"
        );
        let (own, others) = keys.split_at(short(&request[1..]));
        let mut received = Vec::new();
        for (key, check) in own.iter().zip(&mut checks) {
            let (limit, modes) = (short(check) / 4, check[0] % 4);
            let limit = &limits[57 * limit..][..57];
            assert!(
                uses.contains(&limit[0]),
                "the call says that it uses {}",
                limit[0]
            );
            let (code, hits) = (limit[0], numbers(&check[4..])[0]);
            let [counts_denied, limit, _, burst, ..] = numbers(&limit[9..])[..] else {
                panic!("six numbers")
            };
            received.push(ReceivedCheck {
                key,
                code,
                modes,
                hits,
                counts_denied: counts_denied % 2 == 1,
                limit,
                burst,
            });
        }
        parsed.push(ReceivedRequest {
            is_all_or_none: request[0] == 1,
            deadline: numbers(&request[5..])[0],
            checks: received,
        });
        keys = others;
    }
    assert!(keys.is_empty(), "every key belongs to a check");
    assert_eq!(
        parsed.iter().map(|request| request.deadline).min(),
        numbers(earliest).pop(),
        "the earliest deadline"
    );
    parsed
}

/// Asserts that every counter that a transaction writes gets a TTL in the same transaction.
fn check_expiries(commands: &[Command]) {
    for (index, command) in commands
        .iter()
        .enumerate()
        .filter(|(_, command)| command[0] == b"INCRBY")
    {
        let next = commands.get(index + 1);
        assert!(
            next.is_some_and(|next| next[0] == b"EXPIRE" && next[1] == command[1]),
            "INCRBY without EXPIRE: {commands:?}"
        );
    }
}

/// The reply of the script, row by row.
#[derive(Default)]
struct ScriptReply {
    packed: Vec<u8>,
    error_lines: Vec<&'static str>,
}

impl ScriptReply {
    fn decided(&mut self, code: u8, (allowed, used): (bool, i64)) {
        match code {
            b'F' => self.row(used, if allowed { 0 } else { -1 }),
            _ => self.row(0, 0),
        }
    }

    fn failed(&mut self, line: &'static str) {
        self.error_lines.push(line);
        self.row(-(self.error_lines.len() as i64), 0);
    }

    fn row(&mut self, first: i64, retry: i64) {
        self.packed.extend(
            [first, 0, retry]
                .iter()
                .flat_map(|&number| (number as f64).to_le_bytes()),
        );
    }

    fn into_reply(self, now: u64) -> RespReply {
        let mut reply = vec![
            RespReply::bulk_string(&(now / 1_000_000)),
            RespReply::bulk_string(&(now % 1_000_000)),
            RespReply::BulkString(self.packed),
        ];
        reply.extend(self.error_lines.iter().map(RespReply::bulk_string));
        RespReply::Array(reply)
    }
}

fn has_wrong_type(key: &[u8]) -> bool {
    key.starts_with(WRONG_TYPE_PREFIX.as_bytes())
}

fn whole(text: &[u8]) -> i64 {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no number: {text:?}"))
}

fn numbers(packed: &[u8]) -> Vec<i64> {
    packed
        .chunks_exact(8)
        .map(|eight| f64::from_le_bytes(eight.try_into().expect("eight bytes")) as i64)
        .collect()
}
