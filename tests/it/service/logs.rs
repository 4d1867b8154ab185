//! The log of reloads and, at debug level, of decisions.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::log::Log;
use crate::support::wait::eventually;
use crate::support::{DEMO, Weir, ask, descriptor, http_client, ports, raw_call};

/// The lines of the log as JSON whose message begins with `start`.
fn lines(weir: &Weir, start: &str) -> Vec<Value> {
    let all = weir.logs().into_iter().map(|line| {
        serde_json::from_str::<Value>(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    });
    all.filter(|line| message(line).starts_with(start))
        .collect()
}

fn message(line: &Value) -> &str {
    line["@message"].as_str().expect("text")
}

fn limits(per_day: &[(&str, u32)]) -> String {
    let limit = |(key, count): &(&str, u32)| {
        format!("- key: \"{key}\"\n  rate_limit: {{ unit: day, requests_per_unit: {count} }}\n")
    };
    format!(
        "domain: d\ndescriptors:\n{}",
        per_day.iter().map(limit).collect::<String>()
    )
}

#[tokio::test]
async fn a_reload_tells_which_limits_it_changed() {
    let many: Vec<String> = (0..25).map(|number| format!("many{number:02}")).collect();
    let weir = Weir::start(
        &[(
            "a.yaml",
            &limits(&[("kept", 1), ("changed", 1), ("removed", 1)]),
        )],
        &[],
    );
    assert_eq!(
        lines(&weir, "limits ").len(),
        1,
        "the first limits are all new"
    );
    let replace =
        |text: &str| std::fs::write(weir.config_dir().join("a.yaml"), text).expect("written");
    replace(&limits(&[("kept", 1), ("changed", 2), ("ad\\nded", 1)]));
    weir.wait_for_log("limits changed").await;
    let told: Vec<_> = lines(&weir, "limits ");
    let counts = |line: &Value| {
        ["generation", "added", "removed", "changed"].map(|name| line[name].as_u64())
    };
    assert_eq!(
        (message(&told[0]), counts(&told[0])),
        ("limits loaded", [Some(1), None, None, None])
    );
    assert_eq!(
        (message(&told[1]), counts(&told[1])),
        ("limits loaded", [Some(2), Some(1), Some(1), Some(1)])
    );
    let texts: Vec<_> = told[2..].iter().map(message).collect();
    let expected = [
        "limits added: d.ad\\nded (1 per day)",
        "limits removed: d.removed (1 per day)",
        "limits changed: d.changed: rate 1 per day -> 2 per day",
    ];
    assert_eq!(texts, expected);
    // The lines are bounded, and a change that concerns no limit has none.
    let all: Vec<_> = many.iter().map(|key| (key.as_str(), 1)).collect();
    replace(&limits(&all));
    let line = weir.wait_for_log("limits added: d.many00").await;
    assert!(
        line.contains("d.many09 (1 per day); and 15 more") && !line.contains("many10"),
        "{line}"
    );
    let before = lines(&weir, "limits ").len();
    replace(&format!("# a comment\n{}", limits(&all)));
    weir.wait_for_log(r#""generation":4,"added":0,"removed":0,"changed":0"#)
        .await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(lines(&weir, "limits ").len(), before + 1);
}

/// Requests of which twenty descriptors have a line: three kinds of descriptors, two more that use
/// up the limit, an unknown domain, and one request with more descriptors than lines.
async fn ask_for_twenty_lines(weir: &Weir) {
    let mut client = weir.client().await;
    let forged = format!("a\", year=\"b\n\u{1b}[2J{}", "x".repeat(20_000));
    let year = || descriptor(&[("year", "1")]);
    let other = || descriptor(&[("other", "1")]);
    for (domain, descriptors) in [
        ("demo", vec![year()]),
        (
            "demo",
            vec![other(), descriptor(&[("year", "1"), ("more", &forged)])],
        ),
        ("demo", vec![other()]),
        ("demo", vec![year()]),
        ("demo", vec![year()]),
        ("unknown", vec![year()]),
        ("demo", vec![year(); 100]),
    ] {
        ask(&mut client, domain, descriptors).await;
    }
}

#[tokio::test]
async fn decisions_of_chosen_descriptors_are_logged_at_debug_level() {
    let weir = Weir::start(
        DEMO,
        &[("LOG_LEVEL", "debug"), ("LOG_DECISIONS", "demo,year")],
    );
    ask_for_twenty_lines(&weir).await;
    let eventually = crate::support::wait::eventually_async(|| {
        (lines(&weir, "decision").len() >= 20).then_some(())
    })
    .await;
    eventually.unwrap_or_else(|| panic!("{:#?}", weir.logs()));
    let told = lines(&weir, "decision");
    let fields = |line: &Value| {
        ["message", "code", "limit", "by", "remaining"].map(|name| match &line[name] {
            _ if name == "message" => message(line).to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    };
    let decided = |code: &str, remaining: u32| {
        [
            "decision",
            code,
            "demo.year",
            "store",
            &remaining.to_string(),
        ]
        .map(str::to_owned)
    };
    assert_eq!(fields(&told[0]), decided("OK", 1));
    assert_eq!(told[0]["descriptor"], "year=\"1\"");
    assert_eq!(
        (message(&told[1]), &told[1]["code"]),
        ("decision: no limit applies", &Value::from("OK"))
    );
    let text = told[1]["descriptor"].as_str().expect("text");
    assert!(
        text.starts_with("year=\"1\", more=\"a\\\", year=\\\"b\\n\\u{1b}[2Jxxx")
            && text.ends_with("...\"")
            && text.len() < 120,
        "{text}"
    );
    assert_eq!(fields(&told[2]), decided("OK", 0));
    assert_eq!(fields(&told[3]), decided("OVER_LIMIT", 0));
    assert!(
        told[3]["retry_after"]
            .as_str()
            .is_some_and(|time| time.ends_with('s')),
        "{}",
        told[3]
    );
    assert_eq!(
        told.len(),
        4 + 16,
        "a request has a bounded number of lines"
    );
    assert!(
        told.iter()
            .all(|line| line["level"] == "debug" && line["domain"] == "demo"),
        "{told:#?}"
    );
    // A message that cannot be decoded has no decision.
    raw_call(&weir, b"\xff").await.expect_err("malformed");
}

#[tokio::test]
async fn without_debug_level_no_decision_is_logged_and_the_log_says_so() {
    for environment in [&[("LOG_DECISIONS", "*")][..], &[("LOG_LEVEL", "debug")]] {
        let weir = Weir::start(DEMO, environment);
        ask(
            &mut weir.client().await,
            "demo",
            vec![descriptor(&[("year", "1")])],
        )
        .await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert_eq!(
            lines(&weir, "decision"),
            [] as [Value; 0],
            "{environment:?}"
        );
        let warned = lines(&weir, "LOG_DECISIONS has no effect");
        assert_eq!(
            warned.len(),
            usize::from(environment[0].0 == "LOG_DECISIONS"),
            "{environment:?}"
        );
    }
}

#[tokio::test]
async fn refusals_are_logged_with_a_bound_for_each_limit() {
    let weir = Weir::start(DEMO, &[("LOG_REFUSALS", "2")]);
    let mut client = weir.client().await;
    let began = std::time::Instant::now();
    for _ in 0..40 {
        ask(
            &mut client,
            "demo",
            vec![
                descriptor(&[("year", "a\n\u{1b}[2J")]),
                descriptor(&[("year", "b")]),
            ],
        )
        .await;
    }
    let within = began.elapsed().as_secs() as usize;
    // Two hits of each value are allowed; the other 76 share the lines of their limit.
    let told = crate::support::wait::eventually_async(|| {
        Some(lines(&weir, "refused")).filter(|lines| lines.len() >= 2)
    })
    .await
    .expect("lines");
    assert!(told.len() <= 2 * (within + 2), "{told:#?}");
    let line = &told[0];
    let fields = ["level", "domain", "descriptor", "limit", "from", "by"]
        .map(|name| line[name].as_str().expect("text"));
    assert_eq!(
        fields,
        [
            "info",
            "demo",
            "year=\"a\\n\\u{1b}[2J\"",
            "demo.year",
            "demo.yaml:4",
            "store"
        ]
    );
    assert_eq!(
        (&line["hits"], &line["left_out"]),
        (&Value::from(1), &Value::Null)
    );
    assert!(
        line["retry_after"]
            .as_str()
            .is_some_and(|time| time.ends_with('s')),
        "{line}"
    );
    // A second later there is a line again, which says how many had none.
    let lines_before = told.len();
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    ask(&mut client, "demo", vec![descriptor(&[("year", "b")])]).await;
    let later = crate::support::wait::eventually_async(|| {
        Some(lines(&weir, "refused")).filter(|lines| lines.len() > lines_before)
    })
    .await;
    let left_out: u64 = later
        .expect("one more")
        .iter()
        .filter_map(|line| line["left_out"].as_u64())
        .sum();
    let written = lines(&weir, "refused").len() as u64;
    assert_eq!(
        left_out + written,
        77,
        "every refusal has a line or is counted"
    );
}

/// A service with a debug listener on this port, whose log is piped.
fn serving(limits: &Path, tokens: &Path, debug_port: u16) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.env_clear().args([
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--grpc-host",
        "127.0.0.1",
        "--grpc-port",
        "0",
    ]);
    command
        .arg("--config")
        .arg(limits)
        .arg("--admin-token-file")
        .arg(tokens)
        .args(["--debug-port", &debug_port.to_string()])
        .stderr(Stdio::piped());
    command
}

/// Each change is a line with its target whatever the log leaves out, and no text in it looks like
/// another field.
#[test]
fn audit_lines_are_written_at_every_level() {
    let folder = tempfile::tempdir().expect("a folder");
    let (tokens, limits) = (
        folder.path().join("tokens"),
        folder.path().join("limits.yaml"),
    );
    std::fs::write(&tokens, "alice:0123456789abcdef0123\n")
        .and_then(|()| std::fs::write(&limits, DEMO[0].1))
        .expect("written");
    let reason = "x\\\" by=root target=\"weir::audit\u{202e}";
    for (level, format) in [
        ("off", "text"),
        ("off", "json"),
        ("warn", "text"),
        ("error", "json"),
        ("weir=off,weir::audit=off", "text"),
    ] {
        let debug = ports::free();
        let mut command = serving(&limits, &tokens, debug.port());
        command.args(["--log-level", level, "--log-format", format]);
        let mut weir = command.spawn().expect("the binary runs");
        let log = Log::follow(weir.stderr.take().expect("stderr is piped"));
        let opened = eventually(|| std::net::TcpStream::connect(debug).ok());
        let order = serde_json::json!({
            "kind": "block",
            "domain": "demo",
            "entries": [{ "key": "year", "value": "v" }],
            "reason": reason,
        });
        let token = [("authorization", "Bearer 0123456789abcdef0123")];
        let answer = http_client::call(
            debug,
            "POST",
            "/api/v1/overrides",
            &token,
            order.to_string().as_bytes(),
        );
        let line = eventually(|| {
            log.lines()
                .into_iter()
                .find(|line| line.contains("override set"))
        });
        weir.kill().and_then(|()| weir.wait()).expect("it ran");
        assert!(
            opened.is_some() && answer.status == 201,
            "{level} {format}: {}",
            answer.body
        );
        let line = line.unwrap_or_else(|| panic!("{level} {format}: {}", log.text()));
        if format == "json" {
            let line: Value = serde_json::from_str(&line).expect("JSON");
            assert_eq!(
                [&line["target"], &line["by"], &line["reason"]],
                ["weir::audit", "alice", reason]
            );
        } else {
            assert!(
                line.contains("  INFO override set target=weir::audit id=")
                    && line.contains(" by=alice "),
                "{line}"
            );
            let quoted = Value::from(reason)
                .to_string()
                .replace('\u{202e}', "\\u202e");
            assert!(line.contains(&format!(" reason={quoted}")), "{line}");
        }
        assert_eq!(log.lines().len(), 1, "{level} {format}: {}", log.text());
    }
}
