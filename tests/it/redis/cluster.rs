//! Scripts in a Redis Cluster: one call for all slots of a node, also while slots move, a primary
//! fails, or a node refuses such calls.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use futures_util::future::join_all;
use weir::core::algorithm::concurrency::Concurrency;
use weir::core::algorithm::{AlgorithmKind, Options};
use weir::core::breaker::{CircuitState, Transitions};
use weir::core::time::{Rate, Unit};
use weir::limits::rules::Commit;
use weir::store::redis::{Options as RedisOptions, RawOptions, Server, TlsFiles, UsageClient};

use super::*;
use crate::operators::usage::{tracked, tracking};
use crate::support::cluster::Cluster;
use crate::support::redis::{RedisServer, connect};
use crate::support::relay::{Relay, refuse, script_keys};
use crate::support::wait::eventually_async;
use crate::support::{exclusive, ports};

/// Callers at a time.
const CALLERS: usize = 64;

fn options(url: &str) -> RedisOptions {
    let raw = RawOptions {
        kind: "cluster",
        url,
        ..RawOptions::default()
    };
    RedisOptions::parse(&raw, &TlsFiles::default()).expect("good settings")
}

/// A limit so long that nothing comes back during a test, which a script decides.
fn limit(kind: AlgorithmKind, amount: u32) -> Algorithm {
    let rate = Rate {
        requests_per_unit: amount.into(),
        unit: Unit::Year,
        unit_multiplier: 1,
    };
    let options = Options {
        kind,
        count_denied: Some(false),
        ..Options::default()
    };
    Algorithm::try_new(&rate, &options).expect("options that belong together")
}

fn hit_on(algorithm: Algorithm, hits: i64) -> Check {
    Check::new(algorithm, hits, Modes::default())
}

fn bucket(amount: u32, hits: i64) -> Check {
    hit_on(limit(AlgorithmKind::TokenBucket, amount), hits)
}

fn keys(name: &str, count: usize) -> Vec<String> {
    let key = |number| format!("w1{{{name}={number}}}x");
    (0..count).map(key).collect()
}

/// The sum over all primaries of how often a command was called.
fn calls(cluster: &Cluster, command: &str) -> u64 {
    let ports = cluster.primaries();
    let calls = |&port: &u16| cluster.node(port).calls(command);
    ports.iter().map(calls).sum()
}

