//! The families on `/metrics` of the real process are the declared ones.

use std::collections::{BTreeMap, BTreeSet};

use weir::metrics::families;

use crate::support::wait::eventually_async;
use crate::support::{self, RedisServer, Weir, descriptor, descriptor_with_hits, request};

/// Limits whose capacity is above the hits of a window, and one whose capacity is not.
const BURSTS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: bursts
descriptors:
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket, burst: 50 }
  - key: queue
    rate_limit: { unit: hour, requests_per_unit: 10, algorithm: leaky_bucket, max_delay: 5h }
  - key: window
    rate_limit: { unit: year, requests_per_unit: 10 }
",
)];

/// The names of the labels of one sample line.
fn label_names(line: &str) -> Vec<&str> {
    let Some((_, mut rest)) = line.split_once('{') else { return Vec::new() };
    let mut names = Vec::new();
    while let Some((name, value)) = rest.split_once("=\"") {
        names.push(name.trim_start_matches(','));
        let mut escaped = false;
        let end = value.find(|char| {
            let ends = char == '"' && !escaped;
            escaped = char == '\\' && !escaped;
            ends
        });
        rest = &value[end.expect("a label value ends") + 1..];
    }
    names
}

/// The families of a page: name, then type, help text and label names.
fn families_of(page: &str) -> BTreeMap<String, (String, String, BTreeSet<String>)> {
    let mut found = BTreeMap::new();
    let (mut help, mut family) = (String::new(), String::new());
    for line in page.lines() {
        if let Some(text) = line.strip_prefix("# HELP ") {
            help = text.split_once(' ').expect("a help text").1.to_owned();
        } else if let Some(text) = line.strip_prefix("# TYPE ") {
            let (name, metric_type) = text.split_once(' ').expect("a type");
            family = name.to_owned();
            let twice = found.insert(family.clone(), (metric_type.to_owned(), help.clone(), BTreeSet::new()));
            assert!(twice.is_none(), "{name} is there twice");
        } else {
            assert!(line.starts_with(&family), "a sample of another family than {family}: {line}");
            let labels = label_names(line).into_iter().filter(|label| *label != "le").map(ToOwned::to_owned);
            found.get_mut(&family).expect("a type before its samples").2.extend(labels);
        }
    }
    found
}

#[tokio::test]
async fn every_family_of_a_scrape_is_declared() {
    let redis = RedisServer::start();
    let url = redis.url();
    let mut shown = BTreeSet::new();
    let with_redis: &[_] = &[("REDIS_URL", &*url), ("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", &url)];
    for (environment, last) in [(&[][..], "weir_memory_keys"), (with_redis, "weir_redis_server_info")] {
        let weir = Weir::start(support::DEMO, environment);
        let client = &mut weir.client().await;
        for domain in ["demo", "unknown"] {
            let _ = client.should_rate_limit(request(domain, vec![descriptor(&[("year", "x")]), descriptor(&[("none", "x")])])).await;
        }
        let page = eventually_async(|| Some(weir.get("/metrics").1).filter(|page| page.contains(last))).await.expect("all families");
        for (name, (metric_type, help, labels)) in families_of(&page) {
            let declared = families::ALL.iter().find(|family| family.name() == name);
            let declared = declared.unwrap_or_else(|| panic!("{name} is not declared in src/metrics/families.rs"));
            assert_eq!((metric_type.as_str(), help.as_str()), (declared.metric_type().name(), declared.help()), "{name}");
            let unknown: Vec<_> = labels.iter().filter(|label| !declared.labels().contains(&label.as_str())).collect();
            assert!(unknown.is_empty(), "{name} has undeclared labels {unknown:?}");
            shown.insert(name);
        }
    }
    let never: Vec<_> = families::ALL.iter().map(|family| family.name()).filter(|name| !shown.contains(*name)).collect();
    let seldom = ["weir_redis_advice", "weir_redis_errors_total"];
    assert!(never.iter().all(|name| seldom.contains(name)), "declared and never shown: {never:?}");
}

#[tokio::test]
async fn allowed_hits_are_never_over_the_limit() {
    let redis = RedisServer::start();
    for environment in [&[][..], &[("REDIS_URL", &*redis.url()), ("STORE_TIMEOUT", "5s")]] {
        let weir = Weir::start(BURSTS, environment);
        let client = &mut weir.client().await;
        let mut ask = async |key: &str, hits: i64| {
            let answer = client.should_rate_limit(request("bursts", vec![descriptor_with_hits(&[(key, "x")], hits)])).await;
            answer.expect("an answer").into_inner().overall_code() == weir::proto::rate_limit_response::Code::Ok
        };
        let counts = |key: &str| {
            ["total_hits", "within_limit", "near_limit", "over_limit"].map(|stat| {
                let series = format!("ratelimit_service_rate_limit_{stat}{{domain=\"bursts\",key1=\"{key}\"}}");
                weir.metric(&series).unwrap_or_else(|| panic!("no {series}"))
            })
        };
        for _ in 0..30 {
            assert!(ask("bucket", 1).await);
        }
        assert_eq!(counts("bucket"), [30.0, 30.0, 0.0, 0.0], "30 of 50 at once");
        assert!(ask("bucket", 20).await);
        assert_eq!(counts("bucket"), [50.0, 50.0, 10.0, 0.0], "near begins at 40 of 50");
        assert!(!ask("bucket", 3).await);
        assert_eq!(counts("bucket"), [53.0, 50.0, 10.0, 3.0]);

        assert!(ask("queue", 30).await);
        assert_eq!(counts("queue"), [30.0, 30.0, 0.0, 0.0], "30 of 51 slots");
        assert!(!ask("queue", 40).await);
        assert_eq!(counts("queue"), [70.0, 30.0, 0.0, 40.0]);

        assert!(ask("window", 5).await);
        assert!(!ask("window", 8).await);
        assert_eq!(counts("window"), [13.0, 5.0, 2.0, 3.0], "envoyproxy/ratelimit divides a request that crosses the limit");
    }
}

#[test]
fn label_names_are_read() {
    assert_eq!(label_names("a 1"), Vec::<&str>::new());
    assert_eq!(label_names(r#"a{b="x,c=\"y\\",d="z"} 1"#), ["b", "d"]);
}
