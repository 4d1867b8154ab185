//! `weir serve`: errors of the start, and the end by signals.

use std::net::TcpListener;
use std::process::Output;

use super::{folder_with, stderr, weir};
use crate::support::{self, Weir};

/// Arguments that are split at spaces, variables, and what the error has to say.
type UsageError = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
);

const USAGE_ERRORS: &[UsageError] = &[
    ("--grcp-port 1", &[], "did you mean `--grpc-port`?"),
    ("sevre", &[], "did you mean `serve`?"),
    ("", &[("GRPC_PORT", "70000")], "70000"),
    ("", &[("SHADOW_MODE", "perhaps")], "write true or false"),
    ("", &[("REDIS_URL", "redis://:hunter2@:x")], "REDIS_URL"),
    ("hit", &[], "not provided: --domain <DOMAIN> <KEY=VALUE>..."),
    ("hit -d d a=b --address ::1:8081", &[], "[::1]:8081"),
    ("hit --domain d no-entry", &[], "write key=value"),
    ("completions tcsh", &[], "bash"),
];

fn assert_is_one_line(output: &Output, code: i32, hint: &str) {
    let text = stderr(output);
    let own: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("weir: "))
        .collect();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(own.len(), 1, "{text}");
    assert!(text.contains(hint), "{hint} is not in: {text}");
    assert!(!text.contains("hunter2"), "a password in: {text}");
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn an_error_is_one_line_and_an_exit_code() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let invalid = "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: secnod, \
        requests_per_unit: 1 } }]\n";
    let (_folder, path) = folder_with(&[("bad.yaml", invalid)]);
    let [bad, missing] = ["bad.yaml", "missing"].map(|name| format!("{path}/{name}"));
    let local = [
        "--host",
        "127.0.0.1",
        "--grpc-host",
        "127.0.0.1",
        "--port",
        "0",
    ];
    let serve = |more: &[&str], environment: &[(&str, &str)]| {
        weir(&[&local[..], more].concat(), environment)
    };
    for (arguments, environment, hint) in USAGE_ERRORS {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        assert_is_one_line(&weir(&arguments, environment), 2, hint);
    }
    for (output, hint) in [
        (
            serve(&["--grpc-port", &port], &[]),
            "stop what uses the port",
        ),
        (
            serve(&["--grpc-port", "0", "--config", &missing], &[]),
            "missing",
        ),
        (
            weir(
                &["hit", "--domain", "d", "a=b", "--address", "127.0.0.1:1"],
                &[],
            ),
            "is `weir serve` running?",
        ),
    ] {
        assert_is_one_line(&output, 1, hint);
    }
    let output = weir(&[], &[("LOG_LEVEL", "=bogus=")]);
    assert_eq!(
        stderr(&output).matches("=bogus=").count(),
        1,
        "reported once: {}",
        stderr(&output)
    );
    let output = serve(&["--grpc-port", "0", "--config", &bad], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("bad.yaml:2:"),
        "{}",
        stderr(&output)
    );
}

/// The output is JSON from the first line on, and one line of it is the error.
fn assert_is_one_line_of_json(output: &Output, code: i32, hint: &str) {
    let text = stderr(output);
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {text}")))
        .collect();
    let errors: Vec<_> = lines
        .iter()
        .filter(|line| line["level"] == "error")
        .collect();
    assert_eq!(
        (output.status.code(), errors.len()),
        (Some(code), 1),
        "{text}"
    );
    let error = errors[0];
    assert!(
        error["@timestamp"]
            .as_str()
            .is_some_and(|time| time.starts_with("20")),
        "{text}"
    );
    let message = error["@message"].as_str().expect("text");
    assert!(
        message.starts_with("weir cannot start: ") && message.contains(hint),
        "{text}"
    );
    let problems: Vec<_> = error["problems"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|problem| problem.as_str())
        .collect();
    let are_listed =
        problems.len() >= 2 && problems.iter().all(|problem| problem.contains("bad.yaml:"));
    assert_eq!(are_listed, message.contains("limit files"), "{text}");
}

