//! Amounts of limits with `scale` have decimals, in explanations and raises.

use std::process::Command;

use serde_json::{Value, json};

use super::service::{api, hit};
use crate::support::wait::eventually_async;
use crate::support::{Weir, http_client};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shop
descriptors:
  - key: cents
    rate_limit: { unit: year, requests_per_unit: 10, scale: 100, track_usage: true }
  - key: dozens
    rate_limit: { unit: year, requests_per_unit: 10, scale: 12, track_usage: true }
  - key: plain
    rate_limit: { unit: year, requests_per_unit: 10, track_usage: true }
",
)];

const TOKEN: &str = "alice:0123456789abcdef0123\n";

fn fields<'a>(of: &'a Value, names: &[&str]) -> Vec<&'a Value> {
    names.iter().map(|name| &of[name]).collect()
}

fn explained(weir: &Weir, subject: &str) -> Value {
    let path = format!("/api/v1/explain?subject=shop%7C{subject}");
    let answer = http_client::post(weir.listener("debug"), &path, b"");
    let report: Value = serde_json::from_str(&answer.body).expect("JSON");
    report["descriptors"][0].clone()
}

/// Runs a command: whether it succeeds, and its output.
type Run<'r> = &'r dyn Fn(&[&str]) -> (bool, String);

#[tokio::test]
async fn amounts_have_decimals() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, TOKEN).expect("written");
    let tokens = tokens.to_str().expect("UTF-8");
    let weir = Weir::start(LIMITS, &[("ADMIN_TOKEN_FILE", tokens)]);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .env_clear()
            .env("WEIR_ADMIN", weir.listener("debug").to_string());
        command.env("WEIR_ADMIN_TOKEN_FILE", tokens);
        let output = command.args(arguments).output().expect("the binary runs");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8(text).expect("UTF-8"),
        )
    };
    let client = &mut weir.client().await;
    for (key, hits) in [("cents", 99), ("dozens", 5), ("plain", 3)] {
        hit(client, (key, "a"), hits).await;
    }
    assert_live(&weir);
    assert_raises(&weir, &run).await;
    assert_overrides(&weir, &run);
}

fn assert_live(weir: &Weir) {
    let names = ["used", "used_hits", "left", "left_hits"];
    let live = |subject| explained(weir, subject)["live"].clone();
    let expected = [json!(0.99), json!(99), json!(9.01), json!(901)];
    assert_eq!(
        fields(&live("cents%3Da"), &names),
        expected.iter().collect::<Vec<_>>()
    );
    // 5 and 115 of 12 hits: used ones are rounded up, those that are left down.
    let expected = [json!(0.42), json!(5), json!(9.58), json!(115)];
    assert_eq!(
        fields(&live("dozens%3Da"), &names),
        expected.iter().collect::<Vec<_>>()
    );
    let expected = [json!(3), Value::Null, json!(7), Value::Null];
    assert_eq!(
        fields(&live("plain%3Da"), &names),
        expected.iter().collect::<Vec<_>>()
    );
}

async fn assert_raises(weir: &Weir, run: Run<'_>) {
    let live = |subject| explained(weir, subject)["live"].clone();
    let raise = |entry: &str, to: &str| run(&["raise", "-d", "shop", entry, "--to", to]);
    for (to, left) in [
        ("+0.5/year", 9.51),
        ("+0.2/year", 9.71),
        ("12.25/year", 11.26),
    ] {
        let (is_raised, text) = raise("cents=a", to);
        assert!(is_raised, "{to}: {text}");
        let is_it = || live("cents%3Da")["left"] == json!(left);
        let found = eventually_async(|| is_it().then_some(())).await;
        assert!(found.is_some(), "{to}: {}", live("cents%3Da"));
    }
}

fn assert_overrides(weir: &Weir, run: Run<'_>) {
    let raise = |entry: &str, to: &str| run(&["raise", "-d", "shop", entry, "--to", to]);
    let (_, overrides) = api(weir, "overrides");
    let kinds = overrides["overrides"].as_array().expect("a list").iter();
    let to: Vec<_> = kinds
        .map(|one| one["to"]["requests_per_unit"].clone())
        .collect();
    assert_eq!(to, [json!(12.25)], "{overrides}");
    assert!(run(&["overrides"]).1.contains("12.25/year"));
    for (entry, to, error) in [
        (
            "cents=a",
            "+0.001/year",
            "scale` of 100; write a multiple of 1/100",
        ),
        (
            "plain=a",
            "10.5/year",
            "has no `scale`; write a whole number",
        ),
        ("cents=a", "9.99/year", "already; write a larger amount"),
        ("cents=a", "+-0.5/year", "write HITS/UNIT"),
    ] {
        let (is_raised, text) = raise(entry, to);
        assert!(!is_raised && text.contains(error), "{entry} {to}: {text}");
    }
}
