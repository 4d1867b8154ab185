//! Usage through real processes: several Weirs on one Redis, the admin API, the commands, the
//! index, the denial cache, outages and a cluster.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir::core::proto::rate_limit_response::Code;

use crate::operators::admin::schema::Answers;
use crate::support::cluster::Cluster;
use crate::support::wait::{eventually, eventually_async};
use crate::support::{Client, RedisServer, Weir, descriptor_with_hits, http_client, request};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shop
descriptors:
  - key: user
    rate_limit: { name: by-user, unit: year, requests_per_unit: 100, track_usage: true, \
        usage_interval: 1s, usage_buckets: 600, usage_subjects: 5 }
  - key: tenant
    rate_limit: { unit: year, requests_per_unit: 100, algorithm: sliding_window_buckets, \
        bucket_interval: 24h, bucket_span: 9600h }
  - key: plain
    rate_limit: { unit: year, requests_per_unit: 100 }
  - key: free
    rate_limit: { unlimited: true }
",
)];

pub async fn hit(client: &mut Client, entry: (&str, &str), hits: i64) -> Code {
    let asked = request("shop", vec![descriptor_with_hits(&[entry], hits)]);
    client
        .should_rate_limit(asked)
        .await
        .expect("an answer")
        .into_inner()
        .overall_code()
}

/// The answer of the admin API.
pub fn api(weir: &Weir, call: &str) -> (u16, Value) {
    let response = http_client::get(weir.listener("debug"), &format!("/api/v1/{call}"));
    (
        response.status,
        serde_json::from_str(&response.body)
            .unwrap_or_else(|_| panic!("no JSON: {}", response.body)),
    )
}

