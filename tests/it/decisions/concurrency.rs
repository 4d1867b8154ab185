//! Exactness: a limit of N admits exactly N concurrent requests, however many clients send them.

use std::sync::Arc;

use weir::core::proto::rate_limit_response::Code;

use crate::support::{RedisServer, Weir, descriptor, request};

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
async fn in_memory() {
    assert_eq!(
        admitted(&[&Weir::start(LIMITS, &[("WORKERS", "4")])]).await,
        LIMIT
    );
}

#[tokio::test]
async fn two_processes_on_one_redis() {
    let redis = RedisServer::start();
    let url = redis.url();
    let environment = [("REDIS_URL", &url[..]), ("STORE_TIMEOUT", "10s")];
    let services = [
        Weir::start(LIMITS, &environment),
        Weir::start(LIMITS, &environment),
    ];
    assert_eq!(admitted(&[&services[0], &services[1]]).await, LIMIT);
    redis.assert_every_key_expires();
}
