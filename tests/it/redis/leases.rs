//! Leases, through real sockets: hits of a busy key cost few commands, and nothing is ever admitted
//! beyond a limit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bb8_redis::redis;
use futures_util::future::join_all;
use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::{RateLimitRequest, RateLimitResponse};

use crate::support::sentinel::SentinelSet;
use crate::support::wait::{self, eventually_async};
use crate::support::{Client, RedisServer, Weir, descriptor_with_hits, exclusive, request};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &str = "
domain: leases
defaults: { on_store_failure: deny }
descriptors:
  - key: route
    rate_limit: { unit: year, requests_per_unit: 1000000000, lease: true }
  - key: cold
    rate_limit: { unit: year, requests_per_unit: 1000000000 }
  - key: small
    rate_limit: { unit: year, requests_per_unit: 3000, lease: true }
  - key: uncounted
    rate_limit: { unit: year, requests_per_unit: 3000, lease: true, count_denied: false }
  - key: counter
    rate_limit: { unit: year, requests_per_unit: 3000, lease: true, \
        algorithm: sliding_window_counter }
  - key: buckets
    rate_limit: { unit: year, requests_per_unit: 3000, lease: true, \
        algorithm: sliding_window_buckets, bucket_interval: 480h }
  - key: shadow
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 3000, lease: true }
  - key: quota
    quota_mode: true
    rate_limit: { unit: year, requests_per_unit: 3000, lease: true }
  - key: second
    rate_limit: { unit: second, requests_per_unit: 600, lease: true }
";

fn start(redis: &RedisServer, environment: &[(&str, &str)]) -> Weir {
    let url = redis.url();
    let own = [("REDIS_URL", url.as_str()), ("STORE_TIMEOUT", "5s")];
    Weir::start(&[("limits.yaml", LIMITS)], &[&own, environment].concat())
}

fn hits_of(key: &str, hits: i64) -> RateLimitRequest {
    request("leases", vec![descriptor_with_hits(&[(key, "x")], hits)])
}

async fn call(client: &mut Client, key: &str, hits: i64) -> RateLimitResponse {
    let answer = client.should_rate_limit(hits_of(key, hits)).await;
    answer.expect("an answer").into_inner()
}

fn remaining(answer: &RateLimitResponse) -> u32 {
    answer.statuses[0].limit_remaining
}

/// Asks so many times, by so many callers at a time. Returns how many were admitted.
async fn admitted(
    client: &Client,
    key: &str,
    hits: i64,
    (calls, callers): (usize, usize),
) -> usize {
    let next = AtomicUsize::new(0);
    let caller = || async {
        let (mut client, mut admitted) = (client.clone(), 0);
        while next.fetch_add(1, Ordering::Relaxed) < calls {
            admitted += usize::from(call(&mut client, key, hits).await.overall_code() == Code::Ok);
        }
        admitted
    };
    join_all((0..callers).map(|_| caller())).await.iter().sum()
}

/// Makes a key busy, until hits of it are held.
async fn hold(weir: &Weir, client: &Client, key: &str) -> u64 {
    for _ in 0..50 {
        admitted(client, key, 1, (64, 8)).await;
        if let Some(held) = held(weir, key) {
            return held;
        }
    }
    panic!("no hits of {key} are held");
}

/// What `weir explain` says that is held.
fn held(weir: &Weir, key: &str) -> Option<u64> {
    explain(weir, key)["descriptors"][0]["live"]["held"].as_u64()
}