/// Log collectors read JSON from the first line on, also when the service does not start.
#[test]
fn errors_of_the_start_are_one_line_of_json_where_the_log_is() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let invalid = "domain: d\ndescriptors:\n- kye: a\n- key: b\n  rate_limit: { unit: secnod, \
        requests_per_unit: 1 }\n";
    let (_folder, path) = folder_with(&[("bad.yaml", invalid)]);
    let bad = format!("{path}/bad.yaml");
    let json = [("LOG_FORMAT", "json")];
    let local = [
        "--host",
        "127.0.0.1",
        "--grpc-host",
        "127.0.0.1",
        "--port",
        "0",
    ];
    for (output, code, hint) in [
        (
            weir(&["--grcp-port", "1"], &json),
            2,
            "did you mean `--grpc-port`?",
        ),
        (
            weir(
                &["--log-format", "json", "--grpc-port", "none"],
                &[("LOG_FORMAT", "text")],
            ),
            2,
            "--grpc-port",
        ),
        (
            weir(&[], &[json[0], ("LOG_LEVEL", "=bogus=")]),
            1,
            "=bogus=",
        ),
        (
            weir(&[&local[..], &["--grpc-port", &port]].concat(), &json),
            1,
            "stop what uses the port",
        ),
        (
            weir(
                &[&local[..], &["--grpc-port", "0", "--config", &bad]].concat(),
                &json,
            ),
            1,
            "the limit files cannot be used",
        ),
    ] {
        assert_is_one_line_of_json(&output, code, hint);
    }
    // Other commands write no log.
    assert!(stderr(&weir(&["hit", "-d", "d", "no-entry"], &json)).starts_with("weir: "));
    assert!(stderr(&weir(&["--grcp-port", "1"], &[("LOG_FORMAT", "yaml")])).starts_with("weir: "));
}

#[tokio::test]
async fn the_process_ends_on_sigterm() {
    let weir = Weir::start(support::DEMO, &[("DRAIN_DELAY", "300ms")]);
    let client = &mut weir.client().await;
    weir.signal("TERM");
    weir.wait_for_log("reporting unhealthy").await;
    assert_eq!(weir.get("/healthcheck").0, 500);
    client
        .should_rate_limit(support::request(
            "demo",
            vec![support::descriptor(&[("a", "b")])],
        ))
        .await
        .expect("still served");
    assert!(
        ends_soon(weir).await,
        "open connections do not delay the end"
    );
}

/// A stream of `Health/Watch` never ends by itself; it must not delay the end of the process.
#[tokio::test]
async fn a_health_watch_does_not_delay_the_end() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let weir = Weir::start(support::DEMO, &[("DRAIN_DELAY", "0s")]);
    let mut watch = HealthClient::new(weir.channel().await)
        .watch(HealthCheckRequest::default())
        .await
        .expect("a stream")
        .into_inner();
    assert_eq!(
        watch
            .message()
            .await
            .expect("an answer")
            .expect("one")
            .status,
        1,
        "SERVING"
    );
    let silent =
        std::net::TcpStream::connect(weir.grpc_addr()).expect("a connection that says nothing");
    weir.signal("TERM");
    let mut last = 1;
    while let Ok(Some(answer)) = watch.message().await {
        last = answer.status;
    }
    assert_eq!(last, 2, "NOT_SERVING, and then the end");
    assert!(ends_soon(weir).await, "it waited for no connection");
    drop(silent);
}

#[tokio::test]
async fn further_signals_skip_the_drain_delay_and_the_grace_period() {
    let weir = Weir::start(support::DEMO, &[]);
    // A request that never arrives whole keeps its connection busy.
    let mut busy = std::net::TcpStream::connect(weir.http_addr()).expect("a connection");
    std::io::Write::write_all(
        &mut busy,
        b"POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{",
    )
    .expect("half a request");
    weir.signal("TERM");
    weir.wait_for_log("reporting unhealthy").await;
    weir.signal("TERM");
    weir.wait_for_log("draining").await;
    weir.signal("TERM");
    weir.wait_for_log("aborting requests in flight").await;
    assert!(ends_soon(weir).await, "it waited for no connection");
}

/// Whether the process ends within six seconds; its grace period for requests in flight is ten. The
/// test's clients keep running meanwhile, so that they see the connections close.
async fn ends_soon(mut weir: Weir) -> bool {
    let began = std::time::Instant::now();
    let ended = tokio::task::spawn_blocking(move || weir.wait())
        .await
        .expect("no panic");
    ended.success() && began.elapsed() < std::time::Duration::from_secs(6)
}
