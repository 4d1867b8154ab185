//! `trial`: its cost, and what operators see of it. `tests/vectors/decisions/trials.txt` and
//! `trials_outage.txt` have the decisions.

use std::cell::RefCell;

use serde_json::{Value, json};
use weir::core::proto::rate_limit_response::Code;

use crate::operators::admin::schema::Answers;
use crate::support::http_client::Response;
use crate::support::wait::eventually;
use crate::support::{Client, RedisServer, Weir, descriptor, http_client, request};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &str = "
domain: d
descriptors:
  - key: tighter
    rate_limit: { unit: year, requests_per_unit: 10, track_usage: true, usage_interval: 1h, \
        trial: { requests_per_unit: 3 } }
  - key: other
    rate_limit: { unit: year, requests_per_unit: 10, trial: { algorithm: token_bucket, \
        requests_per_unit: 4 } }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket, \
        trial: { requests_per_unit: 4, burst: 4 } }
  - key: open
    rate_limit: { unlimited: true, track_usage: true, trial: { unit: year, requests_per_unit: 2 } }
  - key: allow
    rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: allow, \
        trial: { requests_per_unit: 1 } }
";

const FILES: &[(&str, &str)] = &[("limits.yaml", LIMITS)];

/// Who may change what is in force.
const TOKEN: &str = "0123456789abcdef0123";

async fn each_store(test: impl AsyncFn(&mut Client, &Weir)) {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, format!("alice:{TOKEN}\n")).expect("written");
    let tokens = ("ADMIN_TOKEN_FILE", tokens.to_str().expect("UTF-8"));
    let weir = Weir::start(FILES, &[tokens]);
    test(&mut weir.client().await, &weir).await;
    let redis = RedisServer::start();
    let weir = Weir::start(
        FILES,
        &[tokens, ("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
    );
    test(&mut weir.client().await, &weir).await;
    // That of the overrides is kept.
    redis.run::<i64>(&["DEL", "w1{|overrides}"]);
    redis.assert_every_key_expires();
}

/// How many requests were let in.
async fn passed(client: &mut Client, key: &str, requests: usize) -> usize {
    let mut passed = 0;
    for _ in 0..requests {
        let one = request("d", vec![descriptor(&[(key, "a")])]);
        let answer = client.should_rate_limit(one).await.expect("an answer");
        passed += usize::from(answer.into_inner().overall_code() == Code::Ok);
    }
    passed
}

#[tokio::test]
async fn a_trial_costs_one_check_in_the_same_batch() {
    let redis = RedisServer::start();
    let weir = Weir::start(
        FILES,
        &[
            ("REDIS_URL", &redis.url()),
            ("STORE_TIMEOUT", "5s"),
            ("WORKERS", "1"),
        ],
    );
    let client = &mut weir.client().await;
    passed(client, "bucket", 1).await;
    passed(client, "allow", 1).await;
    let before = ["evalsha", "incrby"].map(|command| redis.calls(command));
    passed(client, "bucket", 3).await;
    passed(client, "allow", 3).await;
    let after = ["evalsha", "incrby"].map(|command| redis.calls(command));
    assert_eq!(
        [after[0] - before[0], after[1] - before[1]],
        [3, 6],
        "one script for both, or a command each"
    );
    let keys = redis.keys();
    let has = |begin: &str| keys.iter().any(|key| key.starts_with(begin));
    assert!(
        has("w1{d|bucket=a}tb")
            && has("w1{d|bucket=a}trtb")
            && has("w1{d|allow=a}fw")
            && has("w1{d|allow=a}trfw"),
        "{keys:?}"
    );
}

/// The answer of the admin API.
fn api(weir: &Weir, method: &str, call: &str, body: &str) -> Response {
    let headers = [
        ("authorization", &*format!("Bearer {TOKEN}")),
        ("content-type", "application/json"),
    ];
    http_client::call(
        weir.listener("debug"),
        method,
        &format!("/api/v1/{call}"),
        &headers,
        body.as_bytes(),
    )
}

/// The answers of the admin API, which have to have the described form.
struct Described<'w> {
    weir: &'w Weir,
    answers: RefCell<Answers>,
}

impl Described<'_> {
    fn api(&self, method: &str, call: &str, body: &str, status: u16) -> Value {
        let response = api(self.weir, method, call, body);
        assert_eq!(response.status, status, "{call}: {}", response.body);
        self.answers.borrow_mut().add(
            &method.to_ascii_lowercase(),
            &format!("/api/v1/{call}"),
            &response,
        );
        serde_json::from_str(&response.body).expect("JSON")
    }

    fn get(&self, call: &str) -> Value {
        self.api("GET", call, "", 200)
    }
}

