//! The admin API of real processes, as its description says, and the commands that call it.

pub mod schema;

use std::net::SocketAddr;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::http_client::{self, Response};
use crate::support::redis::RedisServer;
use crate::support::{Weir, ask, descriptor};
use schema::Answers;

const LIMITS: &[(&str, &str)] = &[(
    "shop.yaml",
    "\
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 10, algorithm: sliding_window_log }
  - key: user
    value: vip
    rate_limit: { unlimited: true }
  - key: path
    rate_limit: { unit: day, requests_per_unit: 2 }
",
)];

const TOKENS: &str = "ann:0123456789abcdef0123\n";

fn tokens() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), TOKENS).expect("written");
    file
}

/// A file of tokens, and the variable that names it.
fn with_tokens<'a>(
    file: &'a tempfile::NamedTempFile,
    further: &[(&'a str, &'a str)],
) -> Vec<(&'a str, &'a str)> {
    let path = file.path().to_str().expect("UTF-8");
    [&[("ADMIN_TOKEN_FILE", path)], further].concat()
}

fn get(address: SocketAddr, path: &str) -> Value {
    let page = http_client::get(address, path);
    assert_eq!(
        (page.status, page.header("cache-control")),
        (200, Some("no-store")),
        "{path}: {}",
        page.body
    );
    serde_json::from_str(&page.body).expect("JSON")
}

fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    http_client::call(
        address,
        "POST",
        path,
        &[("content-type", "application/json")],
        body.to_string().as_bytes(),
    )
}

async fn hit(weir: &Weir, entries: &[(&str, &str)], times: usize) {
    let mut client = weir.client().await;
    for _ in 0..times {
        ask(&mut client, "shop", vec![descriptor(entries)]).await;
    }
}

/// Runs a command against the debug listener of `weir`.
fn command(weir: &Weir, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .env_clear()
        .env("WEIR_ADMIN", weir.listener("debug").to_string())
        .envs(environment.iter().copied());
    command.args(arguments).output().expect("the binary runs")
}

