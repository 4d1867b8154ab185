//! `weir load`: its counts are those of the server, its check of exactness fails where a server is
//! not exact, and it says what went wrong.

mod toy;

use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpListener;

use crate::operators::cli::{folder_with, weir};
use crate::support::certificates::{Authority, Files};
use crate::support::wait::eventually;
use crate::support::{DEMO, Weir};
use toy::{Fault, LIMIT, Toy};

/// Starts `weir load` against this address.
fn spawn(address: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .env_clear()
        .args(["load", address, "--domain", "demo"])
        .args(arguments);
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

/// Runs `weir load` beside what the test does otherwise.
async fn load(address: SocketAddr, arguments: &[&str]) -> Output {
    let child = spawn(&address.to_string(), arguments);
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output());
    ended.await.expect("no panic").expect("it ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The result as JSON; there is nothing else in the output.
fn result(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {} {}", text(&output.stdout), text(&output.stderr))
    })
}

/// Asks for eight subjects, each more often than the toy admits it.
const EIGHT: [&str; 4] = [
    "--descriptor",
    "user={uniform:0..7}",
    "--iterations",
    "1200",
];

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_not_exact_fail() {
    let late = Duration::from_secs(6);
    let eight_times = (8 * LIMIT).to_string();
    let day = format!("{LIMIT}/day");
    let faults = [
        (Fault::None, None),
        (Fault::OneMore, Some("granted 21 instead of 20 in the day")),
        (Fault::OneLess, Some("granted 19 instead of 20 in the day")),
        (Fault::Late(late), Some("1 requests have no answer")),
        (Fault::Error, Some("1 requests have no answer")),
    ];
    for (fault, finding) in faults {
        for expectation in [["--threshold", &day], ["--expect-ok", &eight_times]] {
            // Each against a new server, which has counted nothing.
            let (toy, address) = Toy::start(fault).await;
            let more = ["--timeout", "2s", expectation[0], expectation[1]];
            let output = load(address, &[&EIGHT[..], &more].concat()).await;
            let printed = text(&output.stdout);
            let is_right = finding.is_none();
            assert_eq!(
                output.status.code(),
                Some(i32::from(!is_right)),
                "{fault:?} {printed}"
            );
            assert_eq!(
                printed.contains("exact     yes"),
                is_right,
                "{fault:?} {printed}"
            );
            assert_eq!(toy.state(|state| state.requests), 1_200);
            match (finding, expectation[0]) {
                (Some(text), "--threshold") => {
                    assert!(printed.contains(text), "{fault:?} {printed}");
                }
                (Some(text), _) if matches!(fault, Fault::Late(_) | Fault::Error) => {
                    assert!(printed.contains(text), "{fault:?} {printed}");
                }
                (Some(_), _) => assert!(
                    printed.contains("were answered OK instead of 160"),
                    "{printed}"
                ),
                (None, _) => assert!(printed.contains("OK 160, OVER_LIMIT 1,040"), "{printed}"),
            }
            if finding.is_some_and(|text| text.contains("granted"))
                && expectation[0] == "--threshold"
            {
                assert!(printed.contains("the worst: user=3 was"), "{printed}");
            }
            if fault == Fault::Error {
                assert!(
                    printed.contains("RESOURCE_EXHAUSTED 1: too much\\u{1b}[2J"),
                    "{printed}"
                );
            }
            if let Fault::Late(_) = fault {
                assert!(
                    printed.contains("timeout 1: no answer within 2s"),
                    "{printed}"
                );
            }
        }
    }
}

/// The counts of a load and of the service, by code.
fn assert_counts_are_those_of(service: &Weir, result: &Value) {
    let ok = service.metric("weir_requests_total{code=\"OK\"}");
    assert_eq!(ok, result["answered"].as_f64(), "{result}");
    let hits = |name: &str| {
        let page = service.get("/metrics").1;
        let lines = page
            .lines()
            .filter(|line| line.starts_with(&format!("{name}{{")));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum::<f64>()
    };
    assert_eq!(
        Some(hits("ratelimit_service_rate_limit_within_limit")),
        result["ok"].as_f64()
    );
    assert_eq!(
        Some(hits("ratelimit_service_rate_limit_over_limit")),
        result["over_limit"].as_f64()
    );
}