/// Asks until each node gets one call for all of its slots.
async fn wait_for_calls_across_slots(redis: &Redis, cluster: &Cluster) {
    let keys = keys("wait", 30);
    let checks: Vec<_> = keys.iter().map(|key| (&**key, bucket(1_000, 1))).collect();
    for _ in 0..100 {
        let before = calls(cluster, "evalsha");
        let answers = decide_all(redis, &checks).await;
        assert!(answers.verdicts().iter().all(Result::is_ok), "{answers:?}");
        if calls(cluster, "evalsha") - before <= 3 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the nodes still get a call for each slot");
}

async fn start() -> (Cluster, Redis) {
    let cluster = Cluster::start();
    let redis = connect(options(&cluster.url()));
    wait_for_calls_across_slots(&redis, &cluster).await;
    (cluster, redis)
}

/// One call for each node, which reads each key once, also after the nodes have lost the texts.
#[tokio::test]
async fn a_node_gets_one_call_for_all_slots() {
    let _exclusive = exclusive();
    let (cluster, redis) = start().await;
    let keys = keys("one", 60);
    let kinds = AlgorithmKind::NAMED.map(|(_, kind)| kind);
    let kinds = kinds
        .iter()
        .filter(|kind| **kind != AlgorithmKind::Concurrency);
    let checks: Vec<_> = keys
        .iter()
        .zip(kinds.cycle())
        .map(|(key, &kind)| (&**key, hit_on(limit(kind, 1), 1)))
        .collect();
    for round in 0..3 {
        if round == 2 {
            for port in cluster.primaries() {
                cluster.node(port).run::<()>(&["SCRIPT", "FLUSH"]);
            }
        }
        let before = ["evalsha", "eval", "mget"].map(|command| calls(&cluster, command));
        let answers = decide_all(&redis, &checks).await;
        let after = ["evalsha", "eval", "mget"].map(|command| calls(&cluster, command));
        let allowed = |answer: &Result<Verdict, _>| answer.map(|verdict| verdict.allowed);
        let expected = Ok(round == 0);
        assert!(
            answers
                .verdicts()
                .iter()
                .all(|answer| allowed(answer) == expected),
            "round {round}: {answers:?}"
        );
        let called: Vec<_> = before
            .iter()
            .zip(after)
            .map(|(before, after)| after - before)
            .collect();
        assert_eq!(
            called,
            [3, if round == 2 { 3 } else { 0 }, 0],
            "round {round}"
        );
    }
}

/// The same random requests get the same answers from a cluster and from one server, which run
/// different texts of the script.
#[tokio::test]
async fn a_cluster_decides_as_one_server_does() {
    const KINDS: [AlgorithmKind; 6] = [
        AlgorithmKind::FixedWindow,
        AlgorithmKind::SlidingWindowLog,
        AlgorithmKind::SlidingWindowCounter,
        AlgorithmKind::SlidingWindowBuckets,
        AlgorithmKind::TokenBucket,
        AlgorithmKind::LeakyBucket,
    ];
    let _exclusive = exclusive();
    let (_cluster, of_cluster) = start().await;
    let server = RedisServer::start();
    let of_server = connect(server.options());
    let keys = pairs(36);
    let (mut refused, mut groups) = (0, 0);
    for round in 0..600 {
        let is_group = fastrand::u8(..4) == 0;
        let mut picked: Vec<usize> = (0..fastrand::usize(1..=20))
            .map(|_| fastrand::usize(..keys.len()))
            .collect();
        if is_group {
            picked = vec![picked[0], picked[0] ^ 1, picked[0]];
        }
        let check = |&index: &usize| {
            let hits = fastrand::i64(-2..=5);
            (&*keys[index], hit_on(limit(KINDS[index / 2 % 6], 40), hits))
        };
        let mut checks = checks_of(&picked.iter().map(check).collect::<Vec<_>>());
        if is_group {
            checks.commit = Commit::AllOrNone;
            groups += 1;
        }
        let budget = || Budget::until(Instant::now() + TIMEOUT);
        let answers = [
            decide_within(&of_cluster, checks.clone(), budget()).await,
            decide_within(&of_server, checks.clone(), budget()).await,
        ];
        let [ours, others] = answers.map(|answers| {
            let read = |answer: &Result<Verdict, _>| {
                let verdict = answer.expect("Redis is well");
                (verdict.allowed, verdict.used, verdict.remaining)
            };
            answers.verdicts().iter().map(read).collect::<Vec<_>>()
        });
        assert_eq!(ours, others, "round {round}: {checks:?}");
        refused += ours.iter().filter(|(allowed, ..)| !allowed).count();
    }
    assert!(refused > 100 && groups > 50, "{refused}, {groups}");
}

/// What a load found out about one key.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    admitted: u64,
    refused: u64,
    /// Hits that may have counted.
    unknown: u64,
}

type Outcomes = BTreeMap<String, Outcome>;

/// Asks for random keys, some of them together in all-or-none requests, until `is_over` and each
/// key was refused.
async fn load(redis: &Redis, keys: &[String], amount: u32, is_over: &AtomicBool) -> Outcomes {
    let kinds = [
        AlgorithmKind::FixedWindow,
        AlgorithmKind::TokenBucket,
        AlgorithmKind::SlidingWindowLog,
        AlgorithmKind::SlidingWindowCounter,
    ];
    let outcomes = std::cell::RefCell::new(Outcomes::new());
    let caller = async |_| {
        for round in 0.. {
            let is_done = keys.iter().all(|key| {
                outcomes
                    .borrow()
                    .get(key)
                    .is_some_and(|outcome| outcome.refused > 0)
            });
            if is_over.load(Ordering::Relaxed) && is_done {
                break;
            }
            assert!(round < 100_000, "{:?}", outcomes.borrow());
            let first = fastrand::usize(..keys.len());
            // Pairs of keys share a slot.
            let picked = if fastrand::bool() {
                vec![first, first ^ 1]
            } else {
                vec![
                    first,
                    fastrand::usize(..keys.len()),
                    fastrand::usize(..keys.len()),
                ]
            };
            let check =
                |&index: &usize| (&*keys[index], hit_on(limit(kinds[index % 4], amount), 1));
            let mut checks = checks_of(&picked.iter().map(check).collect::<Vec<_>>());
            let is_group = picked.len() == 2;
            if is_group {
                checks.commit = Commit::AllOrNone;
            }
            let answers =
                decide_within(redis, checks, Budget::until(Instant::now() + TIMEOUT)).await;
            let is_refused = |answer: &Result<Verdict, _>| answer.is_ok_and(|it| !it.allowed);
            let is_undone = is_group && answers.verdicts().iter().any(is_refused);
            for (index, answer) in picked.into_iter().zip(&answers.verdicts()) {
                let mut outcomes = outcomes.borrow_mut();
                let outcome = outcomes.entry(keys[index].clone()).or_default();
                match answer {
                    Ok(verdict) if !verdict.allowed => outcome.refused += 1,
                    Ok(_) if is_undone => {}
                    Ok(_) => outcome.admitted += 1,
                    Err(StoreError::NotExecuted(_)) => {}
                    Err(StoreError::Unknown(_)) => outcome.unknown += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..5))).await;
        }
    };
    join_all((0..CALLERS).map(caller)).await;
    outcomes.into_inner()
}