pub fn usage(weir: &Weir, entry: &str) -> Value {
    let (status, answer) = api(weir, &format!("usage?domain=shop&entry={entry}"));
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Hits and refused hits in total, and the sums of the series.
pub fn numbers(usage: &Value) -> [u64; 4] {
    let sum = |list: &Value| {
        list.as_array()
            .expect("a list")
            .iter()
            .map(|hits| hits.as_u64().expect("a number"))
            .sum()
    };
    let number = |name: &str| usage[name].as_u64().expect("a number");
    [
        number("hits"),
        number("refused"),
        sum(&usage["series"]["hits"]),
        sum(&usage["series"]["refused"]),
    ]
}

/// Answers are those of the OpenAPI document.
fn assert_answers_are_described(weir: &Weir) {
    let mut described = Answers::default();
    for call in [
        "usage?domain=shop&entry=user%3Db",
        "usage?domain=shop&entry=user%3Dx",
        "usage/top?domain=shop",
        "usage/top?domain=shop&by=share",
        "count?domain=shop&entry=user%3Db&since=9s",
    ] {
        described.add(
            "get",
            &format!("/api/v1/{call}"),
            &http_client::get(weir.listener("debug"), &format!("/api/v1/{call}")),
        );
    }
    described.validate(&http_client::get(weir.listener("debug"), "/api/v1/openapi.json").body);
}

/// A subject by its exact name is the same as by its entries.
fn assert_named_alike(weir: &Weir) {
    for (call, by_entries) in [
        (
            "usage?since=10s",
            "usage?domain=shop&entry=user%3Db&since=10s",
        ),
        (
            "count?since=100s",
            "count?domain=shop&entry=user%3Db&since=100s",
        ),
    ] {
        let ((_, by_name), (_, by_entries)) = (
            api(weir, &format!("{call}&subject=shop%7Cuser%3Db")),
            api(weir, by_entries),
        );
        assert_eq!(
            (&by_name["entries"], &by_name["hits"], &by_name["subject"]),
            (
                &by_entries["entries"],
                &by_entries["hits"],
                &by_entries["subject"]
            )
        );
        assert_eq!(by_name["hits"], 110);
    }
}

/// Any recent interval.
async fn assert_recent_intervals_are_counted(weir: &Weir, client: &mut Client) {
    let (_, count) = api(weir, "count?domain=shop&entry=user%3Db&since=100s");
    assert_eq!(
        (
            &count["hits"],
            &count["refused"],
            &count["source"],
            &count["exact"]
        ),
        (&json!(110), &json!(20), &json!("usage"), &json!(true))
    );
    for _ in 0..7 {
        hit(client, ("tenant", "t"), 20).await;
    }
    let (status, count) = api(weir, "count?domain=shop&entry=tenant%3Dt&since=48h");
    assert_eq!(status, 200, "{count}");
    assert_eq!(
        (&count["hits"], &count["refused"], &count["source"]),
        (&json!(100), &Value::Null, &json!("buckets")),
        "only those that count"
    );
    let (_, never) = api(weir, "count?domain=shop&entry=tenant%3Dnever&since=48h");
    assert_eq!(never["hits"], json!(0));
}

/// The index is at most a second behind.
async fn assert_subjects_are_ranked(weir: &Weir) {
    let top = |by: &str| {
        let (status, answer) = api(weir, &format!("usage/top?domain=shop&by={by}"));
        assert_eq!(status, 200, "{answer}");
        answer["subjects"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|subject| {
                subject["entries"][0]["value"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect::<Vec<_>>()
    };
    let listed = eventually_async(|| (top("hits").len() == 3).then_some(())).await;
    assert!(listed.is_some(), "{:?}", top("hits"));
    assert_eq!(top("hits"), ["b", "a", "c"]);
    assert_eq!(top("refused"), ["b"], "only those that have some");
    let is_last = || (top("last-seen") == ["a", "c", "b"]).then_some(());
    let found = eventually_async(is_last).await;
    assert!(found.is_some(), "{:?}", top("last-seen"));
    assert_eq!(top("first-seen"), ["c", "b", "a"]);
    let (_, first) = api(weir, "usage/top?limit=by-user&count=2");
    assert_eq!(
        (
            &first["next"],
            &first["total"],
            &first["subjects"][0]["hits"]
        ),
        (&json!("2"), &json!(3), &json!(110))
    );
    let (_, rest) = api(weir, "usage/top?limit=shop.user&count=2&cursor=2");
    assert_eq!(
        (rest["subjects"].as_array().map(Vec::len), &rest["next"]),
        (Some(1), &Value::Null)
    );
}

/// What both stores answer alike.
async fn answers(weir: &Weir) {
    let client = &mut weir.client().await;
    for (user, hits) in [
        ("a", 3),
        ("b", 90),
        ("b", 20),
        ("c", 1),
        ("a", -2),
        ("a", 0),
    ] {
        hit(client, ("user", user), hits).await;
    }
    let of_b = usage(weir, "user%3Db");
    assert_eq!(numbers(&of_b), [110, 20, 110, 20]);
    assert_eq!(
        (&of_b["limit"], &of_b["domain"]),
        (&json!("shop.user"), &json!("shop"))
    );
    assert_eq!(
        (&of_b["entries"], &of_b["series"]["interval_seconds"]),
        (&json!([{ "key": "user", "value": "b" }]), &json!(1.0))
    );
    assert_eq!(of_b["series"]["hits"].as_array().map(Vec::len), Some(600));
    assert!(
        of_b["first_seen"]
            .as_str()
            .is_some_and(|at| at.ends_with('Z'))
            && of_b["last_seen"].is_string(),
        "{of_b}"
    );
    let of_a = usage(weir, "user%3Da");
    assert_eq!(
        (&of_a["hits"], &of_a["given_back"], &of_a["refused"]),
        (&json!(3), &json!(2), &json!(0))
    );
    let unseen = usage(weir, "user%3Dx");
    assert_eq!(
        (numbers(&unseen), &unseen["first_seen"]),
        ([0; 4], &Value::Null)
    );
    let (_, short) = api(weir, "usage?domain=shop&entry=user%3Db&since=10s");
    assert!(
        (10..=11).contains(&short["series"]["hits"].as_array().expect("a list").len()),
        "{short}"
    );

    assert_subjects_are_ranked(weir).await;

    assert_recent_intervals_are_counted(weir, client).await;

    assert_eq!(of_b["subject"], "shop|user=b");
    assert_named_alike(weir);
    errors(weir);
    assert_answers_are_described(weir);
    commands(weir);
}

/// Errors of questions without an answer.
fn errors(weir: &Weir) {
    for (call, status, error) in [
        ("usage?subject=shop", 400, "subject: it has no entries"),
        (
            "usage?domain=shop&entry=plain%3Dx",
            404,
            "add 'track_usage: true' to it, in limits.yaml:8",
        ),
        ("usage?domain=shop&entry=free%3Dx", 404, "unlimited"),
        ("usage?domain=shop&entry=user", 400, "write key=value"),
        ("usage/top?domain=none", 404, "has the domain none"),
        ("usage/top?by=name", 400, "by: write hits"),
        (
            "count?domain=shop&entry=tenant%3Dt&since=10000h",
            400,
            "raise its bucket_span",
        ),
    ] {
        let (found, answer) = api(weir, call);
        assert_eq!(found, status, "{call}: {answer}");
        assert!(
            answer["error"]
                .as_str()
                .is_some_and(|text| text.contains(error)),
            "{call}: {answer}"
        );
    }
}

/// Used is one number: what the counter says, with hits over the limit where they count.
fn assert_used_is_of_the_counter(weir: &Weir) {
    let path = "/api/v1/explain?subject=shop%7Cuser%3Db";
    let explained = http_client::post(weir.listener("debug"), path, b"");
    let explained: Value = serde_json::from_str(&explained.body).expect("JSON");
    let live = &explained["descriptors"][0]["live"];
    let usage = usage(weir, "user%3Db");
    assert!(live["used"].as_u64() > Some(100), "over the limit: {live}");
    assert_eq!(
        [&usage["used"], &usage["left"], &usage["periods"][0]["used"]],
        [&live["used"], &live["left"], &live["used"]],
        "{usage}"
    );
    assert_eq!(usage["refused_count"], true, "of a fixed window");
    let text = weir.command(&["usage", "--domain", "shop", "user=b"]);
    let line = format!(
        "user=b of shop.user\n  now         {} of 100 used (",
        live["used"]
    );
    assert!(
        text.starts_with(&line) && text.contains(" %), 0 left, resets in "),
        "{text}"
    );
}

/// The commands read what the API answers.
fn commands(weir: &Weir) {
    assert_used_is_of_the_counter(weir);
    let text = weir.command(&["usage", "--domain", "shop", "user=b"]);
    assert!(
        text.contains("\n  hits        110, over the limit 20, refunded 0\n") && text.contains('█'),
        "{text}"
    );
    let text = weir.command(&["usage", "--domain", "shop", "--top", "2", "--by", "hits"]);
    assert!(
        text.starts_with("2 of 3 subjects of shop.user since first seen, by hits\n"),
        "{text}"
    );
    assert!(
        text.lines()
            .nth(2)
            .is_some_and(|line| line.trim_start().starts_with("110 ") && line.ends_with("user=b")),
        "{text}"
    );
    let text = weir.command(&["count", "--domain", "shop", "user=b", "--since", "5m"]);
    assert!(
        text.starts_with("user=b of shop.user\n  hits     110, over the limit 20\n")
            && text.ends_with("  exact    yes\n"),
        "{text}"
    );
    let parsed: Value =
        serde_json::from_str(&weir.command(&["usage", "-d", "shop", "user=b", "--format", "json"]))
            .expect("JSON");
    assert_eq!(numbers(&parsed), [110, 20, 110, 20]);
}

#[tokio::test]
async fn in_memory() {
    let weir = Weir::start(LIMITS, &[]);
    answers(&weir).await;
    assert_eq!(weir.metric("weir_usage_records"), Some(3.0));
    assert!(
        weir.metric("weir_usage_bytes")
            .is_some_and(|bytes| bytes > 500.0)
    );
}

#[tokio::test]
async fn in_redis() {
    let redis = RedisServer::start();
    answers(&Weir::start(
        LIMITS,
        &[
            ("REDIS_URL", &redis.url()),
            ("STORE_TIMEOUT", "5s"),
            ("CACHE_KEY_PREFIX", "p:"),
        ],
    ))
    .await;
    redis.assert_every_key_expires();
    let keys = redis.keys();
    for key in [
        "p:w1{shop|user=b}us",
        "p:w1{shop|user}ut",
        "p:w1{shop|user}ur",
        "p:w1{shop|user}ul",
        "p:w1{shop|user}uf",
    ] {
        assert!(keys.iter().any(|known| known == key), "{key}: {keys:?}");
    }
}

/// With the denial cache, and on two processes: each hit is in the record once, at most a second
/// later.
#[tokio::test]
async fn two_processes_with_their_denial_caches_add_up() {
    let redis = RedisServer::start();
    let weirs = [(); 2].map(|()| {
        Weir::start(
            LIMITS,
            &[
                ("REDIS_URL", &redis.url()),
                ("STORE_TIMEOUT", "5s"),
                ("WORKERS", "2"),
            ],
        )
    });
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let mut client = weirs[number % 2].client().await;
        tasks.spawn(async move {
            let mut refused = 0;
            for _ in 0..250 {
                refused +=
                    u64::from(hit(&mut client, ("user", "busy"), 1).await == Code::OverLimit);
            }
            refused
        });
    }
    let refused: u64 = tasks.join_all().await.into_iter().sum();
    assert_eq!(refused, 1_900);
    let cached = || {
        weirs
            .iter()
            .filter_map(|weir| weir.metric("weir_denial_cache_lookups_total{result=\"hit\"}"))
            .sum::<f64>()
    };
    assert!(
        cached() > 1_000.0,
        "the denial cache refused most of them: {}",
        cached()
    );
    let waited = Instant::now();
    let all = eventually_async(|| {
        (numbers(&usage(&weirs[0], "user%3Dbusy")) == [2_000, 1_900, 2_000, 1_900]).then_some(())
    })
    .await;
    assert!(
        all.is_some(),
        "{:?}",
        numbers(&usage(&weirs[0], "user%3Dbusy"))
    );
    assert!(
        waited.elapsed() < Duration::from_secs(3),
        "{:?}",
        waited.elapsed()
    );
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(
        numbers(&usage(&weirs[1], "user%3Dbusy")),
        [2_000, 1_900, 2_000, 1_900],
        "and none is added twice"
    );
    assert_eq!(
        weirs[0].metric("weir_usage_hits_lost_total{redis=\"main\"}"),
        Some(0.0)
    );
}

/// What the denial cache has refused is written before the process ends.
#[tokio::test]
async fn refused_hits_are_written_at_the_end() {
    let redis = RedisServer::start();
    let environment = [
        ("REDIS_URL", redis.url()),
        ("STORE_TIMEOUT", "5s".to_owned()),
        ("DRAIN_DELAY", "0s".to_owned()),
    ];
    let environment: Vec<(&str, &str)> = environment
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    // The writer may have written all just before the end, which is seldom so each time.
    for user in ["late", "later", "last"] {
        let mut weir = Weir::start(LIMITS, &environment);
        let mut client = weir.client().await;
        hit(&mut client, ("user", user), 100).await;
        for _ in 0..300 {
            hit(&mut client, ("user", user), 1).await;
        }
        drop(client);
        let began = Instant::now();
        // Meanwhile the connection of the client ends, for which the process would otherwise wait,
        // and write.
        let ended = tokio::task::spawn_blocking(move || weir.terminate().success()).await;
        assert!(
            ended.is_ok_and(|is_success| is_success) && began.elapsed() < Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
        let after = Weir::start(LIMITS, &environment);
        assert_eq!(
            numbers(&usage(&after, &format!("user%3D{user}"))),
            [400, 300, 400, 300]
        );
    }
}

/// The index has so many subjects, is made again when it is lost, and does not name those whose
/// record is gone.
#[tokio::test]
async fn the_index_is_bounded_and_made_again() {
    let redis = RedisServer::start();
    let weir = Weir::start(
        LIMITS,
        &[("REDIS_URL", &redis.url()), ("STORE_TIMEOUT", "5s")],
    );
    let client = &mut weir.client().await;
    for user in 1..=30 {
        hit(client, ("user", &user.to_string()), user).await;
    }
    let index = "w1{shop|user}ut";
    let listed = || redis.run::<Vec<String>>(&["ZRANGE", index, "0", "-1", "REV"]);
    let heaviest = [
        "shop|user=30",
        "shop|user=29",
        "shop|user=28",
        "shop|user=27",
        "shop|user=26",
    ];
    assert!(
        eventually_async(|| (listed() == heaviest).then_some(()))
            .await
            .is_some(),
        "{:?}",
        listed()
    );
    assert!(
        eventually(|| (redis.run::<i64>(&["ZCARD", "w1{shop|user}ul"]) == 5).then_some(()))
            .is_some()
    );
    redis.run::<i64>(&["DEL", index]);
    redis.run::<i64>(&["DEL", "w1{shop|user=29}us"]);
    hit(client, ("user", "3"), 1).await;
    assert!(
        eventually_async(|| (listed() == ["shop|user=3"]).then_some(()))
            .await
            .is_some(),
        "{:?}",
        listed()
    );
    // An entry without a record is left out, and removed from all orders.
    redis.run::<i64>(&["ZADD", index, "99", "shop|user=29"]);
    let (_, top) = api(&weir, "usage/top?domain=shop");
    assert_eq!(top["subjects"].as_array().map(Vec::len), Some(1), "{top}");
    assert_eq!(listed(), ["shop|user=3"]);
    redis.assert_every_key_expires();
    assert_eq!(
        weir.metric("weir_usage_index_dropped_total{redis=\"main\"}"),
        Some(0.0)
    );
}

/// Records are in the slots of their counters, and the index in another.
#[tokio::test]
async fn in_a_cluster() {
    let cluster = Cluster::start();
    let weir = Weir::start(
        LIMITS,
        &[
            ("REDIS_TYPE", "cluster"),
            ("REDIS_URL", &cluster.url()),
            ("STORE_TIMEOUT", "5s"),
        ],
    );
    answers(&weir).await;
    let client = &mut weir.client().await;
    for user in 0..40 {
        for _ in 0..3 {
            hit(client, ("user", &format!("many-{user}")), 60).await;
        }
    }
    let is_full = |user: usize| {
        numbers(&usage(&weir, &format!("user%3Dmany-{user}"))) == [180, 120, 180, 120]
    };
    for user in 0..40 {
        assert!(
            eventually_async(|| is_full(user).then_some(()))
                .await
                .is_some(),
            "{user}: {}",
            usage(&weir, &format!("user%3Dmany-{user}"))
        );
    }
    let top = || api(&weir, "usage/top?domain=shop&count=5").1;
    let is_listed = || {
        top()["subjects"]
            .as_array()
            .is_some_and(|all| all.len() == 5 && all.iter().all(|subject| subject["hits"] == 180))
    };
    assert!(
        eventually_async(|| is_listed().then_some(()))
            .await
            .is_some(),
        "{}",
        top()
    );
}
