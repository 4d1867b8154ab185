//! `deploy/envoy/concurrency.yaml` with a real Envoy, and an upstream that counts what is in
//! flight.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::holders_in;
use crate::deploy::examples::configuration;
use crate::support::envoy::{Envoy, validate, with};
use crate::support::wait::eventually;
use crate::support::{RedisServer, Weir, http_client};

/// Longer than any request of a test but those that are lost.
const MAX_DURATION: Duration = Duration::from_secs(4);

const PLACES: usize = 3;

fn limits(places: usize, max_duration: Duration) -> String {
    format!(
        "domain: algorithms\ndescriptors:\n  - key: report\n    descriptors:\n      - key: \
         request\n        rate_limit: {{ algorithm: concurrency, requests_per_unit: {places}, \
         max_duration: {}s }}\n",
        max_duration.as_secs()
    )
}

/// By user: requests in flight, and the most at a time.
type InFlight = Mutex<HashMap<String, (usize, usize)>>;

/// An upstream: `/MS` answers after so many milliseconds, `/endless` sends until its client is
/// gone.
struct Upstream {
    address: SocketAddr,
    in_flight: Arc<InFlight>,
    is_over: Arc<AtomicBool>,
}

impl Upstream {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let upstream = Self {
            address: listener.local_addr().expect("an address"),
            in_flight: Arc::default(),
            is_over: Arc::default(),
        };
        let (in_flight, is_over) = (
            Arc::clone(&upstream.in_flight),
            Arc::clone(&upstream.is_over),
        );
        thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (in_flight, is_over) = (Arc::clone(&in_flight), Arc::clone(&is_over));
                thread::spawn(move || serve(stream.expect("a connection"), &in_flight, &is_over));
            }
        });
        upstream
    }

    /// What is in flight for a user, and the most so far.
    fn counts(&self, user: &str) -> (usize, usize) {
        self.in_flight
            .lock()
            .expect("no panic")
            .get(user)
            .copied()
            .unwrap_or_default()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The listener waits for one more.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: TcpStream, in_flight: &InFlight, is_over: &AtomicBool) {
    let (mut received, mut part) = (Vec::new(), [0; 4096]);
    while !is_over.load(Ordering::Relaxed) {
        let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
            match stream.read(&mut part) {
                Ok(length @ 1..) => received.extend_from_slice(&part[..length]),
                _ => return,
            }
            continue;
        };
        let head = String::from_utf8_lossy(&received[..end]).into_owned();
        received.drain(..end + 4);
        let user = head
            .lines()
            .find_map(|line| line.strip_prefix("x-user: "))
            .unwrap_or_default()
            .to_owned();
        let count = |more: bool| {
            let mut all = in_flight.lock().expect("no panic");
            let (now, most) = all.entry(user.clone()).or_default();
            *now = if more { *now + 1 } else { *now - 1 };
            *most = (*most).max(*now);
        };
        count(true);
        let path = head.split(' ').nth(1).unwrap_or_default();
        let is_open = match path.trim_start_matches('/').parse() {
            Ok(ms) => {
                thread::sleep(Duration::from_millis(ms));
                // Counted until here, because Envoy may release the place as soon as it has the
                // whole answer.
                count(false);
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n")
                    .is_ok()
            }
            Err(_) => {
                let mut is_open = stream
                    .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                    .is_ok();
                while is_open && !is_over.load(Ordering::Relaxed) {
                    is_open = stream.write_all(b"5\r\nmore\n\r\n").is_ok();
                    thread::sleep(Duration::from_millis(5));
                }
                count(false);
                false
            }
        };
        if !is_open {
            return;
        }
    }
}

fn start(upstream: &Upstream, weir: &Weir) -> (Envoy, SocketAddr) {
    let configuration = configuration("concurrency", weir.grpc_addr());
    let endpoint = configuration
        .lines()
        .rfind(|line| line.contains("- endpoint:"))
        .expect("the application");
    let port = endpoint
        .split("port_value: ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .expect("a port");
    let own = endpoint.replace(port, &upstream.address.port().to_string());
    let configuration = with(&configuration, endpoint, &own);
    validate(&configuration);
    let envoy = Envoy::start(&configuration);
    let front = envoy.listener("front");
    (envoy, front)
}

fn call(front: SocketAddr, path: &str, user: &str) -> http_client::Response {
    // A client that sends one id with all of its requests, in the header of the configuration too,
    // has no more places than others.
    http_client::request(
        front,
        path,
        &[
            ("x-user", user.as_bytes()),
            ("x-stream-id", b"mine"),
            ("x-request-id", b"mine"),
        ],
    )
}

/// Begins a request and waits for the head of its response.
fn begin(front: SocketAddr, path: &str, user: &str) -> (TcpStream, bool) {
    let mut stream = TcpStream::connect(front).expect("Envoy listens");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n"
    )
    .expect("sent");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("a response");
    (stream, head.ends_with(b"200"))
}

/// All places are free: as many endless requests begin at a time as there are places, and no more.
fn assert_all_free(front: SocketAddr, user: &str) {
    assert_free(front, user, PLACES);
}

