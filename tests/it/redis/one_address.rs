//! One address that refuses keys of several hash slots together, as Redis Enterprise and Azure
//! Managed Redis do: every request is decided, from the first one on, and also when another server
//! takes the place of this one.

use std::collections::HashSet;
use std::sync::Mutex;

use futures_util::future::join_all;
use weir::core::algorithm::concurrency::Concurrency;
use weir::core::algorithm::{AlgorithmKind, Options};
use weir::core::breaker::Transitions;
use weir::core::proto::rate_limit_response::Code;
use weir::core::time::{Rate, Unit};
use weir::limits::rules::Commit;
use weir::store::redis::{Address, Options as RedisOptions, Server, UsageClient};

use super::*;
use crate::operators::usage::{tracked, tracking};
use crate::support::cluster::one_node;
use crate::support::redis::{RedisServer, connect};
use crate::support::relay::{Relay, refuse, script_keys};
use crate::support::wait::eventually_async;
use crate::support::{Weir, ask, descriptor, http_client};

const CALLERS: usize = 12;
const CALLS: u64 = 40;

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

fn bucket() -> Check {
    let algorithm = limit(AlgorithmKind::TokenBucket, 10_000);
    Check::new(algorithm, 1, Modes::default())
}

fn server(redis: &Redis) -> Server {
    redis.deployment().servers().remove(0)
}

fn has_advice(redis: &Redis) -> bool {
    let status = server(redis).status;
    let mut names = status.diagnostics.iter().map(|advice| advice.name);
    names.any(|name| name == "one_slot")
}

fn options(port: u16) -> RedisOptions {
    RedisOptions::new(Address::Tcp {
        host: "127.0.0.1".to_owned(),
        port,
    })
}

/// Callers with one key each, which wait for the same server: each call is decided, and counted
/// once.
async fn must_count(redis: &Redis, name: &str, check: &Check) {
    let caller = async |number: usize| {
        let key = format!("w1{{{name}={number}}}x");
        for round in 1..=CALLS {
            let answers = decide_all(redis, &[(&*key, check.clone())]).await;
            let used = answers.verdicts()[0].map(|verdict| verdict.used);
            assert_eq!(used, Ok(round), "{key}");
        }
    };
    join_all((0..CALLERS).map(caller)).await;
    assert_eq!(server(redis).transitions, Transitions::default());
    assert_eq!(redis.deployment().error_counts(), []);
}

#[tokio::test]
async fn callers_that_wait_for_the_same_server_are_decided_from_the_first_call_on() {
    for check in [check(10_000, 1), bucket()] {
        let node = one_node();
        let redis = connect(options(node.port()));
        must_count(&redis, "first", &check).await;
        let is_found = || has_advice(&redis).then_some(());
        assert!(eventually_async(is_found).await.is_some());
        let errors = || node.run::<String>(&["INFO", "errorstats"]);
        let before = errors();
        must_count(&redis, "later", &check).await;
        let crossed = |stats: &str| {
            let line = stats.lines().find(|line| line.contains("CROSSSLOT"));
            line.map(str::to_owned)
        };
        assert_eq!(
            crossed(&before),
            crossed(&errors()),
            "nothing is refused any more"
        );
        node.assert_every_key_expires();
    }
}

/// Several keys in one request, of all algorithms, all or none, tracked, and with holders.
#[tokio::test]
async fn requests_with_keys_of_several_slots_are_decided() {
    let node = one_node();
    let redis = connect(options(node.port()));
    let tracking = tracking(60, 5);
    let decide = async |checks: Checks| {
        let budget = Budget::until(Instant::now() + TIMEOUT);
        let answers = decide_within(&redis, checks, budget).await.verdicts();
        let allowed = answers.iter().map(|it| it.map(|verdict| verdict.allowed));
        allowed.collect::<Vec<_>>()
    };
    let keys: Vec<_> = (0..8)
        .map(|number| format!("w1{{many={number}}}"))
        .collect();
    for round in 0..3 {
        let kinds = AlgorithmKind::NAMED.map(|(_, kind)| kind).into_iter();
        // A leaky bucket refuses the second hit of an instant.
        let others = [AlgorithmKind::Concurrency, AlgorithmKind::LeakyBucket];
        let kinds = kinds.filter(|kind| !others.contains(kind));
        let checks = kinds.zip(&keys).map(|(kind, key)| {
            let check = Check::new(limit(kind, 2), 1, Modes::default());
            (&**key, check)
        });
        let checks = checks_of(&checks.collect::<Vec<_>>());
        let count = checks.len();
        let expected = vec![Ok(round < 2); count];
        assert_eq!(decide(tracked(checks, &tracking)).await, expected);
        let places = Algorithm::Concurrency(Concurrency::new(2, Span::from_secs(60)));
        let held = [0, 1].map(|index| {
            let key = [keys[index].as_str(), "h"].concat();
            (key, Check::new(places, 1, Modes::default()))
        });
        let held: Vec<_> = held
            .iter()
            .map(|(key, check)| (&**key, check.clone()))
            .collect();
        let mut checks = checks_of(&held);
        for index in checks.indices() {
            checks = checks.with_holder(index, &[round]);
        }
        assert_eq!(decide(checks).await, [Ok(round < 2); 2]);
        // Keys of a domain, as `limits::plan::key` writes them.
        let full = check(u64::from(round), 1);
        let mut checks = checks_of(&[("w1{domain}|a}", check(9, 1)), ("w1{domain}|b}", full)]);
        checks.commit = Commit::AllOrNone;
        let is_passed = |answers: Vec<Result<bool, StoreError>>| answers[1];
        assert_eq!(is_passed(decide(checks).await), Ok(round > 0));
    }
    let client = UsageClient::new(Arc::clone(redis.deployment()), String::new());
    let deadline = Instant::now() + TIMEOUT;
    let (_, record) = client
        .record(keys[0].as_bytes(), deadline)
        .await
        .expect("Redis is well");
    assert_eq!(record.expect("a record").total.asked, 3);
    // Hits that the denial cache refused, of several slots.
    let checks: Vec<_> = keys.iter().map(|key| (&**key, bucket())).collect();
    redis.note_refused(&tracked(checks_of(&checks), &tracking), |_| true);
    client.flush().await;
    for key in &keys {
        let (_, record) = client
            .record(key.as_bytes(), deadline)
            .await
            .expect("Redis is well");
        assert!(
            record.is_some_and(|record| record.total.refused >= 1),
            "{key}"
        );
    }
}

