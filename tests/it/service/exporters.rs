//! The metrics where users of envoyproxy/ratelimit look for them: on Prometheus's port, and in what
//! StatsD and DogStatsD servers receive.

mod statsd;

use std::net::SocketAddr;

use crate::support::wait::eventually_async;
use crate::support::{RedisServer, Weir, ask, descriptor, http_client, tools};

/// Limits as Envoy Gateway makes them of a policy with one rule, and one with two headers.
const GATEWAY: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: default/eg/http
descriptors:
  - key: &route httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example
    value: *route
    descriptors:
      - key: rule-0-match-0
        value: rule-0-match-0
        rate_limit: { unit: hour, requests_per_unit: 5 }
      - key: rule-1-match-0
        value: rule-1-match-0
        descriptors:
          - key: rule-1-match-1
            value: 10.0.0.0/8
            rate_limit: { unit: hour, requests_per_unit: 5 }
          - key: rule-1-match-1
            value: other
            rate_limit: { unit: hour, requests_per_unit: 5 }
",
)];

const ROUTE: &str = "httproute/default/http-ratelimit/rule/0/match/0/ratelimit_example";
const DOMAIN: &str = "default/eg/http";

/// The page of Prometheus's port.
fn scrape(address: SocketAddr) -> String {
    let page = http_client::get(address, "/metrics");
    assert_eq!(
        (page.status, page.header("content-type")),
        (200, Some("text/plain; version=0.0.4; charset=utf-8"))
    );
    page.body
}

/// The values of all series of that name that have these labels, as a query of Prometheus finds
/// them.
fn series(page: &str, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
    let matches = |line: &&str| {
        let (metric, _) = line.rsplit_once(' ').unwrap_or_default();
        metric.split('{').next() == Some(name)
            && labels
                .iter()
                .all(|(label, value)| metric.contains(&format!("{label}=\"{value}\"")))
    };
    page.lines()
        .filter(matches)
        .map(|line| {
            line.rsplit_once(' ')
                .expect("a value")
                .1
                .parse()
                .expect("a number")
        })
        .collect()
}

async fn call(weir: &Weir, entries: &[(&str, &str)], times: usize) {
    let client = &mut weir.client().await;
    for _ in 0..times {
        ask(client, DOMAIN, vec![descriptor(entries)]).await;
    }
}

