//! The day of a gateway: two tenants with streams, cancels, cut-off streams, errors, missing
//! estimates, and costs in metadata or in a header. In the end usage, counter and explanation agree
//! with the ledger of the clients to the hit.

use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use serde_json::Value;

use super::*;
use crate::support::RedisServer;
use crate::support::wait::TIMEOUT;

/// Clients of the gateway at the same time, and the requests of each.
const CLIENTS: u64 = 8;
const REQUESTS: u64 = 30;

/// The tenants with their amounts. The second one has used so much that requests are refused.
const TENANTS: [(&str, u64, u64); 2] = [("acme", 50_000_000, 0), ("others", 1_000_000, 850_000)];

/// Bodies of requests, and the tokens that they reserve.
const BODIES: [(&str, u64); 4] = [
    (r#"{"max_tokens": 200}"#, 500),
    (r#"{"max_tokens": 9500}"#, 9_500),
    ("{}", 4_000),
    (r#"{"max_tokens": "many"}"#, 4_000),
];

/// Paths of the upstream, the text after which the client leaves, and the cost; `None`: it is not
/// known, and the estimate stays charged.
const PATHS: [(&str, &str, Option<u64>); 8] = [
    ("/full", "\r\n0\r\n\r\n", Some(1_200)),
    ("/header", "\r\n0\r\n\r\n", Some(700)),
    ("/large", "\r\n0\r\n\r\n", Some(9_000)),
    ("/broken", "\r\n0\r\n\r\n", Some(0)),
    ("/plain", "\r\n0\r\n\r\n", None),
    ("/cut", "no such text", None),
    ("/begun", "content", None),
    ("/hangs", "", None),
];

/// Sends a request and reads as much of its answer as the client waits for. Returns what it is
/// charged for good; `None` if it is refused.
fn request(
    front: SocketAddr,
    number: u64,
    tenant: &str,
    random: &mut fastrand::Rng,
) -> Option<u64> {
    let (body, estimate) = BODIES[random.usize(..BODIES.len())];
    let (path, until, cost) = PATHS[random.usize(..PATHS.len())];
    let path = format!("{path}?{number}");
    let mut stream = begin_with(front, tenant, &path, body);
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    if until.is_empty() {
        // It is refused, or arrives and gets no answer.
        stream.set_nonblocking(true).expect("a socket");
        let began = Instant::now();
        while !HANGING.lock().expect("no panic").contains(&path) {
            if stream.peek(&mut [0]).is_ok() {
                return None;
            }
            assert!(began.elapsed() < TIMEOUT, "{path} arrives");
            thread::sleep(std::time::Duration::from_millis(2));
        }
        return Some(estimate);
    }
    let mut received = read(&mut stream, "\r\n\r\n");
    if received.starts_with("HTTP/1.1 429 ") {
        return None;
    }
    if !received.contains(until) {
        received += &read(&mut stream, until);
    }
    let status = if path.starts_with("/broken") {
        "500"
    } else {
        "200"
    };
    assert!(
        received.starts_with(&format!("HTTP/1.1 {status} ")),
        "{path}: {received}"
    );
    Some(cost.unwrap_or(estimate))
}

/// The charges of each tenant, and how many requests were refused.
fn day(front: SocketAddr, seed: u64) -> ([u64; TENANTS.len()], u64) {
    let client = |client: u64| {
        thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed + client);
            let (mut charged, mut refused) = ([0; TENANTS.len()], 0);
            for number in 0..REQUESTS {
                let tenant = random.usize(..TENANTS.len());
                let number = (seed << 16) + (client << 8) + number;
                match request(front, number, TENANTS[tenant].0, &mut random) {
                    Some(cost) => charged[tenant] += cost,
                    None => refused += 1,
                }
            }
            (charged, refused)
        })
    };
    let clients: Vec<_> = (0..CLIENTS).map(client).collect();
    let mut all = (TENANTS.map(|(.., before)| before), 0);
    for client in clients {
        let (charged, refused) = client.join().expect("a client");
        for (sum, charged) in all.0.iter_mut().zip(charged) {
            *sum += charged;
        }
        all.1 += refused;
    }
    all
}

