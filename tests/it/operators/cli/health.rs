//! `weir health`: the health of a running service as an exit code.

use std::net::TcpListener;

use super::{stderr, stdout, weir};
use crate::support::{self, Weir};

#[tokio::test]
async fn health_is_an_exit_code_over_http_and_grpc() {
    let service = Weir::start(support::DEMO, &[("DRAIN_DELAY", "30s")]);
    let (grpc, http) = (
        service.grpc_addr().port().to_string(),
        service.http_addr().port().to_string(),
    );
    let health = |arguments: &[&str], environment: &[(&str, &str)]| {
        let output = weir(&[&["health"], arguments].concat(), environment);
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let healthy = (Some(0), "healthy\n".to_owned());
    assert_eq!(health(&["--port", &http], &[]), healthy);
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
