//! `trial`: what another number would refuse, counted beside the real one, through real sockets
//! with both stores.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir::core::proto::rate_limit_response::Code;
use weir::core::proto::{RateLimitDescriptor, RateLimitResponse};

use crate::operators::admin::schema::Answers;
use crate::support::http_client::Response;
use crate::support::wait::eventually;
use crate::support::{
    Client, RedisServer, Weir, descriptor, descriptor_with_hits, http_client, request,
};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &str = "
domain: d
descriptors:
  - key: tighter
    rate_limit: { unit: year, requests_per_unit: 10, track_usage: true, usage_interval: 1h, \
        trial: { requests_per_unit: 3 } }
  - key: looser
    rate_limit: { unit: year, requests_per_unit: 2, name: few, trial: { requests_per_unit: 5 } }
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
  - key: deny
    rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: deny, \
        trial: { requests_per_unit: 1 } }
  - key: local
    rate_limit: { unit: year, requests_per_unit: 2, on_store_failure: local, \
        trial: { requests_per_unit: 1 } }
";

const TOGETHER: &str = "
domain: whole
commit: all_or_none
descriptors:
  - key: wide
    rate_limit: { unit: year, requests_per_unit: 10, trial: { requests_per_unit: 1 } }
  - key: narrow
    rate_limit: { unit: year, requests_per_unit: 2, trial: { requests_per_unit: 0 } }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 5, algorithm: token_bucket, \
        trial: { requests_per_unit: 2, burst: 2 } }
";

const FILES: &[(&str, &str)] = &[("limits.yaml", LIMITS), ("together.yaml", TOGETHER)];

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

async fn call(
    client: &mut Client,
    domain: &str,
    descriptors: Vec<RateLimitDescriptor>,
) -> Result<RateLimitResponse, tonic::Code> {
    let answer = client.should_rate_limit(request(domain, descriptors)).await;
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| status.code())
}

/// The codes of so many requests for one hit.
async fn codes(client: &mut Client, key: &str, requests: usize) -> Vec<Result<Code, tonic::Code>> {
    let mut codes = Vec::new();
    for _ in 0..requests {
        codes.push(
            call(client, "d", vec![descriptor(&[(key, "a")])])
                .await
                .map(|response| response.overall_code()),
        );
    }
    codes
}

/// How many requests were let in.
async fn passed(client: &mut Client, key: &str, requests: usize) -> usize {
    codes(client, key, requests)
        .await
        .into_iter()
        .filter(|code| *code == Ok(Code::Ok))
        .count()
}

/// The counters of the trial of a limit: ok, `over_limit`, `not_counted`, hits, and hits over the
/// limit.
fn trial(weir: &Weir, labels: &str) -> [f64; 5] {
    let outcome = |outcome: &str| {
        weir.metric(&format!(
            "weir_trial_decisions_total{{{labels},outcome=\"{outcome}\"}}"
        ))
    };
    let hits = |family: &str| weir.metric(&format!("{family}{{{labels}}}"));
    [
        outcome("ok"),
        outcome("over_limit"),
        outcome("not_counted"),
        hits("weir_trial_hits_total"),
        hits("weir_trial_over_limit_hits_total"),
    ]
    .map(|count| count.unwrap_or_else(|| panic!("{labels} has no series")))
}

fn of(limit: &str) -> String {
    format!("domain=\"d\",limit=\"{limit}\"")
}

