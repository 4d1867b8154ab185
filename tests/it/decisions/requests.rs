//! Requests that need code: bytes that are no message, many at once, and the Redis that counts a
//! request of several limits.

use std::sync::Arc;

use weir::core::proto::rate_limit_response::Code;

use crate::support::{self, RedisServer, Weir, descriptor, request};

#[tokio::test]
async fn malformed_bytes_are_refused_with_a_reason() {
    let weir = Weir::start(support::DEMO, &[]);
    // A domain of another wire type is an unknown field.
    let no_domain = (&b"\x08\x01"[..], "rate limit domain must not be empty");
    let garbage = [
        &b"\x0a"[..],
        b"\x12\x05ab",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x07",
    ];
    let malformed = garbage.map(|bytes| (bytes, "malformed RateLimitRequest: "));
    for (bytes, reason) in malformed.into_iter().chain([no_domain]) {
        let status = support::raw_call(&weir, bytes)
            .await
            .expect_err("a refusal");
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{bytes:?}");
        assert!(
            status.message().starts_with(reason),
            "{bytes:?}: {}",
            status.message()
        );
    }
    let mut client = weir.client().await;
    let good = request("demo", vec![descriptor(&[("year", "x")])]);
    client
        .should_rate_limit(good)
        .await
        .expect("the service goes on");
}

/// A limit admits so many of all requests, however many clients send them.
const LIMIT: usize = 700;
const CLIENTS: usize = 100;
const EACH: usize = 10;

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "domain: busy\ndescriptors: [{ key: one, rate_limit: { unit: year, requests_per_unit: 700 } \
     }]\n",
)];

/// 100 clients, each on its own connection, send requests for one key to the services in turn.
/// Returns how many requests were admitted.
async fn admitted(services: &[&Weir]) -> usize {
    let start = Arc::new(tokio::sync::Barrier::new(CLIENTS));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let (mut client, start) = (
            services[number % services.len()].client().await,
            Arc::clone(&start),
        );
        clients.spawn(async move {
            start.wait().await;
            let mut admitted = 0;
            for _ in 0..EACH {
                let answer = client
                    .should_rate_limit(request("busy", vec![descriptor(&[("one", "key")])]))
                    .await
                    .expect("an answer");
                admitted += usize::from(answer.into_inner().overall_code() == Code::Ok);
            }
            admitted
        });
    }
    clients.join_all().await.into_iter().sum()
}

#[tokio::test]
async fn many_clients_get_exactly_the_limit_in_memory_and_of_two_processes_on_one_redis() {
    let weir = Weir::start(LIMITS, &[("WORKERS", "4")]);
    assert_eq!(admitted(&[&weir]).await, LIMIT);
    let redis = RedisServer::start();
    let url = redis.url();
    let environment = [("REDIS_URL", &url[..]), ("STORE_TIMEOUT", "10s")];
    let services = [(); 2].map(|()| Weir::start(LIMITS, &environment));
    assert_eq!(admitted(&services.each_ref()).await, LIMIT);
    redis.assert_every_key_expires();
}

/// All limits of a request are counted in one step, which one Redis has to do.
#[tokio::test]
async fn with_stop_increment_the_main_redis_counts_limits_per_second() {
    let [main, second] = [RedisServer::start(), RedisServer::start()];
    let limits = "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: second, unit_multiplier: \
        100000, requests_per_unit: 1 } }]\n";
    let start = |stop: &str| {
        let (main, second) = (main.url(), second.url());
        let environment = [
            ("REDIS_URL", &*main),
            ("REDIS_PERSECOND", "1"),
            ("REDIS_PERSECOND_URL", &second),
            ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", stop),
        ];
        Weir::start(
            &[("a.yaml", limits)],
            &[&environment[..], &[("STORE_TIMEOUT", "5s")]].concat(),
        )
    };
    for (stop, counted_in, empty) in [("T", &main, &second), ("F", &second, &main)] {
        main.flush();
        second.flush();
        let weir = start(stop);
        let mut client = weir.client().await;
        let one = request("d", vec![descriptor(&[("a", "x")])]);
        client.should_rate_limit(one).await.expect("an answer");
        assert_eq!(
            (counted_in.keys().len(), empty.keys().len()),
            (1, 0),
            "{stop}"
        );
        let told = weir
            .logs()
            .iter()
            .any(|line| line.contains("not in that of REDIS_PERSECOND_URL"));
        assert_eq!(told, stop == "T", "the cost is in the log");
    }
}
