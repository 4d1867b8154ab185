//! `deploy/envoy/reservations.yaml` with a real Envoy: what its requests leave of the budgets of
//! users, in memory and in Redis.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use super::examples::configuration;
use crate::support::envoy::{Envoy, validate, with};
use crate::support::http_client::{self, Response};
use crate::support::wait::{TIMEOUT, eventually};
use crate::support::{RedisServer, Weir};

const BUDGET: u64 = 10_000;

const LIMITS: &str = "
domain: algorithms
descriptors:
  - key: token_budget
    rate_limit: { unit: year, requests_per_unit: 10000, reservations: { ttl: 1h } }
";

/// A configuration with another estimate.
fn with_estimate(configuration: &str, estimate: &str) -> String {
    let value = configuration
        .split("value: \"%CEL(")
        .nth(1)
        .expect("an estimate");
    let (value, _) = value.split_once(")%\"").expect("its end");
    with(configuration, &format!("%CEL({value})%"), estimate)
}

/// An Envoy that takes the estimate from the request header `x-wanted`, and whose application
/// answers with the cost in `x-answer`.
fn start(weir: &Weir) -> (Envoy, SocketAddr) {
    let configuration = configuration("reservations", weir.grpc_addr());
    let configuration = with_estimate(&configuration, "%REQ(x-wanted)%");
    let cost = "value: \"%REQ(x-answer)%\"";
    let configuration = with(&configuration, "value: \"1500\"", cost);
    validate(&configuration);
    let envoy = Envoy::start(&configuration);
    let front = envoy.listener("front");
    (envoy, front)
}

/// What a user has left.
fn left(weir: &Weir, user: &str) -> u64 {
    super::left(weir, "algorithms", &[("token_budget", user)])
}

/// The number of settlements with this result.
fn settlements(weir: &Weir, result: &str) -> u64 {
    let label = format!("result=\"{result}\"");
    let sum = weir.metric_sum("weir_settlements_total", &label);
    sum.expect("settlements") as u64
}

/// Sends a request with an estimate and an answer with a cost, where they are not empty. Returns
/// its status and what was left when it began. The client sends the same ids with all requests.
fn call(front: SocketAddr, user: &str, estimate: &str, cost: &str) -> (u16, u64) {
    let mut headers = vec![
        ("x-user", user),
        ("x-stream-id", "mine"),
        ("x-request-id", "mine"),
    ];
    headers.extend(Some(("x-wanted", estimate)).filter(|_| !estimate.is_empty()));
    headers.extend(Some(("x-answer", cost)).filter(|_| !cost.is_empty()));
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()))
        .collect();
    let response: Response = http_client::request(front, "/", &headers);
    let left = response.header("x-ratelimit-remaining");
    let left = left.and_then(|left| left.parse().ok());
    (response.status, left.unwrap_or_default())
}

fn assert_left(weir: &Weir, user: &str, expected: u64) {
    super::assert_left(weir, "algorithms", &[("token_budget", user)], expected);
}

fn costs_are_settled(weir: &Weir) {
    let (envoy, front) = start(weir);
    for (user, estimate, cost, held, charged) in [
        ("fits", "4000", "1500", 4_000, 1_500),
        ("exceeds", "1000", "2500", 1_000, 2_500),
        ("without-estimate", "", "1500", 0, 1_500),
        ("without-cost", "4000", "", 4_000, 0),
        ("without-both", "", "", 0, 0),
        ("with-text", "many", "few", 0, 0),
        // At most half of the budget, unless `max_share` is another one.
        ("shortened", "9000", "7000", 5_000, 7_000),
        ("free", "4000", "0", 4_000, 0),
    ] {
        assert_eq!(
            call(front, user, estimate, cost),
            (200, BUDGET - held),
            "{user}"
        );
        assert_left(weir, user, BUDGET - charged);
    }

    // Over the limit: the refused request counts nothing, and its end refunds nothing.
    for expected in [6_000, 2_000] {
        assert_eq!(call(front, "over", "4000", "4000"), (200, expected));
        assert_left(weir, "over", expected);
    }
    assert_eq!(call(front, "over", "4000", "4000").0, 429);
    assert_eq!(call(front, "over", "1000", "900"), (200, 1_000));
    assert_left(weir, "over", 1_100);

    // In debt: neither small estimates pass nor requests without one.
    assert_eq!(call(front, "debtor", "", "10500").0, 200);
    assert_left(weir, "debtor", 0);
    for estimate in ["", "0", "1"] {
        assert_eq!(call(front, "debtor", estimate, "").0, 429, "{estimate}");
    }

    // All settlements are made: each is followed by a cancel, of which one without a cost has no
    // hold, or ends it.
    let with_cost = 5 + 3 + 1;
    let is_settled = || (settlements(weir, "repeated") == with_cost).then_some(());
    assert!(
        eventually(is_settled).is_some(),
        "{} of {with_cost}",
        settlements(weir, "repeated")
    );
    for (user, expected) in [("fits", 8_500), ("without-cost", BUDGET), ("over", 1_100)] {
        assert_eq!(left(weir, user), expected, "{user}");
    }
    assert_eq!(envoy.stat("cluster.application.ratelimit.error"), 0);
}

