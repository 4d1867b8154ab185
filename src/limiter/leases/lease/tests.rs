//! That nothing is admitted that a store which decides each hit for itself would have to refuse:
//! random worlds of replicas, a store, and messages that are late, lost or in another order. And
//! the steps of the model, `tests/vectors/leases.py`.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::*;
use crate::core::algorithm::{AlgorithmKind, Arrival, Options, State};
use crate::core::time::{Micros, Rate, Unit};

/// An instant at which no window and no bucket begins: in 2027.
const START: u64 = 1_800_000_123_456_789;

/// The world ends here, in 2240: where ticks still move.
const LAST: u64 = 8_520_336_000_000_000;

const HUNDRED_YEARS: u32 = 3_153_600_000;

/// An event, after a pause in microseconds.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Requests of a replica, a few microseconds apart.
    Requests {
        replica: usize,
        count: u64,
        hits: u64,
        /// How far each gets before the next one.
        trip: Trip,
    },
    /// The store executes what has been sent, the given one first.
    Execute(usize),
    /// A reply arrives.
    Deliver(usize),
    /// All replies arrive, the last one first or in their order.
    DeliverAll(bool),
    /// A request gives up. What it sent may be executed or not.
    TimeOut(usize),
    /// The caller of a request goes away.
    Cancel(usize),
    Crash(usize),
    /// The counter is lost.
    Reset,
    /// Refund of hits that were admitted in this window.
    Refund(u64),
    /// So many microseconds before the end of the window or bucket, if that is still to come.
    BeforeEdge(u64),
    /// A replica learns the next, larger limit.
    Raise(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trip {
    /// It has its answer, so many microseconds after it was executed.
    Whole(u64),
    /// Its message waits.
    Sent,
    /// The denial cache refuses it, if nothing is held.
    Refused,
}

/// Constants of a run.
#[derive(Clone, Debug)]
struct Setting {
    /// The limit as it is raised.
    algorithms: Vec<Algorithm>,
    /// Parts per million by which the clock of each replica is fast.
    rates: Vec<i64>,
    /// `REPLICAS`, which may be wrong.
    told: u64,
}

/// Events of the replicas, as a store records them that decides each hit when it is admitted.
#[derive(Clone, Copy, Debug)]
enum Event {
    Admitted(u64),
    GivenBack(u64),
    Reset,
    Raised(usize),
}

#[derive(Clone, Debug, Default)]
struct Replica {
    /// By number of the limit.
    leases: Vec<Lease>,
    /// Hits that are held of a counter that was lost meanwhile.
    excused: Vec<u64>,
    /// The number of the limit.
    limit: usize,
    crashes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    replica: usize,
    limit: usize,
    crashes: u64,
    began: u64,
    hits: u64,
    ahead: u64,
    draws: bool,
    executed: Option<Executed>,
}

/// A time, and a number that orders what happens at the same time.
#[derive(Clone, Copy, Debug)]
struct Moment {
    number: u64,
    at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Executed {
    at: Moment,
    verdict: Verdict,
    /// The counter has been lost since.
    is_lost: bool,
}

struct World<'s> {
    setting: &'s Setting,
    now: u64,
    store: Option<State>,
    replicas: Vec<Replica>,
    messages: Vec<Message>,
    /// Times at which something was decided, or happened to the counter.
    moments: u64,
    events: Vec<(Moment, Event)>,
    /// The largest limit that a replica knows.
    raised: usize,
    /// Admitted hits by the time that they count at, which may be refunded.
    admitted: Vec<(u64, u64)>,
    is_reset: bool,
}

impl<'s> World<'s> {
    fn new(setting: &'s Setting) -> Self {
        let replica = Replica {
            leases: vec![Lease::default(); setting.algorithms.len()],
            excused: vec![0; setting.algorithms.len()],
            ..Replica::default()
        };
        Self {
            setting,
            now: START,
            store: None,
            replicas: vec![replica; setting.rates.len()],
            messages: Vec::new(),
            moments: 0,
            events: Vec::new(),
            raised: 0,
            admitted: Vec::new(),
            is_reset: false,
        }
    }

    /// The clock of a replica.
    fn clock(&self, replica: usize) -> u64 {
        let passed = i128::from(self.now - START);
        let fast = passed * i128::from(self.setting.rates[replica]) / 1_000_000;
        u64::try_from(passed + fast).expect("no clock goes back") + replica as u64
    }

    fn moment(&mut self) -> Moment {
        self.moments += 1;
        Moment {
            number: self.moments,
            at: self.now,
        }
    }

    fn happens(&mut self, event: Event) {
        let moment = self.moment();
        self.events.push((moment, event));
    }

    fn terms(&self, limit: usize) -> Terms<'s> {
        let algorithm = &self.setting.algorithms[limit];
        let replicas = self.setting.told;
        Terms {
            algorithm,
            replicas,
        }
    }

    fn act(&mut self, pause: u64, act: Act) {
        self.now = (self.now + pause).min(LAST);
        match act {
            Act::Requests {
                replica,
                count,
                hits,
                trip,
            } => {
                for _ in 0..count {
                    self.now += 3;
                    self.request(replica % self.replicas.len(), hits, trip);
                }
            }
            Act::Execute(first) => {
                if let Some(index) = self.pick(first) {
                    self.execute(index);
                }
                (0..self.messages.len()).for_each(|index| self.execute(index));
            }
            Act::Deliver(index) => {
                if let Some(index) = self.pick(index) {
                    self.deliver(index);
                }
            }
            Act::DeliverAll(is_reversed) => {
                for left in (0..self.messages.len()).rev() {
                    self.deliver(if is_reversed { left } else { 0 });
                }
            }
            Act::TimeOut(index) => self.give_up(index, true),
            Act::Cancel(index) => self.give_up(index, false),
            Act::Crash(replica) => {
                let replica = replica % self.replicas.len();
                let crashed = &mut self.replicas[replica];
                crashed.leases.fill(Lease::default());
                crashed.excused.fill(0);
                crashed.crashes += 1;
            }
            Act::Reset => self.reset(),
            Act::Refund(hits) => self.refund(hits),
            Act::BeforeEdge(micros) => {
                let edge = self.edge().saturating_sub(micros);
                if edge <= LAST {
                    self.now = self.now.max(edge);
                }
            }
            Act::Raise(replica) => {
                let replica = replica % self.replicas.len();
                let replica = &mut self.replicas[replica];
                replica.limit = (replica.limit + 1).min(self.setting.algorithms.len() - 1);
                if replica.limit > self.raised {
                    self.raised = replica.limit;
                    self.happens(Event::Raised(self.raised));
                }
            }
        }
    }

    /// The end of the window or bucket that it is.
    fn edge(&self) -> u64 {
        let window = self.setting.algorithms[0].lease_window();
        let window = window.expect("it has leases").micros();
        (self.now / window + 1) * window
    }

    fn request(&mut self, replica: usize, hits: u64, trip: Trip) {
        let limit = self.replicas[replica].limit;
        let (began, terms) = (self.clock(replica), self.terms(limit));
        let hits = hits.min(terms.limit());
        let lease = &mut self.replicas[replica].leases[limit];
        match lease.decide(began, hits, terms) {
            LeaseStep::Leased(_) => self.admit_held(replica, limit, hits),
            LeaseStep::Sent { draws, .. } if trip == Trip::Refused => {
                let taken = lease.take(began, hits, terms);
                if draws {
                    lease.end_draw();
                }
                if taken.is_some() {
                    self.admit_held(replica, limit, hits);
                }
            }
            LeaseStep::Sent { ahead, draws } => {
                self.messages.push(Message {
                    replica,
                    limit,
                    crashes: self.replicas[replica].crashes,
                    began,
                    hits,
                    ahead,
                    draws,
                    executed: None,
                });
                if let Trip::Whole(micros) = trip {
                    self.execute(self.messages.len() - 1);
                    self.now += micros;
                    self.deliver(self.messages.len() - 1);
                }
            }
        }
    }

    fn pick(&self, index: usize) -> Option<usize> {
        index.checked_rem(self.messages.len())
    }

    fn execute(&mut self, index: usize) {
        let message = self.messages[index];
        let algorithm = &self.setting.algorithms[message.limit];
        // A counter forgets hits if a smaller limit overwrites the count of a larger one, with and
        // without leases: later checks of the previous limit do not find them.
        let is_counter = matches!(algorithm, Algorithm::SlidingWindowCounter(_));
        let is_late = is_counter && message.limit < self.raised;
        if message.executed.is_some() || is_late {
            return;
        }
        let hits = i64::try_from(message.hits + message.ahead).expect("few hits");
        let step = algorithm.step(self.store.take(), at(self.now), hits);
        self.store = step.state;
        self.messages[index].executed = Some(Executed {
            at: self.moment(),
            verdict: step.verdict,
            is_lost: false,
        });
    }

    /// A reply arrives, if its message was executed and its replica still lives. As `Draws::finish`
    /// takes it.
    fn deliver(&mut self, index: usize) {
        let message = self.messages[index];
        let Some(executed) = message.executed else {
            return;
        };
        self.messages.remove(index);
        let Message {
            replica,
            limit,
            hits,
            ..
        } = message;
        if self.replicas[replica].crashes != message.crashes {
            return;
        }
        let (now, terms) = (self.clock(replica), self.terms(limit));
        let Replica {
            leases, excused, ..
        } = &mut self.replicas[replica];
        let lease = &mut leases[limit];
        let drawn = lease.drawn(
            (message.began, now),
            (hits, message.ahead),
            &executed.verdict,
            terms,
        );
        // Refunded hits have all been used.
        let is_fixed = matches!(terms.algorithm, Algorithm::FixedWindow(_));
        assert!(drawn.void == 0 || self.is_reset || !is_fixed, "{drawn:?}");
        excused[limit] = if drawn.ended > 0 {
            0
        } else {
            excused[limit].saturating_sub(drawn.void)
        };
        if executed.is_lost {
            excused[limit] += drawn.granted;
        }
        let is_admitted = drawn.verdict.is_some_and(|verdict| verdict.allowed);
        let is_taken = !is_admitted && lease.take(now, hits, terms).is_some();
        if message.draws {
            lease.end_draw();
        }
        if is_admitted {
            self.admit(executed.at, hits);
        } else if is_taken {
            self.admit_held(replica, limit, hits);
        } else if drawn.verdict.is_none() {
            self.messages.push(Message {
                ahead: 0,
                draws: false,
                executed: None,
                ..message
            });
        }
    }

    /// The store has not answered in time, or the caller of a request has gone away.
    fn give_up(&mut self, index: usize, is_failure: bool) {
        let Some(index) = self.pick(index) else {
            return;
        };
        let message = self.messages.remove(index);
        let Message { replica, limit, .. } = message;
        if self.replicas[replica].crashes != message.crashes {
            return;
        }
        let (now, terms) = (self.clock(replica), self.terms(limit));
        let lease = &mut self.replicas[replica].leases[limit];
        if is_failure {
            lease.failed(now);
        }
        if message.ahead > 0 {
            lease.draw_lost();
        }
        let is_taken = is_failure && lease.take(now, message.hits, terms).is_some();
        if message.draws {
            lease.end_draw();
        }
        if is_taken {
            self.admit_held(replica, limit, message.hits);
        }
    }

    fn reset(&mut self) {
        self.store = None;
        self.is_reset = true;
        self.happens(Event::Reset);
        self.admitted.clear();
        for replica in &mut self.replicas {
            for (excused, lease) in replica.excused.iter_mut().zip(&replica.leases) {
                *excused = lease.rest;
            }
        }
        for executed in self
            .messages
            .iter_mut()
            .filter_map(|it| it.executed.as_mut())
        {
            executed.is_lost = true;
        }
    }

    /// Only to a fixed window: the others take hits off the latest bucket or window, where a
    /// replica may hold hits instead of the ones that were admitted.
    fn refund(&mut self, hits: u64) {
        let algorithm = &self.setting.algorithms[self.raised];
        let Algorithm::FixedWindow(fixed) = algorithm else {
            return;
        };
        let window = fixed.number(Micros(self.now));
        let is_of_window = |&&(at, _): &&(u64, u64)| fixed.number(Micros(at)) == window;
        let admitted: u64 = self
            .admitted
            .iter()
            .filter(is_of_window)
            .map(|(_, hits)| hits)
            .sum();
        let hits = hits.min(admitted);
        let step = algorithm.step(self.store.take(), at(self.now), -hits.cast_signed());
        self.store = step.state;
        self.happens(Event::GivenBack(hits));
        let mut left = hits;
        for (at, admitted) in &mut self.admitted {
            if fixed.number(Micros(*at)) == window {
                let less = left.min(*admitted);
                *admitted -= less;
                left -= less;
            }
        }
    }

    /// Held hits are admitted now. Hits of a lost counter come first.
    fn admit_held(&mut self, replica: usize, limit: usize, hits: u64) {
        let excused = &mut self.replicas[replica].excused[limit];
        let less = hits.min(*excused);
        *excused -= less;
        let moment = self.moment();
        self.admit(moment, hits - less);
    }

    fn admit(&mut self, moment: Moment, hits: u64) {
        if hits > 0 {
            self.events.push((moment, Event::Admitted(hits)));
            self.admitted.push((moment.at, hits));
        }
    }

    /// Lets a store decide each hit that was admitted, at the time at which it was.
    fn check(mut self) -> TestCaseResult {
        self.events
            .sort_by_key(|&(Moment { number, .. }, _)| number);
        let (mut state, mut limit) = (None, 0);
        for (moment, event) in self.events {
            let algorithm = self.setting.algorithms[limit].without_debt();
            let hits = match event {
                Event::Admitted(hits) => hits.cast_signed(),
                Event::GivenBack(hits) => -hits.cast_signed(),
                Event::Reset => {
                    state = None;
                    continue;
                }
                Event::Raised(to) => {
                    limit = to;
                    continue;
                }
            };
            let step = algorithm.step(state, at(moment.at), hits);
            prop_assert!(
                step.verdict.allowed,
                "{hits} hits at {} were admitted beyond {}: {:?}",
                moment.at,
                algorithm.capacity(),
                step.verdict
            );
            state = step.state;
        }
        Ok(())
    }
}

