//! A Redis that is none, on a clock that stands still until everybody waits, with faults drawn from a seed.
//!
//! What the rest of this room promises is held to what the fake server counted: every request is answered by its deadline, counted at most
//! once, told a count only if that is what was counted, and told "not executed" only if nothing was; a server that is silent is left alone,
//! and asked again soon after it came back; and nothing is left behind. Every run plays other faults; a seed plays the same ones again.
//!
//! `WEIR_SIMULATION_SEEDS` says how many seeds there are, and `WEIR_SIMULATION_SEED` which one is the first: with both, `1` and what a
//! failed run printed, that run is repeated.

mod callers;
mod counters;
mod faults;
mod server;
mod wire;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Once};

use fastrand::Rng;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep};

use self::callers::{AnswerCounts, RequestGenerator, RequestOutcome, TIMER_TOLERANCE};
use self::faults::{Condition, Scenario, ServerEvent};
use self::server::FakeServer;
use super::connection::simulated::connect_by;
use super::monitor::supervisor;
use super::{Address, Deployment, Login, Options, Redis};
use crate::breaker::State;
use crate::verdict::StoreError;

/// Seeds where nothing else is said; less than 20 seconds of one core together.
const MIXED_SEEDS: u64 = 1_500;
const OUTAGE_SEEDS: u64 = 1_000;
const OVERLOAD_SEEDS: u64 = 20;

/// A server that is back is asked again within this.
const RECOVERY_LIMIT: Duration = Duration::from_secs(1);

/// The same where somebody had to mend something: probes are rare then.
const CONFIG_ERROR_RECOVERY_LIMIT: Duration = Duration::from_millis(7_500);

/// A request that is sent while nobody answers is told so at once, from this long after the beginning of an outage.
const DETECTION_LIMIT: Duration = Duration::from_millis(300);

/// Of what a server counts that has too much to do, so much is still waited for; and of what it could count, if nothing else were asked of it.
const USEFUL: f64 = 0.95;
const ANSWERED: f64 = 0.9;

/// In changing weather.
const MAX_REQUESTS: usize = 300;

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

fn setting(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "a test that can be asked to run longer")]
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// Says which seed failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        connect_by(None);
        if std::thread::panicking() {
            println!("seed {0}: repeat it with WEIR_SIMULATION_SEEDS=1 WEIR_SIMULATION_SEED={0}", self.0);
        }
    }
}

/// What the simulations of all seeds came to.
#[derive(Debug, Default)]
struct Totals {
    answers: AnswerCounts,
    occurrences: BTreeMap<&'static str, u64>,
    slowest_recovery: Duration,
    overload: OverloadTotals,
}

/// Of servers that were asked for too much: requests that they could have counted, those that they did, and those that were answered.
#[derive(Debug, Default)]
struct OverloadTotals {
    could_do: usize,
    done: usize,
    answered: usize,
}

fn run(count: u64, play: &impl AsyncFn(u64, &mut Totals)) -> Totals {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            usual(info);
        }));
    });
    let count = setting("WEIR_SIMULATION_SEEDS").unwrap_or(count);
    let first = setting("WEIR_SIMULATION_SEED").unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    let mut totals = Totals::default();
    for seed in first..first + count {
        let guard = Seed(seed);
        fastrand::seed(seed);
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(play(seed, &mut totals));
        assert_eq!(PANICS.get(), 0, "a task panicked");
        drop(guard);
    }
    println!("{count} seeds from {first}: {totals:#?}");
    totals
}

/// A server, and a store that uses it.
struct Simulation {
    server: Arc<FakeServer>,
    redis: Redis,
    generator: RequestGenerator,
    pool_size: u32,
}

impl Simulation {
    #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
    fn new(scenario: &Scenario, random: &mut Rng, max_connections: u32) -> Self {
        let password = random.bool().then_some("open sesame");
        let server = FakeServer::new(random.fork(), scenario, password);
        let simulated = Arc::clone(&server);
        connect_by(Some(Arc::new(move || Box::pin(Arc::clone(&simulated).connect()))));
        let pool_size = random.u32(1..=max_connections);
        let options = Options {
            login: password.map_or_else(Login::default, |password| Login::new(None, password)),
            database: random.u32(..2),
            pool_size: NonZeroU32::new(pool_size).expect("at least one"),
            connect_timeout: Duration::from_millis(random.u64(20..=250)),
            fixed_windows_by_script: random.u32(..4) == 0,
            ..Options::new(Address::Tcp { host: "fake".to_owned(), port: 1 })
        };
        // The watch has nothing to do with what is counted, and asks for more than the fake server knows.
        let deployment = Deployment::new(options);
        tokio::spawn({
            let deployment = Arc::clone(&deployment);
            async move { supervisor::probe_open_circuits(&deployment).await }
        });
        Self { server, redis: Redis::new(deployment, None), generator: RequestGenerator::new(random.fork()), pool_size }
    }