const PER_USER: &[(&str, &str)] = &[(
    "demo.yaml",
    "domain: demo\ndescriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 100 } }, \
     { key: free, rate_limit: { unlimited: true } }, { key: tokyo, rate_limit: { unit: day, \
     requests_per_unit: 5, period: calendar, timezone: Asia/Tokyo } }]\n",
)];

/// A comparison that shows nothing fails, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_cannot_show_anything_fails() {
    let service = Weir::start(PER_USER, &[]);
    let none = "no answer named a limit";
    let untested = "none requested more than the threshold: nothing was tested";
    let other = "an answer named a limit of another window: 100/day";
    let cases = [
        ("other=a", "--expect-ok", "9", Some(none)),
        ("other=a", "--threshold", "5/day", Some(none)),
        ("other=a", "--max-p99", "1h", Some(none)),
        ("other=a", "--max-errors", "0", Some(none)),
        ("free=a", "--expect-ok", "9", Some(none)),
        (
            "user=with , other=a",
            "--expect-ok",
            "9",
            Some("descriptors without a limit show nothing"),
        ),
        (
            "tokyo=a",
            "--threshold",
            "5/day",
            Some("an answer named a limit of another window: 5/day"),
        ),
        ("user={sequence}", "--threshold", "100/day", Some(untested)),
        ("user=unit", "--threshold", "5/hour", Some(other)),
        (
            "user=fewer",
            "--expect-ok",
            "10",
            Some("9 were answered OK instead of 10"),
        ),
        ("user=all", "--expect-ok", "9", None),
        ("user=fast", "--max-p99", "1us", Some("exceeded  p99 is ")),
        ("user=slow", "--max-p99", "1h", None),
        ("user=right", "--max-errors", "0", None),
    ];
    for (descriptor, flag, value, reason) in cases {
        let arguments = ["--descriptor", descriptor, "--iterations", "9", flag, value];
        let output = load(service.grpc_addr(), &arguments).await;
        let printed = text(&output.stdout);
        let code = i32::from(reason.is_some());
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {printed}");
        assert!(
            printed.contains(reason.unwrap_or("OK 9")),
            "{arguments:?} {printed}"
        );
    }
}

/// An error is counted, and is no fast answer.
#[tokio::test(flavor = "multi_thread")]
async fn errors_of_a_load_have_a_bound() {
    let (_toy, address) = Toy::start(Fault::Error).await;
    for (most, code) in [("0", 1), ("1", 0)] {
        let arguments = [
            "--descriptor",
            "user=a",
            "--iterations",
            "15",
            "--max-errors",
            most,
        ];
        let output = load(address, &arguments).await;
        let printed = text(&output.stdout);
        let reason = "exceeded  1 requests have no answer, at most 0 are asked for";
        assert_eq!(printed.contains(reason), code == 1, "{printed}");
        assert_eq!(output.status.code(), Some(code), "{printed}");
        // Only the tenth request of the server has no answer.
        assert!(code == 1 || !printed.contains("error"), "{printed}");
    }
    // An error that comes at once is no fast answer.
    let (_toy, address) = Toy::start(Fault::Error).await;
    let slow = [
        "--descriptor",
        "user=a",
        "--iterations",
        "15",
        "--max-p99",
        "1h",
    ];
    let output = load(address, &slow).await;
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    let reason = "exceeded  p99 is unknown: 1 of 15 have no answer";
    assert!(printed.contains(reason), "{printed}");
}

/// Each attempt of a call has a connection of its own, also the first one after a call that no
/// attempt began.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_a_server_never_begins_are_made_on_other_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
                while let Some(Ok((_, mut answer))) = connection.accept().await {
                    answer.send_reset(h2::Reason::REFUSED_STREAM);
                }
            });
        }
    });
    let one = [
        "--connections",
        "1",
        "--concurrency",
        "1",
        "--timeout",
        "30s",
    ];
    let two = [
        "--descriptor",
        "user=a",
        "--iterations",
        "2",
        "--format",
        "json",
    ];
    let output = load(address, &[one, two].concat()).await;
    let printed = result(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert_eq!(printed["errors"]["not begun"]["count"], 2, "{printed}");
    assert_eq!(printed["reconnections"], 5, "{printed}");
}