fn at(micros: u64) -> Arrival {
    Arrival {
        now: Micros(micros),
        max_wait: Span::ZERO,
    }
}

fn made(kind: AlgorithmKind, limit: u64, secs: u32, parts: u64, debt: Option<u32>) -> Algorithm {
    let rate = Rate {
        requests_per_unit: limit,
        unit: Unit::Second,
        unit_multiplier: secs,
    };
    let interval = Span::from_micros(u64::from(secs) * 1_000_000 / parts);
    let options = Options {
        kind,
        bucket_interval: (kind == AlgorithmKind::SlidingWindowBuckets).then_some(interval),
        count_denied: Some(debt.is_some()),
        max_debt: debt.filter(|_| kind != AlgorithmKind::FixedWindow),
        ..Options::default()
    };
    Algorithm::try_new(&rate, &options).expect("an algorithm")
}

fn setting(kind: AlgorithmKind) -> impl Strategy<Value = Setting> {
    let longest = if kind == AlgorithmKind::SlidingWindowBuckets {
        31_536_000
    } else {
        HUNDRED_YEARS
    };
    (
        prop_oneof![1 => 1_u64..60, 4 => 60_u64..600],
        prop_oneof![4 => Just(1_u32), 1 => Just(60), 2 => Just(longest)],
        prop::sample::select(vec![2_u64, 2, 5, 60]),
        prop::option::of(1_u32..4),
        prop::collection::vec(-200_i64..=200, 2..5),
        prop_oneof![2 => Just(1_u64), 1 => 2_u64..6],
        prop::collection::vec(1_u64..400, 0..3),
    )
        .prop_map(
            move |(limit, secs, parts, debt, rates, told, raises)| Setting {
                algorithms: std::iter::once(limit)
                    .chain(raises.iter().scan(limit, |limit, raise| {
                        *limit += raise;
                        Some(*limit)
                    }))
                    .map(|limit| made(kind, limit, secs, parts, debt))
                    .collect(),
                rates,
                told,
            },
        )
}