fn explain(weir: &Weir, key: &str) -> serde_json::Value {
    let entry = format!("{key}=x");
    let text = weir.command(&["explain", "--format", "json", "-d", "leases", &entry]);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Hits of a busy key cost a command for each block; each hit is counted in metrics as the limit's.
#[tokio::test]
async fn a_hundred_thousand_hits_of_a_key_are_few_commands() {
    let redis = RedisServer::start();
    let weir = start(&redis, &[("REPLICAS", "2")]);
    let client = weir.client().await;
    let (calls, began) = (10_000, Instant::now());
    assert_eq!(admitted(&client, "route", 10, (calls, 64)).await, calls);
    let commands = redis.calls("incrby") + redis.calls("evalsha");
    // A block is the hits of a tenth of a second: a busy machine, which is slower, has more of them.
    let most = 100 + began.elapsed().as_millis() / 50;
    assert!(u128::from(commands) <= most, "{commands} commands");
    let counted: u64 = redis.run(&["GET", &redis.keys()[0]]);
    let [drawn, answers] = ["weir_lease_drawn_hits_total", "weir_lease_answers_total"]
        .map(|series| weir.metric(series).expect("the series"));
    let own = 100_000 + held(&weir, "route").unwrap_or(0);
    assert_eq!(counted, own, "what is not used is held");
    assert!(
        answers >= 2_000.0 && drawn >= 10.0 * answers,
        "{answers}, {drawn}"
    );
    let label = "{domain=\"leases\",key1=\"route\"}";
    for name in ["total_hits", "within_limit"] {
        let series = format!("ratelimit_service_rate_limit_{name}{label}");
        assert_eq!(weir.metric(&series), Some(100_000.0), "{name}");
    }
    assert_eq!(weir.metric("weir_leases"), Some(1.0));
    let granted = weir.metric("weir_lease_draws_total{result=\"granted\"}");
    assert!(granted >= Some(1.0), "{granted:?}");
    redis.assert_every_key_expires();
}

/// Keys that are not busy cost what they cost without `lease`.
#[tokio::test]
async fn a_key_that_is_not_busy_costs_what_it_costs_without_leases() {
    let mut costs = Vec::new();
    for key in ["route", "cold"] {
        let redis = RedisServer::start();
        let weir = start(&redis, &[]);
        let client = &mut weir.client().await;
        for customer in 0..200 {
            let entries = [(key, &*format!("customer-{customer:03}"))];
            let request = request("leases", vec![descriptor_with_hits(&entries, 1)]);
            for _ in 0..3 {
                client
                    .should_rate_limit(request.clone())
                    .await
                    .expect("an answer");
            }
        }
        costs.push((
            redis.calls("incrby"),
            redis.calls("expire"),
            redis.calls("get"),
        ));
        assert_eq!(weir.metric("weir_lease_drawn_hits_total"), Some(0.0));
    }
    assert_eq!(costs[0], costs[1]);
    assert!(costs[0].0 >= 600, "{costs:?}");
}

/// Of each algorithm exactly the limit passes, though several processes draw ahead; what one has
/// drawn and others could have used is at most one block.
#[tokio::test]
async fn no_process_admits_a_hit_beyond_the_limit() {
    let redis = RedisServer::start();
    let weirs = [(); 3].map(|()| start(&redis, &[("REPLICAS", "3")]));
    for (key, hits) in [
        ("small", 1),
        ("uncounted", 1),
        ("counter", 1),
        ("buckets", 1),
        ("small", 7),
    ] {
        redis.flush();
        let clients = join_all(weirs.iter().map(Weir::client)).await;
        // The last hits are asked one by one, so that all of the limit is used.
        let passed = clients
            .iter()
            .map(|client| admitted(client, key, hits, (1_500, 16)));
        let passed = join_all(passed).await.iter().sum::<usize>() * hits.unsigned_abs() as usize;
        assert!(passed <= 3_000, "{key}: {passed}");
        assert!(passed >= 2_950, "{key}: {passed}");
        // The next key begins with nothing known of the last one's counters.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
    let drawn: f64 = weirs
        .iter()
        .filter_map(|weir| weir.metric("weir_lease_drawn_hits_total"))
        .sum();
    assert!(drawn >= 1_000.0, "{drawn} hits were drawn ahead");
}

/// Windows of one second, of which one is sure for each answer that arrives in the second that it
/// was asked in.
#[derive(Default)]
struct Windows {
    /// All that were asked and answered in it.
    asked: BTreeMap<u64, usize>,
    sure: BTreeMap<u64, usize>,
    /// Of the window at whose end they were asked, or of the next one.
    unsure: BTreeMap<u64, usize>,
}

fn second() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_secs()
}

/// Asks until `stop`. A process that is killed refuses its callers.
async fn ask_in_windows(weir: &Weir, stop: &AtomicBool) -> Windows {
    let (client, mut all) = (weir.client().await, Windows::default());
    let caller = || async {
        let (mut client, mut own) = (client.clone(), Windows::default());
        while !stop.load(Ordering::Relaxed) {
            let began = second();
            let Ok(answer) = client.should_rate_limit(hits_of("second", 1)).await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let is_sure = second() == began;
            if is_sure {
                *own.asked.entry(began).or_default() += 1;
            }
            if answer.into_inner().overall_code() == Code::Ok {
                let windows = if is_sure {
                    &mut own.sure
                } else {
                    &mut own.unsure
                };
                *windows.entry(began).or_default() += 1;
            }
        }
        own
    };
    for own in join_all((0..20).map(|_| caller())).await {
        all.add(own);
    }
    all
}

impl Windows {
    fn add(&mut self, other: Self) {
        let all = [&mut self.asked, &mut self.sure, &mut self.unsure];
        for (all, own) in all.into_iter().zip([other.asked, other.sure, other.unsure]) {
            for (window, count) in own {
                *all.entry(window).or_default() += count;
            }
        }
    }
}

/// Three processes and 60 callers, twenty ends of windows, and a process that is killed in the
/// middle: no window has more than the limit; one with enough callers has it but for a few hits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_windows_and_a_kill_admit_the_limit_and_no_more() {
    const LIMIT: usize = 600;
    let _exclusive = exclusive();
    let redis = RedisServer::start();
    let weirs = [(); 3].map(|()| start(&redis, &[("REPLICAS", "3")]));
    let stop = AtomicBool::new(false);
    let timer = async {
        tokio::time::sleep(Duration::from_millis(9_300)).await;
        weirs[2].signal("KILL");
        tokio::time::sleep(Duration::from_secs(11)).await;
        stop.store(true, Ordering::Relaxed);
    };
    let asked = join_all(weirs.iter().map(|weir| ask_in_windows(weir, &stop)));
    let (found, ()) = tokio::join!(asked, timer);
    let mut all = Windows::default();
    for own in found {
        all.add(own);
    }
    let Windows {
        asked,
        sure,
        unsure,
    } = all;
    assert!(asked.len() >= 20, "{asked:?}");
    for (window, asked) in asked {
        let count = |of: &BTreeMap<u64, usize>, window| of.get(&window).copied().unwrap_or(0);
        let own = count(&sure, window);
        assert!(own <= LIMIT, "{own} in window {window}");
        let most = own + count(&unsure, window) + count(&unsure, window - 1);
        // A draw has at most a sixth of what is left, and each process loses one at most.
        let has_demand = asked >= 2 * LIMIT;
        assert!(
            !has_demand || most >= LIMIT / 2,
            "{most} of {asked} in window {window}"
        );
    }
    let all: usize = sure.values().chain(unsure.values()).sum();
    assert!(all <= LIMIT * (sure.len() + 2), "{all}");
    let drawn = weirs[0].metric("weir_lease_drawn_hits_total");
    assert!(drawn >= Some(1.0), "{drawn:?}");
}