    /// Plays what is to happen, and then calms down.
    async fn play(&self, scenario: &Scenario) {
        for (wait, event) in &scenario.events {
            sleep(*wait).await;
            self.server.happen(*event);
        }
        self.server.state().fault_rate = 0;
    }

    fn is_closed(&self) -> bool {
        self.redis.deployment().servers().iter().all(|server| server.state == State::Closed)
    }

    /// Asks until there is an answer, and until nothing is kept from the server any more. Returns how long the first took.
    async fn wait_for_recovery(&mut self, within: Duration, outcomes: &mut Vec<RequestOutcome>) -> Duration {
        let began = Instant::now();
        let mut first = None;
        let mut last = None;
        loop {
            let outcome = self.generator.simple_request(Instant::now(), Duration::from_millis(100)).run(self.redis.clone()).await;
            if outcome.is_answered() && first.is_none() {
                first = Some(began.elapsed());
            }
            last = outcome.errors().last().or(last);
            outcomes.push(outcome);
            if let (Some(first), true) = (first, self.is_closed()) {
                return first;
            }
            let limit = if first.is_some() { within + RECOVERY_LIMIT } else { within };
            assert!(
                began.elapsed() < limit,
                "not back after {limit:?}: first {first:?}, last {last:?}, {:?}",
                self.redis.deployment().servers()
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Many at once, all of which have to be answered.
    async fn send_many(&mut self, outcomes: &mut Vec<RequestOutcome>) {
        let mut together = JoinSet::new();
        for _ in 0..20 {
            let request = self.generator.simple_request(Instant::now(), Duration::from_millis(100));
            let redis = self.redis.clone();
            together.spawn(request.run(redis));
        }
        for outcome in together.join_all().await {
            assert!(outcome.is_answered(), "all is well again, and yet: {outcome:?}");
            outcomes.push(outcome);
        }
    }

    /// Nothing waits, nothing runs that should have ended, and nothing is open that nobody needs.
    async fn assert_no_leaks(self) {
        sleep(Duration::from_millis(300)).await;
        for lanes in self.redis.main.lanes.lock().expect("no panic").iter() {
            assert_eq!(lanes.load(), (0, 0, 0), "jobs, checks and lanes are left");
        }
        let links = self.redis.connections().open;
        assert!(links <= self.pool_size as usize, "{links} links");
        let open = self.server.state().open;
        assert!(open <= links, "{open} connections, of which {links} are known");
        // The keeper, the one that looks for old links, and one per connection of the server.
        let tasks = Handle::current().metrics().num_alive_tasks();
        assert!(tasks <= 2 + open, "{tasks} tasks and {open} connections");
        let Self { server, redis, .. } = self;
        drop(redis);
        sleep(Duration::from_millis(1)).await;
        assert_eq!(server.state().open, 0, "the store is gone and its connections are not");
    }

    fn judge(&self, outcomes: &[RequestOutcome], clock_moves: bool, totals: &mut Totals) {
        let state = self.server.state();
        for outcome in outcomes {
            outcome.judge(&state.counters, clock_moves, &mut totals.answers);
        }
        for (name, count) in &state.occurrences {
            *totals.occurrences.entry(name).or_default() += count;
        }
    }
}

/// Requests of every kind in changing weather.
async fn mixed(seed: u64, totals: &mut Totals) {
    let mut random = Rng::with_seed(seed);
    let scenario = Scenario::draw(&mut random);
    let mut simulation = Simulation::new(&scenario, &mut random, 4);
    let mut together = JoinSet::new();
    let (mut at, end) = (Instant::now(), Instant::now() + scenario.length());
    let longest_gap = random.u64(1_000..20_000);
    while at < end && together.len() < MAX_REQUESTS {
        for _ in 0..[1, 1, 1, 2, 8][random.usize(..5)] {
            together.spawn(simulation.generator.any_request(at).run(simulation.redis.clone()));
        }
        at += Duration::from_micros(random.u64(..longest_gap));
    }
    simulation.play(&scenario).await;
    let mut outcomes = together.join_all().await;
    let within = if scenario.with_config_errors { CONFIG_ERROR_RECOVERY_LIMIT } else { RECOVERY_LIMIT };
    let recovery = simulation.wait_for_recovery(within, &mut outcomes).await;
    simulation.send_many(&mut outcomes).await;
    simulation.judge(&outcomes, scenario.moves_clock(), totals);
    if !scenario.with_config_errors {
        totals.slowest_recovery = totals.slowest_recovery.max(recovery);
    }
    simulation.assert_no_leaks().await;
}

/// A server that answers nobody for seconds, and callers that do not stop asking.
async fn outage(seed: u64, totals: &mut Totals) {
    let mut random = Rng::with_seed(seed);
    let condition = Condition::draw_outage(&mut random);
    let (before, lasts) = (Duration::from_millis(random.u64(20..100)), Duration::from_millis(random.u64(800..4_000)));
    let mut events = vec![(before, ServerEvent::Condition(condition)), (lasts, ServerEvent::Condition(Condition::Calm))];
    if matches!(condition, Condition::Refusing | Condition::Unreachable) {
        events.insert(1, (Duration::ZERO, ServerEvent::HangUp));
    }
    let scenario = Scenario { events, fault_rate: 0, with_config_errors: false };
    let mut simulation = Simulation::new(&scenario, &mut random, 4);
    let start = Instant::now();
    let (noticed, end) = (start + before + DETECTION_LIMIT, start + before + lasts);
    let mut together = JoinSet::new();
    let mut at = start;
    while at < end {
        let timeout = Duration::from_millis(random.u64(5..50));
        together.spawn(simulation.generator.simple_request(at, timeout).run(simulation.redis.clone()));
        at += Duration::from_micros(random.u64(..20_000));
    }
    simulation.play(&scenario).await;
    let mut outcomes = together.join_all().await;
    {
        let state = simulation.server.state();
        for outcome in outcomes.iter().filter(|outcome| outcome.began > noticed && outcome.ended < end) {
            assert!(!outcome.was_received(&state.counters), "sent to a server that is {condition:?}: {outcome:?}");
            let is_quick = outcome.ended.saturating_duration_since(outcome.began) <= TIMER_TOLERANCE;
            let is_not_executed = outcome.errors().all(|error| matches!(error, StoreError::NotExecuted(_)));
            assert!(is_quick && is_not_executed && !outcome.is_answered(), "it is known that nobody answers: {condition:?} {outcome:?}");
        }
    }
    let recovery = simulation.wait_for_recovery(RECOVERY_LIMIT, &mut outcomes).await;
    totals.slowest_recovery = totals.slowest_recovery.max(recovery);
    simulation.send_many(&mut outcomes).await;
    simulation.judge(&outcomes, false, totals);
    simulation.assert_no_leaks().await;
}

/// More requests than the server can do, all of which are waited for equally long.
async fn overload(seed: u64, totals: &mut Totals) {
    const WORD: Duration = Duration::from_micros(20);
    const LASTS: Duration = Duration::from_millis(900);
    // Where it begins to count, its queue is as long as it will be.
    const BEGINS: Duration = Duration::from_millis(300);
    let can_do = (LASTS - BEGINS).div_duration_f64(3 * WORD) as usize;
    let mut random = Rng::with_seed(seed);
    let events = vec![(Duration::ZERO, ServerEvent::Condition(Condition::Busy(WORD))), (LASTS, ServerEvent::Condition(Condition::Calm))];
    let scenario = Scenario { events, fault_rate: 0, with_config_errors: false };
    let mut simulation = Simulation::new(&scenario, &mut random, 10);
    let timeout = Duration::from_millis(random.u64(30..=100));
    let gap = Duration::from_micros(random.u64(15..40));
    let start = Instant::now();
    let mut together = JoinSet::new();
    let mut at = start;
    while at < start + LASTS {
        together.spawn(simulation.generator.simple_request(at, timeout).run(simulation.redis.clone()));
        at += gap;
    }
    simulation.play(&scenario).await;
    let mut outcomes = together.join_all().await;
    {
        let state = simulation.server.state();
        let counted = || outcomes.iter().filter(|outcome| outcome.began > start + BEGINS);
        totals.overload.could_do += can_do.min(counted().count());
        totals.overload.done += counted().filter(|outcome| outcome.was_counted(&state.counters)).count();
        totals.overload.answered += counted().filter(|outcome| outcome.is_answered()).count();
    }
    simulation.wait_for_recovery(RECOVERY_LIMIT, &mut outcomes).await;
    simulation.send_many(&mut outcomes).await;
    simulation.judge(&outcomes, false, totals);
    simulation.assert_no_leaks().await;
}

#[test]
fn a_server_that_has_too_much_to_do_works_for_those_who_still_wait() {
    let OverloadTotals { could_do, done, answered } = run(OVERLOAD_SEEDS, &overload).overload;
    let in_time = answered as f64;
    assert!(
        in_time > USEFUL * done as f64 && in_time > ANSWERED * could_do as f64,
        "{could_do} could be done, {done} were, {answered} of them in time"
    );
}

#[test]
fn whatever_happens_each_request_counts_once_and_has_a_true_answer() {
    let totals = run(MIXED_SEEDS, &mixed);
    let AnswerCounts { allowed, refused, not_executed, unknown, counted_and_unknown, data, left } = totals.answers;
    let answers = [allowed, refused, not_executed, unknown, counted_and_unknown, data, left];
    if setting("WEIR_SIMULATION_SEEDS").is_none() {
        assert!(answers.iter().all(|&count| count > 100) && totals.occurrences.len() == 23, "the mix is no test: {totals:#?}");
    }
}

#[test]
fn a_server_that_does_not_answer_is_left_alone_and_found_again() {
    run(OUTAGE_SEEDS, &outage);
}
