//! Random requests of many keys through the socket, in memory, on Redis and on a cluster, against
//! the rule of `tests/vectors/holds.py`: settlements that are late, lost or repeated, and refused
//! requests, which hold nothing.
//!
//! Time is real: windows are years, and only a `ttl` ends. No request is sent while one may end, and
//! a key for which that was too slow is not compared any more.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use weir::core::proto::rate_limit_response::Code;

use super::rule::{ALGORITHMS, file, of_each_algorithm, request_of};
use crate::support::cluster::Cluster;
use crate::support::wait::TIMEOUT;
use crate::support::{Client, RedisServer, Weir};

const LIMIT: i64 = 100;
/// `max_share` of it.
const MOST: i64 = 50;
const TTL: Duration = Duration::from_secs(2);

/// Keys of each limit, the keys of a request, and the requests of each key.
const KEYS: usize = 12;
const PER_REQUEST: usize = 3;
const ROUNDS: u32 = 24;

/// No request is sent if an expiry is as near as this.
const GUARD: Duration = Duration::from_millis(40);

#[derive(Clone, Copy, Debug)]
enum Event {
    Reserve(u8, i64),
    Settle(u8, i64),
    /// A peek, if it has no hits.
    Hit(i64),
}

struct Hold {
    /// When it was made: between the request and its answer.
    made: Range<Instant>,
    hits: i64,
    /// Its cost, and whether it had expired and stays charged.
    settled: Option<(i64, bool)>,
}

/// A key, with all that has happened to it.
struct World {
    /// The algorithm, as the key of its limit.
    kind: &'static str,
    keeps: bool,
    value: usize,
    charged: i64,
    /// Holds that no id finds any more.
    past: Vec<Hold>,
    holds: HashMap<u8, Hold>,
    /// Its events with their answers, for a failed test.
    log: Vec<String>,
    is_late: bool,
}

impl Hold {
    fn is_open(&self, now: Instant) -> bool {
        now < self.made.start + TTL
    }

    fn counted(&self, keeps: bool, now: Instant) -> i64 {
        match self.settled {
            Some((_, true)) => self.hits,
            Some((cost, false)) => self.hits.min(cost),
            None if self.is_open(now) || keeps => self.hits,
            None => 0,
        }
    }

    /// Whether one of its ends may be within this time.
    fn may_end(&self, within: &Range<Instant>) -> bool {
        let ends = |ttls| {
            let (first, last) = (self.made.start + ttls * TTL, self.made.end + ttls * TTL);
            first <= within.end && within.start <= last
        };
        self.settled.is_none() && (ends(1) || ends(2))
    }
}

impl World {
    fn new(kind: &'static str, keeps: bool, value: usize) -> Self {
        Self {
            kind,
            keeps,
            value,
            charged: 0,
            past: Vec::new(),
            holds: HashMap::new(),
            log: Vec::new(),
            is_late: false,
        }
    }

    fn name(&self) -> String {
        let prefix = if self.keeps { "kept_" } else { "" };
        format!("{prefix}{}={}", self.kind, self.value)
    }

    fn used(&self, now: Instant) -> i64 {
        let holds = self.holds.values().chain(&self.past);
        self.charged + holds.map(|hold| hold.counted(self.keeps, now)).sum::<i64>()
    }

    fn fits(&self, now: Instant, hits: i64) -> bool {
        self.used(now) + hits <= LIMIT
    }

    /// Forgets the id of a hold that has expired; one that is kept, after a further `ttl`.
    fn forget(&mut self, id: u8, now: Instant) {
        let known = if self.keeps { 2 * TTL } else { TTL };
        let is_over = |hold: &Hold| hold.settled.is_none() && now >= hold.made.start + known;
        if self.holds.get(&id).is_some_and(is_over) {
            self.past.extend(self.holds.remove(&id));
        }
    }

