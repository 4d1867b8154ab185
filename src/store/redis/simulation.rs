//! The simulation: the store against a fake Redis server, on a paused clock, with faults drawn from
//! a seed.
//!
//! The answers of the store are compared with what the fake server recorded. Every request is
//! answered by its deadline and counted at most once. It is answered with a count only if the
//! server counted that, and with "not executed" only if the server counted nothing. A server that
//! does not answer gets no requests, and gets them again soon after it recovers. No task,
//! connection or queued work is left at the end.
//!
//! Every run draws other seeds. `WEIR_SIMULATION_SEEDS` sets the number of seeds, and
//! `WEIR_SIMULATION_SEED` the first one. A failed run prints its seed; `WEIR_SIMULATION_SEEDS=1`
//! and that seed repeat it.
//!
//! Nothing here may depend on the real time or on a real server.

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
use super::monitor;
use super::{Address, Deployment, Login, Options, Redis};
use crate::core::breaker::CircuitState;
use crate::core::verdict::StoreError;
use crate::testing::{cases, number_in};

/// The numbers of seeds of a full run: together less than 20 s of one core.
const MIXED_SEEDS: u64 = 1_500;
const OUTAGE_SEEDS: u64 = 1_000;
const OVERLOAD_SEEDS: u64 = 20;
const CLOCK_SEEDS: u64 = 100;

/// Requests reach a server again within this time after it recovers.
const RECOVERY_LIMIT: Duration = Duration::from_secs(1);

/// The same after an error that an operator has to fix: probes are rare then.
const CONFIG_ERROR_RECOVERY_LIMIT: Duration = Duration::from_millis(7_500);

/// An outage is detected within this time; from then on requests fail at once.
const DETECTION_LIMIT: Duration = Duration::from_millis(300);

/// Under overload, the smallest share of the counted requests that are answered in time.
const MIN_ANSWERED_OF_COUNTED: f64 = 0.95;

/// Under overload, the smallest share of the server's capacity that is answered in time. 45 of 50
/// runs answer more than all of the capacity, which is estimated without the counters that certainly
/// expire; the rest depends on when probes find the server.
const MIN_ANSWERED_OF_CAPACITY: f64 = 0.7;

/// The most requests of a mixed simulation.
const MAX_REQUESTS: usize = 300;

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// Prints the seed when the test fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        connect_by(None);
        if std::thread::panicking() {
            println!(
                "seed {0}: repeat it with WEIR_SIMULATION_SEEDS=1 WEIR_SIMULATION_SEED={0}",
                self.0
            );
        }
    }
}

/// The results of all seeds.
#[derive(Debug, Default)]
struct Totals {
    seeds: u64,
    answers: AnswerCounts,
    occurrences: BTreeMap<&'static str, u64>,
    slowest_recovery: Duration,
    overload: OverloadTotals,
}

/// Requests to overloaded servers: those that the servers had the capacity for, those that they
/// counted, and those that were answered.
#[derive(Debug, Default)]
struct OverloadTotals {
    capacity: usize,
    counted: usize,
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
    let count = number_in("WEIR_SIMULATION_SEEDS").unwrap_or_else(|| cases(count));
    let first = number_in("WEIR_SIMULATION_SEED").unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    let mut totals = Totals {
        seeds: count,
        ..Totals::default()
    };
    for seed in first..first + count {
        let guard = Seed(seed);
        fastrand::seed(seed);
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(play(seed, &mut totals));
        assert_eq!(PANICS.get(), 0, "a task panicked");
        drop(guard);
    }
    println!("{count} seeds from {first}: {totals:#?}");
    totals
}

