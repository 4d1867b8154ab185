//! Plans agree with the measurements that they are made from, hold what they promise, and never
//! need less for more.

use std::time::Duration;

use proptest::prelude::*;

use super::costs::{self, RedisShape, RequestShape};
use super::inputs::{Demand, Fleet, RedisInput, RedisKind, UsageDemand};
use super::measured::{CONNECTIONS, MEMORY_MICROS};
use super::model::{Plan, Resource, plan};
use crate::core::algorithm::AlgorithmKind;

const DEMAND: Demand = Demand {
    rate: 100_000.0,
    descriptors: 1,
    keys: 2e6,
    key_bytes: 41,
    algorithm: AlgorithmKind::TokenBucket,
    window: Duration::from_secs(60),
    entries: 10,
    limits: 100,
    cached: 0.0,
    has_local: false,
    usage: None,
};

const FLEET: Fleet = Fleet {
    threads: 4,
    spare: 1,
    target: 0.6,
    envoy_threads: None,
    is_headless: false,
    is_tls: false,
    cpu_factor: 1.0,
};

const REDIS: RedisInput = RedisInput {
    kind: RedisKind::Single,
    is_tls: false,
    round_trip: Duration::from_micros(300),
    timeout: Duration::from_millis(20),
    server_bytes: 16.0 * 1_073_741_824.0,
    per_second: None,
};

/// Requests per second of one thread at its capacity, from the plan of a demand that it just
/// carries.
fn capacity_of_a_thread(demand: &Demand, connections: f64, redis: &RedisInput) -> f64 {
    let fleet = Fleet {
        threads: 1,
        spare: 0,
        target: 1.0,
        envoy_threads: Some(connections),
        ..FLEET
    };
    1e6 / plan(demand, &fleet, redis).weir.request_micros
}

#[test]
fn a_thread_carries_what_was_measured() {
    let demand = Demand {
        rate: 10.0,
        keys: 10_000.0,
        algorithm: AlgorithmKind::FixedWindow,
        ..DEMAND
    };
    let in_memory = RedisInput {
        kind: RedisKind::None,
        ..REDIS
    };
    // The rates of the table speed of benches/README.md, measured beside the CPU times that the
    // model uses.
    for (redis, connections, measured) in [(&in_memory, 4.0, 84_506.0), (&REDIS, 4.0, 53_147.0)] {
        let modelled = capacity_of_a_thread(&demand, connections, redis);
        assert!(
            (modelled / measured - 1.0).abs() < 0.1,
            "{modelled:.0} modelled, {measured} measured"
        );
    }
    // And those of the table scaling, to the first.
    let one = capacity_of_a_thread(&demand, 1.0, &in_memory);
    for (connections, measured) in [(64.0, 0.53), (256.0, 0.35), (1_000.0, 0.36)] {
        let modelled = capacity_of_a_thread(&demand, connections, &in_memory) / one;
        assert!(
            (modelled / measured - 1.0).abs() < 0.15,
            "{connections} connections: {modelled:.2} modelled, {measured} measured"
        );
    }
}

#[test]
fn the_cost_of_a_request_grows_with_what_it_asks() {
    let of = |descriptors, limits, algorithm| {
        let shape = RequestShape {
            descriptors,
            algorithm,
            limits,
            keys: 0.0,
            is_tls: false,
            has_usage: false,
        };
        (
            costs::memory_request_micros(&shape),
            costs::redis_request_micros(&shape),
        )
    };
    let one = of(1, 100.0, AlgorithmKind::FixedWindow);
    assert!(
        (one.0 - MEMORY_MICROS).abs() < 1e-9,
        "{one:?}: the measured one itself"
    );
    for more in [
        of(3, 100.0, AlgorithmKind::FixedWindow),
        of(16, 100.0, AlgorithmKind::FixedWindow),
        of(1, 1e5, AlgorithmKind::FixedWindow),
    ] {
        assert!(more.0 > one.0 && more.1 > one.1, "{more:?}, {one:?}");
    }
    let plain = RequestShape {
        descriptors: 1,
        algorithm: AlgorithmKind::FixedWindow,
        limits: 100.0,
        keys: 0.0,
        is_tls: false,
        has_usage: false,
    };
    let tls = costs::memory_request_micros(&RequestShape {
        is_tls: true,
        ..plain
    });
    assert!(tls > one.0, "TLS costs something: {tls}");
    assert!(CONNECTIONS.iter().all(|&(connections, _)| costs::alone_micros(connections) <= costs::most_alone_micros()));
}