/// The rate rises in ten steps; the result has each, and gates hold for each.
#[tokio::test(flavor = "multi_thread")]
async fn a_ramp_reports_its_steps() {
    let service = Weir::start(PER_USER, &[]);
    let ramp = [
        "--descriptor",
        "user={sequence}",
        "--ramp",
        "20..200",
        "--for",
        "3s",
    ];
    let more = ["--format", "json", "--max-errors", "0", "--timeout", "30s"];
    let output = load(service.grpc_addr(), &[&ramp[..], &more].concat()).await;
    let printed = result(&output);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    let steps = printed["steps"].as_array().expect("steps");
    let rates: Vec<_> = steps.iter().map(|step| step["rate"].as_f64()).collect();
    let expected: Vec<_> = (1..=10).map(|step| Some(20.0 * f64::from(step))).collect();
    assert_eq!(rates, expected);
    let sum = |name: &str| {
        steps
            .iter()
            .filter_map(|step| step[name].as_f64())
            .sum::<f64>()
    };
    assert_eq!(Some(sum("ok")), printed["ok"].as_f64(), "{printed}");
    assert_eq!((sum("errors"), sum("over_limit")), (0.0, 0.0), "{printed}");
    let due = sum("ok") + printed["not_sent"].as_f64().expect("a number");
    assert!((325.0..=340.0).contains(&due), "{printed}");
    let seconds = printed["seconds"].as_f64().expect("a number");
    assert!(
        (3.0..30.0).contains(&seconds),
        "each step has its time: {printed}"
    );
    let mean = sum("per_second") / 10.0;
    assert!((20.0..200.0).contains(&mean), "{printed}");

    let (_toy, address) = Toy::start(Fault::Slow(Duration::from_millis(30))).await;
    let gate = ["--max-p99", "10ms", "--max-errors", "0", "--timeout", "30s"];
    let output = load(
        address,
        &[&ramp[..2], &["--ramp", "200..20", "--for", "2s"], &gate].concat(),
    )
    .await;
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    let line = |rate: u32| printed.contains(&format!("exceeded  p99 at {rate} a second is "));
    assert!((1..=10).all(|step| line(20 * step)), "{printed}");
    let head = "rate  per_second  ok  over_limit  errors  p50_ms";
    assert!(printed.contains(head), "{printed}");

    // A ramp that does not reach its end shows nothing of the rest.
    let child = spawn(
        &service.grpc_addr().to_string(),
        &[&ramp[..4], &["--for", "1h", "--max-errors", "0"]].concat(),
    );
    std::thread::sleep(Duration::from_millis(1_500));
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("a signal");
    let output = child.wait_with_output().expect("it ends");
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("exceeded  only 1 of 10 steps have sent requests"),
        "{printed}"
    );
}