fn assert_free(front: SocketAddr, user: &str, places: usize) {
    let all = || {
        let begun: Vec<_> = (0..=places)
            .map(|_| begin(front, "/endless", user))
            .collect();
        (begun.iter().filter(|(_, is_allowed)| *is_allowed).count() == places).then_some(())
    };
    assert!(
        eventually(all).is_some(),
        "the places of {user} are not free"
    );
}

/// Asks until then; how many requests passed and how many were refused.
fn ask_until(front: SocketAddr, until: Instant) -> (u32, u32) {
    let mut statuses = (0, 0);
    while Instant::now() < until {
        let response = call(front, "/20", "ann");
        match response.status {
            200 => statuses.0 += 1,
            429 => {
                assert_eq!(response.header("retry-after"), Some("1"), "{response:?}");
                assert_eq!(
                    response.header("x-ratelimit-limit"),
                    Some("3"),
                    "without a window: {response:?}"
                );
                statuses.1 += 1;
            }
            _ => panic!("{response:?}"),
        }
    }
    statuses
}

fn envoys_hold_the_limit(weir: &Weir) {
    let upstream = Upstream::start();
    let (envoy, front) = start(&upstream, weir);

    // Slow upstreams, and refused requests: many more ask than there are places.
    let until = Instant::now() + Duration::from_secs(2);
    let hammer = |_| thread::spawn(move || ask_until(front, until));
    let threads: Vec<_> = (0..12).map(hammer).collect();
    let (passed, refused) = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert_eq!(
        upstream.counts("ann").1,
        PLACES,
        "at most, and as many, of {passed} that passed and {refused} that did not"
    );
    // Few on a machine that is busy.
    assert!(
        passed > 5 && refused > 5,
        "{passed} passed, {refused} refused"
    );
    assert_all_free(front, "ann");

    // Aborted downloads give their places back long before `max_duration`, and refused requests
    // free nothing.
    let began = Instant::now();
    for _ in 0..5 {
        let held: Vec<_> = (0..PLACES)
            .map(|_| {
                eventually(|| Some(begin(front, "/endless", "bob")).filter(|(_, allowed)| *allowed))
                    .expect("a place")
            })
            .collect();
        for _ in 0..10 {
            assert_eq!(call(front, "/0", "bob").status, 429);
        }
        assert_eq!(call(front, "/0", "eve").status, 200, "another user");
        drop(held);
    }
    assert!(
        began.elapsed() < 5 * MAX_DURATION,
        "places became free when downloads were aborted"
    );
    assert_all_free(front, "bob");

    // A killed Envoy releases nothing. Its places are free after `max_duration`, and not before.
    let lost: Vec<_> = (0..PLACES)
        .map(|_| begin(front, "/endless", "eve"))
        .collect();
    let began = Instant::now();
    assert!(lost.iter().all(|(_, is_allowed)| *is_allowed));
    drop(envoy);
    let (_envoy, front) = start(&upstream, weir);
    let early = call(front, "/0", "eve").status;
    assert!(early == 429 || began.elapsed() >= MAX_DURATION, "{early}");
    assert!(eventually(|| (call(front, "/0", "eve").status == 200).then_some(())).is_some());
    assert!(
        began.elapsed() + Duration::from_millis(50) >= MAX_DURATION,
        "{:?}",
        began.elapsed()
    );
    assert_all_free(front, "eve");
    let holders = "weir_concurrency_holders{domain=\"algorithms\",limit=\"report.request\"}";
    let held = || weir.metric(holders);
    let is_none = eventually(|| (held() == Some(0.0)).then_some(()));
    assert!(is_none.is_some(), "{:?}", held());
}

#[test]
fn envoys_hold_the_limit_in_memory() {
    envoys_hold_the_limit(&Weir::start(
        &[("limits.yaml", &limits(PLACES, MAX_DURATION))],
        &[],
    ));
}

#[test]
fn envoys_hold_the_limit_in_redis() {
    let redis = RedisServer::start();
    envoys_hold_the_limit(&Weir::start(
        &[("limits.yaml", &limits(PLACES, MAX_DURATION))],
        &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
    ));
}

/// Clients that give up within 20 ms, when Envoy asks for their places, or has them.
fn early_aborts_free_their_places(weir: &Weir) {
    let upstream = Upstream::start();
    let (_envoy, front) = start(&upstream, weir);
    for round in 0..3 {
        for number in 0..30 {
            let mut stream = TcpStream::connect(front).expect("Envoy listens");
            stream
                .write_all(b"GET /300 HTTP/1.1\r\nhost: a\r\nx-user: ann\r\n\r\n")
                .expect("sent");
            thread::sleep(Duration::from_micros(number * 7 % 21 * 1_000 + round * 300));
        }
        assert_free(front, "ann", 10);
    }
    let held = || holders_in(weir, "algorithms", "report.request");
    let is_free = || (held() == 0.0).then_some(());
    assert!(eventually(is_free).is_some(), "{}", held());
}

#[test]
fn early_aborts_free_their_places_in_memory() {
    let limits = limits(10, Duration::from_secs(3_600));
    early_aborts_free_their_places(&Weir::start(&[("limits.yaml", &limits)], &[]));
}

#[test]
fn early_aborts_free_their_places_in_redis() {
    let redis = RedisServer::start();
    let limits = limits(10, Duration::from_secs(3_600));
    early_aborts_free_their_places(&Weir::start(
        &[("limits.yaml", &limits)],
        &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
    ));
}