fn printed(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn answers_are_what_the_description_says() {
    let (redis, file) = (RedisServer::start(), tokens());
    for url in [None, Some(redis.url())] {
        let store: Vec<_> = url.iter().map(|url| ("REDIS_URL", url.as_str())).collect();
        let weir = Weir::start(LIMITS, &with_tokens(&file, &store));
        let address = weir.listener("debug");
        hit(&weir, &[("user", "a")], 3).await;
        hit(&weir, &[("path", "/")], 3).await;
        hit(&weir, &[("none", "")], 1).await;
        let mut answers = Answers::default();
        for path in [
            "status",
            "limits",
            "limits?count=1",
            "limits?search=VIP",
            "limits?count=0",
            "decisions",
            "history",
            "decisions?domain=none",
            "top",
            "top?by=refused&window=hour",
            "top?by=size",
            "unmatched",
        ] {
            answers.add(
                "get",
                &format!("/api/v1/{path}"),
                &http_client::get(address, &format!("/api/v1/{path}")),
            );
        }
        let request = json!({ "domain": "shop", "descriptors": [
            { "entries": [{ "key": "user", "value": "a" }] },
            { "entries": [{ "key": "user", "value": "vip" }] },
            { "entries": [{ "key": "x", "value": "" }] },
            {
                "entries": [{ "key": "user", "value": "b" }],
                "limit": { "requests_per_unit": 3, "unit": "DAY" },
            },
        ] });
        let other =
            json!({ "domain": "other", "descriptors": [{ "entries": [{ "key": "user" }] }] });
        let named = |name: &str| format!("/api/v1/explain?subject={name}");
        for name in ["shop%7Cuser%3Da", "shop", "shop%7Cuser%23x"] {
            answers.add(
                "post",
                &named(name),
                &http_client::call(address, "POST", &named(name), &[], b""),
            );
        }
        for request in [request, other, json!({ "domian": "shop" })] {
            answers.add(
                "post",
                "/api/v1/explain",
                &post(address, "/api/v1/explain", &request),
            );
        }
        answers.validate(&http_client::get(address, "/api/v1/openapi.json").body);
    }
}

#[tokio::test]
async fn status_limits_and_decisions_are_shown() {
    let redis = RedisServer::start();
    let weir = Weir::start(LIMITS, &[("REDIS_URL", &redis.url())]);
    let address = weir.listener("debug");
    let status = get(address, "/api/v1/status");
    let of = |name: &str| status[name].clone();
    assert_eq!(
        [
            of("store"),
            of("healthy"),
            of("limits"),
            of("domains"),
            of("generation")
        ],
        [json!("redis"), json!(true), 3.into(), 1.into(), 1.into()]
    );
    assert_eq!(
        [of("may_change"), of("authorized_as")],
        [json!(false), Value::Null]
    );
    assert_eq!(of("redis")[0]["server"], redis.url());
    let limits = get(address, "/api/v1/limits?count=2");
    assert_eq!(
        (
            limits["total"].as_u64(),
            limits["next"].as_str(),
            limits["limits"].as_array().map(Vec::len)
        ),
        (Some(3), Some("2"), Some(2))
    );
    let rest = get(address, "/api/v1/limits?count=2&cursor=2");
    assert_eq!(
        (&rest["next"], &rest["limits"][0]["limit"]),
        (&Value::Null, &json!("shop.path"))
    );
    let found = get(address, "/api/v1/limits?search=USER_V");
    assert_eq!(
        (found["total"].as_u64(), &found["limits"][0]["from"]),
        (Some(1), &json!({ "document": "shop.yaml", "line": 5 }))
    );
    hit(&weir, &[("path", "/")], 5).await;
    hit(&weir, &[("user", "vip")], 1).await;
    hit(&weir, &[("none", "")], 2).await;
    let decisions = get(address, "/api/v1/decisions?count=1");
    assert_eq!(
        decisions["totals"],
        json!({ "ok": 2, "over_limit": 3, "unlimited": 1 })
    );
    assert_eq!(
        (&decisions["free"], &decisions["limits"]),
        (
            &json!(2),
            &json!([{
                "limit": "shop.path",
                "domain": "shop",
                "outcomes": { "ok": 2, "over_limit": 3 },
                "peeks": 0,
            }])
        )
    );
}

/// To explain counts nothing, also not in metrics, and a file of JSON is sent as it is.
fn assert_counts_nothing(weir: &Weir) {
    let (_folder, file) = super::cli::folder_with(&[(
        "request.json",
        r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}],"hitsAddend":"5"}]}"#,
    )]);
    let file = format!("{file}/request.json");
    let json = printed(&command(
        weir,
        &["explain", "--format", "json", "--json", &file],
        &[],
    ));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (
            &json["descriptors"][0]["live"]["used"],
            &json["descriptors"][0]["live"]["left"]
        ),
        (&json!(3), &json!(7))
    );
    assert_eq!(
        get(weir.listener("debug"), "/api/v1/decisions")["totals"],
        json!({ "ok": 3 })
    );
}

#[tokio::test]
async fn a_running_service_explains_what_is_left() {
    let redis = RedisServer::start();
    for variables in [vec![], vec![("REDIS_URL", redis.url())]] {
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let weir = Weir::start(LIMITS, &variables);
        hit(&weir, &[("user", "a")], 3).await;
        let arguments = [
            "explain", "-d", "shop", "user=a", ",", "user=vip", ",", "user",
        ];
        let wrong = command(&weir, &arguments, &[]);
        assert_eq!(
            (wrong.status.code(), wrong.stdout.len()),
            (Some(2), 0),
            "`user` is no entry"
        );
        let text = printed(&command(&weir, &arguments[..6], &[]));
        let reset = text
            .split("resets in ")
            .nth(1)
            .and_then(|rest| rest.lines().next())
            .expect("a time");
        let only = "; of this replica only";
        assert_eq!(reset.ends_with(only), variables.is_empty(), "{text}");
        let reset = reset.trim_end_matches(only).to_owned();
        assert!(
            reset.starts_with("59m ") || reset.starts_with("1h"),
            "{text}"
        );
        let expected = "\
user=a: 10 per hour
  user=a  matches user (any value); not: user=vip
  limit    rate 10 per hour, algorithm sliding_window_log
  from     shop.yaml:3
  counter  w1{shop|user=a}sl3600
  now      3 used, 7 left, resets in TIME
user=vip: unlimited
  user=vip  matches user=vip (exact value); later, so not used: user
  limit    rate unlimited
  from     shop.yaml:5
";
        assert_eq!(text.replace(&reset, "TIME").replace(only, ""), expected);
        assert_counts_nothing(&weir);
        // Files are asked where they are named.
        let files = printed(&command(
            &weir,
            &[
                "explain",
                "--config",
                &weir.config_dir().to_string_lossy(),
                "-d",
                "shop",
                "user=a",
            ],
            &[],
        ));
        assert!(!files.contains("now "), "{files}");
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_said() {
    let mut redis = RedisServer::start();
    let weir = Weir::start(LIMITS, &[("REDIS_URL", &redis.url())]);
    hit(&weir, &[("user", "a")], 1).await;
    redis.kill();
    let text = printed(&command(&weir, &["explain", "-d", "shop", "user=a"], &[]));
    assert!(text.contains("  now      unknown; "), "{text}");
    assert!(text.contains("; on_store_failure: error answers"), "{text}");
}

#[tokio::test]
async fn no_service_and_no_debug_listener_are_said() {
    let weir = Weir::start(LIMITS, &[]);
    let explain = |admin: &str| {
        command(
            &weir,
            &["explain", "-d", "shop", "user=a"],
            &[("WEIR_ADMIN", admin)],
        )
    };
    let refused = |admin: &str, code: i32, what: &str| {
        let output = explain(admin);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(code) && error.contains(what),
            "{admin}: {error}"
        );
    };
    refused(
        "127.0.0.1:1",
        1,
        "no service at 127.0.0.1:1: it cannot be reached",
    );
    refused(
        &weir.http_addr().to_string(),
        1,
        "is not the debug listener of a Weir",
    );
    refused("127.0.0.1", 2, "write HOST:PORT");
    refused("https://127.0.0.1:6070", 2, "has no TLS");
    let output = command(
        &weir,
        &["explain", "-d", "shop", "user=a"],
        &[("WEIR_ADMIN_TOKEN_FILE", "/nowhere")],
    );
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("--admin-token-file: /nowhere cannot be used")
    );
}