/// Keys, of which two each share a slot.
fn pairs(count: usize) -> Vec<String> {
    let key = |number: usize| format!("w1{{pair={}}}{number}", number / 2);
    (0..count).map(key).collect()
}

/// Runs a load while `disturb` disturbs the cluster.
async fn load_while(
    cluster: Cluster,
    redis: &Redis,
    keys: &[String],
    amount: u32,
    disturb: impl FnOnce(&mut Cluster) + Send + 'static,
) -> (Cluster, Outcomes) {
    let (is_over, mut cluster) = (Arc::new(AtomicBool::new(false)), cluster);
    let thread = std::thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            disturb(&mut cluster);
            is_over.store(true, Ordering::Relaxed);
            cluster
        }
    });
    let outcomes = load(redis, keys, amount, &is_over).await;
    assert_eq!(outcomes.len(), keys.len());
    (thread.join().expect("it ends"), outcomes)
}

/// Slots move back and forth under 64 callers: each limit admits exactly its amount.
#[tokio::test]
async fn slots_that_move_change_no_count() {
    const AMOUNT: u32 = 150;
    let _exclusive = exclusive();
    let (cluster, redis) = start().await;
    let keys = pairs(24);
    let moving: Vec<_> = keys.iter().step_by(3).cloned().collect();
    let disturb = move |cluster: &mut Cluster| {
        for key in moving {
            let slot = cluster.slot(&key);
            let (from, ports) = (cluster.owner(slot), cluster.primaries());
            let to = *ports.iter().find(|&&port| port != from).expect("another");
            for port in [to, from] {
                cluster.migrate(slot, port, Duration::from_millis(15));
            }
        }
    };
    let (cluster, outcomes) = load_while(cluster, &redis, &keys, AMOUNT, disturb).await;
    for (key, outcome) in &outcomes {
        assert_eq!(
            (outcome.admitted, outcome.unknown),
            (AMOUNT.into(), 0),
            "{key}: {outcomes:?}"
        );
    }
    let ports = cluster.primaries();
    let errors = ports
        .iter()
        .map(|&port| cluster.node(port).run(&["INFO", "errorstats"]));
    let errors: Vec<String> = errors.collect();
    for name in ["errorstat_MOVED", "errorstat_ASK"] {
        assert!(
            errors.iter().any(|stats| stats.contains(name)),
            "{errors:?}"
        );
    }
}

/// Keys of a node, in different slots.
fn keys_of(cluster: &Cluster, port: u16, name: &str, count: usize) -> Vec<String> {
    let is_own = |key: &String| cluster.owner(cluster.slot(key)) == port;
    let own: Vec<_> = keys(name, 40)
        .into_iter()
        .filter(is_own)
        .take(count)
        .collect();
    assert_eq!(own.len(), count);
    own
}

/// What the node answers a hit, a look, and a hit over its limit, which counts nothing.
async fn three(redis: &Redis, keys: &[String], full: &str) -> [Result<bool, StoreError>; 3] {
    let checks = [
        (&*keys[0], bucket(5, 1)),
        (&*keys[1], bucket(5, 0)),
        (full, bucket(1, 1)),
    ];
    let answers = decide_all(redis, &checks).await;
    [0, 1, 2].map(|index| answers.verdicts()[index].map(|verdict| verdict.allowed))
}

