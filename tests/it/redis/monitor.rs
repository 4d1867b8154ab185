//! The monitor of Redis servers: its metrics, its advice in metrics and log, and health that
//! follows Redis where that is set.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use weir::core::proto::RateLimitRequest;
use weir::store::redis::{Login, Options};

use crate::support::redis::connect;
use crate::support::wait::eventually_async;
use crate::support::{
    self, Client, RedisServer, Weir, descriptor, descriptor_with_hits, request, tools,
};

/// The commands that requests use, in the order of deploy/redis.md.
const RIGHTS: [&str; 14] = [
    "multi", "exec", "time", "incrby", "expire", "get", "mget", "set", "getrange", "setrange",
    "strlen", "pexpire", "eval", "evalsha",
];

/// The commands that the monitor uses beyond those.
const MONITOR_RIGHTS: [&str; 2] = ["info", "config|get"];

/// One second, plus extra time for a busy machine.
const A_SECOND: Duration = Duration::from_millis(2_500);

/// `name{redis="main",server="..."}` with further labels.
fn series(name: &str, url: &str, further: &str) -> String {
    format!("{name}{{redis=\"main\",server=\"{url}\"{further}}}")
}

fn advice(url: &str, name: &str) -> String {
    series("weir_redis_advice", url, &format!(",advice=\"{name}\""))
}

async fn wait_for(weir: &Weir, series: &str, fits: impl Fn(Option<f64>) -> bool) -> Option<f64> {
    let found = eventually_async(|| Some(weir.metric(series)).filter(|value| fits(*value))).await;
    found.unwrap_or_else(|| {
        panic!(
            "{series} is {:?} of\n{}",
            weir.metric(series),
            weir.get("/metrics").1
        )
    })
}

async fn asks(client: &mut Client) -> Result<(), Code> {
    client
        .should_rate_limit(request("demo", vec![descriptor(&[("year", "x")])]))
        .await
        .map(drop)
        .map_err(|status| status.code())
}

async fn is_serving(weir: &Weir) -> bool {
    let response = HealthClient::new(weir.channel().await)
        .check(HealthCheckRequest {
            service: "ratelimit".to_owned(),
        })
        .await
        .expect("the service is known");
    response.into_inner().status() == ServingStatus::Serving
}

/// A server that is well, and its version.
fn assert_server_is_shown(redis: &RedisServer, weir: &Weir) {
    let url = redis.url();
    let metric = |name: &str| weir.metric(&series(name, &url, ""));
    assert_eq!(
        (metric("weir_redis_up"), metric("weir_redis_breaker_state")),
        (Some(1.0), Some(0.0))
    );
    assert_eq!(metric("weir_redis_evicted_keys_total"), Some(0.0));
    let keys = metric("weir_redis_keys").expect("a number");
    assert!(keys <= 1.0, "an inspection writes only the marker: {keys}");
    assert_eq!(
        metric("weir_redis_max_memory_bytes"),
        Some(100.0 * 1_048_576.0)
    );
    assert!(
        metric("weir_redis_used_memory_bytes")
            .is_some_and(|bytes| (100_000.0..1e8).contains(&bytes))
    );
    assert!(
        metric("weir_redis_round_trip_seconds")
            .is_some_and(|seconds| seconds > 0.0 && seconds < 1.0)
    );
    assert!(
        metric("weir_redis_clock_offset_seconds").is_some_and(|seconds| seconds.abs() < 1.0),
        "it is the same clock"
    );
    let version = redis.run::<String>(&["INFO", "server"]);
    let version = version
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))
        .expect("a version")
        .trim();
    assert_eq!(
        weir.metric(&series(
            "weir_redis_server_info",
            &url,
            &format!(",version=\"{version}\"")
        )),
        Some(1.0)
    );
}

