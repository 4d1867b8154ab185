//! Replicas whose limits differ: their digests, `weir explain` of all of them, and `weir top --by
//! replica`.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Weir, descriptor, http_client, request};

/// The limit of a user, and another one that all have.
fn limits(a_minute: u32) -> String {
    format!(
        "domain: shop\ndescriptors:\n- key: user\n  rate_limit: {{ unit: year, \
         requests_per_unit: {a_minute} }}\n- key: path\n  rate_limit: {{ unit: year, \
         requests_per_unit: 9 }}\n"
    )
}

/// The digest of a replica, which its metric, its status and the line of its load have too.
async fn digest(weir: &Weir) -> String {
    let status = http_client::get(weir.listener("debug"), "/api/v1/status");
    let status: Value = serde_json::from_str(&status.body).expect("JSON");
    let digest = status["digest"].as_str().expect("a digest").to_owned();
    assert_eq!(digest.len(), 16, "{digest}");
    let series = format!("weir_config_info{{digest=\"{digest}\"}}");
    assert_eq!(weir.metric(&series), Some(1.0), "{series}");
    let line = weir.wait_for_log("limits loaded").await;
    assert!(line.contains(&digest), "{line}");
    digest
}

fn command(arguments: &[&str], admin: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).env_clear().env("WEIR_ADMIN", admin);
    command.output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn replicas_with_other_limits_differ() {
    let start = |name: &str, text: &str| Weir::start(&[(name, text)], &[]);
    let (one, other) = (start("a.yaml", &limits(600)), start("a.yaml", &limits(2)));
    let (_, rest) = limits(600)
        .split_once("- key: user")
        .map(own)
        .expect("a key");
    let (user, path) = rest.split_once("- key: path").map(own).expect("a key");
    // The same in another order, with a comment, in a file of another name.
    let same = format!("domain: shop\n# Limits.\ndescriptors:\n- key: path{path}- key: user{user}");
    let same = start("b.yaml", &same);
    let first = digest(&one).await;
    assert_eq!(first, digest(&same).await);
    assert_ne!(first, digest(&other).await);

    let mut client = other.client().await;
    for _ in 0..2 {
        let asked = request("shop", vec![descriptor(&[("user", "ann")])]);
        client.should_rate_limit(asked).await.expect("an answer");
    }
    let [one, same, other] = [&one, &same, &other].map(|weir| weir.listener("debug").to_string());
    let all = format!("{one},{same},{other},127.0.0.1:1");
    let explain = ["explain", "-d", "shop", "user=ann", ",", "path=/"];
    let explained = command(&explain, &all);
    let error = String::from_utf8_lossy(&explained.stderr).into_owned();
    assert!(
        error.starts_with("weir: no service at 127.0.0.1:1"),
        "{error}"
    );
    let text = stdout(&explained);
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.contains("differs"))
        .collect();
    let expected = format!(
        "differs: {other}: user=ann: rate 2 per year, not 600 per year; refused now true, not false"
    );
    assert_eq!(lines, [expected.as_str()], "{text}");
    assert!(text.contains("0 used, 600 left"), "{text}");
    let json = [&explain[..], &["--format", "json"]].concat();
    let report: Value = serde_json::from_str(&stdout(&command(&json, &all))).expect("JSON");
    let line = expected.trim_start_matches("differs: ");
    assert_eq!(report["differs"], serde_json::json!([line]));
    assert_eq!(report["domain"], "shop");
    // Replicas that agree, and one alone, have no such line.
    for admin in [format!("{one},{same}"), one.clone()] {
        let text = stdout(&command(&json, &admin));
        assert!(!text.contains("differs"), "{text}");
    }
    by_replica(&[&one, &same, &other], &first);
}

