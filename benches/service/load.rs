//! The load: closed loops, in which each answer starts the next call, and open loops, in which
//! calls start when they are due.
//!
//! One thread waits in `epoll`, so that it leaves the core that it shares with Redis while it
//! waits, and a thousand connections cost no more than four. In an open loop the latency of a call
//! counts from the instant at which it was due, so that a stall delays all calls that were due
//! meanwhile. Calls without an answer count with the time that they waited.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::http2_client::{Answer, Connection, EncodedRequest};

/// The longest wait for answers before the clock is read again.
const POLL_TIMEOUT: Duration = Duration::from_millis(10);

/// Calls that have waited longer than this at the end of an open loop count with their wait;
/// younger ones do not count.
const OVERDUE: Duration = Duration::from_millis(10);

/// The send buffer of connections with a timeout, in bytes: about as much as a connection over a
/// network holds.
const SEND_BUFFER: usize = 64 * 1_024;

/// The longest message of clients with a timeout, in bytes.
const SHORT_MESSAGE: i64 = 256;

/// Events that one call of `epoll_wait` returns.
const MAX_EVENTS: usize = 256;

/// Connections, and the most calls in flight on each.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub connections: usize,
    pub streams: usize,
}

/// When the next call starts.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// When an earlier one is answered.
    Closed,
    /// At random instants, at this mean rate (a Poisson process).
    Open { per_second: f64 },
}

/// When a run ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Passed(Duration),
    /// After this number of calls, all answered.
    Answered(u64),
}

/// The requests of a load, in order.
pub trait RequestSource {
    fn next(&mut self) -> &EncodedRequest;
}

/// Requests in an order that was drawn beforehand.
pub struct RequestSequence {
    all: Vec<EncodedRequest>,
    order: Vec<u32>,
    next: usize,
}

impl RequestSequence {
    /// `order` holds indices of `all`, and is repeated.
    pub fn new(all: Vec<EncodedRequest>, order: Vec<u32>) -> Self {
        Self {
            all,
            order,
            next: 0,
        }
    }
}

impl RequestSource for RequestSequence {
    fn next(&mut self) -> &EncodedRequest {
        let index = self.order[self.next];
        self.next = (self.next + 1) % self.order.len();
        &self.all[index as usize]
    }
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Tally {
    pub ok: u64,
    pub over_limit: u64,
    pub failed: u64,
    /// Calls that the client gave up, in flight or before they were sent.
    pub given_up: u64,
    /// Connections that the server closed.
    pub connections_lost: u64,
    pub lasted: Duration,
    micros: Vec<f64>,
    /// Latencies of calls that failed.
    failed_micros: Vec<f64>,
}

impl Tally {
    pub fn answered(&self) -> u64 {
        self.ok + self.over_limit + self.failed
    }

    fn take(&mut self, answer: Answer, waited: Duration) {
        let micros = waited.as_nanos() as f64 / 1_000.0;
        match answer {
            Answer::Ok => self.ok += 1,
            Answer::OverLimit => self.over_limit += 1,
            Answer::Failed => {
                self.failed += 1;
                self.failed_micros.push(micros);
            }
        }
        self.micros.push(micros);
    }

    /// Latencies, in microseconds, of these shares of all calls.
    pub fn quantiles<const N: usize>(&mut self, shares: [f64; N]) -> [f64; N] {
        quantiles(&mut self.micros, shares)
    }

