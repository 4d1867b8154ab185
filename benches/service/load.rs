//! The load: closed loops, where every call that is answered makes the next one, and open ones, where calls come when they are due.
//!
//! One thread that waits in `epoll`, so that Redis may have the core that they share, and that a thousand connections cost no more than four.
//! In an open loop the time of a call counts from the instant that it was due, so that a stall is seen by all who met it; calls that were
//! never answered count as long as they waited.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::http2_client::{Answer, Line, Question};

/// How long to wait for answers before looking at the clock again.
const PATIENCE: Duration = Duration::from_millis(10);

/// Calls that wait for so long at the end of an open loop count as slow ones; others are merely the last ones.
const OVERDUE: Duration = Duration::from_millis(10);

/// What the kernel keeps of an impatient client's calls: about what it does for a peer beyond a network, where it need not send 64 KiB at once.
const SEND_BUFFER: usize = 64 * 1_024;

/// Messages of impatient clients are no longer.
const SHORT_MESSAGE: i64 = 256;

/// Changes that are heard of at once.
const MOST_EVENTS: usize = 256;

/// Connections, and calls under way on each.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub connections: usize,
    pub streams: usize,
}

/// When the next call is made.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// When one was answered.
    Closed,
    /// At random instants, so many a second (a Poisson process).
    Open { per_second: f64 },
}

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Passed(Duration),
    /// So many calls, all answered.
    Answered(u64),
}

/// Gives the questions of a load.
pub trait Supply {
    fn next(&mut self) -> &Question;
}

/// What is asked, in an order drawn beforehand.
pub struct Questions {
    all: Vec<Question>,
    order: Vec<u32>,
    next: usize,
}

impl Questions {
    /// `order` holds places in `all`, and begins again at its end.
    pub fn new(all: Vec<Question>, order: Vec<u32>) -> Self {
        Self { all, order, next: 0 }
    }
}