/// What callers see: as if Redis had decided each hit.
#[tokio::test]
async fn answers_from_a_lease_are_those_of_the_store() {
    let redis = RedisServer::start();
    let weir = start(&redis, &[]);
    let client = &mut weir.client().await;
    hold(&weir, client, "small").await;
    let (mut before, mut own) = (remaining(&call(client, "small", 1).await), 0);
    for _ in 0..100 {
        let answer = call(client, "small", 1).await;
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!(remaining(&answer), before - 1, "it falls with each hit");
        let status = &answer.statuses[0];
        let limit = status.current_limit.as_ref().expect("a limit");
        assert_eq!(limit.requests_per_unit, 3_000);
        let reset = status
            .duration_until_reset
            .as_ref()
            .expect("a reset")
            .seconds;
        let year = 366 * 86_400;
        assert!((1..=year).contains(&reset), "{reset}");
        (before, own) = (before - 1, own + 1);
    }
    assert!(own > 50);
    // Looks count what is held as used, and nothing more.
    let peek = remaining(&call(client, "small", 0).await);
    let now_held = held(&weir, "small").unwrap_or(0);
    assert_eq!(u64::from(peek), u64::from(before) - now_held);
    // More than the limit at once is refused, and in this case counted.
    let never = call(client, "uncounted", 3_001).await;
    assert_eq!(never.overall_code(), Code::OverLimit);
    while call(client, "small", 1).await.overall_code() == Code::Ok {}
    let refused = call(client, "small", 1).await;
    assert_eq!(
        (refused.overall_code(), remaining(&refused)),
        (Code::OverLimit, 0)
    );
    assert_eq!(held(&weir, "small"), None);
    let peek = call(client, "small", 0).await;
    assert_eq!(
        peek.overall_code(),
        Code::OverLimit,
        "the refused hits count"
    );
}

