//! The Redis store while Redis does not run, hangs or replies with errors, and after it has
//! recovered.

use weir::store::redis::{Address, Login, Options, Topology};

use super::*;
use crate::support::proxy::{Forwarding, Proxy};
use crate::support::redis::{RedisServer, connect};
use crate::support::wait::eventually_async;

/// Envoy's default timeout.
const SHORT_DEADLINE: Duration = Duration::from_millis(20);

/// Extra time for scheduling on a busy machine.
const SCHEDULING_SLACK: Duration = Duration::from_millis(80);

/// Asks with [`SHORT_DEADLINE`], and asserts that the answer meets it.
async fn ask_with_short_deadline(redis: &Redis, key: &str) -> Result<Verdict, StoreError> {
    let began = Instant::now();
    let answers = decide_within(
        redis,
        checks_of(&[(key, check(1_000_000, 1))]),
        Budget::until(began + SHORT_DEADLINE),
    )
    .await;
    assert!(
        began.elapsed() < SHORT_DEADLINE + SCHEDULING_SLACK,
        "answered after {:?}",
        began.elapsed()
    );
    answers.verdicts()[0]
}

/// Asks until an answer is no error. Returns how long that took.
async fn recovery_time(redis: &Redis, key: &str) -> Duration {
    let began = Instant::now();
    loop {
        match ask_with_short_deadline(redis, key).await {
            Ok(_) => return began.elapsed(),
            Err(error) => assert!(began.elapsed() < Duration::from_secs(5), "still {error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Looks until the answer is no error: after an outage the breaker admits requests step by step.
async fn look_once_recovered(redis: &Redis, key: &str) -> Verdict {
    let began = Instant::now();
    loop {
        match decide_one(redis, key, 10, 0).await {
            Ok(verdict) => return verdict,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(5), "still {error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A store that reaches Redis through a proxy.
fn through_a_proxy(server: &RedisServer) -> (Redis, Proxy) {
    let proxy = Proxy::before(server.port());
    let address = Address::Tcp {
        host: proxy.address().ip().to_string(),
        port: proxy.address().port(),
    };
    (connect(Options::new(address)), proxy)
}

/// Lost packets delay the connections that carried them, and no other.
#[tokio::test]
async fn new_requests_do_not_wait_for_overdue_answers() {
    const HELD: Duration = Duration::from_secs(1);
    let server = RedisServer::start();
    let (redis, proxy) = through_a_proxy(&server);
    let within = || Budget::until(Instant::now() + 5 * HELD);
    let call = async |key| {
        decide_within(&redis, checks_of(&[(key, check(1_000, 1))]), within())
            .await
            .verdicts()[0]
    };
    // A far server gets two lanes, so that this opens two connections. Then the server is near
    // again.
    call("first").await.expect("Redis is well");
    proxy.to_client(Forwarding::Delay {
        by: HELD / 50,
        jitter: Duration::ZERO,
    });
    while redis.deployment().connections().opened < 2 {
        // Requests that come at once are one batch.
        let later = async {
            tokio::time::sleep(HELD / 200).await;
            call("first").await
        };
        let (first, second) = tokio::join!(call("first"), later);
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    }
    proxy.to_client(Forwarding::Pass);
    for _ in 0..50 {
        call("first").await.expect("Redis is well");
    }
    proxy.to_client(Forwarding::Delay {
        by: HELD,
        jitter: Duration::ZERO,
    });
    let held = async |after| {
        tokio::time::sleep(after).await;
        (call("held").await, Instant::now())
    };
    let others = async {
        // Until the proxy delays both answers.
        tokio::time::sleep(HELD / 5).await;
        proxy.to_client(Forwarding::Pass);
        let mut answers = Vec::new();
        for _ in 0..20 {
            answers.push(call("other").await);
        }
        (answers, Instant::now())
    };
    let ((first, first_until), (second, _), (others, others_until)) =
        tokio::join!(held(Duration::ZERO), held(HELD / 10), others);
    assert!(
        first.is_ok() && second.is_ok() && others.iter().all(Result::is_ok),
        "{first:?} {second:?} {others:?}"
    );
    assert!(others_until < first_until, "the others had to wait");
}

/// A plain `INCRBY` creates a counter that was lost again. The store then sets its expiry, and no
/// request waits for that.
#[tokio::test]
async fn a_hit_on_a_lost_counter_does_not_wait_for_its_expiry() {
    const DELAY: Duration = Duration::from_millis(400);
    let server = RedisServer::start();
    let (redis, proxy) = through_a_proxy(&server);
    for _ in 0..3 {
        decide_one(&redis, "gone", 1_000, 1)
            .await
            .expect("Redis is well");
    }
    server.flush();
    proxy.to_client(Forwarding::Delay {
        by: DELAY,
        jitter: Duration::ZERO,
    });
    // Long enough for one reply, and too short for two.
    let answers = decide_within(
        &redis,
        checks_of(&[("gone", check(1_000, 1))]),
        Budget::until(Instant::now() + DELAY * 7 / 4),
    )
    .await;
    assert_eq!(answers.verdicts()[0].map(|verdict| verdict.used), Ok(1));
    proxy.to_client(Forwarding::Pass);
    let expires = eventually_async(|| {
        (server
            .keys()
            .iter()
            .all(|key| server.run::<i64>(&["TTL", key]) > 0))
        .then_some(())
    })
    .await;
    assert!(expires.is_some() && server.keys().len() == 1);
}

#[tokio::test]
async fn a_give_back_that_comes_too_late_counts_nothing() {
    let server = RedisServer::start();
    let redis = connect(server.options());
    decide_one(&redis, "late", 10, 6)
        .await
        .expect("Redis is well");
    // Loads the script.
    decide_one(&redis, "late", 10, -1)
        .await
        .expect("Redis is well");
    server.pause();
    let answers = decide_within(
        &redis,
        checks_of(&[("late", check(10, -2))]),
        Budget::until(Instant::now() + SHORT_DEADLINE),
    )
    .await;
    assert_eq!(answers.verdicts()[0], Err(StoreError::Unknown("timeout")));
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.resume();
    assert!(recovery_time(&redis, "other").await < Duration::from_secs(2));
    assert_eq!(look_once_recovered(&redis, "late").await.used, 5);
}

#[tokio::test]
async fn a_restart_under_idle_connections_causes_no_error() {
    let mut server = RedisServer::start();
    let redis = connect(server.options());
    decide_one(&redis, "restart", 10, 1)
        .await
        .expect("Redis is well");
    server.kill();
    server.start_again();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(
        decide_one(&redis, "restart", 10, 1)
            .await
            .map(|verdict| verdict.used),
        Ok(1),
        "a new server, a new count, no error"
    );
    assert_eq!(redis.deployment().error_counts(), [("idle_closed", 1)]);
}

#[tokio::test]
async fn a_cancelled_request_leaves_no_reply_for_others() {
    let server = RedisServer::start();
    let mut options = server.options();
    options.pool_size = 1.try_into().expect("not 0");
    let redis = connect(options);
    decide_one(&redis, "first", 100, 1)
        .await
        .expect("Redis is well");
    server.pause();
    let cancelled = tokio::spawn({
        let redis = redis.clone();
        async move { decide_one(&redis, "gone", 100, 42).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    cancelled.abort();
    assert!(cancelled.await.expect_err("it was aborted").is_cancelled());
    server.resume();
    for round in 1..20 {
        let used = decide_one(&redis, &format!("own{round}"), 100, round)
            .await
            .map(|verdict| verdict.used);
        assert_eq!(
            used,
            Ok(round.unsigned_abs()),
            "the answer of another request"
        );
    }
    assert_eq!(redis.deployment().connections().opened, 1);
    server.assert_every_key_expires();
}

#[tokio::test]
async fn a_user_with_few_rights_a_database_and_a_unix_socket_work() {
    let server = RedisServer::start();
    let commands = "+multi +exec +time +select +incrby +expire +get +mget +evalsha +eval +set";
    let mut rights = vec![
        "ACL",
        "SETUSER",
        "weir",
        "on",
        ">s3cret",
        "~w1*",
        "resetchannels",
        "-@all",
    ];
    rights.extend(commands.split(' '));
    server.run::<()>(&rights);
    let options = Options {
        topology: Topology::Single(Address::Unix(server.socket())),
        login: Login::new(Some("weir"), "s3cret"),
        database: 3,
        ..server.options()
    };
    let redis = connect(options);
    assert_eq!(
        decide_one(&redis, "w1", 10, 3)
            .await
            .map(|verdict| verdict.used),
        Ok(3)
    );
    assert_eq!(
        decide_one(&redis, "w1", 10, -1)
            .await
            .map(|verdict| verdict.used),
        Ok(2)
    );
    assert_eq!(
        decide_one(&redis, "w1", 10, 0)
            .await
            .map(|verdict| verdict.used),
        Ok(2)
    );
    assert_eq!(
        decide_one(&redis, "other", 10, 1).await,
        Err(StoreError::NotExecuted("noperm"))
    );
    assert_eq!(server.keys(), Vec::<String>::new(), "database 0 is empty");
}

#[tokio::test]
async fn maxclients_is_named_and_open_connections_continue() {
    let server = RedisServer::start();
    let redis = connect(server.options());
    decide_one(&redis, "room", 100_000, 1)
        .await
        .expect("Redis is well");
    let clients: String = server.run(&["CLIENT", "LIST"]);
    // One more for this test's own connection.
    let most = (clients.lines().count() + 1).to_string();
    let _last = server.connection();
    server.run::<()>(&["CONFIG", "SET", "maxclients", &most]);
    let other = connect(server.options());
    assert_eq!(
        decide_one(&other, "room", 100_000, 1).await,
        Err(StoreError::NotExecuted("maxclients"))
    );
    // Many requests at once make the store open further lanes, whose connections Redis refuses.
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let redis = redis.clone();
            tokio::spawn(async move { decide_one(&redis, "room", 100_000, 1).await })
        })
        .collect();
    for task in tasks {
        assert!(
            task.await.expect("no panic").is_ok(),
            "lanes with a connection continue"
        );
    }
}

#[tokio::test]
async fn a_server_that_is_not_redis_is_a_protocol_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(
                &mut stream,
                b"HTTP/1.1 400 Bad Request\r\n\r\n",
            )
            .await;
        }
    });
    let redis = connect(Options::new(Address::Tcp {
        host: "127.0.0.1".to_owned(),
        port,
    }));
    assert_eq!(
        ask_with_short_deadline(&redis, "key").await,
        Err(StoreError::NotExecuted("protocol"))
    );
}