/// A closed loop, and a constant rate whose connections the service closes again and again.
#[tokio::test(flavor = "multi_thread")]
async fn the_counts_are_those_of_the_service() {
    let service = Weir::start(PER_USER, &[]);
    let users = [
        "--descriptor",
        "user={zipf:1..500:1.1}",
        "--threshold",
        "100/day",
        "--format",
        "json",
    ];
    let mut other_users = users;
    other_users[1] = "user=o{uniform:0..7}";
    let output = load(
        service.grpc_addr(),
        &[&users[..], &["--iterations", "5000"]].concat(),
    )
    .await;
    let closed = result(&output);
    assert_eq!(
        (output.status.code(), closed["sent"].as_u64()),
        (Some(0), Some(5_000)),
        "{closed}"
    );
    assert_eq!(
        (closed["answered"].as_u64(), &closed["exact"]),
        (Some(5_000), &Value::Bool(true))
    );
    assert!(
        closed["over_limit"].as_u64() > Some(0) && closed["latency_ms"]["p99"].as_f64() > Some(0.0)
    );
    assert_counts_are_those_of(&service, &closed);

    // Refused hits count, so that a small request may be refused behind a large one.
    let hits = ["--hits", "{uniform:1..30}", "--iterations", "2000"];
    let output = load(service.grpc_addr(), &[&other_users[..], &hits].concat()).await;
    let drawn = result(&output);
    assert_eq!(
        (output.status.code(), drawn["threshold"]["wrong"].as_u64()),
        (Some(0), Some(0)),
        "{drawn}"
    );
    assert!(drawn["over_limit"].as_u64() > Some(0), "{drawn}");

    let service = Weir::start(PER_USER, &[("GRPC_MAX_CONNECTION_AGE", "200ms")]);
    let rate = [
        "--rate",
        "2k",
        "--arrivals",
        "poisson",
        "--for",
        "2s",
        "--seed",
        "7",
    ];
    let output = load(service.grpc_addr(), &[&users[..], &rate].concat()).await;
    let open = result(&output);
    assert_eq!(output.status.code(), Some(0), "{open}");
    assert!(open["reconnections"].as_u64() > Some(4), "{open}");
    assert_eq!(open["errors"], serde_json::json!({}));
    let due = open["sent"].as_u64().expect("a count") + open["not_sent"].as_u64().expect("a count");
    assert!(
        (3_700..4_300).contains(&due),
        "a Poisson process of mean 4,000: {open}"
    );
    assert_counts_are_those_of(&service, &open);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_that_is_not_reached_is_reported_and_latency_counts_from_when_a_request_was_due() {
    let (toy, address) = Toy::start(Fault::Slow(Duration::from_millis(50))).await;
    let arguments = [
        "--descriptor",
        "user={sequence}",
        "--rate",
        "100",
        "--concurrency",
        "1",
    ];
    let more = ["--connections", "1", "--for", "1s"];
    let output = load(
        address,
        &[&arguments[..], &more, &["--format", "json"]].concat(),
    )
    .await;
    let result = result(&output);
    let count = |name: &str| result[name].as_u64().expect("a count");
    assert_eq!(output.status.code(), Some(0), "{result}");
    assert_eq!(count("sent") + count("not_sent"), 100, "{result}");
    assert!(count("sent") <= 21 && count("sent_late") > 0, "{result}");
    assert_eq!(toy.state(|state| state.requests), count("sent"));
    // Each answer takes 50 ms, and five requests are due meanwhile.
    assert!(
        result["latency_ms"]["max"].as_f64() > Some(300.0),
        "{result}"
    );
    let output = load(address, &[&arguments[..], &more].concat()).await;
    let printed = text(&output.stdout);
    assert!(
        printed.contains("behind    the rate was not reached: "),
        "{printed}"
    );
}

/// What was due is said at once, also where it is more than could be counted one by one.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_far_beyond_the_machine_ends_in_time() {
    let (toy, address) = Toy::start(Fault::None).await;
    let arguments = ["--descriptor", "user=x", "--rate", "1G", "--for", "1s"];
    let output = load(address, &[&arguments[..], &["--format", "json"]].concat()).await;
    let result = result(&output);
    let count = |name: &str| result[name].as_u64().expect("a count");
    assert_eq!(count("sent") + count("not_sent"), 1_000_000_000, "{result}");
    assert_eq!(toy.state(|state| state.requests), count("sent"));
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_with_the_result_so_far() {
    let (toy, address) = Toy::start(Fault::None).await;
    for pace in [&["--for", "1h"][..], &["--rate", "50", "--for", "1h"]] {
        let arguments = ["--descriptor", "user=x", "--format", "json"];
        let child = spawn(&address.to_string(), &[&arguments[..], pace].concat());
        let before = toy.state(|state| state.requests);
        let asked = eventually(|| {
            toy.state(|state| state.requests > before + 20)
                .then_some(())
        });
        assert!(asked.is_some());
        let process = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(process, rustix::process::Signal::INT).expect("a signal");
        let output = child.wait_with_output().expect("it ends");
        let result = result(&output);
        assert_eq!(output.status.code(), Some(0), "{result}");
        let count = |name: &str| result[name].as_u64().expect("a count");
        assert_eq!(
            (count("answered"), count("unfinished")),
            (count("sent"), 0),
            "{result}"
        );
        assert_eq!(
            toy.state(|state| state.requests) - before,
            count("sent"),
            "{result}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_headers_and_unix_sockets() {
    let (toy, address) = Toy::start(Fault::None).await;
    let one = ["--descriptor", "user=x", "--iterations", "1"];
    let output = load(
        address,
        &[&one[..], &["--header", "Authorization: Bearer t0k"]].concat(),
    )
    .await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        toy.state(|state| state.authorization.clone()).as_deref(),
        Some("Bearer t0k")
    );

    let (authority, files) = (Authority::new("first"), Files::new());
    let ca = files
        .write("ca.crt", &authority.pem())
        .display()
        .to_string();
    files.write_issued("tls", &authority.issue(&["127.0.0.1"]));
    let (certificate, key) = (files.text("tls.crt"), files.text("tls.key"));
    let tls = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &*certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
    ];
    let service = Weir::start(DEMO, &tls);
    let output = load(
        service.grpc_addr(),
        &[&one[..], &["--cacert", &ca]].concat(),
    )
    .await;
    assert!(
        text(&output.stdout).contains("answered  1: OK 1,"),
        "{}",
        text(&output.stderr)
    );
    let output = load(service.grpc_addr(), &one).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("does not speak gRPC ("),
        "{}",
        text(&output.stderr)
    );

    let socket = files.text("socket");
    let _service = Weir::start(DEMO, &[("GRPC_UDS", &socket)]);
    let output = spawn(&format!("unix:{socket}"), &one)
        .wait_with_output()
        .expect("it ends");
    assert!(
        text(&output.stdout).contains("answered  1: OK 1,"),
        "{}",
        text(&output.stderr)
    );
}