#[tokio::test]
async fn explain_says_what_is_held() {
    let redis = RedisServer::start();
    let weir = start(&redis, &[]);
    let client = weir.client().await;
    let held = hold(&weir, &client, "route").await;
    let text = weir.command(&["explain", "-d", "leases", "route=x"]);
    let line = format!("lease    {held} hits held by this replica");
    assert!(text.contains(&line), "{line}: {text}");
    assert!(text.contains("lease true"), "{text}");
    let without = weir.command(&["explain", "-d", "leases", "cold=x"]);
    assert!(!without.contains("lease "), "{without}");
}

/// Exactly the held hits pass after Redis has stopped, then the failure policy answers.
#[tokio::test]
async fn held_hits_pass_while_redis_is_away() {
    let mut redis = RedisServer::start();
    let weir = start(&redis, &[("STORE_TIMEOUT", "200ms")]);
    let client = &mut weir.client().await;
    hold(&weir, client, "route").await;
    let held = held(&weir, "route").expect("held hits");
    redis.kill();
    let mut passed = 0;
    while call(client, "route", 1).await.overall_code() == Code::Ok {
        passed += 1;
    }
    assert_eq!(passed, held);
    for _ in 0..3 {
        assert_eq!(
            call(client, "route", 1).await.overall_code(),
            Code::OverLimit
        );
    }
    let failed = || weir.metric("weir_lease_draws_total{result=\"failed\"}");
    let has_failed = || (failed() >= Some(1.0)).then_some(());
    assert!(eventually_async(has_failed).await.is_some());
    assert!(weir.metric("weir_outage_answers_total{policy=\"deny\"}") >= Some(4.0));
}

/// All keys of which 3,000 hits pass a year.
const YEARLY: [&str; 4] = ["small", "uncounted", "counter", "buckets"];

fn unused(weir: &Weir, reason: &str) -> f64 {
    let series = format!("weir_lease_unused_hits_total{{reason=\"{reason}\"}}");
    weir.metric(&series).expect("the series")
}

async fn ask_for(client: &mut Client, hits: &[(&str, i64)]) -> RateLimitResponse {
    let descriptors = hits
        .iter()
        .map(|&(key, hits)| descriptor_with_hits(&[(key, "x")], hits));
    let request = request("leases", descriptors.collect());
    let answer = client.should_rate_limit(request).await;
    answer.expect("an answer").into_inner()
}

/// Asks each replica in turn until none of them admits a hit. Returns how many were admitted.
async fn use_up(clients: &[Client], key: &str) -> i64 {
    let mut all = 0;
    loop {
        let mut round = 0;
        for client in clients {
            round += admitted(client, key, 1, (200, 16)).await;
        }
        if round == 0 {
            return all;
        }
        all += i64::try_from(round).expect("few");
    }
}