/// A number of what a command prints as JSON.
fn number(site: &Site, command: &[&str], tenant: &str, pointer: &str) -> Option<u64> {
    let of = format!("tenant={tenant}");
    let arguments = [command, &["--domain", "llm", &of, "--format", "json"]].concat();
    let answer: Value = serde_json::from_str(&site.weir.command(&arguments)).expect("JSON");
    answer
        .pointer(pointer)
        .unwrap_or_else(|| panic!("{pointer} of {answer}"))
        .as_u64()
}

/// The gateway of the recipe with few requests in flight, a short `ttl`, and costs in a header too.
fn start(store: &[(&str, &str)]) -> Site {
    let mut files = files_in_flight();
    let (_, limits) = files.last_mut().expect("limits");
    *limits = with(limits, "ttl: 5m", "ttl: 10s");
    *limits = with(
        limits,
        "requests_per_unit: 100, max",
        "requests_per_unit: 4, max",
    );
    let site = site_with_upstream(&files, store, |output| {
        let metadata = "int(metadata.filter_metadata.llm.total)";
        let either =
            format!("'x-cost' in response.headers ? int(response.headers['x-cost']) : {metadata}");
        with(output, metadata, &either)
    });
    for (tenant, _, before) in TENANTS.into_iter().filter(|(.., before)| *before > 0) {
        let (address, hits) = (site.weir.grpc_addr().to_string(), before.to_string());
        let of = format!("tenant={tenant}");
        let hit = [
            "hit",
            "--domain",
            "llm",
            &of,
            "--hits",
            &hits,
            "--address",
            &address,
        ];
        site.weir.command(&hit);
    }
    site
}

fn run_day(store: &[(&str, &str)]) {
    let site = start(store);
    let seed = fastrand::u64(..1 << 32);
    let (ledger, refused) = day(site.front, seed);
    let admitted = CLIENTS * REQUESTS - refused;
    println!("seed {seed}: {ledger:?} charged, {admitted} admitted, {refused} refused");
    assert!(admitted > 60 && refused > 20, "{admitted}, {refused}");
    site.assert_metric(
        "weir_concurrency_holders{domain=\"llm\",limit=\"tenant.request\"}",
        0.0,
    );
    // Until a request has found that the holds without a cost have expired.
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"llm\",key1=\"tenant_acme\"}";
    let found = || {
        site.left("llm", &[("tenant", "acme")]);
        site.weir
            .metric(hits)
            .filter(|found| *found == ledger[0] as f64)
    };
    assert!(
        eventually(found).is_some(),
        "{:?} hits, not {}",
        site.weir.metric(hits),
        ledger[0]
    );
    for ((tenant, amount, _), charged) in TENANTS.into_iter().zip(ledger) {
        site.assert_left("llm", &[("tenant", tenant)], amount.saturating_sub(charged));
        let held = || number(&site, &["usage"], tenant, "/held").filter(|held| *held == 0);
        assert!(eventually(held).is_some(), "{tenant} holds nothing");
        let state = "/descriptors/0/live/used";
        for (command, pointer) in [(&["usage"][..], "/used"), (&["explain"], state)] {
            assert_eq!(
                number(&site, command, tenant, pointer),
                Some(charged),
                "{command:?} {tenant}"
            );
        }
        site.assert_left("llm", &[("tenant", tenant)], amount.saturating_sub(charged));
    }
    // Of the tenant that was never over its limit, also the record.
    let [(tenant, ..), _] = TENANTS;
    for command in [&["usage"][..], &["count", "--since", "10m"]] {
        assert_eq!(
            number(&site, command, tenant, "/hits"),
            Some(ledger[0]),
            "{command:?}"
        );
    }
    assert_eq!(site.envoy.stat("cluster.application.ratelimit.error"), 0);
}

#[test]
fn the_ledger_of_a_day_is_right_in_memory() {
    run_day(&[]);
}

#[test]
fn the_ledger_of_a_day_is_right_in_redis() {
    let redis = RedisServer::start();
    run_day(&[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")]);
}
