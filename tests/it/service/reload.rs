//! Reloads under load, for every way in which editors and Kubernetes change files: no request
//! fails, and no count is lost.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weir::core::proto::rate_limit_response::Code;

use crate::support::{
    Client, RedisServer, Weir, config_map, descriptor, descriptor_with_hits, request,
};

/// Limits of the domain `d`; the amount for `user` shows which version of the file is in force.
fn limits(requests_per_unit: u32) -> String {
    format!(
        "domain: d\ndescriptors:\n- key: user\n  rate_limit: {{ unit: year, requests_per_unit: \
         {requests_per_unit} }}\n"
    )
}

/// The amount that `user` is limited to now; 0 without a limit. It is read by a look, which counts
/// nothing.
async fn limit_in_force(client: &mut Client) -> u32 {
    let look = descriptor_with_hits(&[("user", "looker")], 0);
    let response = client
        .should_rate_limit(request("d", vec![look]))
        .await
        .expect("an answer")
        .into_inner();
    response.statuses[0]
        .current_limit
        .as_ref()
        .map_or(0, |limit| limit.requests_per_unit)
}

async fn wait_until_in_force(client: &mut Client, expected: u32) {
    for _ in 0..200 {
        if limit_in_force(client).await == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the limit did not become {expected} within 10 s");
}

/// Sends requests without a pause until it is stopped. Panics on the first error.
struct BackgroundLoad {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl BackgroundLoad {
    fn start(mut client: Client) -> Self {
        let (stop, answers) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&answers));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                client
                    .should_rate_limit(request("d", vec![descriptor(&[("user", "load")])]))
                    .await
                    .expect("no error during a reload");
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            stop,
            answers,
            task,
        }
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no error");
        assert!(
            self.answers.load(Ordering::Relaxed) > 100,
            "the load was too small"
        );
    }
}

#[tokio::test]
async fn a_swapped_config_map_is_reloaded() {
    let publish = |folder: &Path, version: &str, limit: u32| {
        config_map::publish(folder, version, "limits.yaml", &limits(limit));
    };
    let weir = Weir::start_in(
        |folder| publish(folder, "..2026_01", 10),
        &[("RUNTIME_IGNOREDOTFILES", "false")],
    );
    let client = &mut weir.client().await;
    let load = BackgroundLoad::start(weir.client().await);
    wait_until_in_force(client, 10).await;
    for (version, limit) in [("..2026_02", 20), ("..2026_03", 30)] {
        publish(weir.config_dir(), version, limit);
        wait_until_in_force(client, limit).await;
    }
    fs::remove_dir_all(weir.config_dir().join("..2026_01")).expect("removed");
    load.end().await;
}

#[tokio::test]
async fn a_file_with_an_error_changes_nothing_and_is_reported() {
    let weir = Weir::start(&[("a.yaml", &limits(10))], &[]);
    let client = &mut weir.client().await;
    let before = weir
        .metric("ratelimit_service_config_load_error")
        .unwrap_or(0.0);
    fs::write(
        weir.config_dir().join("b.yaml"),
        "domain: e\ndescriptors:\n- key: x\n  rate_limit: { unit: minuet, requests_per_unit: 1 }\n",
    )
    .expect("written");
    weir.wait_for_log("b.yaml:4:").await;
    assert!(
        weir.metric("ratelimit_service_config_load_error")
            .expect("a counter")
            > before
    );
    assert_eq!(limit_in_force(client).await, 10);
}

/// Both amounts are counted in ticks of their own.
#[tokio::test]
async fn a_changed_amount_keeps_the_counts_in_memory_and_in_redis() {
    let redis = RedisServer::start();
    let file = |amount: u32| {
        let counted = format!("unit: day, requests_per_unit: {amount}");
        let limit = |algorithm: &str| {
            format!("- key: {algorithm}\n  rate_limit: {{ {counted}, algorithm: {algorithm} }}\n")
        };
        let algorithms = [
            "token_bucket",
            "leaky_bucket",
            "sliding_window_counter",
            "sliding_window_log",
            "sliding_window_buckets",
            "fixed_window",
        ];
        format!("{}{}", limits(amount), algorithms.map(limit).concat())
    };
    for environment in [
        &[][..],
        &[("REDIS_URL", &*redis.url()), ("STORE_TIMEOUT", "5s")],
    ] {
        let weir = Weir::start(&[("a.yaml", &file(30_000))], environment);
        let client = &mut weir.client().await;
        let ask = async |client: &mut Client, key: &str, hits: i64| {
            let descriptor = descriptor_with_hits(&[(key, "x")], hits);
            let answer = client
                .should_rate_limit(request("d", vec![descriptor]))
                .await
                .expect("an answer")
                .into_inner();
            (answer.overall_code(), answer.statuses[0].limit_remaining)
        };
        let counts = [
            "token_bucket",
            "sliding_window_counter",
            "sliding_window_log",
            "sliding_window_buckets",
            "fixed_window",
        ];
        for key in counts {
            assert_eq!(ask(client, key, 29_000).await, (Code::Ok, 1_000), "{key}");
        }
        for amount in [60_000, 30_000, 100_000, 30_000] {
            fs::write(weir.config_dir().join("a.yaml"), file(amount)).expect("written");
            wait_until_in_force(client, amount).await;
            for key in counts {
                // A token bucket has as many tokens as before, and gets one a second at most.
                let (expected, more) = if key == "token_bucket" {
                    (1_000, 30)
                } else {
                    (amount - 29_000, 0)
                };
                let (code, left) = ask(client, key, 0).await;
                assert_eq!(code, Code::Ok, "{key}");
                assert!(
                    (expected..=expected + more).contains(&left),
                    "{key} of {amount}: {left} left, {expected} expected"
                );
            }
        }
        // A slot of the shaper lasts for 2.88 s, and for 1.44 s after the limit has been raised.
        let began = Instant::now();
        assert_eq!(ask(client, "leaky_bucket", 1).await.0, Code::Ok);
        fs::write(weir.config_dir().join("a.yaml"), file(60_000)).expect("written");
        wait_until_in_force(client, 60_000).await;
        let (code, _) = ask(client, "leaky_bucket", 1).await;
        assert!(
            code == Code::OverLimit || began.elapsed() > Duration::from_millis(1_400),
            "{code:?} after {:?}",
            began.elapsed()
        );
    }
}