/// While a node refuses writes, a hit is an error, and a look and a refusal stand. While it refuses
/// everything, all are errors of today's names, and nothing is counted.
#[tokio::test]
async fn refusals_of_a_node_mean_what_they_mean_on_a_single_slot() {
    let _exclusive = exclusive();
    let (cluster, redis) = start().await;
    let port = cluster.primaries()[0];
    let (node, keys) = (cluster.node(port), keys_of(&cluster, port, "refused", 3));
    let full = &*keys[2];
    assert_eq!(
        three(&redis, &keys, full).await,
        [Ok(true), Ok(true), Ok(true)]
    );
    let set = |name: &str, value: &str| node.run::<()>(&["CONFIG", "SET", name, value]);
    for (name, value, usual, error) in [
        ("maxmemory", "1mb", "0", "oom"),
        ("min-replicas-to-write", "5", "0", "noreplicas"),
    ] {
        set(name, value);
        let answers = three(&redis, &keys, full).await;
        set(name, usual);
        assert_eq!(
            answers,
            [Err(StoreError::NotExecuted(error)), Ok(true), Ok(false)]
        );
    }
    node.run::<()>(&["ACL", "SETUSER", "default", "-get"]);
    let answers = three(&redis, &keys, full).await;
    node.run::<()>(&["ACL", "SETUSER", "default", "+get"]);
    assert_eq!(answers, [Err(StoreError::NotExecuted("noperm")); 3]);

    let own = cluster.slot("w1{weir}").to_string();
    set("cluster-require-full-coverage", "yes");
    let lost = if cluster.owner(own.parse().expect("a slot")) == port {
        own
    } else {
        "7".to_owned()
    };
    node.run::<()>(&["CLUSTER", "DELSLOTS", &lost]);
    let is_down = || {
        let info: String = node.run(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:fail").then_some(())
    };
    assert!(eventually_async(is_down).await.is_some(), "still up");
    let answers = three(&redis, &keys, full).await;
    node.run::<()>(&["CLUSTER", "ADDSLOTS", &lost]);
    assert_eq!(answers, [Err(StoreError::NotExecuted("clusterdown")); 3]);
    let is_up = || is_down().is_none().then_some(());
    assert!(eventually_async(is_up).await.is_some(), "still down");
    let used = decide_all(&redis, &[(&*keys[0], bucket(5, 0))])
        .await
        .verdicts()[0]
        .map(|verdict| verdict.used);
    assert_eq!(used, Ok(1), "refused hits count nothing");
}

/// A counter and its record are in one slot, and count together or not at all while it moves.
#[tokio::test]
async fn usage_is_recorded_across_slots_and_while_one_moves() {
    let _exclusive = exclusive();
    let (cluster, redis) = start().await;
    let (keys, tracking) = (keys("usage", 12), tracking(60, 5));
    let hit_all = async || {
        let checks: Vec<_> = keys.iter().map(|key| (&**key, bucket(100, 1))).collect();
        let checks = tracked(checks_of(&checks), &tracking);
        decide_within(&redis, checks, Budget::until(Instant::now() + TIMEOUT)).await
    };
    for _ in 0..2 {
        let before = calls(&cluster, "evalsha");
        assert!(hit_all().await.verdicts().iter().all(Result::is_ok));
        assert!(calls(&cluster, "evalsha") - before <= 3);
    }
    // Its record has moved, and the counter has not.
    let (slot, record) = (cluster.slot(&keys[0]), "w1{usage=0}us");
    let from = cluster.owner(slot);
    let to = *cluster
        .primaries()
        .iter()
        .find(|&&port| port != from)
        .expect("another");
    let [source, target] = [from, to].map(|port| cluster.node(port));
    let [from_id, to_id] = [source, target].map(|node| node.run::<String>(&["CLUSTER", "MYID"]));
    let slot = slot.to_string();
    target.run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    source.run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    source.run::<()>(&["MIGRATE", "127.0.0.1", &to.to_string(), record, "0", "5000"]);
    let answers = hit_all().await.verdicts();
    assert_eq!(answers[0], Err(StoreError::NotExecuted("tryagain")));
    assert!(answers[1..].iter().all(Result::is_ok), "{answers:?}");
    let counter = &*keys[0];
    source.run::<()>(&[
        "MIGRATE",
        "127.0.0.1",
        &to.to_string(),
        counter,
        "0",
        "5000",
    ]);
    assert!(hit_all().await.verdicts().iter().all(Result::is_ok));
    let client = UsageClient::new(Arc::clone(redis.deployment()), String::new());
    for (node, id) in [(target, &to_id), (source, &to_id)] {
        node.run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", id]);
    }
    let began = Instant::now();
    for (index, key) in keys.iter().enumerate() {
        // A check that Redis answers with MOVED makes Weir read the slots again.
        let used = decide_all(&redis, &[(&**key, bucket(100, 0))])
            .await
            .verdicts()[0]
            .map(|it| it.used);
        let read = async || {
            let deadline = Instant::now() + TIMEOUT;
            client.record(key.as_bytes(), deadline).await
        };
        while read().await.is_err() {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "{:?}",
                read().await
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (_, record) = read().await.expect("Redis is well");
        let asked = record.expect("a record").total.asked;
        let expected = if index == 0 { 3 } else { 4 };
        assert_eq!((asked, used), (expected, Ok(expected)), "{key}");
    }
}

/// A place that expires while its slot is being migrated goes to another request: the set of
/// holders is never empty in between, when Redis would refuse to add to it. Another key of the same
/// request, which the node does not have, is decided by the node that imports the slot, and alone.
#[tokio::test]
async fn a_place_passes_to_another_request_while_its_slot_moves() {
    const LIFE: Duration = Duration::from_secs(2);
    let _exclusive = exclusive();
    let (cluster, redis) = start().await;
    let ports = cluster.primaries();
    let key = keys_of(&cluster, ports[0], "held", 1).remove(0);
    let other = format!("{key}y");
    let limit = Algorithm::Concurrency(Concurrency::new(1, LIFE.into()));
    let acquire = async |keys: &[&str], id: &[u8]| {
        let limits: Vec<_> = keys.iter().map(|&key| (key, hit_on(limit, 1))).collect();
        let mut checks = checks_of(&limits);
        for index in checks.indices() {
            checks = checks.with_holder(index, id);
        }
        let budget = Budget::until(Instant::now() + TIMEOUT);
        let answers = decide_within(&redis, checks, budget).await.verdicts();
        let allowed = answers
            .iter()
            .map(|answer| answer.map(|verdict| verdict.allowed));
        allowed.collect::<Vec<_>>()
    };
    assert_eq!(acquire(&[&key], b"a").await, [Ok(true)]);
    let slot = cluster.slot(&key).to_string();
    let [source, target] = [ports[0], ports[1]].map(|port| cluster.node(port));
    let [from, to] = [source, target].map(|node| node.run::<String>(&["CLUSTER", "MYID"]));
    target.run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from]);
    source.run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]);
    tokio::time::sleep(LIFE).await;
    assert_eq!(acquire(&[&key, &other], b"b").await, [Ok(true), Ok(true)]);
    assert_eq!(acquire(&[&key, &other], b"c").await, [Ok(false), Ok(false)]);
}