fn a_client_cannot_choose_the_id(weir: &Weir) {
    let (_envoy, front) = start(weir);
    let before = settlements(weir, "matched");
    for _ in 0..50 {
        assert_eq!(call(front, "ann", "100", "100").0, 200);
    }
    assert_left(weir, "ann", 5_000);
    let matched = || (settlements(weir, "matched") == before + 50).then_some(());
    assert!(eventually(matched).is_some(), "each has a hold of its own");
    assert_eq!(left(weir, "ann"), 5_000);
}

/// An upstream that never ends an answer. It begins the answers to `/begun`, with a cost. The
/// channel has an item for each request that has arrived.
fn endless_upstream() -> (SocketAddr, mpsc::Receiver<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let (sender, arrived) = mpsc::channel();
    thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut part = [0; 4096];
            let length = stream.read(&mut part).expect("a request");
            sender.send(()).ok();
            if part[..length].starts_with(b"GET /begun") {
                let answer = "HTTP/1.1 200 OK\r\nx-cost: 700\r\ntransfer-encoding: chunked\r\n\r\n\
                    5\r\nmore\n\r\n";
                stream.write_all(answer.as_bytes()).expect("sent");
            }
            open.push(stream);
        }
    });
    (address, arrived)
}

/// A configuration with another application.
fn with_upstream(configuration: &str, upstream: SocketAddr) -> String {
    let endpoint = configuration
        .lines()
        .rfind(|line| line.contains("- endpoint:"))
        .expect("the application");
    let (before, _) = endpoint.split_once("port_value: ").expect("a port");
    let own = format!("{before}port_value: {} }} }} }}", upstream.port());
    with(configuration, endpoint, &own)
}

fn resets_are_settled(weir: &Weir) {
    let configuration = configuration("reservations", weir.grpc_addr());
    let (upstream, arrived) = endless_upstream();
    let envoy = Envoy::start(&with_upstream(&configuration, upstream));
    let front = envoy.listener("front");
    for (path, user, charged) in [("/hangs", "early", 0), ("/begun", "late", 700)] {
        let mut stream = TcpStream::connect(front).expect("Envoy listens");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\nx-estimate: 1\r\n\r\n"
        )
        .expect("sent");
        // Before Envoy has the answer to the reservation, it would send no settlement.
        arrived.recv_timeout(TIMEOUT).expect("a request");
        assert_left(weir, user, BUDGET - 4_000);
        if path == "/begun" {
            let mut head = [0; 12];
            stream.read_exact(&mut head).expect("a response");
            assert_eq!(head, *b"HTTP/1.1 200");
        }
        drop(stream);
        assert_left(weir, user, BUDGET - charged);
    }
}

fn run_all(environment: &[(&str, &str)]) {
    let weir = Weir::start(&[("limits.yaml", LIMITS)], environment);
    costs_are_settled(&weir);
    a_client_cannot_choose_the_id(&weir);
    resets_are_settled(&weir);
}

#[test]
fn requests_leave_what_they_do_not_cost_in_memory() {
    run_all(&[]);
}

