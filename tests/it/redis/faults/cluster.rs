//! G9: a primary of a Redis Cluster fails, and a slot moves.

use std::time::Instant;

use super::*;
use crate::support::cluster::Cluster;
use crate::support::load::{BlockingClient, Record, Report};

/// Enough keys for every primary to have some.
const KEYS: usize = 24;

/// A limit and one of its values. The label is `limit=value`, which is also the end of the key's
/// hash tag.
#[derive(Clone, Copy)]
struct Name {
    limit: &'static str,
    value: &'static str,
    label: &'static str,
}

impl Name {
    fn load_request(&self) -> LoadRequest {
        LoadRequest {
            label: self.label,
            ..load_request(self.limit, self.value)
        }
    }
}

fn names() -> Vec<Name> {
    let name = |number: usize| {
        let limit = ["error", "script"][number % 2];
        // Labels are `'static`; this leaks a few.
        let label: &'static str = Box::leak(format!("{limit}=k{number}").into_boxed_str());
        Name {
            limit,
            value: &label[limit.len() + 1..],
            label,
        }
    };
    (0..KEYS).map(name).collect()
}

/// A counter, its slot and the port of the slot's primary.
struct Counter {
    label: &'static str,
    slot: u16,
    owner: u16,
}

/// Counts one hit for each name, and finds the primaries that hold the keys.
fn create_counters(cluster: &Cluster, services: &[Weir], names: &[Name]) -> Vec<Counter> {
    let mut client = BlockingClient::new(&services[0]);
    for name in names {
        client.ask_until_ok(&name.load_request().request);
    }
    let ports = cluster.primaries();
    let locate = |&Name { label, .. }: &Name| {
        let key_on = |port: u16| {
            cluster
                .node(port)
                .keys()
                .into_iter()
                .find(|key| key.contains(&format!("{label}}}")))
        };
        let found = ports
            .iter()
            .find_map(|&owner| Some((owner, key_on(owner)?)));
        let (owner, key) = found.unwrap_or_else(|| panic!("{label} is nowhere"));
        Counter {
            label,
            slot: cluster.slot(&key),
            owner,
        }
    };
    names.iter().map(locate).collect()
}

fn must_count_each_hit_once(
    goal: &mut Goal,
    report: &Report,
    cluster: &Cluster,
    counters: &[Counter],
    lost: u16,
) {
    let mut twice = Vec::new();
    for counter in counters {
        let (sent, count) = (
            report.of(counter.label),
            cluster_count(cluster, counter.label),
        );
        let good = sent.count(Record::is_ok);
        // Hits that were not replicated when the primary failed are lost. One hit of each name was
        // counted before the load.
        let least = if counter.owner == lost { 0 } else { good + 1 };
        if !(least..=sent.len() + 1).contains(&count) {
            twice.push(format!(
                "{}: counted {count}, {good} good answers of {}",
                counter.label,
                sent.len()
            ));
        }
    }
    goal.must(twice.is_empty(), twice.join(", "));
}

/// A slot of a shard that did not fail, and a primary that it can move to.
fn slot_of_another_shard<'c>(
    cluster: &Cluster,
    counters: &'c [Counter],
    lost: u16,
) -> (&'c Counter, u16) {
    let moving = counters
        .iter()
        .find(|counter| counter.owner != lost)
        .expect("another shard");
    let target = *cluster
        .primaries()
        .iter()
        .find(|&&port| port != moving.owner && port != lost)
        .expect("another primary");
    (moving, target)
}

/// One primary is killed and a slot of another one moves: requests to other shards do not fail, the
/// failed shard is used again as soon as the cluster has a new primary for it, and no hit counts
/// twice.
#[test]
fn g9_a_cluster_fails_over_and_moves_a_slot() {
    let (_exclusive, mut goal, pace) = (exclusive(), Goal::of("G9"), Pace::here());
    let mut cluster = Cluster::start();
    let services = two_services(
        &cluster.url(),
        &[
            ("REDIS_TYPE", "cluster"),
            ("STORE_TIMEOUT", pace.pick("250ms", ENVOYS_BUDGET)),
        ],
    );
    let names = names();
    let counters = create_counters(&cluster, &services, &names);
    let owners: BTreeSet<_> = counters.iter().map(|counter| counter.owner).collect();
    assert_eq!(owners.len(), 3, "every primary has some of the keys");
    let load = Load::start(Options::new(&services, move |number| {
        // Each of the two services gets all names in turn.
        names[number as usize / 2 % KEYS].load_request()
    }));
    sleep(Duration::from_secs(1));
    let lost = counters[0].owner;
    let killed = Instant::now();
    cluster.kill(lost);
    cluster.wait_for_new_owner(counters[0].slot, lost);
    let taken = Instant::now();
    sleep(Duration::from_secs(pace.pick(1, 5)));

    let (moving, target) = slot_of_another_shard(&cluster, &counters, lost);
    let begun = Instant::now();
    cluster.migrate(moving.slot, target, Duration::from_millis(100));
    sleep(Duration::from_secs(pace.pick(1, 5)));
    let report = load.stop();
    assert_eq!(cluster.owner(moving.slot), target);

    let lives = |record: &Record| {
        counters
            .iter()
            .any(|counter| counter.label == record.label && counter.owner != lost)
    };
    let (others, shard) = (report.filter(lives), report.filter(|record| !lives(record)));
    let (errors, gave_up) = (others.count(Record::is_error), goal.few_gave_up(&others));
    let dead = Report::between(&shard, killed, taken).count(Record::is_failed);
    let moved = others.of(moving.label).between(begun, Instant::now());
    let failed = others.filter(Record::is_error);
    for (from, to, when) in [
        (killed, taken, "until the shard was back"),
        (taken, begun, "then"),
        (begun, Instant::now(), "while the slot moved"),
    ] {
        let wrong = failed.between(from, to);
        let moving = wrong.of(moving.label).len();
        let outcomes = wrong.outcomes();
        goal.must(
            wrong.len() == 0,
            format!("other shards, {when}: {outcomes:?}, {moving} of the moving slot"),
        );
    }
    goal.must(dead > 0, "no request to the failed shard failed");
    let again = goal.within(
        shard.recovery_after(taken),
        Duration::from_millis(500),
        "the lost shard is back",
    );
    must_count_each_hit_once(&mut goal, &report, &cluster, &counters, lost);
    let crossed = metric(&services, "weir_redis_errors_total", "crossslot");
    goal.must(crossed == 0, format!("{crossed} CROSSSLOT"));
    for port in cluster.primaries() {
        goal.must_expire(cluster.node(port));
    }
    let moved = moved.len();
    goal.end(format!(
        "other shards: {errors} errors, {gave_up}; lost shard back {again} after the cluster has \
         it, {moved} requests on the moving slot, {crossed} CROSSSLOT, counts exact"
    ));
}

/// The counter of a name, summed over all primaries.
fn cluster_count(cluster: &Cluster, label: &str) -> usize {
    cluster
        .primaries()
        .into_iter()
        .map(|port| counted(cluster.node(port), &format!("{label}}}")))
        .sum()
}