/// The same files without the trials. A limit that is unlimited stays so.
fn without_trials() -> [(&'static str, String); 2] {
    let cut = |text: &str| {
        let line = |line: &str| {
            let (begin, _) = line
                .split_once(", trial: {")
                .map_or((line, ""), |(begin, rest)| (begin, rest));
            let end = if begin.len() < line.len() {
                " }\n"
            } else {
                "\n"
            };
            (begin.to_owned() + end)
                .replace("unlimited: true, track_usage: true", "unlimited: true")
        };
        text.lines().map(line).collect::<String>()
    };
    [
        ("limits.yaml", cut(LIMITS)),
        ("together.yaml", cut(TOGETHER)),
    ]
}

/// What Envoy sees, without times.
fn seen(
    answer: Result<RateLimitResponse, tonic::Code>,
) -> Result<Vec<(Code, u32, Option<u32>)>, tonic::Code> {
    let response = answer?;
    let overall = (response.overall_code(), 0, None);
    let status = response.statuses.iter().map(|status| {
        (
            status.code(),
            status.limit_remaining,
            status
                .current_limit
                .as_ref()
                .map(|limit| limit.requests_per_unit),
        )
    });
    Ok(std::iter::once(overall).chain(status).collect())
}

#[tokio::test]
async fn answers_are_those_of_the_same_limits_without_trials() {
    let plain = without_trials();
    assert!(
        !plain.iter().any(|(_, text)| text.contains("trial")),
        "{plain:?}"
    );
    let plain: Vec<_> = plain
        .iter()
        .map(|(name, text)| (*name, text.as_str()))
        .collect();
    let redis = [RedisServer::start(), RedisServer::start()];
    let urls = redis.each_ref().map(RedisServer::url);
    let over_redis = |index: usize| [("REDIS_URL", urls[index].as_str()), ("STORE_TIMEOUT", "5s")];
    for settings in [
        [Vec::new(), Vec::new()],
        [over_redis(0).to_vec(), over_redis(1).to_vec()],
    ] {
        let (with, without) = (
            Weir::start(FILES, &settings[0]),
            Weir::start(&plain, &settings[1]),
        );
        let (one, other) = (&mut with.client().await, &mut without.client().await);
        let mut random = fastrand::Rng::with_seed(18);
        for number in 0..400 {
            let (domain, keys) = if random.bool() {
                ("d", &["tighter", "looser", "other", "bucket", "open"][..])
            } else {
                ("whole", &["wide", "narrow", "bucket"][..])
            };
            let count = random.usize(1..4);
            let descriptors: Vec<_> = (0..count)
                .map(|_| {
                    let (key, value) = (
                        keys[random.usize(..keys.len())],
                        ["a", "b"][random.usize(..2)],
                    );
                    descriptor_with_hits(&[(key, value)], random.i64(-2..4))
                })
                .collect();
            let answers = [
                call(one, domain, descriptors.clone()).await,
                call(other, domain, descriptors.clone()).await,
            ]
            .map(seen);
            assert_eq!(answers[0], answers[1], "request {number}: {descriptors:?}");
        }
        let [ok, over, not_counted, ..] = trial(&with, &of("tighter"));
        assert!(
            ok > 0.0 && over > 0.0 && not_counted == 0.0,
            "{ok} {over} {not_counted}"
        );
        for line in without.get("/metrics").1.lines() {
            assert!(!line.starts_with("weir_trial"), "{line}");
        }
    }
}

#[tokio::test]
async fn without_the_store_answers_are_those_of_the_policies_and_trials_count_nothing() {
    const UNAVAILABLE: Result<Code, tonic::Code> = Err(tonic::Code::Unavailable);
    let mut redis = RedisServer::start();
    let weir = Weir::start(FILES, &[("REDIS_URL", &redis.url())]);
    let client = &mut weir.client().await;
    assert_eq!(passed(client, "allow", 2).await, 2);
    assert_eq!(trial(&weir, &of("allow")), [1.0, 1.0, 0.0, 2.0, 1.0]);
    redis.kill();
    assert_eq!(codes(client, "tighter", 2).await, [UNAVAILABLE; 2]);
    assert_eq!(passed(client, "allow", 3).await, 3);
    assert_eq!(codes(client, "deny", 2).await, [Ok(Code::OverLimit); 2]);
    assert_eq!(
        codes(client, "local", 3).await,
        [Code::Ok, Code::Ok, Code::OverLimit].map(Ok),
        "with the real number"
    );
    assert_eq!(
        passed(client, "open", 4).await,
        4,
        "nothing asks the store but the trial"
    );
    assert_eq!(trial(&weir, &of("tighter")), [0.0, 0.0, 2.0, 2.0, 0.0]);
    assert_eq!(trial(&weir, &of("allow")), [1.0, 1.0, 3.0, 5.0, 1.0]);
    assert_eq!(trial(&weir, &of("local")), [0.0, 0.0, 3.0, 3.0, 0.0]);
    assert_eq!(trial(&weir, &of("open")), [0.0, 0.0, 4.0, 4.0, 0.0]);
    assert_eq!(
        weir.metric("weir_local_keys"),
        Some(1.0),
        "a trial is not counted here"
    );
    redis.start_again();
    let counted = || trial(&weir, &of("tighter"))[0] > 0.0;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !counted() && Instant::now() < deadline {
        call(client, "d", vec![descriptor(&[("tighter", "back")])])
            .await
            .ok();
    }
    assert!(counted(), "trials count again");
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
        let [_, over, ..] = trial(weir, &of("tighter"));
        assert_eq!(over, 9.0, "nor in metrics");

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

#[tokio::test]
async fn a_blocked_or_exempt_request_does_not_reach_the_trial_and_a_raise_changes_the_real_number()
{
    each_store(async |client, weir| {
        let order = |kind: &str, key: &str, more: &str| {
            let body = format!(
                "{{\"kind\": \"{kind}\", \"domain\": \"d\", \"entries\": \
                 [{{\"key\": \"{key}\", \"value\": \"a\"}}], \"reason\": \"test\"{more}}}"
            );
            let answer = api(weir, "POST", "overrides", &body);
            assert!((200..300).contains(&answer.status), "{}", answer.body);
        };
        order("block", "tighter", "");
        order("exempt", "looser", "");
        order(
            "raise",
            "other",
            ", \"to\": {\"requests_per_unit\": 11, \"unit\": \"year\"}",
        );
        assert_eq!(passed(client, "tighter", 2).await, 0);
        assert_eq!(passed(client, "looser", 8).await, 8);
        assert_eq!(passed(client, "other", 12).await, 11);
        assert_eq!(trial(weir, &of("tighter")), [0.0; 5]);
        assert_eq!(
            trial(weir, &format!("{},name=\"few\"", of("looser"))),
            [0.0; 5]
        );
        assert_eq!(
            trial(weir, &of("other")),
            [4.0, 8.0, 0.0, 12.0, 8.0],
            "of the number that is written"
        );
    })
    .await;
}