    fn choose(&self, random: &mut fastrand::Rng, now: Instant) -> Event {
        let (id, hits) = (random.u8(..6), [0, 1, 10, 33, 100][random.usize(..5)]);
        match random.u8(..10) {
            0..4 => Event::Reserve(id, hits),
            // A bucket's debt is not in the rule.
            4..8 if self.kind == "bucket" => {
                Event::Settle(id, hits.min((LIMIT - self.used(now)).max(0)))
            }
            4..8 => Event::Settle(id, hits / [1, 2, 10][random.usize(..3)]),
            8 if self.fits(now, hits) => Event::Hit(hits),
            _ => Event::Hit(0),
        }
    }

    fn descriptor(&self, event: Event) -> String {
        let name = self.name();
        match event {
            Event::Reserve(id, hits) => format!("{name} reserve={id} {hits}"),
            Event::Settle(id, cost) => format!("{name} settle={id} {cost}"),
            Event::Hit(hits) => format!("{name} {hits}"),
        }
    }

    /// Whether the event is within the limit, and the hits that it reserves if all of its request
    /// is. Charges what does not depend on that.
    fn decide(&mut self, event: Event, now: Instant) -> (bool, i64) {
        match event {
            Event::Hit(hits) => {
                let fits = self.fits(now, hits);
                self.charged += hits;
                (fits, 0)
            }
            Event::Reserve(id, asked) => {
                self.forget(id, now);
                let hold = self.holds.get(&id);
                if hold.is_some_and(|hold| hold.settled.is_some()) {
                    return (self.fits(now, 0), 0);
                }
                let missing = (asked.min(MOST) - hold.map_or(0, |hold| hold.hits)).max(0);
                match missing {
                    0 => (hold.is_some() || self.fits(now, 0), 0),
                    _ if self.fits(now, missing) => (true, missing),
                    _ => (false, 0),
                }
            }
            Event::Settle(id, cost) => {
                self.forget(id, now);
                self.settle(id, cost, now);
                (true, 0)
            }
        }
    }

    fn settle(&mut self, id: u8, cost: i64, now: Instant) {
        if self
            .holds
            .get(&id)
            .is_some_and(|hold| hold.settled.is_some())
        {
            return;
        }
        let held = self.holds.get(&id).map_or(0, |hold| hold.hits);
        let above = (cost - held).max(0);
        let is_debt = self.kind != "fixed" && !self.fits(now, above);
        let room = if is_debt {
            (2 * LIMIT - self.used(now)).max(0)
        } else {
            above
        };
        self.charged += above.min(room);
        let hold = self.holds.entry(id).or_insert_with(|| Hold {
            made: now..now,
            hits: 0,
            settled: None,
        });
        hold.settled = Some((cost, held > 0 && !hold.is_open(now)));
    }

    fn hold(&mut self, id: u8, hits: i64, made: Range<Instant>) {
        let hold = Hold {
            made,
            hits: 0,
            settled: None,
        };
        self.holds.entry(id).or_insert(hold).hits += hits;
    }
}