/// Refunds of hits that were used, by any replica, alone or in one request with hits, void nothing
/// that is held: all of the limit passes.
#[tokio::test]
async fn refunds_are_no_resets() {
    let redis = RedisServer::start();
    let weirs = [(); 2].map(|()| start(&redis, &[]));
    let clients = join_all(weirs.iter().map(Weir::client)).await;
    for key in YEARLY {
        let mut net = 0;
        for round in 0..18 {
            for client in &clients {
                let passed = admitted(client, key, 1, (64, 8)).await;
                net += i64::try_from(passed).expect("few");
            }
            // More than a draw, and less; of the replica that has drawn last, and of the other one.
            let refund = [7, 90, 1, 40, 15][round % 5];
            let client = &mut clients[round / 2 % 2].clone();
            let answer = if round % 3 == 0 {
                net += 1;
                ask_for(client, &[(key, 1), (key, -refund), ("cold", 1)]).await
            } else {
                call(client, key, -refund).await
            };
            assert_eq!(answer.overall_code(), Code::Ok, "{key} {round}");
            net -= refund;
        }
        assert!((1_000..3_000).contains(&net), "{key}: {net}");
        net += use_up(&clients, key).await;
        assert_eq!(net, 3_000, "{key}");
    }
    for weir in &weirs {
        assert_eq!(unused(weir, "void"), 0.0);
        assert!(weir.metric("weir_lease_drawn_hits_total") >= Some(500.0));
    }
}

/// A refund of more than was used leaves nothing counted: what is held beyond the count is void,
/// and no less than the limit passes again.
#[tokio::test]
async fn refunds_of_unused_hits_void_what_is_not_counted() {
    let redis = RedisServer::start();
    let weir = start(&redis, &[]);
    let client = weir.client().await;
    let mut all_held = 0;
    for key in YEARLY {
        hold(&weir, &client, key).await;
        let answer = call(&mut client.clone(), key, -3_000).await;
        assert_eq!(
            (answer.overall_code(), remaining(&answer)),
            (Code::Ok, 3_000)
        );
        all_held += held(&weir, key).expect("held hits");
    }
    a_second_passes().await;
    for key in YEARLY {
        let passed = use_up(std::slice::from_ref(&client), key).await;
        assert_eq!(passed, 3_000, "{key}");
    }
    assert_eq!(unused(&weir, "void"), all_held as f64);
}

/// What is known of counters is old then.
async fn a_second_passes() {
    tokio::time::sleep(Duration::from_millis(1_100)).await;
}

/// A reset by one replica voids within a second what the others hold, also where it is not seen in
/// the count, because hits were used since.
#[tokio::test]
async fn a_reset_voids_what_other_replicas_hold() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let [tokens, token] = ["tokens", "token"].map(|name| folder.path().join(name));
    std::fs::write(&tokens, "alice:0123456789abcdef0123\n").expect("written");
    std::fs::write(&token, "0123456789abcdef0123\n").expect("written");
    let environment = [("ADMIN_TOKEN_FILE", tokens.to_str().expect("UTF-8"))];
    let weirs = [(); 2].map(|()| start(&redis, &environment));
    let clients = join_all(weirs.iter().map(Weir::client)).await;
    for key in YEARLY {
        for (weir, client) in weirs.iter().zip(&clients) {
            hold(weir, client, key).await;
        }
        let (entry, token) = (format!("{key}=x"), token.to_str().expect("UTF-8"));
        let order = |order: &str, entry: &str| {
            weirs[0].command(&[order, "--admin-token-file", token, "-d", "leases", entry]);
        };
        order("reset", &entry);
        // Most often before the other replica has polled.
        order("block", &format!("{key}=other"));
        let passed = admitted(&clients[0], key, 1, (1_000, 8)).await;
        assert_eq!(passed, 1_000, "{key}");
        let none = || held(&weirs[1], key).is_none().then_some(());
        assert!(eventually_async(none).await.is_some(), "{key}");
        assert_eq!(1_000 + use_up(&clients, key).await, 3_000, "{key}");
    }
}

