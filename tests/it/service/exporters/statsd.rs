//! Servers of StatsD and DogStatsD that receive what a real Weir sends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use super::{DOMAIN, GATEWAY, ROUTE, call};
use crate::support::wait::TIMEOUT;
use crate::support::{RedisServer, Weir, ask, descriptor, request};

const ENTRIES: [(&str, &str); 2] = [(ROUTE, ROUTE), ("rule-0-match-0", "rule-0-match-0")];

/// The sums of counters, the last values of gauges, and the numbers of timings, by name and tags.
#[derive(Debug, Default)]
struct Received {
    counters: BTreeMap<String, u64>,
    gauges: BTreeMap<String, u64>,
    timings: BTreeMap<String, (u64, f64)>,
}

impl Received {
    fn line(&mut self, line: &str) {
        let (name, rest) = line
            .split_once(':')
            .unwrap_or_else(|| panic!("no value in {line:?}"));
        let mut parts = rest.split('|');
        let (value, kind) = (
            parts.next().expect("a value"),
            parts.next().expect("a type"),
        );
        let (mut tags, mut rate) = (String::new(), 1.0);
        for part in parts {
            match part.split_at(1) {
                ("#", text) => tags = format!("#{text}"),
                ("@", text) => rate = text.parse().expect("a rate"),
                _ => panic!("unknown part {part:?} in {line:?}"),
            }
        }
        let name = format!("{name}{tags}");
        match kind {
            "c" => {
                *self.counters.entry(name).or_default() +=
                    value.parse::<u64>().expect("a whole number above 0");
            }
            "g" => drop(
                self.gauges
                    .insert(name, value.parse().expect("a whole number")),
            ),
            "ms" => {
                let count = (1.0 / rate) as u64;
                let sum = self.timings.entry(name).or_default();
                *sum = (
                    sum.0 + count,
                    sum.1 + value.parse::<f64>().expect("milliseconds") * count as f64,
                );
            }
            other => panic!("unknown type {other:?} in {line:?}"),
        }
    }

    /// Receives packets until `done` holds.
    fn until(&mut self, server: &UdpSocket, done: impl Fn(&Self) -> bool) {
        server.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        while !done(self) {
            let mut packet = vec![0; 65_536];
            let length = server
                .recv(&mut packet)
                .unwrap_or_else(|error| panic!("{error}: {self:?}"));
            assert!(length <= 1_432, "a packet that networks do not split");
            for line in std::str::from_utf8(&packet[..length])
                .expect("UTF-8")
                .lines()
            {
                self.line(line);
            }
        }
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }
}

fn name(stat: &str) -> String {
    format!(
        "ratelimit.service.rate_limit.{DOMAIN}.{ROUTE}_{ROUTE}.rule-0-match-0_rule-0-match-0.{stat}"
    )
}

