//! `weir hit`: requests to a running service, and its answers.

use std::process::Output;

use super::{shell, stderr, stdout, weir};
use crate::support::wait::eventually;
use crate::support::{self, Weir, http_client};

#[test]
fn hit_prints_json_for_programs() {
    let service = Weir::start(support::DEMO, &[]);
    let address = service.grpc_addr().to_string();
    let words = format!("hit -d demo --address {address} --format json -n 3 year=1 , x=y");
    let output = weir(&words.split(' ').collect::<Vec<_>>(), &[]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let answers: Vec<serde_json::Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(
        answers
            .iter()
            .map(|answer| answer["code"].as_str().expect("text"))
            .collect::<Vec<_>>(),
        ["OK", "OK", "OVER_LIMIT"]
    );
    let first = &answers[0]["descriptors"][0];
    assert_eq!(
        first["entries"],
        serde_json::json!([{"key": "year", "value": "1"}])
    );
    assert_eq!(
        first["limit"],
        serde_json::json!({
            "name": "yearly", "requests_per_unit": 2, "unit": "year", "unit_multiplier": 1,
        })
    );
    assert_eq!(
        (first["code"].as_str(), first["left"].as_u64()),
        (Some("OK"), Some(1))
    );
    let without = &answers[0]["descriptors"][1];
    assert_eq!(
        (&without["limit"], &without["left"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
}

#[tokio::test]
async fn hit_ends_when_its_output_is_closed_and_names_the_wrong_port() {
    let service = Weir::start(support::DEMO, &[]);
    let (grpc, http) = (
        service.grpc_addr().to_string(),
        service.http_addr().to_string(),
    );
    let (code, text) = shell(&format!(
        "\"$weir\" hit -d demo a=b --address {grpc} -n 4000000000 | head -1 >/dev/null; exit \
         ${{PIPESTATUS[0]}}"
    ));
    assert_eq!((code, text.as_str()), (Some(0), ""));
    for (arguments, code, part) in [
        (&[&*grpc, "a=b"][..], 0, "OK"),
        (&["a=b", &grpc], 2, "is not an entry"),
        (&["unix:/nowhere/socket", "a=b"], 1, "/nowhere/socket"),
    ] {
        let output = weir(&[&["hit", "-d", "demo"], arguments].concat(), &[]);
        let text = stdout(&output) + &stderr(&output);
        assert!(
            output.status.code() == Some(code) && text.contains(part),
            "{arguments:?}: {text}"
        );
    }
    let text = stderr(&weir(
        &["hit", "-d", "demo", "a=b", "--address", &http],
        &[],
    ));
    let expected = format!("what listens at {http} does not speak gRPC");
    assert!(text.contains(&expected), "{text}");
}

#[tokio::test]
async fn hit_prints_what_was_decided() {
    let service = Weir::start(support::DEMO, &[]);
    let address = service.grpc_addr().to_string();
    let hit = |more: &[&str]| {
        weir(
            &[
                &["hit", "--domain", "demo", "--address", &address][..],
                more,
            ]
            .concat(),
            &[],
        )
    };

    let output = hit(&["year=1", "--count", "3"]);
    let text = stdout(&output);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{}{}", text, stderr(&output));
    assert!(
        lines[0].starts_with("OK          year=1: 1 of 2 per year left (yearly), resets in "),
        "{text}"
    );
    assert!(
        lines[2].starts_with("OVER_LIMIT  year=1: 0 of 2 per year left (yearly), resets in "),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(3));

    assert!(
        stdout(&hit(&["year=2", "--hits", "0"])).contains("2 of 2"),
        "a look"
    );
    hit(&["year=2", "--hits", "2"]);
    assert!(
        stdout(&hit(&["year=2", "--hits", "-1"])).contains("1 of 2"),
        "one given back"
    );
    let several = stdout(&hit(&["year=3", ",", "unknown=key"]));
    assert!(
        several.contains("unknown=key: no limit: no file has the domain"),
        "not asked: {several}"
    );
}

/// Limits of every kind of answer without a store.
const OUTAGE: &str = "domain: d
descriptors:
  - key: a
    rate_limit: { unit: year, requests_per_unit: 3, on_store_failure: allow }
  - key: deny
    rate_limit: { unit: year, requests_per_unit: 3, on_store_failure: deny }
  - key: local
    rate_limit: { unit: year, requests_per_unit: 3, on_store_failure: local }
  - key: exempt
";

/// A service of [`OUTAGE`] whose Redis is away, and `weir hit` for it.
fn start_without_redis() -> (Weir, impl Fn(&str, &str, &[&str]) -> Output) {
    let redis = [("BACKEND_TYPE", "redis"), ("REDIS_URL", "127.0.0.1:1")];
    let service = Weir::start(&[("d.yaml", OUTAGE)], &redis);
    let address = service.grpc_addr().to_string();
    let admin = service.listener("debug").to_string();
    let hit = move |domain: &str, entry: &str, more: &[&str]| {
        let service = ["--address", &address, "--admin", &admin];
        let arguments = [&["hit", "-d", domain], &service[..], &[entry], more];
        weir(&arguments.concat(), &[])
    };
    (service, hit)
}

/// The policy that answers in an outage, and how often each has.
#[test]
fn hit_and_status_say_which_policy_answers() {
    let (service, hit) = start_without_redis();
    for (entry, code, policy) in [
        ("a=1", 0, "on_store_failure: allow"),
        ("deny=1", 3, "on_store_failure: deny"),
        ("local=1", 0, "on_store_failure: local"),
    ] {
        let output = hit("d", entry, &[]);
        assert!(stdout(&output).contains(policy), "{}", stdout(&output));
        assert_eq!(output.status.code(), Some(code), "{entry}");
        let json = stdout(&hit("d", entry, &["--format", "json"]));
        let answer: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(answer["descriptors"][0]["policy"], policy, "{json}");
    }
    let outage = eventually(|| {
        let status = http_client::get(service.listener("debug"), "/api/v1/status").body;
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        status.get("outage").cloned()
    });
    let outage = outage.expect("an outage");
    assert!(outage["since"].is_string(), "{outage}");
    assert_eq!(
        outage["answers"],
        serde_json::json!({ "error": 0, "allow": 2, "deny": 2, "local": 2 })
    );
}