#[tokio::test]
async fn metrics_show_the_server_and_advice_follows_its_settings() {
    let redis =
        RedisServer::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let url = redis.url();
    let weir = Weir::start(support::DEMO, &[("REDIS_URL", &url)]);
    wait_for(&weir, &advice(&url, "eviction_policy"), |value| {
        value == Some(1.0)
    })
    .await;
    let line = weir.wait_for_log("allkeys-lru").await;
    assert!(
        line.contains("noeviction") && line.contains("\"warn\""),
        "the line names the remedy: {line}"
    );
    assert_server_is_shown(&redis, &weir);
    let metric = |name: &str| weir.metric(&series(name, &url, ""));

    let mut client = weir.client().await;
    for _ in 0..3 {
        asks(&mut client).await.expect("Redis is well");
    }
    assert_eq!(metric("weir_redis_batches_total"), Some(3.0));
    assert_eq!(metric("weir_redis_batched_requests_total"), Some(3.0));
    assert!(
        weir.metric("ratelimit_redis_pool_cx_active")
            .is_some_and(|count| count >= 1.0)
    );
    for name in [
        "weir_redis_unknown_outcomes_total",
        "weir_redis_retries_total",
    ] {
        assert_eq!(
            weir.metric(&format!("{name}{{redis=\"main\"}}")),
            Some(0.0),
            "{name}"
        );
    }

    redis.run::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    wait_for(&weir, &advice(&url, "eviction_policy"), |value| {
        value.is_none()
    })
    .await;
    weir.wait_for_log("condition ended").await;
    // A counter and the marker.
    assert_eq!(metric("weir_redis_keys"), Some(2.0));
    let reports = weir
        .logs()
        .iter()
        .filter(|line| line.contains("allkeys-lru"))
        .count();
    assert_eq!(reports, 1, "it is reported once");
}

/// Replaces the user `weir` by one that may run these commands.
fn grant(redis: &RedisServer, commands: &[&str]) {
    let grants: Vec<String> = commands.iter().map(|name| format!("+{name}")).collect();
    let keys = ["~w1*", "resetchannels", "-@all"].map(str::to_owned);
    redis.grant(&[keys.to_vec(), grants].concat());
}

const ALL_OR_NONE: &str = "
domain: all-or-none
commit: all_or_none
descriptors:
  - key: login
    rate_limit: { unit: hour, requests_per_unit: 3, algorithm: sliding_window_log }
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 5 }
";

#[tokio::test]
async fn the_rights_of_the_page_suffice_for_every_algorithm() {
    let granted = RIGHTS.map(|name| format!("+{name}")).join(" ");
    assert!(
        tools::file("deploy/redis.md").contains(&format!("-@all {granted} ")),
        "deploy/redis.md grants {granted}"
    );
    let redis = RedisServer::start();
    grant(&redis, &[&RIGHTS[..], &MONITOR_RIGHTS].concat());
    let url = redis.url();
    let limits = [
        (
            "algorithms.yaml",
            include_str!("../../../config/algorithms.yaml"),
        ),
        ("all_or_none.yaml", ALL_OR_NONE),
    ];
    let weir = Weir::start(
        &limits,
        &[("REDIS_URL", &url), ("REDIS_AUTH", "weir:s3cret")],
    );
    let mut client = weir.client().await;
    for (domain, keys) in [
        (
            "algorithms",
            &[
                "customer",
                "login",
                "remote_address",
                "tenant",
                "user",
                "model_tokens",
                "upstream",
            ][..],
        ),
        ("all-or-none", &["login", "user"]),
    ] {
        for key in keys {
            for hits in [1, 1, 3, 0, -2, 1, 1, 1, 1, 0, -20, 1] {
                let hits = descriptor_with_hits(&[(key, "x")], hits);
                let request = RateLimitRequest {
                    domain: domain.to_owned(),
                    descriptors: vec![hits.clone(), hits],
                    hits_addend: 1,
                };
                client
                    .should_rate_limit(request)
                    .await
                    .unwrap_or_else(|status| panic!("{domain} {key}: {status}"));
            }
        }
    }
    wait_for(&weir, &series("weir_redis_up", &url, ""), |value| {
        value == Some(1.0)
    })
    .await;
    assert_eq!(weir.metric(&advice(&url, "rights")), None);
    assert!(
        !weir.get("/metrics").1.contains("noperm"),
        "nothing was refused"
    );
}