/// A node that refuses undeclared keys gets a call for each slot, and the diagnostics say so. The
/// counts are the same.
#[tokio::test]
async fn a_node_that_refuses_undeclared_keys_gets_a_call_for_each_slot() {
    let _exclusive = exclusive();
    let cluster = Cluster::start();
    let port = cluster.primaries()[0];
    let keys = keys_of(&cluster, port, "declared", 6);
    let node = cluster.node(port);
    let relay = Relay::start(port, |command| {
        if script_keys(command) == Some(0) {
            refuse(command, "ERR Number of keys can't be zero");
        }
    });
    let relay = relay.port().to_string();
    node.run::<()>(&["CONFIG", "SET", "cluster-announce-port", &relay]);
    let redis = connect(options(&cluster.url()));
    let advice = || {
        let servers = redis.deployment().servers();
        let of_relay = servers
            .iter()
            .find(|server| server.address.ends_with(&*relay))?;
        let diagnostics = of_relay.status.diagnostics.iter();
        diagnostics
            .map(|advice| advice.name)
            .find(|name| *name == "declared_keys")
    };
    assert!(
        eventually_async(advice).await.is_some(),
        "{:?}",
        redis.deployment().servers()
    );
    let checks: Vec<_> = keys.iter().map(|key| (&**key, bucket(3, 1))).collect();
    for round in 1..=5 {
        let before = node.calls("evalsha");
        let answers = decide_all(&redis, &checks).await;
        let allowed = |answer: &Result<Verdict, _>| answer.map(|verdict| verdict.allowed);
        let expected = Ok(round <= 3);
        assert!(
            answers
                .verdicts()
                .iter()
                .all(|answer| allowed(answer) == expected),
            "{answers:?}"
        );
        let per_slot = node.calls("evalsha") - before >= keys.len() as u64;
        assert!(per_slot || round == 1, "round {round}");
    }
}

