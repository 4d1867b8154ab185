//! A node of a Redis Cluster dies, and a slot moves: G9.

use std::time::Instant;

use super::*;
use crate::support::cluster::Cluster;
use crate::support::load::{Asker, Record, Report};

/// Enough that every primary has some.
const KEYS: usize = 24;

/// A counter and where it is.
struct Counter {
    value: &'static str,
    slot: u16,
    owner: u16,
}

/// Counts once with each value, and looks where the keys are.
fn place(cluster: &Cluster, services: &[Weir], values: &[&'static str]) -> Vec<Counter> {
    let mut asker = Asker::new(&services[0]);
    for value in values {
        asker.ask_until_ok(&shot("error", value).request);
    }
    let ports = cluster.primaries();
    let place = |&value: &&'static str| {
        let key_on = |port: u16| cluster.node(port).keys().into_iter().find(|key| key.contains(&format!("={value}}}")));
        let found = ports.iter().find_map(|&owner| Some((owner, key_on(owner)?)));
        let (owner, key) = found.unwrap_or_else(|| panic!("{value} is nowhere"));
        Counter { value, slot: cluster.slot(&key), owner }
    };
    values.iter().map(place).collect()
}

/// One primary is killed and a slot of another one moves: other shards notice nothing, the lost shard is back as soon as the cluster has it
/// again, and nothing counts twice.
#[test]
fn g9_a_cluster_loses_a_node_and_moves_a_slot() {
    let (_alone, mut goal, pace) = (heavy(), Goal::of("G9"), Pace::here());
    let mut cluster = Cluster::start();
    let services = two_services(&cluster.url(), &[("REDIS_TYPE", "cluster"), ("STORE_TIMEOUT", pace.pick("250ms", ENVOYS_BUDGET))]);
    // Labels outlive the test; there are few.
    let values: Vec<&'static str> = (0..KEYS).map(|number| &*Box::leak(format!("k{number}").into_boxed_str())).collect();
    let counters = place(&cluster, &services, &values);
    let owners: BTreeSet<_> = counters.iter().map(|counter| counter.owner).collect();
    assert_eq!(owners.len(), 3, "every primary has some of the keys");
    let load = Load::start(Options::new(&services, move |number| {
        // A stride that shares no factor with the number of services.
        let value = values[number as usize / 2 % KEYS];
        Shot { label: value, ..shot(["error", "script"][number as usize / 2 / KEYS % 2], value) }
    }));
    sleep(Duration::from_secs(1));
    let lost = counters[0].owner;
    let killed = Instant::now();
    cluster.kill(lost);
    cluster.wait_for_new_owner(counters[0].slot, lost);
    let taken = Instant::now();
    sleep(Duration::from_secs(pace.pick(1, 5)));

    // A slot of a shard that was never touched.
    let moving = counters.iter().find(|counter| counter.owner != lost).expect("another shard");
    let target = *cluster.primaries().iter().find(|&&port| port != moving.owner && port != lost).expect("another primary");
    let begun = Instant::now();
    cluster.migrate(moving.slot, target, Duration::from_millis(100));
    sleep(Duration::from_secs(pace.pick(1, 5)));
    let report = load.stop();
    assert_eq!(cluster.owner(moving.slot), target);

    let lives = |record: &Record| counters.iter().any(|counter| counter.value == record.label && counter.owner != lost);
    let (others, shard) = (report.filter(lives), report.filter(|record| !lives(record)));
    let errors = others.count(Record::is_failed);
    let dead = Report::between(&shard, killed, taken).count(Record::is_failed);
    let moved = others.of(moving.value).between(begun, Instant::now());
    let failed = others.filter(Record::is_failed);
    let steps = [(killed, taken, "until the shard was back"), (taken, begun, "then"), (begun, Instant::now(), "while the slot moved")];
    for (from, to, when) in steps {
        let (wrong, moving) = (failed.between(from, to), failed.of(moving.value).between(from, to).len());
        goal.must(wrong.len() == 0, format!("other shards, {when}: {:?}, {moving} of the moving slot", wrong.outcomes()));
    }
    goal.must(dead > 0, "the lost shard was not missed");
    let again = goal.within(shard.good_again_after(taken), Duration::from_millis(500), "the lost shard is back");
    let mut twice = Vec::new();
    for counter in &counters {
        let (sent, count) = (report.of(counter.value), cluster_count(&cluster, counter.value));
        let good = sent.count(Record::is_ok);
        // What was not replicated when its primary died is lost; one hit of each was counted before the load.
        let least = if counter.owner == lost { 0 } else { good + 1 };
        if !(least..=sent.len() + 1).contains(&count) {
            twice.push(format!("{}: counted {count}, {good} good answers of {}", counter.value, sent.len()));
        }
    }
    goal.must(twice.is_empty(), twice.join(", "));
    let crossed = metric(&services, "weir_redis_errors_total", "crossslot");
    goal.must(crossed == 0, format!("{crossed} CROSSSLOT"));
    for port in cluster.primaries() {
        goal.must_expire(cluster.node(port));
    }
    let figures = format!("other shards: {errors} errors of {}, lost shard back {again} after the cluster has it", others.len());
    goal.end(format!("{figures}, {} requests on the moving slot, {crossed} CROSSSLOT, counts exact", moved.len()));
}

/// The sum of the counters of a value, by transaction and by script.
fn cluster_count(cluster: &Cluster, value: &str) -> usize {
    cluster.primaries().into_iter().map(|port| counted(cluster.node(port), &format!("={value}}}"))).sum()
}
