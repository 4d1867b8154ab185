//! The client: makes calls when they are due, at most so many at a time, and counts what becomes of
//! them.
//!
//! One task does all of it, and nothing is shared. A thread keeps the time of a constant rate,
//! because timers of the runtime have whole milliseconds. Latency counts from the instant at which
//! a call was due: a stall delays all calls that were due meanwhile, and their latencies show it.

use std::collections::{BTreeMap, VecDeque};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::try_join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use hdrhistogram::Histogram;
use prost::Message;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

pub use super::super::workload::ArrivalKind;
use super::super::workload::Arrivals;
use super::connection::LoadConnection;
pub use super::connection::{Failure, FailureKind, Options};
use crate::core::proto::rate_limit_response::{Code, DescriptorStatus};
use crate::core::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use crate::core::time::Micros;
use crate::net::clock;

/// A call that is sent later than this after it was due is late; and calls that are due before the
/// end are sent until this long after it.
pub(super) const LATE: Duration = Duration::from_millis(10);

/// The longest sleep of the thread that keeps the time, after which it sees the end of the load.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// Calls that are due and wait for the client; further ones wait in the thread that keeps the time.
const MAX_DUE: usize = 1_024;

/// The time between two reports of the progress.
const BETWEEN_REPORTS: Duration = Duration::from_millis(250);

/// How long calls that are under way may take when the run is stopped.
const GRACE: Duration = Duration::from_secs(1);

/// The longest latency of the histogram, in µs: two hours. Longer ones count as this.
const LONGEST_MICROS: u64 = 7_200_000_000;

/// When the next call is due.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// When an earlier one is answered.
    Closed,
    /// At this many calls a second.
    Rate {
        /// The mean rate.
        per_second: f64,
        arrivals: ArrivalKind,
        /// Seed of random inter-arrival times.
        seed: u64,
    },
}

/// When no further calls are made; never if neither is given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Until {
    /// After this many calls.
    pub iterations: Option<u64>,
    /// After this time.
    pub time: Option<Duration>,
}

/// A request that is ready to be sent.
#[derive(Clone, Debug)]
pub struct EncodedRequest {
    /// The message, with the prefix of gRPC.
    pub message: Bytes,
    /// Its descriptors, if their answers are counted.
    pub descriptors: Vec<RateLimitDescriptor>,
}

impl EncodedRequest {
    pub(super) fn new(request: RateLimitRequest) -> Self {
        let length = request.encoded_len();
        let mut message = BytesMut::with_capacity(1 + 4 + length);
        // It is not compressed.
        message.put_u8(0);
        message.put_u32(length as u32);
        // A BytesMut grows.
        let _ = request.encode(&mut message);
        Self {
            message: message.freeze(),
            descriptors: request.descriptors,
        }
    }
}

/// Result of a call.
#[derive(Debug)]
pub struct Answered {
    /// The request.
    pub request: EncodedRequest,
    /// The instants before it was sent and after the answer.
    pub between: [Micros; 2],
    /// The answer.
    pub result: Result<RateLimitResponse, Failure>,
    latency: Duration,
}

/// Where requests come from and answers go.
pub trait Load {
    fn next(&mut self) -> EncodedRequest;

    /// Takes an answer.
    fn answered(&mut self, _: &Answered) {}

    /// Shows what was counted so far, a few times a second.
    fn progress(&mut self, _: &Tally) {}
}

/// The counts of calls, as they are reported.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    /// Calls that were made.
    pub sent: u64,
    /// Answers OK.
    pub ok: u64,
    /// Answers OVER_LIMIT.
    pub over_limit: u64,
    /// Answers in which a descriptor has no limit.
    pub without_limit: u64,
    /// Answers in which a descriptor has a limit, or which do not say.
    pub with_limit: u64,
    /// Calls that were under way when the run was stopped.
    pub unfinished: u64,
    /// Connections that were opened again.
    pub reconnections: u64,
    /// Calls that were sent more than 10 ms after they were due.
    pub sent_late: u64,
    /// Calls that were due and not sent.
    pub not_sent: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Tally {
    pub counts: Counts,
    /// Calls without an answer, and the message of the first one, by their kind.
    pub failures: BTreeMap<FailureKind, (u64, String)>,
    /// The time until the last answer.
    pub elapsed: Duration,
    /// Latencies of all calls, in µs: with the time that those without an answer waited.
    pub latency: Histogram<u64>,
    /// Latencies of the calls without an answer.
    pub latency_of_failures: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_MICROS, 3);
        let histogram = histogram.expect("bounds and digits that exist");
        Self {
            counts: Counts::default(),
            failures: BTreeMap::new(),
            elapsed: Duration::ZERO,
            latency: histogram.clone(),
            latency_of_failures: histogram,
        }
    }
}