fn act() -> impl Strategy<Value = Act> {
    let index = 0_usize..64;
    let trip = prop_oneof![
        5 => prop_oneof![0_u64..100, 0_u64..30_000].prop_map(Trip::Whole),
        2 => Just(Trip::Sent),
        1 => Just(Trip::Refused),
    ];
    let hits = prop_oneof![3 => Just(1_u64), 1 => 1_u64..=50];
    prop_oneof![
        30 => (index.clone(), 1_u64..40, hits, trip)
            .prop_map(|(replica, count, hits, trip)| Act::Requests { replica, count, hits, trip }),
        4 => index.clone().prop_map(Act::Execute),
        4 => index.clone().prop_map(Act::Deliver),
        2 => any::<bool>().prop_map(Act::DeliverAll),
        1 => index.clone().prop_map(Act::TimeOut),
        1 => index.prop_map(Act::Cancel),
        5 => prop_oneof![0_u64..300, 0_u64..2_000, 0_u64..30_000].prop_map(Act::BeforeEdge),
        1 => rare(),
    ]
}

fn rare() -> impl Strategy<Value = Act> {
    let index = 0_usize..64;
    prop_oneof![
        index.clone().prop_map(Act::Crash),
        Just(Act::Reset),
        (1_u64..200).prop_map(Act::Refund),
        index.prop_map(Act::Raise),
    ]
}