#[test]
fn a_redis_that_is_too_small_says_so() {
    let exceeded = |demand: &Demand, redis: &RedisInput| {
        let plan = plan(demand, &FLEET, redis);
        (
            plan.bounds[0].resource,
            plan.bounds[0].reached_at < demand.rate,
            plan.redis[0].by_cpu.max(plan.redis[0].by_memory) > plan.redis[0].servers,
        )
    };
    let small = Demand {
        rate: 10_000.0,
        ..DEMAND
    };
    let large = Demand {
        rate: 10e6,
        ..DEMAND
    };
    assert!(!exceeded(&small, &REDIS).1 && !exceeded(&small, &REDIS).2);
    assert_eq!(
        exceeded(&large, &REDIS),
        (
            Resource::RedisCpu {
                is_per_second: false
            },
            true,
            true
        )
    );
    let cluster = RedisInput {
        kind: RedisKind::Cluster,
        ..REDIS
    };
    let of_cluster = plan(&large, &FLEET, &cluster);
    assert!(
        of_cluster.redis[0].servers >= 3.0
            && of_cluster.redis[0].by_cpu <= of_cluster.redis[0].servers
    );
    // Keys decide where they are many.
    let many = Demand {
        rate: 1_000.0,
        keys: 1e9,
        ..DEMAND
    };
    assert_eq!(
        exceeded(&many, &REDIS),
        (
            Resource::RedisMemory {
                is_per_second: false
            },
            true,
            true
        )
    );
    let of_cluster = plan(&many, &FLEET, &cluster);
    assert!(
        of_cluster.redis[0].by_memory > of_cluster.redis[0].by_cpu
            && of_cluster.redis[0].memory_share <= 1.000_001
    );
}

#[test]
fn counters_in_memory_have_one_replica() {
    let of_memory = plan(
        &DEMAND,
        &FLEET,
        &RedisInput {
            kind: RedisKind::None,
            ..REDIS
        },
    );
    assert_eq!((of_memory.weir.replicas, of_memory.redis.len()), (1.0, 0));
    assert!(
        of_memory
            .weir
            .max_keys
            .is_some_and(|keys| keys > DEMAND.keys)
            && of_memory.weir.counter_bytes > 40.0 * DEMAND.keys
    );
    let one_process = of_memory
        .bounds
        .iter()
        .find(|bound| bound.resource == Resource::OneProcess);
    assert!(
        one_process.is_some_and(|bound| bound.reached_at > 64.0 * 10_000.0),
        "{:?}",
        of_memory.bounds
    );
}

/// Usage costs CPU on both sides and memory where the records are, and a batch has a third of the
/// checks.
#[test]
fn usage_needs_more() {
    let usage = UsageDemand {
        subjects: 5e6,
        buckets: 60,
    };
    let with = Demand {
        usage: Some(usage),
        ..DEMAND
    };
    for (_, algorithm) in AlgorithmKind::OVER_TIME {
        for redis in [
            REDIS,
            RedisInput {
                kind: RedisKind::Cluster,
                ..REDIS
            },
        ] {
            let [without, with] = [DEMAND, with].map(|demand| {
                plan(
                    &Demand {
                        algorithm,
                        ..demand
                    },
                    &FLEET,
                    &redis,
                )
            });
            let [of_redis, of_usage] = [&without.redis[0], &with.redis[0]];
            assert!(
                with.weir.request_micros >= without.weir.request_micros && of_usage.batch <= 32.0,
                "{algorithm:?}: {of_usage:?}"
            );
            assert!(
                of_usage.capacity < of_redis.capacity,
                "{algorithm:?}: {of_usage:?}"
            );
            let more =
                of_usage.used_bytes * of_usage.servers - of_redis.used_bytes * of_redis.servers;
            assert!(more > 5e6 * 105.0, "{algorithm:?}: {more} bytes");
            assert_eq!(
                (with.weir.usage_bytes, with.weir.max_usage_bytes),
                (None, None)
            );
        }
    }
    let in_memory = RedisInput {
        kind: RedisKind::None,
        ..REDIS
    };
    let [without, with, once] = [
        DEMAND,
        with,
        Demand {
            usage: Some(UsageDemand {
                buckets: 1,
                ..usage
            }),
            ..DEMAND
        },
    ]
    .map(|demand| plan(&demand, &FLEET, &in_memory).weir);
    let bytes = with.usage_bytes.expect("records are in memory");
    assert!(
        with.memory - without.memory > 5e6 * 1_000.0 && with.max_usage_bytes > with.usage_bytes,
        "{with:?}"
    );
    assert!(
        once.usage_bytes
            .is_some_and(|once| once > 5e6 * 100.0 && once < bytes / 2.0),
        "{once:?}"
    );
    assert!(with.request_micros > without.request_micros);
}

