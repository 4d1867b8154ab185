//! The families on `/metrics` of the real process are the declared ones.

use std::collections::{BTreeMap, BTreeSet};

use weir::metrics::families;

use crate::support::wait::eventually_async;
use crate::support::{self, RedisServer, Weir, descriptor, request};

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

#[test]
fn label_names_are_read() {
    assert_eq!(label_names("a 1"), Vec::<&str>::new());
    assert_eq!(label_names(r#"a{b="x,c=\"y\\",d="z"} 1"#), ["b", "d"]);
}