#[tokio::test]
async fn envoy_gateways_dashboard_fills() {
    let weir = Weir::start(
        GATEWAY,
        &[
            ("USE_STATSD", "false"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        ],
    );
    call(
        &weir,
        &[(ROUTE, ROUTE), ("rule-0-match-0", "rule-0-match-0")],
        7,
    )
    .await;
    let page = scrape(weir.listener("prometheus"));
    let vectors = tools::file("tests/vectors/envoy_gateway_dashboard.txt");
    let queries: Vec<_> = vectors
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    assert_eq!(queries.len(), 6);
    for query in queries {
        let mut words = query.split(' ');
        let name = words.next().expect("a name");
        let labels: Vec<_> = words
            .map(|word| word.split_once('=').expect("label=value"))
            .collect();
        let values = series(&page, name, &labels);
        let expected = match name {
            "go_memstats_gc_cpu_fraction" => 0.0..=0.0,
            name if name.ends_with("total_hits") => 7.0..=7.0,
            name if name.ends_with("near_limit") => 1.0..=1.0,
            name if name.ends_with("over_limit") => 2.0..=2.0,
            _ => 1e6..=1e12,
        };
        assert!(
            matches!(values.as_slice(), [value] if expected.contains(value)),
            "{query}: {values:?} in {page}"
        );
    }
}

/// Prometheus would refuse the page.
fn assert_no_series_twice(page: &str) {
    let mut names: Vec<_> = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').expect("a value").0)
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

type Labels = &'static [(&'static str, &'static str)];

/// Series of the service, their labels, and their values after four requests.
const SERVICE_SERIES: &[(&str, Labels, f64)] = &[
    (
        "ratelimit_service_should_rate_limit_error",
        &[("err_type", "redis_error")],
        0.0,
    ),
    (
        "ratelimit_service_should_rate_limit_error",
        &[("err_type", "service_error")],
        0.0,
    ),
    (
        "ratelimit_service_total_requests",
        &[("grpc_method", "ShouldRateLimit")],
        4.0,
    ),
    (
        "ratelimit_service_response_time_seconds_count",
        &[("grpc_method", "ShouldRateLimit")],
        4.0,
    ),
    (
        "ratelimit_service_response_time_seconds_bucket",
        &[("grpc_method", "ShouldRateLimit"), ("le", "10")],
        4.0,
    ),
    ("ratelimit_service_config_load_success", &[], 1.0),
    ("ratelimit_service_config_load_error", &[], 0.0),
    ("ratelimit_service_global_shadow_mode", &[], 0.0),
    ("ratelimit_localcache_lookupCount", &[], 4.0),
    ("ratelimit_localcache_missCount", &[], 4.0),
    ("ratelimit_localcache_hitCount", &[], 0.0),
    ("ratelimit_localcache_entryCount", &[], 0.0),
];

/// What `xds.md` lists besides: with the labels of the reference, where a level may hold dots and
/// deeper levels are one series.
#[tokio::test]
async fn the_reference_names_have_its_labels() {
    let redis = RedisServer::start();
    let environment = [
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":0"),
        ("REDIS_URL", &*redis.url()),
        ("STORE_TIMEOUT", "5s"),
    ];
    let weir = Weir::start(GATEWAY, &environment);
    let address = SocketAddr::from(([127, 0, 0, 1], weir.listener("prometheus").port()));
    for last in ["10.0.0.0/8", "other"] {
        call(
            &weir,
            &[
                (ROUTE, ROUTE),
                ("rule-1-match-0", "rule-1-match-0"),
                ("rule-1-match-1", last),
            ],
            2,
        )
        .await;
    }
    let page = scrape(address);
    let labels = [
        ("domain", DOMAIN),
        ("key1", &*format!("{ROUTE}_{ROUTE}")),
        ("key2", "rule-1-match-0_rule-1-match-0"),
    ];
    for (stat, hits) in [
        ("total_hits", 4.0),
        ("within_limit", 4.0),
        ("near_limit", 0.0),
        ("over_limit", 0.0),
        ("shadow_mode", 0.0),
    ] {
        assert_eq!(
            series(
                &page,
                &format!("ratelimit_service_rate_limit_{stat}"),
                &labels
            ),
            [hits],
            "{stat} in {page}"
        );
    }
    for (name, labels, value) in SERVICE_SERIES {
        assert_eq!(series(&page, name, labels), [*value], "{name} in {page}");
    }
    assert!(series(&page, "ratelimit_redis_pool_cx_active", &[])[0] >= 1.0);
    // Weir's own are there too, and tell the limits apart.
    let path = format!("{ROUTE}_{ROUTE}.rule-1-match-0_rule-1-match-0.rule-1-match-1_10.0.0.0/8");
    assert_eq!(
        series(
            &page,
            "weir_decisions_total",
            &[("limit", &path), ("outcome", "ok")]
        ),
        [2.0]
    );
    let deeper = "rule-1-match-0_rule-1-match-0.rule-1-match-1_10.0.0.0/8";
    assert_eq!(
        weir.metric(&format!(
            "ratelimit_service_rate_limit_total_hits\
             {{domain=\"{DOMAIN}\",key1=\"{ROUTE}_{ROUTE}\",key2=\"{deeper}\"}}"
        )),
        Some(2.0)
    );
    assert_no_series_twice(&page);
}

#[tokio::test]
async fn the_page_has_the_path_the_labels_and_the_unit_that_are_asked_for() {
    let environment = [
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        ("PROMETHEUS_PATH", "/stats/prometheus"),
        ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "true"),
        ("EXTRA_TAGS", "zone:b,k8s.cluster:a\"1"),
        ("NEAR_LIMIT_RATIO", "1.5"),
    ];
    let weir = Weir::start(GATEWAY, &environment);
    call(
        &weir,
        &[(ROUTE, ROUTE), ("rule-0-match-0", "rule-0-match-0")],
        7,
    )
    .await;
    let address = weir.listener("prometheus");
    assert_eq!(http_client::get(address, "/metrics").status, 404);
    assert!(
        http_client::get(address, "/")
            .body
            .contains("/stats/prometheus")
    );
    assert_eq!(
        http_client::post(address, "/stats/prometheus", b"").status,
        405
    );
    let page = http_client::get(address, "/stats/prometheus").body;
    let tags = [("zone", "b"), ("k8s_cluster", "a\\\"1")];
    assert_eq!(
        series(
            &page,
            "ratelimit_service_rate_limit_total_hits",
            &[&[("key2", "rule-0-match-0_rule-0-match-0")][..], &tags].concat()
        ),
        [7.0]
    );
    assert_eq!(
        series(&page, "ratelimit_service_config_load_success", &tags),
        [1.0]
    );
    assert_eq!(series(&page, "weir_config_limits", &[]), [3.0]);
    assert!(
        !page
            .lines()
            .any(|line| line.starts_with("weir_") && line.contains("zone="))
    );
    assert_eq!(
        series(
            &page,
            "ratelimit_service_response_time_seconds_bucket",
            &[("le", "1000")]
        ),
        [7.0],
        "milliseconds: {page}"
    );
    let buckets = "ratelimit_service_response_time_seconds_bucket\
        {grpc_method=\"ShouldRateLimit\",le=\"1\"}";
    assert_eq!(weir.metric(buckets), Some(7.0));
    // Above 1 no hit is near its limit, as in envoyproxy/ratelimit.
    let rule = [("key2", "rule-0-match-0_rule-0-match-0")];
    for (stat, hits) in [("near_limit", 0.0), ("over_limit", 2.0)] {
        let name = format!("ratelimit_service_rate_limit_{stat}");
        assert_eq!(series(&page, &name, &rule), [hits], "{stat}");
    }
    assert!(
        weir.logs()
            .iter()
            .any(|line| line.contains("NEAR_LIMIT_RATIO=1.5"))
    );
}