/// Arguments that are refused before anything is sent, with a part of the message.
const WRONG: &[(&str, &[&str], &str)] = &[
    ("a={who}", &[], "column 3: `{who}` is no generator"),
    ("a=b", &["--rate", "0"], "1 to 1G"),
    ("a=b", &["--arrivals", "poisson"], "--rate"),
    ("a=b", &["--for", "0s"], "more than 0"),
    ("a=b", &["--threshold", "10/week"], "100/minute"),
    ("a=b", &["--ramp", "0..5k"], "1 to 1G"),
    (
        "a=b",
        &["--ramp", "1..20", "--for", "500ms"],
        "a step is too short for one request; write --for 10s or more",
    ),
    (
        "a=b",
        &["--hits", "0", "--expect-ok", "9"],
        "requests of 0 hits count nothing",
    ),
    ("a=b", &["--header", "te: x"], "te cannot be set"),
    ("a=b", &["--pid", "weir=4294967295"], "there is no process"),
    ("a=b", &["--concurrency", "0"], "write 1 to 100000"),
];

#[test]
fn bad_input_is_refused() {
    let service = Weir::start(DEMO, &[]);
    let (folder, _) = folder_with(&[]);
    let http = service.http_addr().to_string();
    let closed = "127.0.0.1:1";
    let socket = format!("unix:{}/none", folder.path().display());
    let wrong = WRONG
        .iter()
        .map(|&(descriptor, more, part)| (closed, descriptor, more, 2, part));
    let services = [
        (
            closed,
            "a=b",
            &[][..],
            1,
            "no service at 127.0.0.1:1: it cannot be reached",
        ),
        (&*socket, "a=b", &[], 1, "none: it cannot be reached"),
        (&*http, "a=b", &[], 1, "does not speak gRPC"),
        (
            closed,
            "a=b",
            &["--address", closed],
            2,
            "cannot be used with",
        ),
    ];
    for (address, descriptor, more, code, part) in services.into_iter().chain(wrong) {
        let arguments = [
            "load",
            address,
            "-d",
            "demo",
            "--descriptor",
            descriptor,
            "--for",
            "1s",
        ];
        // A flag that is given twice is an error.
        let arguments = if more.contains(&"--for") {
            &arguments[..6]
        } else {
            &arguments
        };
        let output = weir(&[arguments, more].concat(), &[]);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{more:?} {printed}");
        assert!(
            printed.contains(part) && printed.lines().count() == 1,
            "{more:?} {printed}"
        );
        assert_eq!(text(&output.stdout), "", "{more:?}");
    }
}