#[test]
fn requests_leave_what_they_do_not_cost_in_redis() {
    let redis = RedisServer::start();
    run_all(&[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")]);
}

/// What the requests of the file hold, whatever estimate their client sends.
#[test]
fn the_path_chooses_the_estimate() {
    let limits = LIMITS.replace("10000,", "100000,");
    let weir = Weir::start(&[("limits.yaml", &limits)], &[]);
    let envoy = Envoy::start(&configuration("reservations", weir.grpc_addr()));
    let front = envoy.listener("front");
    for (number, (path, held)) in [
        ("/", 4_000),
        ("/other", 4_000),
        ("/long", 20_000),
        ("/LONG/", 20_000),
        ("//long;a=b", 20_000),
        ("/a/..%2flong?x=1", 20_000),
    ]
    .into_iter()
    .enumerate()
    {
        for estimate in ["", "0", "1", "many", "1000000000000"] {
            let user = format!("{number}-{estimate}");
            let headers = [
                ("x-user", user.as_bytes()),
                ("x-estimate", estimate.as_bytes()),
            ];
            let response = http_client::request(front, path, &headers);
            let left = response.header("x-ratelimit-remaining");
            let expected = (100_000 - held).to_string();
            assert_eq!(left, Some(&*expected), "{path} {estimate}");
        }
    }
}

/// However small their estimates are, parallel requests hold the minimum, and those beyond the
/// budget are refused before they cost anything.
#[test]
fn parallel_requests_hold_the_minimum() {
    let limits = LIMITS.replace("ttl: 1h", "ttl: 1h, minimum: 500");
    let weir = Weir::start(&[("limits.yaml", &limits)], &[]);
    let configuration = configuration("reservations", weir.grpc_addr());
    let configuration = with_estimate(&configuration, "1");
    let (upstream, arrived) = endless_upstream();
    let envoy = Envoy::start(&with_upstream(&configuration, upstream));
    let front = envoy.listener("front");
    let begin = |_| {
        let mut stream = TcpStream::connect(front).expect("Envoy listens");
        let request = "GET /hangs HTTP/1.1\r\nhost: a\r\nx-user: ann\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("sent");
        stream
    };
    let streams: Vec<_> = (0..100).map(begin).collect();
    let fitting = 10_000 / 500;
    for _ in 0..fitting {
        arrived.recv_timeout(TIMEOUT).expect("a request");
    }
    let over = || envoy.stat("cluster.application.ratelimit.over_limit");
    let refused = || (over() == 100 - fitting).then_some(());
    assert!(eventually(refused).is_some(), "{} are refused", over());
    assert!(arrived.try_recv().is_err(), "more requests than fit");
    drop(streams);
    assert_left(&weir, "ann", BUDGET);
}

/// Sends a request to an upstream that never ends its answer. Returns when it has arrived.
fn begin(front: SocketAddr, path: &str, arrived: &mpsc::Receiver<()>) -> TcpStream {
    let mut stream = TcpStream::connect(front).expect("Envoy listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-user: ann\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    arrived.recv_timeout(TIMEOUT).expect("a request");
    stream
}

/// An Envoy is killed with open reservations: they end with their `ttl`, or stay charged, and what
/// was settled before counts. The next Envoy goes on.
fn an_envoy_is_killed(on_expiry: &str, kept: u64, environment: &[(&str, &str)]) {
    let terms = format!("ttl: 3s, on_expiry: {on_expiry}");
    let limits = LIMITS.replace("ttl: 1h", &terms);
    let weir = Weir::start(&[("limits.yaml", &limits)], environment);
    let (upstream, arrived) = endless_upstream();
    let configuration = with_estimate(&configuration("reservations", weir.grpc_addr()), "200");
    let configuration = with_upstream(&configuration, upstream);
    let envoy = Envoy::start(&configuration);
    let front = envoy.listener("front");
    let mut settled = begin(front, "/begun", &arrived);
    settled.read_exact(&mut [0; 12]).expect("a response");
    drop(settled);
    assert_left(&weir, "ann", BUDGET - 700);
    let open: Vec<_> = (0..10).map(|_| begin(front, "/hangs", &arrived)).collect();
    assert_left(&weir, "ann", BUDGET - 700 - 10 * 200);
    drop(envoy);
    drop(open);
    let series = format!(
        "weir_reservations_expired_total{{domain=\"algorithms\",limit=\"token_budget\",\
         on_expiry=\"{on_expiry}\"}}"
    );
    let expired = || {
        left(&weir, "ann");
        weir.metric(&series).filter(|expired| *expired == 10.0)
    };
    assert!(eventually(expired).is_some(), "{:?}", weir.metric(&series));
    assert_eq!(left(&weir, "ann"), BUDGET - 700 - kept);
    let next = Envoy::start(&configuration);
    let mut last = begin(next.listener("front"), "/begun", &arrived);
    last.read_exact(&mut [0; 12]).expect("a response");
    drop(last);
    assert_left(&weir, "ann", BUDGET - 2 * 700 - kept);
    assert_eq!(next.stat("cluster.application.ratelimit.error"), 0);
}

#[test]
fn a_killed_envoy_leaves_its_reservations_to_their_ttl() {
    let redis = RedisServer::start();
    let on_redis = [("REDIS_URL", &*redis.url()), ("STORE_TIMEOUT", "5s")];
    for environment in [&[][..], &on_redis] {
        for (on_expiry, kept) in [("release", 0), ("keep", 10 * 200)] {
            redis.flush();
            an_envoy_is_killed(on_expiry, kept, environment);
        }
    }
}