fn pause() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..20,
        3 => 0_u64..400,
        2 => 0_u64..20_000,
        2 => 0_u64..400_000,
        1 => 0_u64..1_500_000,
    ]
}

fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
    prop::collection::vec((pause(), act()), 1..120)
}

fn run(setting: &Setting, acts: &[(u64, Act)]) -> TestCaseResult {
    let mut world = World::new(setting);
    for &(pause, act) in acts {
        world.act(pause, act);
    }
    world.check()
}

/// The numbers of a line.
struct Numbers<'l>(std::str::SplitAsciiWhitespace<'l>);

impl Numbers<'_> {
    fn next(&mut self) -> u64 {
        let word = self.0.next().expect("another number");
        word.parse().expect("a number")
    }
}

fn answer(verdict: Option<Verdict>) -> String {
    verdict.map_or_else(
        || "none".to_owned(),
        |Verdict {
             allowed,
             remaining,
             used,
             reset_after,
             retry_after,
             delay,
         }| {
            assert!(allowed && delay == Span::ZERO && retry_after == Wait::For(Span::ZERO));
            format!("{remaining} {used} {}", reset_after.micros())
        },
    )
}

/// Takes a step of the model. Returns what came of it, as the model writes it.
fn step(lease: &mut Lease, line: &str, terms: Terms<'_>) -> String {
    let mut words = line.split_ascii_whitespace();
    let name = words.next().expect("the name of a step");
    let mut numbers = Numbers(words);
    match name {
        "turn" => match lease.decide(numbers.next(), numbers.next(), terms) {
            LeaseStep::Leased(verdict) => format!("held {}", answer(Some(verdict))),
            LeaseStep::Sent { ahead, draws } => {
                format!("ask {ahead} {}", u8::from(draws))
            }
        },
        "take" => answer(lease.take(numbers.next(), numbers.next(), terms)),
        // A turn that nothing follows unless it is answered.
        "take_at_once" => {
            let (now, hits) = (numbers.next(), numbers.next());
            let is_answered = lease.answers(now);
            let take = |lease: &mut Lease| lease.take(now, hits, terms);
            answer(Some(lease).filter(|_| is_answered).and_then(take))
        }
        "drawn" => {
            let times = (numbers.next(), numbers.next());
            let hits = (numbers.next(), numbers.next());
            let (allowed, used) = (numbers.next() == 1, numbers.next());
            let reset_after = Span::from_micros(numbers.next());
            let verdict = Verdict {
                allowed,
                remaining: terms.limit().saturating_sub(used),
                used,
                reset_after,
                retry_after: Wait::For(reset_after),
                delay: Span::ZERO,
            };
            let drawn = lease.drawn(times, hits, &verdict, terms);
            let answer = drawn.verdict.map_or_else(
                || "again".to_owned(),
                |answer| {
                    let remaining = terms.limit().saturating_sub(answer.used);
                    assert_eq!(
                        (answer.remaining, answer.reset_after),
                        (remaining, reset_after)
                    );
                    format!("{} {}", u8::from(answer.allowed), answer.used)
                },
            );
            let Drawn {
                granted,
                void,
                ended,
                ..
            } = drawn;
            format!("{answer} {granted} {void} {ended}")
        }
        "failed" => {
            lease.failed(numbers.next());
            String::new()
        }
        "draw_lost" => {
            lease.draw_lost();
            String::new()
        }
        _ => {
            assert_eq!(name, "end_draw");
            lease.end_draw();
            String::new()
        }
    }
}