impl Supply for Questions {
    fn next(&mut self) -> &Question {
        let place = self.order[self.next];
        self.next = (self.next + 1) % self.order.len();
        &self.all[place as usize]
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Tally {
    pub ok: u64,
    pub over_limit: u64,
    pub failed: u64,
    /// Given up, under way or before they were sent.
    pub given_up: u64,
    /// That the server ended.
    pub connections_lost: u64,
    pub lasted: Duration,
    micros: Vec<f64>,
    /// Of those that failed.
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

    /// The same of those that failed.
    pub fn failed_quantiles<const N: usize>(&mut self, shares: [f64; N]) -> [f64; N] {
        quantiles(&mut self.failed_micros, shares)
    }
}

fn quantiles<const N: usize>(micros: &mut [f64], shares: [f64; N]) -> [f64; N] {
    micros.sort_unstable_by(f64::total_cmp);
    let last = micros.len().saturating_sub(1) as f64;
    shares.map(|share| micros.get((last * share) as usize).copied().unwrap_or(f64::NAN))
}

/// Says how long its calls wait, and sends little ahead.
fn be_impatient(line: &mut Line, patience: Duration) {
    line.patience = format!("{}m", patience.as_millis());
    line.needs = SHORT_MESSAGE;
    socket2::SockRef::from(&line.stream).set_send_buffer_size(SEND_BUFFER).expect("a TCP socket");
}

/// To be told once of each change: whoever is told reads everything, and sends until the socket takes no more.
fn watch(epoll: &OwnedFd, line: &Line, place: usize) {
    let changes = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
    epoll::add(epoll, &line.stream, epoll::EventData::new_u64(place as u64), changes).expect("a socket");
}

/// The connections to one server.
pub struct Client {
    address: SocketAddr,
    shape: Shape,
    lines: Vec<Line>,
    turn: usize,
    epoll: OwnedFd,
    /// Places of the lines that something has happened to since they were looked at.
    awake: Vec<usize>,
    events: Vec<epoll::Event>,
    /// Calls of an open loop that have waited for so long are given up.
    deadline: Option<Duration>,
}

impl Client {
    pub fn connect(address: SocketAddr, shape: Shape) -> Self {
        // Waits of the open loop are shorter than what the kernel rounds them up to; it may refuse, and they are coarser then.
        let _ = std::fs::write("/proc/self/timerslack_ns", "1");
        let mut lines: Vec<Line> = (0..shape.connections).map(|_| Line::connect(address, shape.streams)).collect();
        // A server does not wait long for the first words.
        lines.iter_mut().for_each(Line::flush);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("Linux");
        for (place, line) in lines.iter().enumerate() {
            watch(&epoll, line, place);
        }
        Self { address, shape, lines, turn: 0, epoll, awake: Vec::new(), events: Vec::with_capacity(MOST_EVENTS), deadline: None }
    }

    /// Gives up calls of open loops after `deadline`, sends no more ahead than a network would take, and connects anew where the server ends
    /// a connection.
    pub fn impatient(mut self, deadline: Duration) -> Self {
        self.lines.iter_mut().for_each(|line| be_impatient(line, deadline));
        self.deadline = Some(deadline);
        self
    }

    /// Connects anew where the server has said goodbye; what was under way there is lost, and has failed.
    fn connect_anew(&mut self, place: usize, now: Instant, tally: &mut Tally) {
        let deadline = self.deadline.expect("the server closed a connection");
        let mut line = Line::connect(self.address, self.shape.streams);
        be_impatient(&mut line, deadline);
        watch(&self.epoll, &line, place);
        let lost = std::mem::replace(&mut self.lines[place], line);
        lost.waiting().for_each(|since| tally.take(Answer::Failed, now.saturating_duration_since(since)));
        tally.connections_lost += 1;
    }

    /// Calls that nobody waits for any more.
    fn give_up(&mut self, schedule: &mut Schedule, now: Instant) -> u64 {
        let Some(before) = self.deadline.and_then(|deadline| now.checked_sub(deadline)) else { return 0 };
        let mut given_up = 0;
        while schedule.waiting.front().is_some_and(|&due| due < before) {
            schedule.waiting.pop_front();
            given_up += 1;
        }
        for (place, line) in self.lines.iter_mut().enumerate() {
            let of_line = line.give_up(before);
            if of_line > 0 {
                self.awake.push(place);
            }
            given_up += of_line;
        }
        given_up
    }

    /// Calls that were made before and are not answered yet count where their answers come.
    pub fn run(&mut self, questions: &mut dyn Supply, pace: Pace, until: Until) -> Tally {
        let begin = Instant::now();
        self.awake = (0..self.lines.len()).collect();
        let mut tally = Tally::default();
        let mut schedule = Schedule { due: begin, waiting: VecDeque::new() };
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
            let patience = match pace {
                Pace::Closed => {
                    asked += self.fill(questions, now, left);
                    PATIENCE
                }
                Pace::Open { per_second } => {
                    schedule.advance(now, per_second);
                    tally.given_up += self.give_up(&mut schedule, now);
                    self.catch_up(questions, &mut schedule.waiting);
                    schedule.due.saturating_duration_since(Instant::now()).min(PATIENCE)
                }
            };
            self.exchange(patience, &mut tally);
        }
        if matches!(pace, Pace::Open { .. }) {
            let now = Instant::now();
            let unanswered = self.lines.iter().flat_map(Line::waiting).chain(schedule.waiting);
            tally
                .micros
                .extend(unanswered.map(|since| now - since).filter(|&age| age > OVERDUE).map(|age| age.as_nanos() as f64 / 1_000.0));
        }
        tally
    }

    /// Makes calls wherever there is room again, `left` at most.
    fn fill(&mut self, questions: &mut dyn Supply, now: Instant, left: u64) -> u64 {
        let mut asked = 0;
        for &place in &self.awake {
            let line = &mut self.lines[place];
            while asked < left && line.has_room() {
                line.ask(questions.next(), now);
                asked += 1;
            }
        }
        asked
    }

    /// Makes the calls that are due, on one connection after the other.
    fn catch_up(&mut self, questions: &mut dyn Supply, waiting: &mut VecDeque<Instant>) {
        while let Some(&due) = waiting.front() {
            let lines = self.lines.len();
            let Some(free) = (0..lines).map(|step| (self.turn + step) % lines).find(|&place| self.lines[place].has_room()) else { return };
            self.lines[free].ask(questions.next(), due);
            self.awake.push(free);
            self.turn = (free + 1) % lines;
            waiting.pop_front();
        }
    }

    /// Sends, waits for at most `patience`, and receives.
    fn exchange(&mut self, patience: Duration, tally: &mut Tally) {
        for place in self.awake.drain(..) {
            self.lines[place].flush();
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(patience.subsec_nanos()) };
        // Interrupted or not, the events say what there is.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout));
        for event in self.events.drain(..) {
            let place = event.data.u64() as usize;
            let now = Instant::now();
            self.lines[place].receive(|answer, since| tally.take(answer, now.saturating_duration_since(since)));
            self.awake.push(place);
        }
        for place in 0..self.lines.len() {
            if self.lines[place].ended {
                self.connect_anew(place, Instant::now(), tally);
            }
        }
    }
}

/// The calls of an open loop.
struct Schedule {
    due: Instant,
    /// Due and not yet made.
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