#[tokio::test]
async fn a_mapper_is_not_followed_and_a_line_says_so() {
    for is_set in [false, true] {
        let mut environment = vec![
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        ];
        // Nothing reads the file.
        environment.extend(is_set.then_some(("PROMETHEUS_MAPPER_YAML", "/none/conf.yaml")));
        let weir = Weir::start(GATEWAY, &environment);
        assert!(scrape(weir.listener("prometheus")).contains("ratelimit_service_total_requests"));
        let logs = weir.logs();
        let lines: Vec<_> = logs
            .iter()
            .filter(|line| line.contains("PROMETHEUS_MAPPER_YAML has no effect"))
            .collect();
        assert_eq!(lines.len(), usize::from(is_set), "{lines:?}");
        let are_notes = lines.iter().all(|line| line.contains("\"level\":\"info\""));
        assert!(are_notes, "Envoy Gateway sets it: {lines:?}");
    }
}

#[tokio::test]
async fn no_port_is_open_unless_it_is_asked_for() {
    for environment in [
        &[][..],
        &[("USE_PROMETHEUS", "true"), ("DISABLE_STATS", "true")],
    ] {
        let weir = Weir::start(GATEWAY, environment);
        assert!(
            weir.get("/metrics")
                .1
                .contains("ratelimit_service_total_requests"),
            "the HTTP port shows metrics with any setting"
        );
        assert!(weir.find_listener("prometheus").is_none());
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
        .args([
            "serve",
            "--port",
            "0",
            "--grpc-port",
            "0",
            "--config",
            "config",
            "--use-prometheus",
            "--prometheus-addr",
            &address,
        ])
        .env_clear()
        .output()
        .expect("it runs");
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success()
            && message.contains(&format!("cannot listen on {address} for prometheus")),
        "{message}"
    );
    let weir = Weir::start(
        GATEWAY,
        &[
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        ],
    );
    // The last pages are answered before the process ends.
    assert!(
        eventually_async(|| Some(scrape(weir.listener("prometheus")))
            .filter(|page| page.contains("weir_build_info")))
        .await
        .is_some()
    );
}