/// The fields, in the order of the model.
fn fields(lease: &Lease) -> String {
    let Lease {
        rest,
        block,
        until,
        fresh_until,
        reset,
        store_used,
        answered_at,
        slot,
        requests,
        hits,
        is_drawing,
    } = *lease;
    [
        rest,
        block,
        until,
        fresh_until,
        reset,
        store_used,
        answered_at,
        slot,
        requests.before,
        requests.now,
        hits.before,
        hits.now,
        is_drawing.into(),
    ]
    .map(|field| field.to_string())
    .join(" ")
}

#[test]
fn steps_are_those_of_the_model() {
    let text = include_str!("../../../../tests/vectors/leases.txt");
    let (mut lease, mut algorithm, mut replicas, mut steps) = (Lease::default(), None, 1, 0);
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            continue;
        }
        if let Some(terms) = line.strip_prefix("limit ") {
            let mut numbers = Numbers(terms.split_ascii_whitespace());
            let (limit, window) = (numbers.next(), numbers.next());
            replicas = numbers.next();
            let secs = u32::try_from(window / 1_000_000).expect("a short window");
            let debt = (numbers.next() == 1).then_some(1);
            algorithm = Some(made(AlgorithmKind::FixedWindow, limit, secs, 1, debt));
            lease = Lease::default();
            continue;
        }
        let algorithm = algorithm.as_ref().expect("a limit before its steps");
        let terms = Terms {
            algorithm,
            replicas,
        };
        let (written, after) = line.split_once(" | ").expect("the fields");
        let (asked, result) = written.split_once(" = ").unwrap_or((written, ""));
        let found = (step(&mut lease, asked, terms), fields(&lease));
        let number = number + 1;
        assert_eq!(
            found,
            (result.into(), after.into()),
            "line {number}: {asked}"
        );
        steps += 1;
    }
    assert!(steps >= 1_500, "only {steps} steps");
}

proptest! {
    #![proptest_config(crate::testing::property(400))]

    #[test]
    fn fixed_windows_admit_at_most_their_limit(
        setting in setting(AlgorithmKind::FixedWindow),
        acts in acts(),
    ) {
        run(&setting, &acts)?;
    }

    #[test]
    fn counters_admit_what_they_would_admit_one_by_one(
        setting in setting(AlgorithmKind::SlidingWindowCounter),
        acts in acts(),
    ) {
        run(&setting, &acts)?;
    }

    #[test]
    fn buckets_admit_what_they_would_admit_one_by_one(
        setting in setting(AlgorithmKind::SlidingWindowBuckets),
        acts in acts(),
    ) {
        run(&setting, &acts)?;
    }
}