/// Whatever the products of measured ratios say.
#[test]
fn a_check_costs_no_less_in_a_smaller_batch() {
    for (_, algorithm) in AlgorithmKind::OVER_TIME {
        for case in 0..8 {
            let listed = (case & 4 != 0).then_some(0.5);
            let shape = RedisShape {
                algorithm,
                is_cluster: case & 1 != 0,
                is_tls: case & 2 != 0,
                listed,
            };
            let costs: Vec<f64> = (1..=64)
                .map(|checks| costs::batch_micros(&shape, checks.into()) / f64::from(checks))
                .collect();
            assert!(
                costs.is_sorted_by(|smaller, larger| *larger <= smaller + 1e-9),
                "{shape:?}: {costs:?}"
            );
        }
    }
}

/// A subject is written to the lists twice a second at most, whatever its hits, and a process
/// writes a bounded number.
#[test]
fn the_lists_cost_what_is_written_to_them() {
    let listed = |rate, subjects| {
        let usage = Some(UsageDemand {
            subjects,
            buckets: 60,
        });
        let plan = plan(
            &Demand {
                rate,
                usage,
                ..DEMAND
            },
            &FLEET,
            &REDIS,
        );
        (
            plan.redis[0].usage.expect("usage").listed,
            plan.weir.replicas,
        )
    };
    assert!(
        (listed(1_000.0, 1e6).0 - 1_000.0).abs() < 1e-9,
        "every decision is of another subject"
    );
    let (few, replicas) = listed(100_000.0, 10.0);
    assert!((few - replicas * 20.0).abs() < 1e-9, "{few}");
    let (many, replicas) = listed(1e6, 1e9);
    assert!((many - replicas * 5_000.0).abs() < 1e-9, "{many}");
}

#[test]
fn threads_without_a_connection_are_found() {
    let fleet = Fleet {
        envoy_threads: Some(4.0),
        ..FLEET
    };
    let demand = Demand {
        rate: 400_000.0,
        ..DEMAND
    };
    let has_idle = |fleet: &Fleet| {
        plan(&demand, fleet, &REDIS)
            .bounds
            .iter()
            .any(|bound| bound.resource == Resource::ConnectedThreads)
    };
    assert!(has_idle(&fleet), "4 connections and more threads");
    assert!(
        !has_idle(&Fleet {
            is_headless: true,
            ..fleet
        }),
        "a connection to each replica for each of its threads"
    );
    assert!(!has_idle(&Fleet {
        envoy_threads: Some(400.0),
        ..FLEET
    }));
}

#[test]
fn a_second_redis_and_the_denial_cache_take_their_shares() {
    let both = plan(
        &DEMAND,
        &FLEET,
        &RedisInput {
            per_second: Some(0.75),
            ..REDIS
        },
    );
    let rates: Vec<f64> = both.redis.iter().map(|redis| redis.rate).collect();
    assert_eq!((both.redis.len(), rates), (2, vec![25_000.0, 75_000.0]));
    let cached = plan(
        &Demand {
            cached: 0.5,
            ..DEMAND
        },
        &FLEET,
        &REDIS,
    );
    assert!((cached.redis[0].rate - 50_000.0).abs() < 1e-6);
    assert!(cached.weir.request_micros < plan(&DEMAND, &FLEET, &REDIS).weir.request_micros);
}

fn figures(plan: &Plan) -> Vec<f64> {
    let weir = &plan.weir;
    let mut figures = vec![
        weir.replicas,
        weir.needed_replicas,
        weir.threads,
        weir.request_micros,
        weir.cores,
        weir.connections_of_a_replica,
        weir.memory,
    ];
    for redis in &plan.redis {
        figures.extend([
            redis.servers,
            redis.capacity,
            redis.batch,
            redis.usual_batch,
            redis.cores,
            redis.key_bytes,
            redis.used_bytes,
            redis.maxmemory,
        ]);
    }
    figures.extend(plan.bounds.iter().map(|bound| bound.reached_at));
    figures
}