/// Nine requests of one limit, of which five were within it, and three of another.
fn assert_has_all(received: &Received) {
    for (stat, hits) in [
        ("total_hits", 9),
        ("within_limit", 5),
        ("near_limit", 1),
        ("over_limit", 4),
        ("shadow_mode", 0),
    ] {
        assert_eq!(received.counter(&name(stat)), hits, "{stat}: {received:?}");
    }
    let cached = received.counter(&name("over_limit_with_local_cache"));
    assert!((1..=3).contains(&cached), "{received:?}");
    assert_eq!(received.gauges["ratelimit.localcache.hitCount"], cached);
    assert_eq!(received.gauges["ratelimit.localcache.lookupCount"], 12);
    let deep = format!(
        "ratelimit.service.rate_limit.{DOMAIN}.{ROUTE}_{ROUTE}.\
         rule-1-match-0_rule-1-match-0.rule-1-match-1_10_0_0_0/8.total_hits"
    );
    assert_eq!(received.counter(&deep), 3, "{received:?}");
    assert_eq!(received.counter("ratelimit.service.config_load_success"), 1);
    assert_eq!(
        received.counter("ratelimit_server.ShouldRateLimit.total_requests"),
        12
    );
    assert!(
        received
            .gauges
            .contains_key("ratelimit.redis_pool.cx_active")
            && received.counter("ratelimit.redis_pool.cx_total") >= 1
    );
    let (timings, milliseconds) =
        received.timings["ratelimit_server.ShouldRateLimit.response_time"];
    assert_eq!(timings, 12);
    assert!(
        milliseconds > 0.0 && milliseconds < 12.0 * 10_000.0,
        "{milliseconds}"
    );
    assert!(
        received
            .counters
            .keys()
            .all(|name| name.starts_with("ratelimit")),
        "{received:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statsd_server_receives_by_udp_what_was_counted() {
    let server = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("bound").port().to_string();
    let redis = RedisServer::start();
    let environment = [
        ("USE_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", &*port),
        ("STATSD_PROTOCOL", "udp"),
        ("STATS_FLUSH_INTERVAL", "100ms"),
        ("REDIS_URL", &*redis.url()),
        ("STORE_TIMEOUT", "5s"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "1000000"),
        ("DRAIN_DELAY", "0"),
    ];
    let mut weir = Weir::start(GATEWAY, &environment);
    call(&weir, &ENTRIES, 7).await;
    call(
        &weir,
        &[
            (ROUTE, ROUTE),
            ("rule-1-match-0", "rule-1-match-0"),
            ("rule-1-match-1", "10.0.0.0/8"),
        ],
        3,
    )
    .await;
    let mut received = Received::default();
    received.until(&server, |received| {
        received.counter("ratelimit_server.ShouldRateLimit.total_requests") >= 10
    });
    // Further flushes send no counter that did not grow.
    call(&weir, &ENTRIES, 2).await;
    received.until(&server, |received| {
        received.counter("ratelimit_server.ShouldRateLimit.total_requests") >= 12
    });
    assert!(weir.terminate().success());
    // What has arrived by now is all: the last flush comes before the process ends.
    server.set_nonblocking(true).expect("a socket");
    let mut packet = vec![0; 65_536];
    while let Ok(length) = server.recv(&mut packet) {
        std::str::from_utf8(&packet[..length])
            .expect("UTF-8")
            .lines()
            .for_each(|line| received.line(line));
    }
    assert_has_all(&received);
}

/// By TCP, which is what envoyproxy/ratelimit speaks; tags are in the names. A server that comes
/// late, hangs or goes away costs no count and no call.
#[tokio::test(flavor = "multi_thread")]
async fn a_tcp_server_that_comes_late_receives_all_counts() {
    let probe = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = probe.local_addr().expect("bound");
    drop(probe);
    let port = address.port().to_string();
    // USE_STATSD is true by default in envoyproxy/ratelimit: a host is enough.
    let environment = [
        ("STATSD_HOST", "localhost"),
        ("STATSD_PORT", &*port),
        ("STATS_FLUSH_INTERVAL", "100ms"),
        ("EXTRA_TAGS", "zone:b,env:test"),
        ("DRAIN_DELAY", "0"),
    ];
    let mut weir = Weir::start(GATEWAY, &environment);
    weir.wait_for_log("cannot send metrics").await;
    let began = Instant::now();
    call(&weir, &ENTRIES, 100).await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "no call waits for the server"
    );
    tokio::time::sleep(Duration::from_millis(500)).await;
    let failures = weir
        .logs()
        .iter()
        .filter(|line| line.contains("cannot send metrics"))
        .count();
    assert_eq!(failures, 1, "one line, however many flushes failed");
    let server = TcpListener::bind(address).expect("the port is free again");
    let (first, _) = server.accept().expect("a connection");
    first.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let mut received = Received::default();
    let total = "ratelimit_server.ShouldRateLimit.total_requests.__env=test.__zone=b";
    let mut lines = BufReader::new(first).lines();
    while received.counter(total) < 100
        || received.counter(&format!("{}.__env=test.__zone=b", name("over_limit"))) < 95
    {
        received.line(
            &lines
                .next()
                .expect("the connection stays open")
                .expect("a line in time"),
        );
    }
    weir.wait_for_log("sending metrics again").await;
    assert_eq!(received.counter(total), 100);
    assert_eq!(
        received.counter(&format!("{}.__env=test.__zone=b", name("total_hits"))),
        100
    );
    // The server restarts.
    drop(lines);
    let (second, _) = server.accept().expect("a second connection");
    second.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    call(&weir, &ENTRIES, 5).await;
    let mut lines = BufReader::new(second).lines();
    while received.counter(total) < 105 {
        received.line(
            &lines
                .next()
                .expect("the connection stays open")
                .expect("a line in time"),
        );
    }
    assert_eq!(received.counter(total), 105);
    assert!(weir.terminate().success());
}