/// Sends a request of some worlds. Returns how many of them are compared.
async fn step(
    client: &mut Client,
    worlds: &mut [World],
    random: &mut fastrand::Rng,
    began: Instant,
) -> usize {
    let may_end = |worlds: &[World], within: &Range<Instant>| {
        let holds = worlds.iter().flat_map(|world| world.holds.values());
        holds
            .chain(worlds.iter().flat_map(|world| &world.past))
            .any(|hold| hold.may_end(within))
    };
    let mut begin = Instant::now();
    while may_end(worlds, &(begin..begin + GUARD)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        begin = Instant::now();
    }
    let events: Vec<_> = worlds
        .iter()
        .map(|world| world.choose(random, begin))
        .collect();
    let each = worlds.iter().zip(&events);
    let mut descriptors: Vec<_> = each
        .map(|(world, event)| world.descriptor(*event))
        .collect();
    let is_closed = random.u8(..10) == 0;
    descriptors.extend(is_closed.then(|| "closed=x 1".to_owned()));
    let answer = client.should_rate_limit(request_of(&descriptors)).await;
    let (answer, end) = (answer.expect("an answer").into_inner(), Instant::now());
    if may_end(worlds, &(begin..end)) {
        for world in &mut *worlds {
            world.is_late = true;
        }
    }
    if worlds.iter().any(|world| world.is_late) {
        return 0;
    }
    let each = worlds.iter_mut().zip(&events);
    let decided: Vec<_> = each
        .map(|(world, event)| world.decide(*event, begin))
        .collect();
    let is_refused = is_closed || decided.iter().any(|(allowed, _)| !allowed);
    let code = if is_refused {
        Code::OverLimit
    } else {
        Code::Ok
    };
    assert_eq!(answer.overall_code(), code, "{descriptors:?}");
    for (((world, event), (allowed, held)), status) in worlds
        .iter_mut()
        .zip(&events)
        .zip(&decided)
        .zip(&answer.statuses)
    {
        if let (Event::Reserve(id, _), 1.., false) = (event, *held, is_refused) {
            world.hold(*id, *held, begin..end);
        }
        let left = (LIMIT - world.used(begin)).max(0);
        let found = (status.code() == Code::Ok, i64::from(status.limit_remaining));
        let seconds = began.elapsed().as_secs_f64();
        let line = format!("{seconds:.3} s: {event:?} refused {is_refused}: {found:?}");
        world.log.push(line);
        let (name, log) = (world.name(), world.log.join("\n"));
        assert_eq!(found, (*allowed, left), "{name}:\n{log}");
    }
    worlds.len()
}

async fn run(store: &str, environment: &[(&str, &str)], seed: u64) {
    let amount = format!("unit: year, requests_per_unit: {LIMIT}, reservations: {{ ttl: 2s");
    let limits = of_each_algorithm("", &format!("{amount} }}"))
        + &of_each_algorithm("kept_", &format!("{amount}, on_expiry: keep }}"))
        + "  - { key: closed, rate_limit: { unit: year, requests_per_unit: 0 } }\n";
    let weir = Weir::start(&[("limits.yaml", &file(&limits))], environment);
    let client = &mut weir.client().await;
    let (peek, began) = (request_of(&["fixed=none 0"]), Instant::now());
    while client.should_rate_limit(peek.clone()).await.is_err() {
        assert!(began.elapsed() < TIMEOUT, "the store is known");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let kinds = ALGORITHMS
        .iter()
        .flat_map(|kind| [(kind, false), (kind, true)]);
    let worlds =
        kinds.flat_map(|(kind, keeps)| (0..KEYS).map(move |at| World::new(kind, keeps, at)));
    let mut worlds: Vec<_> = worlds.collect();
    random.shuffle(&mut worlds);
    let (mut compared, all) = (0, worlds.len() * ROUNDS as usize);
    for _ in 0..ROUNDS {
        for some in worlds.chunks_mut(PER_REQUEST) {
            compared += step(client, some, &mut random, began).await;
        }
        // A quiet time lets many holds expire before a check looks.
        tokio::time::sleep(Duration::from_millis([10, 300, 900][random.usize(..3)])).await;
    }
    println!("{store}: {compared} of {all} events, seed {seed}");
    assert!(
        compared * 4 > all,
        "{store}: {compared} of {all} events are compared"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_worlds_follow_the_rule() {
    let (redis, cluster) = (RedisServer::start(), Cluster::start());
    let (url, nodes) = (redis.url(), cluster.url());
    let timeout = ("STORE_TIMEOUT", "5s");
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let on_redis = [("REDIS_URL", &*url), timeout];
    let on_cluster = [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", &nodes), timeout];
    tokio::join!(
        run("memory", &[], seed),
        run("Redis", &on_redis, seed),
        run("cluster", &on_cluster, seed),
    );
    redis.assert_every_key_expires();
}