/// On other addresses nothing is shown without a token.
#[tokio::test]
async fn on_other_addresses_a_token_is_needed() {
    let file = tokens();
    let open = Weir::start(LIMITS, &with_tokens(&file, &[("DEBUG_HOST", "0.0.0.0")]));
    let port = open.listener("debug").port();
    let open_address = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(http_client::get(open_address, "/api/v1/limits").status, 401);
    let token_file = file.path().to_str().expect("UTF-8");
    let asked = command(
        &open,
        &[
            "explain",
            "-d",
            "shop",
            "user=a",
            "--admin",
            &open_address.to_string(),
            "--admin-token-file",
            token_file,
        ],
        &[],
    );
    assert!(printed(&asked).contains("10 left"));
    let closed = Weir::start(LIMITS, &[("DEBUG_HOST", "0.0.0.0")]);
    let address = SocketAddr::from(([127, 0, 0, 1], closed.listener("debug").port()));
    assert_eq!(
        (
            http_client::get(address, "/api/v1/limits").status,
            http_client::get(address, "/rlconfig").status
        ),
        (403, 200)
    );
}

/// A page of another site, in the browser of an operator who forwards the port.
#[tokio::test]
async fn other_sites_and_strangers_are_refused() {
    let file = tokens();
    let weir = Weir::start(LIMITS, &with_tokens(&file, &[]));
    let address = weir.listener("debug");
    let status = |headers: &[(&str, &str)]| {
        http_client::call(address, "GET", "/api/v1/status", headers, b"").status
    };
    assert_eq!(status(&[]), 200);
    for foreign in [
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "cross-site"),
        ("host", "evil.example:6070"),
    ] {
        assert_eq!(status(&[foreign]), 403, "{foreign:?}");
    }
    assert_eq!(
        status(&[("authorization", "Bearer wrong-wrong-wrong-wrong")]),
        401
    );
    weir.wait_for_log("admin API call rejected: its token is not in ADMIN_TOKEN_FILE")
        .await;
    let named = http_client::call(
        address,
        "GET",
        "/api/v1/status",
        &[("authorization", "Bearer 0123456789abcdef0123")],
        b"",
    );
    assert!(
        named.body.contains(r#""authorized_as":"ann""#),
        "{}",
        named.body
    );
    assert_eq!(
        http_client::call(address, "POST", "/api/v1/status", &[], b"").status,
        405
    );
    assert_eq!(http_client::get(address, "/api/v2/status").status, 404);
    let large = http_client::call(
        address,
        "POST",
        "/api/v1/explain",
        &[],
        &vec![b' '; 300 << 10],
    );
    assert_eq!(large.status, 413, "{}", large.body);
}