/// Shards of one address do not share their caches of scripts: the text for one of them is not
/// known to the others.
#[tokio::test]
async fn each_shard_gets_the_text_of_the_script() {
    let node = one_node();
    let known: Mutex<HashSet<(Vec<u8>, u8)>> = Mutex::default();
    let relay = Relay::start(node.port(), move |command| {
        // The shard is the first byte of the number in the key.
        let shard = |command: &Vec<Vec<u8>>| {
            let key = command.get(3)?;
            let at = key.iter().position(|&byte| byte == b'=')?;
            Some(key[at + 1])
        };
        if script_keys(command).is_none_or(|keys| keys == 0) {
            return;
        }
        let Some(shard) = shard(command) else { return };
        let mut known = known.lock().expect("no panic");
        if command[0] == b"EVAL" {
            known.insert((command[1].clone(), shard));
        } else if !known.iter().any(|(_, of)| *of == shard) {
            refuse(command, "NOSCRIPT No matching script. Please use EVAL.");
        }
    });
    let redis = connect(options(relay.port()));
    let keys: Vec<_> = (2..8)
        .map(|number| format!("w1{{shard={number}}}"))
        .collect();
    for round in 1..=3 {
        let checks: Vec<_> = keys.iter().map(|key| (&**key, bucket())).collect();
        let answers = decide_all(&redis, &checks).await;
        let used = answers.verdicts().into_iter();
        let used = used.map(|it| it.map(|verdict| verdict.used));
        assert!(used.clone().all(|used| used == Ok(round)), "{answers:?}");
    }
}

/// A plain server takes the place of one with shards, and then one with shards again: no call
/// fails but those during the change, and the plain one gets one transaction for all keys.
#[tokio::test]
async fn another_server_at_the_address_is_found_out() {
    let (shards, plain) = (one_node(), RedisServer::start());
    let relay = Relay::start(shards.port(), |_| {});
    let redis = connect(options(relay.port()));
    let keys: Vec<_> = (0..6)
        .map(|number| format!("w1{{place={number}}}x"))
        .collect();
    let count_all = async || {
        let checks: Vec<_> = keys.iter().map(|key| (&**key, bucket())).collect();
        let answers = decide_all(&redis, &checks).await;
        answers.verdicts().iter().all(Result::is_ok)
    };
    let wait_until = async |is_refusing: bool| {
        let began = Instant::now();
        while has_advice(&redis) != is_refusing {
            assert!(began.elapsed() < Duration::from_secs(10), "{is_refusing}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(count_all().await);
    wait_until(true).await;
    relay.lead_to(plain.port());
    wait_until(false).await;
    assert!(count_all().await && count_all().await);
    let before = plain.calls("evalsha");
    assert!(count_all().await);
    assert_eq!(plain.calls("evalsha") - before, 1, "one call for all");
    relay.lead_to(shards.port());
    // The old connections may be in use until they are found to be closed.
    let _ = count_all().await;
    assert!(count_all().await && count_all().await);
    wait_until(true).await;
}

const LIMITS: &str = "
domain: shop
descriptors:
  - { key: window, rate_limit: { unit: year, requests_per_unit: 1000 } }
  - { key: bucket, rate_limit: { unit: year, requests_per_unit: 1000, algorithm: token_bucket } }
  - { key: held, rate_limit: { unit: year, requests_per_unit: 1000, reservations: { ttl: 60s } } }
";

/// The binary: no client sees an error, and log, metric and JSON name the condition.
#[tokio::test]
async fn operators_see_why_each_slot_is_sent_by_itself() {
    let node = one_node();
    let weir = Weir::start(&[("limits.yaml", LIMITS)], &[("REDIS_URL", &*node.url())]);
    let caller = async |number: usize| {
        let client = &mut weir.client().await;
        let value = number.to_string();
        for round in 0..CALLS {
            let id = format!("r-{number}-{round}");
            let descriptors = vec![
                descriptor(&[("window", &value)]),
                descriptor(&[("bucket", &value)]),
                descriptor(&[("held", &value), ("reserve", &id)]),
            ];
            let answer = ask(client, "shop", descriptors).await;
            assert_eq!(answer.overall_code(), Code::Ok);
            for status in answer.statuses {
                assert_eq!(u64::from(status.limit_remaining), 999 - round);
            }
        }
    };
    join_all((0..CALLERS).map(caller)).await;
    let line = weir.wait_for_log("\"advice\":\"one_slot\"").await;
    assert!(line.contains("several hash slots"), "{line}");
    let page = weir.get("/metrics").1;
    let mut advice = page
        .lines()
        .filter(|line| line.starts_with("weir_redis_advice{"));
    assert!(
        advice.any(|line| line.contains("one_slot") && line.ends_with(" 1")),
        "{page}"
    );
    let status = http_client::get(weir.listener("debug"), "/api/v1/status").body;
    assert!(status.contains("\"one_slot\""), "{status}");
}