/// A fake server, and a store that is connected to it.
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
        connect_by(Some(Arc::new(move || {
            Box::pin(Arc::clone(&simulated).connect())
        })));
        let pool_size = random.u32(1..=max_connections);
        let options = Options {
            login: password.map_or_else(Login::default, |password| Login::new(None, password)),
            database: random.u32(..2),
            pool_size: NonZeroU32::new(pool_size).expect("at least one"),
            connect_timeout: Duration::from_millis(random.u64(20..=250)),
            fixed_windows_by_script: random.u32(..4) == 0,
            ..Options::new(Address::Tcp {
                host: "fake".to_owned(),
                port: 1,
            })
        };
        // The rest of the monitor has no effect on counting, and sends commands that the fake
        // server does not have.
        let deployment = Deployment::new(options);
        tokio::spawn({
            let deployment = Arc::clone(&deployment);
            async move { monitor::probe_open_circuits(&deployment).await }
        });
        Self {
            server,
            redis: Redis::new(deployment, None),
            generator: RequestGenerator::new(random.fork()),
            pool_size,
        }
    }

    /// Applies the events of a scenario, and then switches random faults off.
    async fn play(&self, scenario: &Scenario) {
        for (wait, event) in &scenario.events {
            sleep(*wait).await;
            self.server.apply_event(*event);
        }
        self.server.state().fault_rate = 0;
    }

    fn is_closed(&self) -> bool {
        self.redis
            .deployment()
            .servers()
            .iter()
            .all(|server| server.state == CircuitState::Closed)
    }

    /// Sends requests until one is answered and the circuit is closed. Returns the time until the
    /// first answer.
    async fn wait_for_recovery(
        &mut self,
        within: Duration,
        outcomes: &mut Vec<RequestOutcome>,
    ) -> Duration {
        let began = Instant::now();
        let mut first = None;
        let mut last = None;
        loop {
            let outcome = self
                .generator
                .simple_request(Instant::now(), Duration::from_millis(100))
                .run(self.redis.clone())
                .await;
            if outcome.is_answered() && first.is_none() {
                first = Some(began.elapsed());
            }
            last = outcome.errors().last().or(last);
            outcomes.push(outcome);
            if let (Some(first), true) = (first, self.is_closed()) {
                return first;
            }
            let limit = if first.is_some() {
                within + RECOVERY_LIMIT
            } else {
                within
            };
            assert!(
                began.elapsed() < limit,
                "not recovered after {limit:?}: first {first:?}, last {last:?}, {:?}",
                self.redis.deployment().servers()
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sends many requests at once, all of which have to be answered.
    async fn send_many(&mut self, outcomes: &mut Vec<RequestOutcome>) {
        let mut together = JoinSet::new();
        for _ in 0..20 {
            let request = self
                .generator
                .simple_request(Instant::now(), Duration::from_millis(100));
            let redis = self.redis.clone();
            together.spawn(request.run(redis));
        }
        for outcome in together.join_all().await {
            assert!(
                outcome.is_answered(),
                "not answered by a healthy server: {outcome:?}"
            );
            outcomes.push(outcome);
        }
    }

    /// Asserts that no work is queued, no task runs that should have ended, and no unused
    /// connection is open.
    async fn assert_no_leaks(self) {
        sleep(Duration::from_millis(300)).await;
        for lanes in self.redis.main.lanes.lock().expect("no panic").iter() {
            assert_eq!(
                lanes.load(),
                (0, 0, 0),
                "queued work, queued checks or lanes are left"
            );
        }
        let known = self.redis.deployment().connections().open;
        assert!(
            known <= self.pool_size as usize,
            "{known} connections in a pool of {}",
            self.pool_size
        );
        let open = self.server.state().open;
        assert!(
            open <= known,
            "{open} open connections, of which the store knows {known}"
        );
        // The task that probes open circuits, bb8's reaper, and one task per connection of the
        // server.
        let tasks = Handle::current().metrics().num_alive_tasks();
        assert!(tasks <= 2 + open, "{tasks} tasks and {open} connections");
        let Self { server, redis, .. } = self;
        drop(redis);
        sleep(Duration::from_millis(1)).await;
        assert_eq!(
            server.state().open,
            0,
            "the store is gone and its connections are not"
        );
    }

    fn verify(&self, outcomes: &[RequestOutcome], clock_moves: bool, totals: &mut Totals) {
        let mut state = self.server.state();
        for outcome in outcomes {
            outcome.find_counted(&mut state.counters);
        }
        let open: Vec<_> = outcomes
            .iter()
            .flat_map(RequestOutcome::perhaps_counted)
            .collect();
        state.counters.verify_rests(&open);
        for outcome in outcomes {
            outcome.verify(&state.counters, clock_moves, &mut totals.answers);
        }
        for (name, count) in &state.occurrences {
            *totals.occurrences.entry(name).or_default() += count;
        }
    }
}

/// Requests of every kind under changing conditions.
async fn mixed(seed: u64, totals: &mut Totals) {
    let mut random = Rng::with_seed(seed);
    let scenario = Scenario::draw(&mut random);
    let mut simulation = Simulation::new(&scenario, &mut random, 4);
    let mut together = JoinSet::new();
    let (mut at, end) = (Instant::now(), Instant::now() + scenario.length());
    let longest_gap = random.u64(1_000..20_000);
    while at < end && together.len() < MAX_REQUESTS {
        for _ in 0..[1, 1, 1, 2, 8][random.usize(..5)] {
            together.spawn(
                simulation
                    .generator
                    .any_request(at)
                    .run(simulation.redis.clone()),
            );
        }
        at += Duration::from_micros(random.u64(..longest_gap));
    }
    simulation.play(&scenario).await;
    let mut outcomes = together.join_all().await;
    let within = if scenario.with_config_errors {
        CONFIG_ERROR_RECOVERY_LIMIT
    } else {
        RECOVERY_LIMIT
    };
    let recovery = simulation.wait_for_recovery(within, &mut outcomes).await;
    simulation.send_many(&mut outcomes).await;
    simulation.verify(&outcomes, scenario.moves_clock(), totals);
    if !scenario.with_config_errors {
        totals.slowest_recovery = totals.slowest_recovery.max(recovery);
    }
    simulation.assert_no_leaks().await;
}

/// A server that answers no request for seconds, and callers that keep sending requests.
async fn outage(seed: u64, totals: &mut Totals) {
    let mut random = Rng::with_seed(seed);
    let condition = Condition::draw_outage(&mut random);
    let (before, lasts) = (
        Duration::from_millis(random.u64(20..100)),
        Duration::from_millis(random.u64(800..4_000)),
    );
    let mut events = vec![
        (before, ServerEvent::Condition(condition)),
        (lasts, ServerEvent::Condition(Condition::Healthy)),
    ];
    if matches!(
        condition,
        Condition::RefusesConnections | Condition::Unreachable
    ) {
        events.insert(1, (Duration::ZERO, ServerEvent::CloseConnections));
    }
    let scenario = Scenario {
        events,
        fault_rate: 0,
        with_config_errors: false,
    };
    let mut simulation = Simulation::new(&scenario, &mut random, 4);
    let start = Instant::now();
    let (detected_by, end) = (start + before + DETECTION_LIMIT, start + before + lasts);
    let mut together = JoinSet::new();
    let mut at = start;
    while at < end {
        let timeout = Duration::from_millis(random.u64(5..50));
        together.spawn(
            simulation
                .generator
                .simple_request(at, timeout)
                .run(simulation.redis.clone()),
        );
        at += Duration::from_micros(random.u64(..20_000));
    }
    simulation.play(&scenario).await;
    let mut outcomes = together.join_all().await;
    {
        let state = simulation.server.state();
        for outcome in outcomes
            .iter()
            .filter(|outcome| outcome.began > detected_by && outcome.ended < end)
        {
            assert!(
                !outcome.was_received(&state.counters),
                "sent to a server that is {condition:?}: {outcome:?}"
            );
            let is_quick =
                outcome.ended.saturating_duration_since(outcome.began) <= TIMER_TOLERANCE;
            let is_not_executed = outcome
                .errors()
                .all(|error| matches!(error, StoreError::NotExecuted(_)));
            assert!(
                is_quick && is_not_executed && !outcome.is_answered(),
                "not failed at once during a detected outage: {condition:?} {outcome:?}"
            );
        }
    }
    let recovery = simulation
        .wait_for_recovery(RECOVERY_LIMIT, &mut outcomes)
        .await;
    totals.slowest_recovery = totals.slowest_recovery.max(recovery);
    simulation.send_many(&mut outcomes).await;
    simulation.verify(&outcomes, false, totals);
    simulation.assert_no_leaks().await;
}

/// More requests than the server can execute, all with the same timeout.
async fn overload(seed: u64, totals: &mut Totals) {
    const PER_ARGUMENT: Duration = Duration::from_micros(10);
    // INCRBY and EXPIRE.
    const ARGUMENTS: u32 = 6;
    const LASTS: Duration = Duration::from_millis(900);
    // From here on the server's queue does not grow any more.
    const MEASURED_FROM: Duration = Duration::from_millis(300);
    let max_requests = (LASTS - MEASURED_FROM).div_duration_f64(ARGUMENTS * PER_ARGUMENT) as usize;
    let mut random = Rng::with_seed(seed);
    let events = vec![
        (
            Duration::ZERO,
            ServerEvent::Condition(Condition::Serial(PER_ARGUMENT)),
        ),
        (LASTS, ServerEvent::Condition(Condition::Healthy)),
    ];
    let scenario = Scenario {
        events,
        fault_rate: 0,
        with_config_errors: false,
    };
    let mut simulation = Simulation::new(&scenario, &mut random, 10);
    let timeout = Duration::from_millis(random.u64(30..=100));
    let gap = Duration::from_micros(random.u64(15..40));
    let start = Instant::now();
    let mut together = JoinSet::new();
    let mut at = start;
    while at < start + LASTS {
        together.spawn(
            simulation
                .generator
                .simple_request(at, timeout)
                .run(simulation.redis.clone()),
        );
        at += gap;
    }
    simulation.play(&scenario).await;
    let mut outcomes = together.join_all().await;
    {
        let state = simulation.server.state();
        let counted = || {
            outcomes
                .iter()
                .filter(|outcome| outcome.began > start + MEASURED_FROM)
        };
        totals.overload.capacity += max_requests.min(counted().count());
        totals.overload.counted += counted()
            .filter(|outcome| outcome.was_counted(&state.counters))
            .count();
        totals.overload.answered += counted().filter(|outcome| outcome.is_answered()).count();
    }
    simulation
        .wait_for_recovery(RECOVERY_LIMIT, &mut outcomes)
        .await;
    simulation.send_many(&mut outcomes).await;
    simulation.verify(&outcomes, false, totals);
    simulation.assert_no_leaks().await;
}

/// The server's clock jumps ahead, and nothing else happens.
async fn clock_jumps(seed: u64, totals: &mut Totals) {
    let mut random = Rng::with_seed(seed);
    let jump = |random: &mut Rng| {
        (
            Duration::from_millis(random.u64(20..200)),
            ServerEvent::ClockJump(random.i64(0..20_000_000)),
        )
    };
    let scenario = Scenario {
        events: (0..5).map(|_| jump(&mut random)).collect(),
        fault_rate: 0,
        with_config_errors: false,
    };
    let mut simulation = Simulation::new(&scenario, &mut random, 4);
    let mut together = JoinSet::new();
    let (mut at, end) = (Instant::now(), Instant::now() + scenario.length());
    while at < end {
        let request = simulation
            .generator
            .simple_request(at, Duration::from_millis(100));
        together.spawn(request.run(simulation.redis.clone()));
        at += Duration::from_micros(random.u64(..20_000));
    }
    simulation.play(&scenario).await;
    let outcomes = together.join_all().await;
    for outcome in &outcomes {
        assert!(
            outcome.is_answered(),
            "not answered by a healthy server: {outcome:?}"
        );
    }
    simulation.verify(&outcomes, true, totals);
    simulation.assert_no_leaks().await;
}

#[test]
fn a_jump_of_the_servers_clock_fails_no_request() {
    run(CLOCK_SEEDS, &clock_jumps);
}

#[test]
fn an_overloaded_server_works_for_requests_that_still_wait() {
    let OverloadTotals {
        capacity,
        counted,
        answered,
    } = run(OVERLOAD_SEEDS, &overload).overload;
    let in_time = answered as f64;
    assert!(
        in_time > MIN_ANSWERED_OF_COUNTED * counted as f64
            && in_time > MIN_ANSWERED_OF_CAPACITY * capacity as f64,
        "capacity for {capacity}, {counted} counted, {answered} answered in time"
    );
}

#[test]
fn under_any_fault_each_request_counts_at_most_once_and_its_answer_is_true() {
    let totals = run(MIXED_SEEDS, &mixed);
    let seeds = totals.seeds;
    let AnswerCounts {
        allowed,
        refused,
        not_executed,
        unknown,
        counted_and_unknown,
        data,
        cancelled,
    } = totals.answers;
    let answers = [
        allowed,
        refused,
        not_executed,
        unknown,
        counted_and_unknown,
        data,
        cancelled,
    ];
    // Fewer seeds are for repeating a failed run.
    if seeds >= MIXED_SEEDS / 5 {
        assert!(
            answers.iter().all(|&count| count > 100) && totals.occurrences.len() == 23,
            "the mix does not cover every case: {totals:#?}"
        );
    }
}

#[test]
fn a_server_that_does_not_answer_gets_no_requests_until_it_recovers() {
    run(OUTAGE_SEEDS, &outage);
}