/// Another row, another domain and another order do not decide these requests; an override does.
#[test]
fn only_differences_that_decide_the_request_are_named() {
    let table = "domain: shop\ndescriptors:\n- key: user\n  table: rows.csv\n  rate_limit: { unit: \
        year, requests_per_unit: 9 }\n- key: path\n  value: /a*\n  rate_limit: { unit: year, \
        requests_per_unit: 9 }\n- key: path\n  value: /*b\n  rate_limit: { unit: year, \
        requests_per_unit: 8 }\n";
    let (head, patterns) = table.split_at(table.find("- key: path").expect("a pattern"));
    let (first, second) = patterns.split_at(patterns.rfind("- key: path").expect("a pattern"));
    let turned = [head, second, first].concat();
    let rows = "value,unit,requests_per_unit\nann,year,5\n";
    let more = [rows, "zed,year,4\n"].concat();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("overrides.json");
    let raise = r#"{"overrides": [{"kind": "raise", "domain": "shop", "entries": [{"key": "user",
        "value": "ann"}], "to": {"requests_per_unit": 7, "unit": "year"}}]}"#;
    std::fs::write(&file, raise).expect("written");
    let overrides = [("OVERRIDES_FILE", file.to_str().expect("UTF-8"))];
    let one = Weir::start(&[("a.yaml", table), ("rows.csv", rows)], &[]);
    let raised = Weir::start(&[("a.yaml", table), ("rows.csv", rows)], &overrides);
    let another = limits(1).replace("domain: shop", "domain: e");
    let other = [
        ("a.yaml", &*turned),
        ("e.yaml", &another),
        ("rows.csv", &more),
    ];
    let other = Weir::start(&other, &[]);
    let [one, raised, other] =
        [&one, &raised, &other].map(|weir| weir.listener("debug").to_string());
    let explain = [
        "explain", "-d", "shop", "user=ann", ",", "user=bob", ",", "path=/ax",
    ];
    let lines = |arguments: &[&str], admin: String| -> Vec<String> {
        let text = stdout(&command(arguments, &admin));
        let differing = text.lines().filter(|line| line.starts_with("differs"));
        differing.map(str::to_owned).collect()
    };
    assert_eq!(lines(&explain, format!("{one},{other}")), [""; 0]);
    let order = ["explain", "-d", "shop", "path=/ab"];
    let expected = format!(
        "differs: {other}: path=/ab: rate 8 per year, not 9 per year; limit shop.path_/*b, not \
         shop.path_/a*"
    );
    assert_eq!(lines(&order, format!("{one},{other}")), [expected]);
    let by_override = lines(&explain, format!("{one},{raised}"));
    let expected = format!("differs: {raised}: user=ann: override raise to 7");
    assert!(
        by_override.len() == 1 && by_override[0].starts_with(&expected),
        "{by_override:?}"
    );
}

/// Texts of their own.
fn own((one, other): (&str, &str)) -> (String, String) {
    (one.to_owned(), other.to_owned())
}

fn by_replica([one, same, other]: &[&String; 3], digest: &str) {
    let admin = format!("{one},{same},{other}");
    let table = stdout(&command(&["top", "--by", "replica"], &admin));
    let rows: Vec<Vec<_>> = table
        .lines()
        .map(|row| row.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows[0],
        [
            "HITS/S",
            "REFUSED/S",
            "DIGEST",
            "STARTED",
            "ADDRESS",
            "REPLICA"
        ]
    );
    assert_eq!(rows.len(), 4, "{table}");
    for (row, address) in rows[1..].iter().zip([one, same, other]) {
        assert_eq!(row[2] == digest, address != other, "{table}");
        assert!(row.contains(&address.as_str()), "{table}");
    }
    let hits: f64 = rows[3][0].parse().expect("a number");
    assert!(hits > 0.0, "{table}");
    let json = stdout(&command(
        &["top", "--by", "replica", "--format", "json"],
        &admin,
    ));
    let report: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(report["answers"][0]["digest"], digest);
    assert_eq!(report["answers"][2]["address"], ***other);
    let none = command(&["top", "--by", "replica"], "127.0.0.1:1");
    assert_eq!(none.status.code(), Some(1), "{none:?}");
}