    /// The same, of the calls that failed.
    pub fn failed_quantiles<const N: usize>(&mut self, shares: [f64; N]) -> [f64; N] {
        quantiles(&mut self.failed_micros, shares)
    }
}

fn quantiles<const N: usize>(micros: &mut [f64], shares: [f64; N]) -> [f64; N] {
    micros.sort_unstable_by(f64::total_cmp);
    let last = micros.len().saturating_sub(1) as f64;
    shares.map(|share| {
        micros
            .get((last * share) as usize)
            .copied()
            .unwrap_or(f64::NAN)
    })
}

/// Sets the timeout of the connection's calls, and a small send buffer.
fn apply_timeout(connection: &mut Connection, timeout: Duration) {
    connection.timeout = format!("{}m", timeout.as_millis());
    connection.min_window = SHORT_MESSAGE;
    socket2::SockRef::from(&connection.stream)
        .set_send_buffer_size(SEND_BUFFER)
        .expect("a TCP socket");
}

/// Registers a connection edge-triggered: after an event the load reads everything, and writes
/// until the socket accepts no more.
fn watch(epoll: &OwnedFd, connection: &Connection, index: usize) {
    let changes = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
    epoll::add(
        epoll,
        &connection.stream,
        epoll::EventData::new_u64(index as u64),
        changes,
    )
    .expect("a socket");
}

/// The connections to one server.
pub struct Client {
    address: SocketAddr,
    shape: Shape,
    connections: Vec<Connection>,
    turn: usize,
    epoll: OwnedFd,
    /// The indices of connections that may read or write.
    ready: Vec<usize>,
    events: Vec<epoll::Event>,
    /// Calls of an open loop are given up after this time.
    deadline: Option<Duration>,
    traces: bool,
}

impl Client {
    pub fn connect(address: SocketAddr, shape: Shape) -> Self {
        // The kernel rounds short waits up by its timer slack. It may refuse this value; then the
        // waits are longer.
        let _ = std::fs::write("/proc/self/timerslack_ns", "1");
        let mut connections: Vec<Connection> = (0..shape.connections)
            .map(|_| Connection::connect(address, shape.streams))
            .collect();
        // A server closes connections whose preface does not arrive in time.
        connections.iter_mut().for_each(Connection::flush);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("Linux");
        for (index, connection) in connections.iter().enumerate() {
            watch(&epoll, connection, index);
        }
        Self {
            address,
            shape,
            connections,
            turn: 0,
            epoll,
            ready: Vec::new(),
            events: Vec::with_capacity(MAX_EVENTS),
            deadline: None,
            traces: false,
        }
    }

    /// Gives up calls of open loops after `deadline`, keeps send buffers small, and reconnects when
    /// the server closes a connection.
    pub fn with_timeout(mut self, deadline: Duration) -> Self {
        self.connections
            .iter_mut()
            .for_each(|connection| apply_timeout(connection, deadline));
        self.deadline = Some(deadline);
        self
    }

    /// Sends a new `traceparent` with each call.
    pub fn with_traces(mut self) -> Self {
        self.connections.iter_mut().for_each(Connection::trace);
        self.traces = true;
        self
    }

    /// Replaces a connection that the server closed; its calls in flight have failed.
    fn reconnect(&mut self, index: usize, now: Instant, tally: &mut Tally) {
        let deadline = self.deadline.expect("the server closed a connection");
        let mut connection = Connection::connect(self.address, self.shape.streams);
        apply_timeout(&mut connection, deadline);
        if self.traces {
            connection.trace();
        }
        watch(&self.epoll, &connection, index);
        let lost = std::mem::replace(&mut self.connections[index], connection);
        lost.waiting()
            .for_each(|since| tally.take(Answer::Failed, now.saturating_duration_since(since)));
        tally.connections_lost += 1;
    }

    /// Gives up the calls that have waited for longer than the deadline. Returns how many those
    /// are.
    fn give_up(&mut self, schedule: &mut Schedule, now: Instant) -> u64 {
        let Some(before) = self.deadline.and_then(|deadline| now.checked_sub(deadline)) else {
            return 0;
        };
        let mut given_up = 0;
        while schedule.waiting.front().is_some_and(|&due| due < before) {
            schedule.waiting.pop_front();
            given_up += 1;
        }
        for (index, connection) in self.connections.iter_mut().enumerate() {
            let of_connection = connection.give_up(before);
            if of_connection > 0 {
                self.ready.push(index);
            }
            given_up += of_connection;
        }
        given_up
    }

