//! `weir health`: the health of a running service as an exit code.

use std::net::TcpListener;

use super::{stderr, stdout, weir};
use crate::support::wait::eventually;
use crate::support::{self, RedisServer, Weir, ports};

/// The code of `weir health` and its text.
fn health(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = [&["health"], arguments].concat();
    if !command.contains(&"--timeout-ms") {
        command.push("--timeout-ms=20000");
    }
    let output = weir(&command, environment);
    (output.status.code(), stdout(&output) + &stderr(&output))
}

#[tokio::test]
async fn health_is_an_exit_code_over_http_and_grpc() {
    let service = Weir::start(support::DEMO, &[("DRAIN_DELAY", "30s")]);
    let addresses = [service.grpc_addr(), service.http_addr()];
    let [grpc, http] = addresses.map(|address| address.port().to_string());
    let healthy = (Some(0), "healthy\n".to_owned());
    assert_eq!(health(&["--port", &http], &[]), healthy);
    let in_memory = "unhealthy: the service counts in memory, without Redis\n";
    assert_eq!(
        health(&["--port", &http, "--redis"], &[]),
        (Some(1), in_memory.to_owned())
    );
    assert_eq!(
        health(&[], &[("PORT", &http)]),
        healthy,
        "the variable of `weir serve`"
    );
    assert_eq!(
        health(
            &["--grpc"],
            &[("GRPC_PORT", &grpc), ("GRPC_HOST", "127.0.0.1")]
        ),
        healthy
    );
    let (code, text) = health(&["--port", &grpc], &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("is not the HTTP listener of Weir"), "{text}");
    let (code, text) = health(&["--grpc", "--grpc-port", &http], &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("does not speak gRPC"), "{text}");

    service.signal("TERM");
    service.wait_for_log("reporting unhealthy").await;
    let unhealthy = |text: &str| (Some(1), text.to_owned());
    assert_eq!(
        health(&["--port", &http], &[]),
        unhealthy("unhealthy: the process is shutting down\n")
    );
    assert_eq!(
        health(&["--grpc", "--grpc-port", &grpc], &[]),
        unhealthy("unhealthy\n")
    );
    drop(service);
    let (code, text) = health(&["--port", &http], &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains(&format!(
            "no service at 127.0.0.1:{http}: it cannot be reached (Connection refused (os error \
             111)); is `weir serve` running?"
        )),
        "{text}"
    );
    assert_eq!(health(&["--timeout-ms", "0"], &[]).0, Some(2));

    // Neither a listener that never answers nor one that never ends its answer makes the check
    // wait.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port().to_string();
    for more in [&["--port", &port][..], &["--grpc", "--grpc-port", &port]] {
        let began = std::time::Instant::now();
        let (code, text) = health(&[more, &["--timeout-ms", "200"]].concat(), &[]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("within 200 ms"), "{text}");
        assert!(
            began.elapsed() < std::time::Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
    }
}

/// By a request too.
#[test]
fn a_service_that_starts_meanwhile_is_found() {
    let [grpc, http] = [(); 2].map(|()| ports::free().port().to_string());
    let ask = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
        let with_time = [arguments, &["--timeout-ms=20000"]].concat();
        command
            .env_clear()
            .args(with_time)
            .stdout(std::process::Stdio::piped());
        command.spawn().expect("the binary runs")
    };
    let address = format!("--address=127.0.0.1:{grpc}");
    let asking = [
        ask(&["health", "--port", &http]),
        ask(&["health", "--grpc", "--grpc-port", &grpc]),
        ask(&["hit", &address, "--domain=demo", "key=value"]),
    ];
    std::thread::sleep(std::time::Duration::from_millis(300));
    let mut service = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
    service.args(["--port", &http, "--grpc-port", &grpc, "--debug-port=0"]);
    let quiet = service.env_clear().stderr(std::process::Stdio::null());
    let mut service = quiet.spawn().expect("the binary runs");
    let outputs = asking.map(|child| child.wait_with_output().expect("it ran"));
    service.kill().and_then(|()| service.wait()).expect("ended");
    for output in outputs {
        assert!(output.status.success(), "{output:?}");
    }
}

/// Without an answer of Redis the service is healthy, because failure policies answer.
#[tokio::test]
async fn health_can_require_redis() {
    let mut redis = RedisServer::start();
    let service = Weir::start(support::DEMO, &[("REDIS_URL", &redis.url())]);
    service.wait_for_log("Redis answers").await;
    let port = service.http_addr().port().to_string();
    let health = |more: &[&str]| weir(&[&["health", "--port", &port], more].concat(), &[]);
    assert!(health(&["--redis"]).status.success());
    redis.kill();
    let down = eventually(|| Some(health(&["--redis"])).filter(|output| !output.status.success()));
    let text = stdout(&down.expect("it is noticed"));
    assert!(
        text.starts_with("unhealthy: Redis does not answer: weir_redis_up{"),
        "{text}"
    );
    assert!(health(&[]).status.success());
    assert_eq!(health(&["--redis", "--grpc"]).status.code(), Some(2));
}