#[tokio::test]
async fn every_right_that_is_missing_is_noticed() {
    let redis = RedisServer::start();
    for missing in RIGHTS {
        let rest: Vec<&str> = RIGHTS
            .iter()
            .chain(&MONITOR_RIGHTS)
            .copied()
            .filter(|name| *name != missing)
            .collect();
        grant(&redis, &rest);
        let options = Options {
            login: Login::new(Some("weir"), "s3cret"),
            ..redis.options()
        };
        let store = connect(options);
        let is_noticed = || {
            store.deployment().servers()[0]
                .status
                .diagnostics
                .iter()
                .any(|advice| advice.name == "rights")
                .then_some(())
        };
        eventually_async(is_noticed)
            .await
            .unwrap_or_else(|| panic!("the missing right {missing} is not reported"));
    }
    // Rights on keys are checked too, and advice ends when they are granted.
    grant(&redis, &[&RIGHTS[..], &MONITOR_RIGHTS].concat());
    redis.run::<()>(&["ACL", "SETUSER", "weir", "resetkeys", "~other*"]);
    let url = redis.url();
    let weir = Weir::start(
        support::DEMO,
        &[("REDIS_URL", &url), ("REDIS_AUTH", "weir:s3cret")],
    );
    wait_for(&weir, &advice(&url, "rights"), |value| value == Some(1.0)).await;
    assert!(weir.wait_for_log("grant it").await.contains("~w1*"));
    grant(&redis, &RIGHTS);
    wait_for(&weir, &advice(&url, "rights"), |value| value.is_none()).await;
    assert!(
        weir.logs().iter().all(|line| !line.contains("s3cret")),
        "no password in the log"
    );
    // INFO is no longer permitted, and Redis is still up.
    assert_eq!(weir.metric(&series("weir_redis_up", &url, "")), Some(1.0));
}

const IN_FLIGHT: &str = "
domain: rights
descriptors:
  - key: flight
    descriptors:
      - key: job
        rate_limit: { requests_per_unit: 5, algorithm: concurrency, max_duration: 60s }
  - key: plain
    rate_limit: { unit: year, requests_per_unit: 1000 }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 1000, algorithm: token_bucket }
";

/// Without MULTI, keys that need none are decided, also over new connections; those that need it
/// are decided with the first request after the right is granted again.
#[tokio::test]
async fn without_multi_only_the_keys_that_need_it_have_no_answer() {
    let redis = RedisServer::start();
    grant(&redis, &[&RIGHTS[..], &MONITOR_RIGHTS].concat());
    let environment = [("REDIS_URL", &*redis.url()), ("REDIS_AUTH", "weir:s3cret")];
    let weir = Weir::start(&[("limits.yaml", IN_FLIGHT)], &environment);
    let mut client = weir.client().await;
    let mut call = async |key| {
        let hit = request("rights", vec![descriptor(&[(key, "x")])]);
        let answer = client.should_rate_limit(hit).await;
        answer.map(drop).map_err(|status| status.code())
    };
    for key in ["plain", "bucket"] {
        assert_eq!(call(key).await, Ok(()), "{key}");
    }
    for right in ["multi", "exec"] {
        redis.run::<()>(&["ACL", "SETUSER", "weir", &format!("-{right}")]);
        redis.run::<()>(&["CLIENT", "KILL", "USER", "weir"]);
        let is_refused = async {
            while call("plain").await.is_ok() {}
            while call("bucket").await.is_err() {}
        };
        let is_refused = tokio::time::timeout(Duration::from_secs(20), is_refused).await;
        assert!(is_refused.is_ok(), "{right}");
        for _ in 0..50 {
            assert_eq!(call("plain").await, Err(Code::Unavailable), "{right}");
            assert_eq!(call("bucket").await, Ok(()), "{right}");
        }
        redis.run::<()>(&["ACL", "SETUSER", "weir", &format!("+{right}")]);
        assert_eq!(call("plain").await, Ok(()), "{right}");
    }
}

