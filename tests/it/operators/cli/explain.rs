//! `weir explain`: the limits that a request finds in files, and why no others.

use super::{folder_with, stderr, stdout, weir};

const FILE: &str = "\
domain: shop
descriptors:
  - key: user
    value: \"vip-*\"
    rate_limit: { unit: minute, requests_per_unit: 100, algorithm: token_bucket, burst: 200 }
  - key: user
    value: vip-bob
    rate_limit: { unlimited: true }
  - key: user
    shadow_mode: true
    rate_limit: { name: each-user, unit: minute, requests_per_unit: 10 }
    descriptors:
      - key: path
        value: /pay
        rate_limit: { unit: hour, requests_per_unit: 3, replaces: [{ name: each-user }] }
";

fn explain(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let (_folder, path) = folder_with(&[("shop.yaml", FILE)]);
    let output = weir(
        &[&["explain", "--config", &path], arguments].concat(),
        environment,
    );
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn every_level_says_what_matches_and_what_does_not() {
    let text = explain(
        &[
            "-d",
            "shop",
            "user=vip-ann",
            ",",
            "user=vip-bob",
            ",",
            "user=eve",
            "path=/pay",
            ",",
            "user=eve",
            "path=/x",
        ],
        &[],
    );
    let expected = "\
user=vip-ann: 100 per minute
  user=vip-ann  matches user=vip-* (pattern); later, so not used: user; not: user=vip-bob
  limit    rate 100 per minute, algorithm token_bucket, burst 200
  from     shop.yaml:3
  counter  w1{shop|user=vip-ann}tb60
user=vip-bob: unlimited
  user=vip-bob  matches user=vip-bob (exact value); later, so not used: user=vip-*, user
  limit    rate unlimited
  from     shop.yaml:6
user=eve path=/pay: 3 per hour
  user=eve   matches user (any value); not: user=vip-*, user=vip-bob
  path=/pay  matches path=/pay (exact value)
  limit    rate 3 per hour, algorithm fixed_window, count_denied true, replaces each-user
  from     shop.yaml:13
  counter  w1{shop|user=eve|path=/pay}fw3600
user=eve path=/x: not limited: no branch matches the entry path=/x; its level has the keys path
  user=eve  matches user (any value); not: user=vip-*, user=vip-bob
  path=/x   matches nothing; not: path=/pay
";
    assert_eq!(text, expected);
}

#[test]
fn json_is_for_programs_and_may_be_the_request() {
    let (_folder, path) = folder_with(&[
        ("shop.yaml", FILE),
        (
            "request.txt",
            r#"{"domain": "shop", "descriptors": [
        {"entries": [{"key": "user", "value": "a\u001b[2J"}]},
        {"entries": [{"key": "user", "value": "b"}], "limit": {"requestsPerUnit": 7, "unit": "HOUR"}}]}"#,
        ),
    ]);
    let limits = format!("{path}/shop.yaml");
    let request = format!("{path}/request.txt");
    let output = weir(
        &[
            "explain", "--config", &limits, "--json", &request, "--format", "json",
        ],
        &[],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(answer["domain"], "shop");
    let [first, second] = &answer["descriptors"].as_array().expect("a list")[..] else {
        panic!("{answer}")
    };
    assert_eq!(
        (&first["outcome"], &first["limit"]["path"]),
        (&"checked".into(), &"shop.user".into())
    );
    assert_eq!(
        (&first["levels"][0]["matched"], &first["levels"][0]["how"]),
        (&"user".into(), &"any value".into())
    );
    assert_eq!(first["limit"]["fields"]["rate"], "10 per minute");
    assert_eq!(
        (&second["outcome"], &second["reason"]),
        (&"checked".into(), &"the request has its own limit".into())
    );
    assert_eq!(second["counter"], "w1{shop|user=b}fw3600");
    let text = stdout(&weir(
        &["explain", "--config", &limits, "--json", &request],
        &[],
    ));
    assert!(
        !text.contains('\u{1b}') && text.contains("\\u{1b}[2J"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_explained_is_an_error() {
    let (_folder, path) = folder_with(&[
        ("bad.yaml", "domain: d\ndescriptors: 3\n"),
        ("bad.txt", "{"),
        ("good.yaml", FILE),
    ]);
    let (good, bad) = (format!("{path}/good.yaml"), format!("{path}/bad.yaml"));
    let text = format!("{path}/bad.txt");
    let cases: [(&[&str], i32, &str); 5] = [
        (&["user=a"], 2, "--domain"),
        (
            &["-d", "demo", "user=a", ","],
            2,
            "a descriptor has no entries",
        ),
        (
            &["--json", "/nonexistent"],
            1,
            "/nonexistent cannot be read",
        ),
        (&["--json", &text, "--config", &good], 2, "EOF"),
        (&["-d", "demo", "user=a", "--config", &bad], 1, "bad.yaml"),
    ];
    for (arguments, code, what) in cases {
        let output = weir(&[&["explain"], arguments].concat(), &[]);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(what),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}
