//! `notify`: the lines about crossed thresholds, leases, and raised limits, through real sockets.
//! `tests/vectors/decisions/notify.txt` has everything that only counts.

use futures_util::future::join_all;
use serde_json::Value;

use crate::support::wait::eventually_async;
use crate::support::{Client, RedisServer, Weir, descriptor_with_hits, request};

/// Limits per year, so that no window ends while a test runs.
const LIMITS: &str = "
domain: d
descriptors:
  - key: budget
    descriptors:
      - key: tenant
        rate_limit: { unit: year, requests_per_unit: 5, scale: 2, period: calendar, \
            timezone: Europe/Berlin, name: credits, notify: [50%, 80%, 100%] }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 3, algorithm: token_bucket, notify: [100%] }
  - key: route
    rate_limit: { unit: year, requests_per_unit: 3000, lease: true, notify: [1%, 50%, 80%, 100%] }
  - key: sliding
    rate_limit: { unit: year, requests_per_unit: 3000, lease: true, count_denied: false, \
        algorithm: sliding_window_counter, notify: [1%, 50%, 80%, 100%] }
  - key: many
    rate_limit: { unit: year, requests_per_unit: 1, notify: [100%] }
";

async fn hit(client: &mut Client, entries: &[(&str, &str)], hits: i64) {
    let request = request("d", vec![descriptor_with_hits(entries, hits)]);
    client.should_rate_limit(request).await.expect("an answer");
}

/// The lines about thresholds, once there are so many.
async fn lines(weir: &Weir, count: usize) -> Vec<Value> {
    let lines = || {
        let all = weir.logs();
        let of_target = all.iter().filter(|line| line.contains("weir::budget"));
        let read = |line: &String| serde_json::from_str::<Value>(line).expect("JSON");
        let found: Vec<_> = of_target.map(read).collect();
        (found.len() >= count).then_some(found)
    };
    eventually_async(lines).await.expect("lines")
}

/// The reports of a limit's thresholds by these processes together.
fn reports(services: &[&Weir], limit: &str, threshold: u8) -> f64 {
    let series = format!(
        "weir_budget_thresholds_total{{domain=\"d\",limit={limit:?},threshold=\"{threshold}\"}}"
    );
    let count = |weir: &&Weir| weir.metric(&series).expect("a series");
    services.iter().map(count).sum()
}

/// The lines are written at every level, with the values that `LOG_SUBJECTS` allows.
#[tokio::test]
async fn a_crossed_threshold_has_a_line() {
    for (subjects, shown) in [
        ("plain", "budget=\"a\", tenant=\"x \\\"y\\\"\""),
        ("off", "budget, tenant"),
    ] {
        let environment = [
            // The lines about the listeners.
            (
                "LOG_LEVEL",
                "off,weir::process=info,weir::service::server=info",
            ),
            ("LOG_SUBJECTS", subjects),
        ];
        let weir = Weir::start(&[("limits.yaml", LIMITS)], &environment);
        let client = &mut weir.client().await;
        hit(client, &[("budget", "a"), ("tenant", "x \"y\"")], 9).await;
        hit(client, &[("bucket", "b")], 3).await;
        let lines = lines(&weir, 3).await;
        let line = |threshold: u64| {
            let mut line = lines[usize::from(threshold == 80)].clone();
            let end = line["period_end"].take();
            let end: jiff::Timestamp = end.as_str().expect("text").parse().expect("an instant");
            let local = end.to_zoned(jiff::tz::TimeZone::get("Europe/Berlin").expect("a zone"));
            assert_eq!(local.strftime("%m-%d %T%.f").to_string(), "01-01 00:00:00");
            line["@timestamp"].take();
            line
        };
        for threshold in [50, 80] {
            let expected = serde_json::json!({
                "@timestamp": null,
                "level": "info",
                "@message": format!("{threshold} % of a limit are used"),
                "target": "weir::budget",
                "domain": "d",
                "limit": "credits",
                "subject": shown,
                "used": 4,
                "amount": 5,
                "share": 90,
                "threshold": threshold,
                "period_end": null,
            });
            assert_eq!(line(threshold), expected);
        }
        let bucket = &lines[2];
        assert_eq!(
            (
                &bucket["limit"],
                &bucket["threshold"],
                &bucket["period_end"]
            ),
            (&Value::from("bucket"), &Value::from(100), &Value::Null)
        );
    }
}

/// The lines of a limit have a bound, the metric has none.
#[tokio::test]
async fn the_lines_of_many_subjects_have_a_bound() {
    let weir = Weir::start(&[("limits.yaml", LIMITS)], &[]);
    let client = weir.client().await;
    let began = std::time::Instant::now();
    let subject = |number: usize| {
        let mut client = client.clone();
        async move { hit(&mut client, &[("many", &number.to_string())], 1).await }
    };
    join_all((0..1_000).map(subject)).await;
    let within = began.elapsed().as_secs() as usize;
    assert_eq!(reports(&[&weir], "many", 100).to_string(), "1000");
    let lines = lines(&weir, 100).await;
    assert!(lines.len() <= 100 * (within + 2), "{}", lines.len());
}

/// Two replicas draw hits of one key: each threshold is crossed by one draw of one of them.
#[tokio::test]
async fn leases_cross_each_threshold_once() {
    let redis = RedisServer::start();
    let url = redis.url();
    let environment = [
        ("REDIS_URL", &*url),
        ("STORE_TIMEOUT", "5s"),
        ("REPLICAS", "2"),
    ];
    let services = [(); 2].map(|()| Weir::start(&[("limits.yaml", LIMITS)], &environment));
    let all = [&services[0], &services[1]];
    for key in ["route", "sliding"] {
        let mut callers = Vec::new();
        for weir in all {
            let client = weir.client().await;
            callers.extend((0..8).map(|_| {
                let mut client = client.clone();
                async move {
                    for _ in 0..250 {
                        hit(&mut client, &[(key, "x")], 1).await;
                    }
                }
            }));
        }
        // 4,000 hits, of which 3,000 are within the limit.
        join_all(callers).await;
        for threshold in [1, 50, 80, 100] {
            let reports = reports(&all, key, threshold);
            assert!(
                (reports - 1.0).abs() < 0.1,
                "{key}, {threshold} %: {reports}"
            );
        }
    }
    let answers = all.map(|weir| weir.metric("weir_lease_answers_total").expect("a series"));
    assert!(answers.iter().sum::<f64>() > 1_000.0, "{answers:?}");
}