/// A draw is of hits that were used: refused hits make no key busy, and no draw larger.
#[tokio::test]
async fn refused_hits_size_no_draw() {
    let redis = RedisServer::start();
    let weirs = [(); 3].map(|()| start(&redis, &[]));
    let clients = join_all(weirs.iter().map(Weir::client)).await;
    for key in ["uncounted", "counter", "buckets"] {
        for (count, client) in clients[..2].iter().enumerate() {
            let client = &mut client.clone();
            let first = call(client, key, 1).await;
            assert_eq!(remaining(&first), 2_999 - 2 * count as u32, "{key}");
            assert_eq!(admitted(client, key, 3_000, (20, 20)).await, 0);
            let last = call(client, key, 1).await;
            assert_eq!(remaining(&last), 2_998 - 2 * count as u32, "{key}");
        }
        let peek = call(&mut clients[2].clone(), key, 0).await;
        assert_eq!(remaining(&peek), 2_996, "{key}: replicas hold hits");
        // A busy key draws no more than it has used, whatever is refused beside it.
        let client = &mut clients[2].clone();
        for _ in 0..10 {
            admitted(client, key, 1, (16, 8)).await;
            admitted(client, key, 2_900, (4, 4)).await;
            let held = held(&weirs[2], key).unwrap_or(0);
            assert!(held <= 160, "{key}: {held}");
        }
    }
}

/// The remaining hits are at most a second old, in each answer of calls that come at once, and of
/// each descriptor of a call.
#[tokio::test]
async fn no_answer_is_older_than_a_second() {
    let redis = RedisServer::start();
    let weirs = [(); 2].map(|()| start(&redis, &[]));
    let clients = join_all(weirs.iter().map(Weir::client)).await;
    for key in YEARLY {
        hold(&weirs[0], &clients[0], key).await;
    }
    for calls_at_once in [6, 1] {
        let mut left = Vec::new();
        for key in YEARLY {
            let before = remaining(&call(&mut clients[0].clone(), key, 1).await);
            assert!(held(&weirs[0], key).is_some_and(|held| held >= 3), "{key}");
            for _ in 0..3 {
                call(&mut clients[1].clone(), key, 100).await;
            }
            left.push(before - 300);
        }
        a_second_passes().await;
        for (key, left) in YEARLY.into_iter().zip(left) {
            let calls = (0..calls_at_once).map(|_| async {
                let descriptors = vec![(key, 1); 6 / calls_at_once];
                ask_for(&mut clients[0].clone(), &descriptors).await
            });
            for answer in join_all(calls).await {
                for status in &answer.statuses {
                    let shown = status.limit_remaining;
                    assert!((1..left).contains(&shown), "{key}: {shown} of {left}");
                }
            }
        }
    }
}

/// Operators: what they order holds at once, and a lease never stands in its way.
#[tokio::test]
async fn orders_and_reloads_end_leases() {
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "alice:0123456789abcdef0123\n").expect("written");
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123\n").expect("written");
    let weir = start(
        &redis,
        &[("ADMIN_TOKEN_FILE", tokens.to_str().expect("UTF-8"))],
    );
    let order = |words: &[&str]| {
        let token = ["--admin-token-file", token.to_str().expect("UTF-8")];
        weir.command(&[&[words[0]], &token[..], &["-d", "leases"], &words[1..]].concat())
    };
    let client = &mut weir.client().await;
    hold(&weir, client, "small").await;
    order(&["reset", "small=x"]);
    assert_eq!(held(&weir, "small"), None, "a reset drops what is held");
    assert!(weir.metric("weir_lease_unused_hits_total{reason=\"evicted\"}") >= Some(1.0));
    let first = call(client, "small", 1).await;
    assert_eq!(remaining(&first), 2_999);

    hold(&weir, client, "small").await;
    order(&["block", "small=x", "--until", "1h"]);
    assert_eq!(
        call(client, "small", 1).await.overall_code(),
        Code::OverLimit
    );
    order(&["unblock", "small=x"]);
    // Hits under an exemption count nowhere.
    let before = held(&weir, "small");
    order(&["exempt", "small=x", "--until", "1h"]);
    assert_eq!(call(client, "small", 1).await.overall_code(), Code::Ok);
    order(&["unexempt", "small=x"]);
    assert_eq!(held(&weir, "small"), before);
    order(&["raise", "small=x", "--to", "5000/year", "--until", "1h"]);
    // The counter is the same, and its limit has other numbers: what was held is held no more.
    assert_eq!((before.is_some(), held(&weir, "small")), (true, None));
    let answer = call(client, "small", 1).await;
    assert_eq!(answer.overall_code(), Code::Ok);
    let limit = answer.statuses[0].current_limit.as_ref().expect("a limit");
    assert_eq!(limit.requests_per_unit, 5_000);
    hold(&weir, client, "small").await;

    let lower = LIMITS.replace(
        "requests_per_unit: 1000000000, lease",
        "requests_per_unit: 5, lease",
    );
    hold(&weir, client, "route").await;
    std::fs::write(weir.config_dir().join("limits.yaml"), lower).expect("written");
    weir.wait_for_log("limits changed").await;
    assert_eq!(
        call(client, "route", 1).await.overall_code(),
        Code::OverLimit
    );
}