impl Tally {
    /// Calls that were answered OK or OVER_LIMIT.
    pub const fn answered(&self) -> u64 {
        self.counts.ok + self.counts.over_limit
    }

    /// Calls that failed.
    pub fn failed(&self) -> u64 {
        self.failures.values().map(|(count, _)| count).sum()
    }

    fn take(&mut self, answered: &Answered) {
        let micros = answered.latency.as_micros() as u64;
        self.latency.saturating_record(micros);
        if let Ok(response) = &answered.result {
            let statuses = &response.statuses;
            let is_without = statuses.iter().any(is_without_limit);
            let is_limited = |status: &DescriptorStatus| {
                status.current_limit.is_some() || status.code() == Code::OverLimit
            };
            let is_with = statuses.is_empty() || statuses.iter().any(is_limited);
            self.counts.without_limit += u64::from(is_without);
            self.counts.with_limit += u64::from(is_with);
        }
        match &answered.result {
            Ok(response) if response.overall_code() == Code::Ok => self.counts.ok += 1,
            Ok(_) => self.counts.over_limit += 1,
            Err(failure) => {
                self.latency_of_failures.saturating_record(micros);
                let first = || (0, failure.message.clone());
                self.failures.entry(failure.kind).or_insert_with(first).0 += 1;
            }
        }
    }
}

/// Whether nothing limits a descriptor: an unlimited one has the most left, and an override that
/// blocks it refuses.
pub(in crate::cli) fn is_without_limit(status: &DescriptorStatus) -> bool {
    status.current_limit.is_none()
        && status.limit_remaining != u32::MAX
        && status.code() != Code::OverLimit
}

/// The connections to one server.
pub struct Client {
    connections: Vec<LoadConnection>,
    max_in_flight: usize,
}

impl Client {
    /// Opens all connections.
    ///
    /// # Errors
    /// One of them cannot be opened.
    pub async fn connect(options: &Options) -> Result<Self, Failure> {
        let new = |_| LoadConnection::new(options);
        let connections: Vec<_> = (0..options.connections).map(new).collect();
        try_join_all(connections.iter().map(LoadConnection::sender)).await?;
        Ok(Self {
            connections,
            max_in_flight: options.max_in_flight,
        })
    }

    /// Makes calls until the end, or until `stop`, and waits for their answers: after `stop` for
    /// at most one second. Adds them to `tally`, which may have calls of earlier runs.
    pub async fn run(
        &self,
        tally: &mut Tally,
        load: &mut impl Load,
        pace: Pace,
        until: Until,
        stop: impl Future<Output = ()>,
    ) {
        let (elapsed, sent) = (tally.elapsed, tally.counts.sent);
        let mut calls = FuturesUnordered::new();
        let mut reports = interval(BETWEEN_REPORTS);
        reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let opened = self.opened();
        let begin = Instant::now();
        let grace = match pace {
            Pace::Closed => Duration::ZERO,
            Pace::Rate { .. } => LATE,
        };
        let end = |time| begin.checked_add(time)?.checked_add(grace);
        let end = until.time.and_then(end);
        let mut pacer = Pacer::new(pace, until, begin);
        let (mut is_over, mut give_up) = (false, None);
        // The connections that take a further call, each as often as it takes one.
        let all = 0..self.connections.len();
        let mut free: VecDeque<usize> = all.cycle().take(self.max_in_flight).collect();
        tokio::pin!(stop);
        while !is_over || !calls.is_empty() {
            tokio::select! {
                biased;
                () = &mut stop, if give_up.is_none() => {
                    is_over = true;
                    give_up = Some(tokio::time::Instant::now() + GRACE);
                    pacer.close();
                }
                () = sleep_until(give_up.unwrap_or_else(tokio::time::Instant::now)),
                    if give_up.is_some() => break,
                Some((connection, answered)) = calls.next() => {
                    free.push_back(connection);
                    tally.take(&answered);
                    load.answered(&answered);
                }
                due = pacer.next(), if !is_over && !free.is_empty() => {
                    let now = Instant::now();
                    let left = until.iterations.is_none_or(|most| tally.counts.sent - sent < most);
                    let Some(due) = due.filter(|_| left && end.is_none_or(|end| now < end)) else {
                        is_over = true;
                        continue;
                    };
                    // In a closed loop a call is due when it is made.
                    let is_late = !grace.is_zero() && now.saturating_duration_since(due) > LATE;
                    tally.counts.sent_late += u64::from(is_late);
                    let Some(connection) = free.pop_front() else { continue };
                    tally.counts.sent += 1;
                    let call = call(&self.connections[connection], load.next(), due);
                    calls.push(async move { (connection, call.await) });
                }
                _ = reports.tick() => {
                    tally.elapsed = elapsed + begin.elapsed();
                    load.progress(tally);
                }
            }
        }
        tally.elapsed = elapsed + begin.elapsed();
        tally.counts.unfinished += calls.len() as u64;
        tally.counts.not_sent += pacer.due().saturating_sub(tally.counts.sent - sent);
        tally.counts.reconnections += self.opened() - opened;
    }