/// Errors of managed services for a script on a key that it does not declare, or that is moving.
const NOT_LOCAL: [&str; 2] = [
    "ERR Script attempted to access a non local key in a cluster node script: 5f, on \
     @user_script:1.",
    "ERR Script attempted to access keys that do not hash to the same slot script: 5f, on \
     @user_script:1.",
];

/// A cluster and a store, and a relay in front of the first primary that refuses so many tenths of
/// the calls of scripts without keys, once `tenths` is set.
struct Refusing {
    _cluster: Cluster,
    /// Keys of the first primary.
    keys: Vec<String>,
    redis: Redis,
    relay: Relay,
    tenths: Arc<AtomicU8>,
    refused: Arc<AtomicU64>,
}

impl Refusing {
    async fn start(line: &'static str, keys: usize) -> Self {
        let cluster = Cluster::start();
        let port = cluster.primaries()[0];
        let own = keys_of(&cluster, port, "refusing", 5);
        let (tenths, refused) = (Arc::new(AtomicU8::new(0)), Arc::new(AtomicU64::new(0)));
        let relay = Relay::start(port, {
            let (tenths, refused) = (Arc::clone(&tenths), Arc::clone(&refused));
            move |command| {
                let is_drawn = fastrand::u8(..10) < tenths.load(Ordering::SeqCst);
                if is_drawn && script_keys(command).is_some_and(|count| count <= keys) {
                    refused.fetch_add(1, Ordering::SeqCst);
                    refuse(command, line);
                }
            }
        });
        let announced = relay.port().to_string();
        cluster
            .node(port)
            .run::<()>(&["CONFIG", "SET", "cluster-announce-port", &announced]);
        let redis = connect(options(&cluster.url()));
        let checks: Vec<_> = own.iter().map(|key| (&**key, bucket(1_000, 0))).collect();
        for round in 0.. {
            let before = cluster.node(port).calls("evalsha");
            let answers = decide_all(&redis, &checks).await;
            assert!(answers.verdicts().iter().all(Result::is_ok), "{answers:?}");
            if cluster.node(port).calls("evalsha") - before == 1 {
                break;
            }
            assert!(round < 100, "the node still gets a call for each slot");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Self {
            _cluster: cluster,
            keys: own,
            redis,
            relay,
            tenths,
            refused,
        }
    }

    fn server(&self) -> Server {
        let port = self.relay.port().to_string();
        let servers = self.redis.deployment().servers().into_iter();
        let mut servers = servers.filter(|server| server.address.ends_with(&port));
        servers.next().expect("the server of the relay")
    }

    /// Sends `rounds` requests for hits on all keys, by script and by transaction, and asserts that
    /// each is decided, in time and exactly.
    async fn must_count(&self, rounds: u64) {
        for round in 1..=rounds {
            let window = |key: &String| format!("{key}w");
            let windows: Vec<_> = self.keys.iter().map(window).collect();
            let scripts = self.keys.iter().map(|key| (&**key, bucket(1_000, 1)));
            let plain = windows.iter().map(|key| (&**key, check(1_000, 1)));
            let checks: Vec<_> = scripts.chain(plain).collect();
            let answers = decide_all(&self.redis, &checks).await;
            let used = answers.verdicts().into_iter();
            let used = used.map(|it| it.map(|verdict| verdict.used));
            assert!(
                used.clone().all(|used| used == Ok(round)),
                "{round}: {answers:?}"
            );
        }
    }
}

/// A service begins to refuse scripts that declare no keys, all of them or some: no call fails, no
/// hit counts twice, no circuit opens, and the diagnostics say so soon.
#[tokio::test]
async fn a_node_that_begins_to_refuse_undeclared_keys_gets_a_call_for_each_slot_at_once() {
    let _exclusive = exclusive();
    for (line, tenths) in [(NOT_LOCAL[0], 10), (NOT_LOCAL[1], 3)] {
        let refusing = Refusing::start(line, 0).await;
        refusing.tenths.store(tenths, Ordering::SeqCst);
        let rounds = 60;
        refusing.must_count(rounds).await;
        let server = refusing.server();
        assert_eq!(server.state, CircuitState::Closed);
        assert_eq!(server.transitions, Transitions::default());
        let refused = refusing.refused.load(Ordering::SeqCst);
        assert!(
            (1..=10).contains(&refused),
            "{refused} of {rounds}, with tests"
        );
        let advice = || {
            let status = refusing.server().status;
            let mut names = status.diagnostics.iter().map(|advice| advice.name);
            names.any(|name| name == "declared_keys").then_some(())
        };
        assert!(
            eventually_async(advice).await.is_some(),
            "{:?}",
            refusing.server()
        );
        assert_eq!(refusing.redis.deployment().error_counts(), []);
    }
}

/// A service that scales refuses scripts even keys that they declare, as long as a slot moves: the
/// check is sent once more, and no circuit opens.
#[tokio::test]
async fn a_declared_key_that_is_refused_now_and_then_is_sent_once_more() {
    let _exclusive = exclusive();
    let refusing = Refusing::start(NOT_LOCAL[0], usize::MAX).await;
    refusing.tenths.store(3, Ordering::SeqCst);
    let (mut answered, mut failed) = (0, 0);
    for _ in 0..100 {
        let checks = [(&*refusing.keys[0], bucket(1_000, 1))];
        let answers = decide_all(&refusing.redis, &checks).await;
        match answers.verdicts()[0].map(|verdict| verdict.used) {
            Ok(used) => {
                answered += 1;
                assert_eq!(used, answered, "a hit counted twice");
            }
            Err(error) => {
                failed += 1;
                assert_eq!(error, StoreError::NotExecuted("non_local_key"));
            }
        }
    }
    // Of 100 calls 30 are refused, and 9 of these twice.
    assert!(failed < 25, "{failed}");
    assert_eq!(refusing.server().transitions, Transitions::default());
}

/// A script on undeclared keys of which the node does not have some: only the checks of those fail,
/// whatever their algorithms and positions, and nothing is written for them. So an error for the
/// whole call proves that nothing was written.
#[tokio::test]
async fn a_script_accesses_each_key_first_without_failing() {
    let _exclusive = exclusive();
    let (cluster, _redis) = start().await;
    let port = cluster.primaries()[0];
    let is_own = |key: &String| cluster.owner(cluster.slot(key)) == port;
    let tracking = tracking(60, 5);
    let now = When {
        now: Micros(1_800_000_000_000_000),
        deadline: Micros(1_900_000_000_000_000),
        max_wait: Span::ZERO,
    };
    for (_, kind) in AlgorithmKind::NAMED {
        for order in [1, 0] {
            let name = format!("first{kind:?}{order}");
            let (mut own, mut foreign): (Vec<_>, Vec<_>) =
                keys(&name, 12).into_iter().partition(is_own);
            own.truncate(2);
            foreign.truncate(2);
            let all = if order == 1 {
                [own, foreign]
            } else {
                [foreign, own]
            }
            .concat();
            let algorithm = match kind {
                AlgorithmKind::Concurrency => {
                    Algorithm::Concurrency(Concurrency::new(5, Span::from_secs(60)))
                }
                kind => limit(kind, 5),
            };
            let checks: Vec<_> = all
                .iter()
                .map(|key| (&**key, hit_on(algorithm, 1)))
                .collect();
            let mut checks = checks_of(&checks);
            if kind == AlgorithmKind::Concurrency {
                for index in checks.indices() {
                    checks = checks.with_holder(index, b"holder");
                }
            } else {
                checks = tracked(checks, &tracking);
            }
            let mut call = call([(&checks, now)]);
            call.crosses_slots = true;
            let reply = call
                .command(ScriptRef::ByText)
                .query::<Value>(&mut cluster.node(port).connection());
            let mut answers = vec![Err(StoreError::Unknown("unanswered")); all.len()];
            let read = call.read(&reply.expect("no error for the whole call"), &mut answers);
            assert!(read.is_ok(), "{kind:?}: {read:?}");
            for (key, answer) in all.iter().zip(answers) {
                let is_ok = answer.map(|verdict| verdict.allowed);
                let expected = if is_own(key) {
                    Ok(true)
                } else {
                    Err(StoreError::NotExecuted("non_local_key"))
                };
                assert_eq!(is_ok, expected, "{kind:?}: {key}");
            }
        }
    }
}

/// The slots of some keys have no owner when Weir starts, and again after a slot has moved: the
/// keys are decided soon after the slots have an owner, and the nodes are asked at the documented
/// rate.
#[tokio::test]
async fn slots_without_an_owner_are_decided_soon_after_they_have_one() {
    let _exclusive = exclusive();
    let cluster = Cluster::start();
    let [lost, moving] =
        [0, 1].map(|number| keys_of(&cluster, cluster.primaries()[number], "hole", 1));
    let slots = [&lost, &moving].map(|keys| cluster.slot(&keys[0]));
    let [from, to] = [0, 2].map(|number| cluster.primaries()[number]);
    let checks = [(&*lost[0], bucket(1_000, 1))];
    cluster.abandon(slots[0]);
    let began = std::time::Instant::now();
    let redis = connect(options(&cluster.url()));
    for has_moved in [false, true] {
        if has_moved {
            cluster.abandon(slots[0]);
            cluster.migrate(slots[1], to, Duration::ZERO);
            let answers = decide_all(&redis, &[(&*moving[0], bucket(1_000, 1))]).await;
            assert!(answers.verdicts()[0].is_ok(), "{answers:?}");
        }
        for _ in 0..20 {
            let answers = decide_all(&redis, &checks).await;
            assert_eq!(
                answers.verdicts()[0],
                Err(StoreError::NotExecuted("clusterdown")),
                "{has_moved}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let slot = slots[0].to_string();
        cluster
            .node(from)
            .run::<()>(&["CLUSTER", "ADDSLOTS", &slot]);
        let decided = async {
            while decide_all(&redis, &checks).await.verdicts()[0].is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let decided = tokio::time::timeout(Duration::from_secs(10), decided).await;
        assert!(decided.is_ok(), "{has_moved}");
    }
    // Up to three nodes are asked five times a second.
    let asked = calls(&cluster, "cluster|slots");
    let most = 15.0 * began.elapsed().as_secs_f64() + 10.0;
    assert!((asked as f64) < most, "{asked} of {most}");
}

/// A server that answers only PING and, with this text, CLUSTER SLOTS.
fn node_that_replies(slots: String) -> u16 {
    let listener = TcpListener::bind(ports::free()).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut bytes = [0; 1_024];
            while let Ok(count @ 1..) = client.read(&mut bytes) {
                let is_slots = bytes[..count].windows(5).any(|word| word == b"SLOTS");
                let reply = if is_slots { &*slots } else { "+PONG\r\n" };
                if client.write_all(reply.as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    port
}

/// A reply with more primaries or bytes than a cluster has is an error of its own name, and no
/// connection is opened for it.
#[tokio::test]
async fn a_cluster_that_is_too_large_is_refused_by_name() {
    let _exclusive = exclusive();
    for (nodes, id) in [(1_000, 40), (1_001, 40), (16_384, 1), (16_384, 40)] {
        let row = |number: usize| {
            let host = format!("127.9.{}.{}", number >> 8, number & 255);
            let last = if number + 1 == nodes { 16_383 } else { number };
            format!(
                "*3\r\n:{number}\r\n:{last}\r\n*3\r\n${}\r\n{host}\r\n:1\r\n${id}\r\n{}\r\n",
                host.len(),
                "f".repeat(id)
            )
        };
        let rows: String = (0..nodes).map(row).collect();
        let port = node_that_replies(format!("*{nodes}\r\n{rows}"));
        let redis = connect(options(&format!("127.0.0.1:{port}")));
        let deployment = redis.deployment();
        if nodes == 1_000 {
            let all =
                eventually_async(|| (deployment.servers().len() == nodes).then_some(())).await;
            assert!(all.is_some(), "{:?}", deployment.error_counts());
            continue;
        }
        let named = || {
            let failing = deployment.failing_servers().into_iter().next()?;
            (failing.failure.error == "cluster_size").then_some(())
        };
        let named = eventually_async(named).await;
        assert!(named.is_some(), "{nodes}: {:?}", deployment.error_counts());
        assert!(deployment.servers().is_empty(), "{nodes}");
        let answers = decide_all(&redis, &[("w1{a}x", bucket(1, 1))]).await;
        assert!(answers.verdicts()[0].is_err(), "{answers:?}");
    }
}