/// The counters of the memory store are as near as a lease.
#[tokio::test]
async fn the_memory_store_has_no_leases() {
    let weir = Weir::start(&[("limits.yaml", LIMITS)], &[]);
    let client = weir.client().await;
    assert_eq!(admitted(&client, "small", 1, (3_100, 16)).await, 3_000);
    assert_eq!(weir.metric("weir_lease_answers_total"), Some(0.0));
}

/// A failover that loses no counts: exactly the limit passes, but for what the store counted and
/// did not answer. Such a hit is lost, and such a draw too; a draw is of at most half of what is
/// left.
///
/// The failover may take longer than a connection lives whose client answers no PING: other threads
/// do.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_admits_the_limit() {
    const LIMIT: usize = 3_000;
    let _exclusive = exclusive();
    let mut set = SentinelSet::start(1);
    let url = set.url();
    // A timeout so long that no answer of a Redis that is well is late.
    let environment = [
        ("REDIS_URL", url.as_str()),
        ("REDIS_TYPE", "sentinel"),
        ("STORE_TIMEOUT", "5s"),
    ];
    let weirs = [(); 2].map(|()| Weir::start(&[("limits.yaml", LIMITS)], &environment));
    let clients = join_all(weirs.iter().map(Weir::client)).await;
    let mut passed = 0;
    for client in &clients {
        passed += admitted(client, "small", 1, (900, 16)).await;
    }
    assert_eq!(passed, 1_800, "all were answered, so no draw is lost");
    let old = set.primary();
    // All that was counted is on the replica too.
    let mut connection = set.server(old).connection();
    let mut run = |command: &[&str]| -> redis::Value {
        let command = redis::cmd(command[0]).arg(&command[1..]).to_owned();
        command.query(&mut connection).expect("Redis is well")
    };
    run(&["SET", "mark", "1"]);
    let copies = run(&["WAIT", "1", "5000"]);
    assert_eq!(copies, redis::Value::Int(1));
    set.kill(old);
    // Meanwhile held hits pass, and then none.
    for client in &clients {
        passed += admitted(client, "small", 1, (400, 16)).await;
    }
    let (new, _) = set.wait_for_switch_from(old);
    // Until the new primary answers, the failure policy denies all.
    for client in &clients {
        let mut client = client.clone();
        let answers = async {
            while call(&mut client, "small", 0).await.overall_code() != Code::Ok {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let answers = tokio::time::timeout(wait::TIMEOUT, answers).await;
        answers.expect("the new primary answers");
    }
    let total = |series: &str| -> f64 { weirs.iter().filter_map(|weir| weir.metric(series)).sum() };
    let unanswered = || {
        let draws = total("weir_lease_draws_total{result=\"failed\"}");
        (draws, total("weir_outage_answers_total{policy=\"deny\"}"))
    };
    let before = unanswered();
    // The failure policy denies as a limit does that is used up: the counter says which it was.
    let counter = set.server(new).keys();
    let counter = counter
        .iter()
        .find(|key| *key != "mark")
        .expect("a counter");
    loop {
        let mut more = 0;
        for client in &clients {
            more += admitted(client, "small", 1, (400, 16)).await;
        }
        passed += more;
        let counted: usize = set.server(new).run(&["GET", counter]);
        if more == 0 && counted >= LIMIT {
            break;
        }
    }
    let (draws, hits) = unanswered();
    let lost = (draws - before.0) * 600.0 + (hits - before.1);
    assert!(passed <= LIMIT, "{passed}");
    assert!(
        passed as f64 + lost >= LIMIT as f64,
        "{passed}, {lost} lost"
    );
    println!("{passed} passed, at most {lost} were lost");
}