    fn opened(&self) -> u64 {
        let opened = self.connections.iter().map(|one| one.opened.get());
        opened.sum()
    }
}

async fn call(connection: &LoadConnection, request: EncodedRequest, due: Instant) -> Answered {
    let sent = clock::now();
    let response = |bytes| {
        let unreadable = |what| Failure::new(FailureKind::Unreadable, what);
        let response = RateLimitResponse::decode(bytes);
        let response = response.map_err(|error| unreadable(error.to_string()))?;
        match response.overall_code() {
            Code::Unknown => Err(unreadable("the overall_code is UNKNOWN".to_owned())),
            Code::Ok | Code::OverLimit => Ok(response),
        }
    };
    let answer = connection.call(request.message.clone()).await;
    let result = answer.and_then(response);
    Answered {
        request,
        between: [sent, clock::now()],
        result,
        latency: due.elapsed(),
    }
}

/// The source of the instants at which calls are due, and the thread that counts them; `None` for a
/// closed loop.
struct Pacer(Option<(mpsc::Receiver<Instant>, JoinHandle<u64>)>);

impl Pacer {
    fn new(pace: Pace, until: Until, begin: Instant) -> Self {
        let Pace::Rate {
            per_second,
            arrivals,
            seed,
        } = pace
        else {
            return Self(None);
        };
        let (sender, due) = mpsc::channel(MAX_DUE);
        let arrivals = Arrivals::new(arrivals, per_second);
        let random = SmallRng::seed_from_u64(seed);
        let thread = thread::spawn(move || keep_time(arrivals, random, until, begin, &sender));
        Self(Some((due, thread)))
    }

    /// When the next call is due, which is now or was before; `None` after the last one.
    async fn next(&mut self) -> Option<Instant> {
        match &mut self.0 {
            None => Some(Instant::now()),
            Some((due, _)) => due.recv().await,
        }
    }

    /// Makes no further calls due.
    fn close(&mut self) {
        if let Some((due, _)) = &mut self.0 {
            due.close();
        }
    }

    /// Ends, and returns how many calls were due.
    fn due(self) -> u64 {
        let thread = self.0.map(|(_, thread)| thread);
        thread.map_or(0, |thread| thread.join().unwrap_or_default())
    }
}

/// Sends the instants at which calls are due, each when it has come. Returns how many were due
/// until the end, or until the receiver was dropped.
#[expect(clippy::disallowed_methods, reason = "a thread that does nothing else")]
fn keep_time(
    mut arrivals: Arrivals,
    mut random: SmallRng,
    until: Until,
    begin: Instant,
    sender: &mpsc::Sender<Instant>,
) -> u64 {
    let end = until.time.unwrap_or(Duration::MAX);
    let most = until.iterations.unwrap_or(u64::MAX);
    for count in 0..most {
        let due = arrivals.next(&mut random);
        // The last interval ends with the time, although no call is due at its end.
        let Some(at) = begin.checked_add(due.min(end)) else {
            return count;
        };
        loop {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if sender.is_closed() {
                return count;
            }
            thread::sleep(left.min(LONGEST_SLEEP));
        }
        if due >= end {
            return count;
        }
        // The receiver is gone. What is due may be far more than could be counted one by one.
        if sender.blocking_send(at).is_err() {
            return arrivals.due_before(end.min(begin.elapsed())).min(most);
        }
    }
    most
}