    /// Runs the load. Answers to calls of an earlier run count in this one.
    pub fn run(&mut self, requests: &mut dyn RequestSource, pace: Pace, until: Until) -> Tally {
        let begin = Instant::now();
        self.ready = (0..self.connections.len()).collect();
        let mut tally = Tally::default();
        let mut schedule = Schedule {
            due: begin,
            waiting: VecDeque::new(),
        };
        let mut asked = 0;
        loop {
            let now = Instant::now();
            let (over, left) = match until {
                Until::Passed(time) => (now - begin >= time, u64::MAX),
                Until::Answered(calls) => (tally.answered() == calls, calls - asked),
            };
            if over {
                tally.lasted = now - begin;
                break;
            }
            let timeout = match pace {
                Pace::Closed => {
                    asked += self.fill(requests, now, left);
                    POLL_TIMEOUT
                }
                Pace::Open { per_second } => {
                    schedule.advance(now, per_second);
                    tally.given_up += self.give_up(&mut schedule, now);
                    self.catch_up(requests, &mut schedule.waiting);
                    schedule
                        .due
                        .saturating_duration_since(Instant::now())
                        .min(POLL_TIMEOUT)
                }
            };
            self.exchange(timeout, &mut tally);
        }
        if matches!(pace, Pace::Open { .. }) {
            let now = Instant::now();
            let unanswered = self
                .connections
                .iter()
                .flat_map(Connection::waiting)
                .chain(schedule.waiting);
            tally.micros.extend(
                unanswered
                    .map(|since| now - since)
                    .filter(|&age| age > OVERDUE)
                    .map(|age| age.as_nanos() as f64 / 1_000.0),
            );
        }
        tally
    }

    /// Makes calls on all connections that can take one, at most `left`. Returns how many those
    /// are.
    fn fill(&mut self, requests: &mut dyn RequestSource, now: Instant, left: u64) -> u64 {
        let mut asked = 0;
        for &index in &self.ready {
            let connection = &mut self.connections[index];
            while asked < left && connection.can_call() {
                connection.call(requests.next(), now);
                asked += 1;
            }
        }
        asked
    }

    /// Makes the calls that are due, on the connections in turn.
    fn catch_up(&mut self, requests: &mut dyn RequestSource, waiting: &mut VecDeque<Instant>) {
        while let Some(&due) = waiting.front() {
            let connections = self.connections.len();
            let Some(free) = (0..connections)
                .map(|step| (self.turn + step) % connections)
                .find(|&index| self.connections[index].can_call())
            else {
                return;
            };
            self.connections[free].call(requests.next(), due);
            self.ready.push(free);
            self.turn = (free + 1) % connections;
            waiting.pop_front();
        }
    }

    /// Sends, waits for at most `timeout`, and receives.
    fn exchange(&mut self, timeout: Duration, tally: &mut Tally) {
        for index in self.ready.drain(..) {
            self.connections[index].flush();
        }
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // An interrupted wait returns no events, and the next one follows.
        let _ = epoll::wait(
            &self.epoll,
            spare_capacity(&mut self.events),
            Some(&timeout),
        );
        for event in self.events.drain(..) {
            let index = event.data.u64() as usize;
            let now = Instant::now();
            self.connections[index]
                .receive(|answer, since| tally.take(answer, now.saturating_duration_since(since)));
            self.ready.push(index);
        }
        for index in 0..self.connections.len() {
            if self.connections[index].closed {
                self.reconnect(index, Instant::now(), tally);
            }
        }
    }
}

/// The calls of an open loop.
struct Schedule {
    due: Instant,
    /// The instants of calls that are due and not yet made.
    waiting: VecDeque<Instant>,
}

impl Schedule {
    fn advance(&mut self, now: Instant, per_second: f64) {
        while self.due <= now {
            self.waiting.push_back(self.due);
            // 1 - f64() is never 0.
            self.due += Duration::from_secs_f64(-(1.0 - fastrand::f64()).ln() / per_second);
        }
    }
}