/// A server that accepts and does not read fills its buffers; calls and the end of the process do
/// not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_read_stalls_nothing() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("bound").port().to_string();
    let limits: String = (0..3_000)
        .map(|index| {
            format!(
                "  - {{ key: key_{index:0>200}, rate_limit: {{ unit: hour, requests_per_unit: 10 \
                 }} }}\n"
            )
        })
        .collect();
    let limits = format!("domain: many\ndescriptors:\n{limits}");
    let environment = [
        ("USE_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", &*port),
        ("STATS_FLUSH_INTERVAL", "100ms"),
        ("DRAIN_DELAY", "0"),
    ];
    let mut weir = Weir::start(&[("limits.yaml", &limits)], &environment);
    let _unread = server.accept().expect("a connection");
    let resident = weir.resident_kib();
    let client = &mut weir.client().await;
    let began = Instant::now();
    while !weir
        .logs()
        .iter()
        .any(|line| line.contains("cannot send metrics"))
    {
        assert!(
            began.elapsed() < TIMEOUT,
            "the buffers of the sockets are full"
        );
        for index in 0..3_000 {
            let key = format!("key_{index:0>200}");
            let asked = Instant::now();
            client
                .should_rate_limit(crate::support::request(
                    "many",
                    vec![crate::support::descriptor(&[(&key, "x")])],
                ))
                .await
                .expect("an answer");
            assert!(
                asked.elapsed() < Duration::from_secs(1),
                "{:?}",
                asked.elapsed()
            );
        }
    }
    let grown = weir.resident_kib().saturating_sub(resident);
    assert!(grown < 30_000, "{grown} KiB");
    let ends = Instant::now();
    assert!(weir.terminate().success());
    assert!(
        ends.elapsed() < Duration::from_secs(8),
        "{:?}",
        ends.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dogstatsd_server_receives_tags() {
    let server = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("bound").port().to_string();
    let environment = [
        ("USE_STATSD", "false"),
        ("USE_DOG_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", &*port),
        ("STATS_FLUSH_INTERVAL", "100ms"),
        ("EXTRA_TAGS", "env:test"),
        ("USE_DOG_STATSD_MOGRIFIERS", "HITS"),
        (
            "DOG_STATSD_MOGRIFIER_HITS_PATTERN",
            r"^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$",
        ),
        (
            "DOG_STATSD_MOGRIFIER_HITS_NAME",
            "ratelimit.service.rate_limit.$3",
        ),
        ("DOG_STATSD_MOGRIFIER_HITS_TAGS", "domain:$1,descriptor:$2"),
    ];
    let weir = Weir::start(GATEWAY, &environment);
    call(&weir, &ENTRIES, 7).await;
    let mut received = Received::default();
    let tags = format!(
        "#env:test,descriptor:{ROUTE}_{ROUTE}.rule-0-match-0_rule-0-match-0,domain:{DOMAIN}"
    );
    let hits = |stat: &str| format!("ratelimit.service.rate_limit.{stat}{tags}");
    received.until(&server, |received| {
        received.counter(&hits("total_hits")) >= 7
            && received.counter("ratelimit_server.ShouldRateLimit.total_requests#env:test") >= 7
    });
    for (stat, count) in [
        ("total_hits", 7),
        ("within_limit", 5),
        ("over_limit", 2),
        ("near_limit", 1),
    ] {
        assert_eq!(received.counter(&hits(stat)), count, "{stat}: {received:?}");
    }
    assert_eq!(
        received.timings["ratelimit_server.ShouldRateLimit.response_time#env:test"].0,
        7
    );
}

/// Values of clients are in names, of which mogrifiers make tags: none adds a tag, ends the tags,
/// or begins a line.
#[tokio::test(flavor = "multi_thread")]
async fn values_cannot_add_tags() {
    let server = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("bound").port().to_string();
    let environment = [
        ("USE_DOG_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", &*port),
        ("STATS_FLUSH_INTERVAL", "100ms"),
        ("USE_DOG_STATSD_MOGRIFIERS", "HITS"),
        (
            "DOG_STATSD_MOGRIFIER_HITS_PATTERN",
            r"^ratelimit\.service\.rate_limit\.shop\.user_(.*)\.total_hits$",
        ),
        ("DOG_STATSD_MOGRIFIER_HITS_NAME", "hits"),
        ("DOG_STATSD_MOGRIFIER_HITS_TAGS", "user:$1"),
    ];
    let value = "\"a,env:forged#x|c\\nforged:1|c\"";
    let limits = format!(
        "domain: shop\ndescriptors: [{{ key: user, value: {value}, rate_limit: {{ unit: year, \
         requests_per_unit: 9 }} }}]\n"
    );
    let weir = Weir::start(&[("limits.yaml", &limits)], &environment);
    let value = "a,env:forged#x|c\nforged:1|c";
    let answer = ask(
        &mut weir.client().await,
        "shop",
        vec![descriptor(&[("user", value)])],
    )
    .await;
    assert_eq!(answer.statuses[0].limit_remaining, 8);
    let mut received = Received::default();
    let name = "hits#user:a_env_forged_x_c_forged_1_c";
    received.until(&server, |received| {
        received
            .counters
            .keys()
            .any(|name| name.starts_with("hits"))
    });
    assert_eq!(received.counter(name), 1, "{received:?}");
}

/// Limits whose names are written alike, and one whose hits show that a flush is over.
const ALIKE: &str = "
domain: shop
descriptors:
  - { key: host, value: 'a:1', rate_limit: &day { unit: day, requests_per_unit: 100 } }
  - { key: host, value: a_1, rate_limit: *day }
  - { key: ip, detailed_metric: true, rate_limit: *day }
  - { key: mark, rate_limit: *day }
";

#[tokio::test(flavor = "multi_thread")]
async fn series_of_one_name_are_added_up() {
    let server = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("bound").port().to_string();
    let environment = [
        ("USE_STATSD", "true"),
        ("STATSD_HOST", "127.0.0.1"),
        ("STATSD_PORT", &*port),
        ("STATSD_PROTOCOL", "udp"),
        ("STATS_FLUSH_INTERVAL", "100ms"),
    ];
    let weir = Weir::start(&[("limits.yaml", ALIKE)], &environment);
    let client = &mut weir.client().await;
    let hits = [
        ("shop", "host", "a:1", 3),
        ("shop", "host", "a_1", 2),
        ("shop", "ip", "10.0.0.1", 1),
        ("shop", "ip", "10_0_0_1", 2),
        ("no:1", "a", "b", 2),
        ("no_1", "a", "b", 1),
    ];
    // All lines of the flush before the one with the second mark have arrived.
    for (domain, key, value, times) in hits.into_iter().chain([("shop", "mark", "", 1)]) {
        for _ in 0..times {
            let request = request(domain, vec![descriptor(&[(key, value)])]);
            client.should_rate_limit(request).await.expect("an answer");
        }
    }
    let name = |of: &str| format!("ratelimit.service.rate_limit.{of}");
    let mut received = Received::default();
    for marks in 1..=2 {
        received.until(&server, |received| {
            received.counter(&name("shop.mark.total_hits")) >= marks
        });
        let mark = request("shop", vec![descriptor(&[("mark", "")])]);
        client.should_rate_limit(mark).await.expect("an answer");
    }
    for (of, count) in [
        ("shop.host_a_1.total_hits", 5),
        ("shop.ip_10_0_0_1.total_hits", 3),
        ("no_1.domain_not_found", 3),
    ] {
        assert_eq!(received.counter(&name(of)), count, "{of}: {received:?}");
    }
}