prop_compose! {
    fn demands()(rate in 1_u64..1_000_000_000, descriptors in 1_u32..=256, keys in 1_u64..100_000_000_000, key_bytes in 1_u32..=65_535,
        (_, algorithm) in prop::sample::select(AlgorithmKind::OVER_TIME.to_vec()), window in 1_u64..3_000_000_000, entries in 1_u32..=100_000,
        limits in 0_u32..=10_000_000, cached in 0_u32..=99, has_local in any::<bool>(),
        usage in prop::option::of((1_u64..100_000_000_000, 1_u32..=1_000))) -> Demand {
        Demand { rate: (rate as f64).max(f64::from(descriptors)), descriptors, keys: keys as f64, key_bytes, algorithm,
            window: Duration::from_secs(window), entries, limits, cached: f64::from(cached) / 100.0, has_local,
            usage: usage.map(|(subjects, buckets)| UsageDemand { subjects: subjects as f64, buckets }) }
    }
}

prop_compose! {
    fn fleets()(threads in 1_u32..=1_024, spare in 0_u32..=1_000, target in 1_u32..=100, envoys in prop::option::of(1_u32..=1_000_000_000),
        is_headless in any::<bool>(), is_tls in any::<bool>(), cpu_factor in 0.05_f64..20.0) -> Fleet {
        Fleet { threads, spare, target: f64::from(target) / 100.0, envoy_threads: envoys.map(f64::from),
            is_headless: is_headless && envoys.is_some(), is_tls, cpu_factor }
    }
}

prop_compose! {
    fn deployments()(kind in prop::sample::select(vec![RedisKind::None, RedisKind::Single, RedisKind::Sentinel, RedisKind::Cluster]),
        is_tls in any::<bool>(), micros in 10_u64..=500_000, millis in 1_u64..=10_000, mebibytes in 1_u64..=67_108_864, share in prop::option::of(1_u32..=99)) -> RedisInput {
        RedisInput { kind, is_tls, round_trip: Duration::from_micros(micros), timeout: Duration::from_millis(millis), server_bytes: mebibytes as f64 * 1_048_576.0,
            per_second: share.map(|share| f64::from(share) / 100.0) }
    }
}

proptest! {
    #[test]
    fn every_plan_is_of_numbers_and_carries_its_peak(demand in demands(), fleet in fleets(), redis in deployments()) {
        let plan = plan(&demand, &fleet, &redis);
        let figures = figures(&plan);
        prop_assert!(figures.iter().all(|figure| figure.is_finite() && *figure > 0.0), "{figures:?}");
        let weir = &plan.weir;
        let carried = weir.needed_replicas * weir.threads * 1e6 / weir.request_micros * fleet.target;
        prop_assert!(carried >= weir.requests * 0.999_999, "{carried} of {}", weir.requests);
        prop_assert!(weir.cores <= weir.replicas * weir.threads + 1e-9);
        prop_assert!(plan.bounds.is_sorted_by(|one, next| one.reached_at <= next.reached_at));
        for of_redis in &plan.redis {
            prop_assert!((1.0..=64.0).contains(&of_redis.batch) && of_redis.usual_batch <= of_redis.batch);
            if redis.kind == RedisKind::Cluster {
                prop_assert!(of_redis.servers * of_redis.capacity * fleet.target >= of_redis.rate * 0.999_999);
                prop_assert!(of_redis.memory_share <= 1.000_001, "{}", of_redis.memory_share);
            }
        }
    }

    #[test]
    fn more_load_never_needs_less(demand in demands(), fleet in fleets(), redis in deployments(), factor in 1.0_f64..10.0) {
        let more = Demand { rate: demand.rate * factor, ..demand };
        let fleet = Fleet { envoy_threads: None, is_headless: false, ..fleet };
        let (one, other) = (plan(&demand, &fleet, &redis), plan(&more, &fleet, &redis));
        prop_assert!(other.weir.replicas >= one.weir.replicas && other.weir.threads >= one.weir.threads.min(other.weir.threads));
        for (one, other) in one.redis.iter().zip(&other.redis) {
            prop_assert!(other.servers >= one.servers);
            // Of more decisions, fewer write their subject to the lists.
            prop_assert!(demand.usage.is_some() || other.capacity <= one.capacity * 1.000_001);
        }
    }
}