/// `weir usage` and `weir explain` with the trial.
fn assert_commands_show_the_trial(weir: &Weir) {
    let shown = weir.command(&["usage", "--trial", "-d", "d", "tighter=a"]);
    assert!(
        shown.starts_with("tighter=a of the trial of d.tighter\n  now         12 of 3 used")
            && shown.contains("\n  hits        12, over the limit 9, refunded 0\n"),
        "{shown}"
    );
    let shown = weir.command(&[
        "usage", "--trial", "--top", "5", "--by", "refused", "--limit", "d.open",
    ]);
    assert!(
        shown.starts_with("1 of 1 subjects of the trial of d.open since first seen, by refused\n")
            && shown.contains("\n   5               3  "),
        "{shown}"
    );
    let shown = weir.command(&["explain", "-d", "d", "tighter=a"]);
    assert!(
        shown.contains("\n  trial    3 per year: 12 used, 0 left, resets in ")
            && shown.contains("\n           w1{d|tighter=a}trfw"),
        "{shown}"
    );
    let shown = weir.command(&["explain", "-d", "d", "open=a"]);
    assert!(
        shown.starts_with("open=a: unlimited\n")
            && shown.contains(
                "\n  trial    2 per year, algorithm fixed_window, count_denied true: 5 used, 0 \
                     left"
            ),
        "{shown}"
    );
}

/// The numbers of the limit and of its trial, of a subject and of the lists.
fn assert_usage_of_both(asked: &Described<'_>) {
    let numbers = |usage: &Value| {
        [usage["hits"].as_u64(), usage["refused"].as_u64()].map(Option::unwrap_or_default)
    };
    // What the denial cache refused is added behind the answers.
    let real = || {
        Some(numbers(&asked.get("usage?domain=d&entry=tighter%3Da")))
            .filter(|numbers| *numbers == [12, 2])
    };
    eventually(real).expect("all hits are recorded");
    let tried = asked.get("usage?domain=d&entry=tighter%3Da&trial=true");
    assert_eq!(
        (numbers(&tried), &tried["trial"], &tried["limit"]),
        ([12, 9], &json!(true), &json!("d.tighter"))
    );
    assert_eq!(
        numbers(&asked.get("usage?domain=d&entry=open%3Da&trial=true")),
        [5, 3]
    );
    assert_eq!(
        asked.get("count?domain=d&entry=open%3Da&since=1m&trial=true")["refused"],
        3
    );
    asked.api("GET", "usage?domain=d&entry=other%3Da&trial=true", "", 404);
    // The index of Redis is written behind the answers.
    let top = |call: &str| {
        eventually(|| Some(asked.get(call)).filter(|top| top["total"] == 1)).expect("it is listed")
    };
    let tried = top("usage/top?by=refused&limit=d.tighter&trial=true");
    assert_eq!(
        (&tried["trial"], numbers(&tried["subjects"][0])),
        (&json!(true), [12, 9])
    );
    let real = top("usage/top?by=refused&limit=d.tighter");
    assert_eq!(
        (&real["trial"], numbers(&real["subjects"][0])),
        (&Value::Null, [12, 2])
    );
}

#[tokio::test]
async fn usage_explain_and_reset_have_the_trial_too() {
    each_store(async |client, weir| {
        passed(client, "tighter", 12).await;
        passed(client, "open", 5).await;
        let asked = Described {
            weir,
            answers: RefCell::default(),
        };
        assert_usage_of_both(&asked);

        let explained = || {
            asked.api("POST", "explain?subject=d%7Ctighter%3Da", "", 200)["descriptors"][0].clone()
        };
        let one = explained();
        assert_eq!(
            (&one["trial"]["amount"], &one["trial"]["live"]["used"]),
            (&json!("3 per year"), &json!(12))
        );
        assert!(
            one["live"]["used"].as_u64() >= Some(11) && one["trial"]["live"]["left"] == 0,
            "{one}"
        );
        assert_eq!(
            explained()["trial"]["live"]["used"],
            12,
            "to look counts nothing"
        );
        let over =
            "weir_trial_decisions_total{domain=\"d\",limit=\"tighter\",outcome=\"over_limit\"}";
        assert_eq!(weir.metric(over), Some(9.0), "nor in metrics");

        assert_commands_show_the_trial(weir);

        let reset = asked.api("POST", "reset", "{\"subject\": \"d|tighter=a\"}", 200);
        assert_eq!(reset["reset"].as_array().map(Vec::len), Some(2), "{reset}");
        assert!(
            reset["reset"]
                .as_array()
                .into_iter()
                .flatten()
                .all(|counter| counter["existed"] == true),
            "{reset}"
        );
        assert_eq!(explained()["trial"]["live"]["used"], 0);
        let reset = asked.api("POST", "reset", "{\"subject\": \"d|open=a\"}", 200);
        assert_eq!(reset["reset"][0]["existed"], true, "{reset}");
        asked
            .answers
            .take()
            .validate(&http_client::get(weir.listener("debug"), "/api/v1/openapi.json").body);
        assert_eq!(passed(client, "tighter", 1).await, 1);
    })
    .await;
}