/// Answers like a proxy that shards by key: one reply for each command, and no transactions.
fn answer_as_a_proxy(stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut writer = stream;
    let mut line = String::new();
    let mut number = |reader: &mut BufReader<TcpStream>| {
        line.clear();
        reader.read_line(&mut line).ok()?;
        line.trim_start_matches(['*', '$'])
            .trim()
            .parse::<usize>()
            .ok()
    };
    while let Some(words) = number(&mut reader) {
        let mut command = Vec::new();
        for _ in 0..words {
            let Some(length) = number(&mut reader) else {
                return;
            };
            let mut word = vec![0; length + 2];
            if reader.read_exact(&mut word).is_err() {
                return;
            }
            command.push(String::from_utf8_lossy(&word[..length]).into_owned());
        }
        let info = "redis_version:6.0.16\r\nmaxmemory:0\r\n";
        let reply = match command[0].as_str() {
            "TIME" => "*2\r\n$10\r\n1800000000\r\n$1\r\n0\r\n".to_owned(),
            "INFO" => format!("${}\r\n{info}\r\n", info.len()),
            "GET" => "$-1\r\n".to_owned(),
            "MULTI" | "EXEC" | "EVAL" | "EVALSHA" | "CONFIG" => {
                format!("-ERR unknown command '{}' s3cret\r\n", command[0])
            }
            _ => ":0\r\n".to_owned(),
        };
        if writer.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_proxy_without_transactions_and_an_old_version_are_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = listener.local_addr().expect("it listens").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer_as_a_proxy(stream));
        }
    });
    let weir = Weir::start(support::DEMO, &[("REDIS_URL", &url)]);
    for name in ["unsupported_command", "version", "clock_offset"] {
        wait_for(&weir, &advice(&url, name), |value| value == Some(1.0)).await;
    }
    let line = weir.wait_for_log("does not know").await;
    assert!(line.contains("MULTI, EXEC, EVAL, EVALSHA"), "{line}");
    assert_eq!(
        weir.metric(&series(
            "weir_redis_server_info",
            &url,
            ",version=\"6.0.16\""
        )),
        Some(1.0)
    );
    assert_eq!(asks(&mut weir.client().await).await, Err(Code::Unavailable));
    assert!(
        weir.logs().iter().all(|line| !line.contains("s3cret")),
        "the text of a server's error is not logged"
    );
}

/// Answers of an outage come at once.
async fn assert_fails_at_once(clients: [&mut Client; 2]) {
    let began = Instant::now();
    for client in clients {
        for _ in 0..100 {
            assert_eq!(asks(client).await, Err(Code::Unavailable));
        }
    }
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "200 answers took {:?}",
        began.elapsed()
    );
}

/// Twenty answers in a row come within a second.
async fn assert_recovers(client: &mut Client) {
    let began = Instant::now();
    let mut good = 0;
    while good < 20 {
        good = if asks(client).await.is_ok() {
            good + 1
        } else {
            0
        };
        assert!(
            began.elapsed() < A_SECOND,
            "not recovered after {:?}",
            began.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn health_follows_redis_only_when_asked() {
    let mut redis = RedisServer::absent();
    let url = redis.url();
    let following = Weir::start(
        support::DEMO,
        &[
            ("REDIS_URL", &url),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
        ],
    );
    let steady = Weir::start(support::DEMO, &[("REDIS_URL", &url)]);
    let becomes = async |status: u16| {
        let began = Instant::now();
        let is_so =
            eventually_async(|| (following.get("/healthcheck").0 == status).then_some(())).await;
        assert!(
            is_so.is_some() && began.elapsed() < A_SECOND,
            "{status} after {:?}",
            began.elapsed()
        );
        assert_eq!(
            is_serving(&following).await,
            status == 200,
            "gRPC says the same"
        );
        assert!(
            steady.get("/healthcheck").0 == 200 && is_serving(&steady).await,
            "health does not depend on Redis by default"
        );
    };
    // Redis does not run: both listeners are open, and answers come at once.
    becomes(500).await;
    let (mut client, mut other) = (following.client().await, steady.client().await);
    assert_fails_at_once([&mut client, &mut other]).await;
    following.wait_for_log("Redis outage").await;
    // Long enough for the waits between attempts to grow.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(
        following.metric(&series("weir_redis_up", &url, "")),
        Some(0.0)
    );
    assert_eq!(
        following.metric(&series("weir_redis_breaker_state", &url, "")),
        Some(1.0)
    );
    assert_eq!(
        following.metric(&series("weir_redis_server_info", &url, "")),
        None
    );

    redis.start_again();
    assert_recovers(&mut client).await;
    becomes(200).await;
    following.wait_for_log("Redis answers").await;
    let changes = |to: &str| series("weir_redis_breaker_transitions_total", &url, to);
    for (to, reason) in [("open", "outage"), ("ramp", "probe"), ("closed", "ramp")] {
        let of = changes(&format!(",to=\"{to}\",reason=\"{reason}\""));
        if to == "closed" {
            wait_for(&following, &of, |count| count == Some(1.0)).await;
        }
        assert_eq!(following.metric(&of), Some(1.0), "{of}");
    }

    // From here on `following` gets no requests; its health must follow Redis without them.
    redis.kill();
    becomes(500).await;
    assert_eq!(asks(&mut other).await, Err(Code::Unavailable));
    redis.start_again();
    becomes(200).await;
}
