//! The families on `/metrics` of the real process are the declared ones.

mod scrapes;

use std::collections::{BTreeMap, BTreeSet};

use weir::observe::metrics::all_families;

use crate::support::sentinel::SentinelSet;
use crate::support::wait::eventually_async;
use crate::support::{self, RedisServer, Weir, ask, descriptor, descriptor_with_hits, request};

/// The names of the labels of one sample line.
fn label_names(line: &str) -> Vec<&str> {
    let Some((_, mut rest)) = line.split_once('{') else {
        return Vec::new();
    };
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
            let twice = found.insert(
                family.clone(),
                (metric_type.to_owned(), help.clone(), BTreeSet::new()),
            );
            assert!(twice.is_none(), "{name} is there twice");
        } else {
            assert!(
                line.starts_with(&family),
                "a sample of another family than {family}: {line}"
            );
            let labels = label_names(line)
                .into_iter()
                .filter(|label| *label != "le")
                .map(ToOwned::to_owned);
            found
                .get_mut(&family)
                .expect("a type before its samples")
                .2
                .extend(labels);
        }
    }
    found
}

/// The families of a page, each of which is declared with its type, its help and its labels.
fn declared_families(page: &str) -> BTreeSet<String> {
    let mut shown = BTreeSet::new();
    for (name, (metric_type, help, labels)) in families_of(page) {
        let declared = all_families().find(|family| family.name == name);
        let declared =
            declared.unwrap_or_else(|| panic!("{name} is not declared in src/observe/metrics"));
        assert_eq!(
            (metric_type.as_str(), help.as_str()),
            (declared.metric_type.name(), declared.help),
            "{name}"
        );
        let unknown: Vec<_> = labels
            .iter()
            .filter(|label| !declared.labels.contains(&label.as_str()))
            .collect();
        assert!(
            unknown.is_empty(),
            "{name} has undeclared labels {unknown:?}"
        );
        shown.insert(name);
    }
    shown
}

#[tokio::test]
async fn every_family_of_a_scrape_is_declared() {
    let redis = RedisServer::start();
    let url = redis.url();
    let mut shown = BTreeSet::new();
    let by_name = ("REPLICAS", "dns:localhost");
    let with_redis: &[_] = &[
        ("REDIS_URL", &*url),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", &url),
        by_name,
    ];
    let with_control_plane: &[_] = &[
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "127.0.0.1:1"),
    ];
    for (environment, last) in [
        (&[][..], "weir_memory_keys"),
        (with_redis, "weir_redis_server_info"),
        (with_control_plane, "weir_xds_connected"),
    ] {
        let tried = (
            "tried.yaml",
            "domain: tried\ndescriptors: [{ key: year, rate_limit: { unit: year, \
             requests_per_unit: 2, notify: [80%], trial: { requests_per_unit: 1 } } }, { key: tokens, \
             rate_limit: { unit: year, requests_per_unit: 2, reservations: { ttl: 60s } } }, { key: request, \
             rate_limit: { algorithm: concurrency, requests_per_unit: 1, max_duration: 1m } }]",
        );
        let weir = Weir::start(&[support::DEMO, &[tried]].concat(), environment);
        let client = &mut weir.client().await;
        for domain in ["demo", "unknown"] {
            let _ = client
                .should_rate_limit(request(
                    domain,
                    vec![
                        descriptor(&[("year", "x")]),
                        descriptor_with_hits(&[("year", "x")], 0),
                        descriptor(&[("none", "x")]),
                    ],
                ))
                .await;
        }
        let page =
            eventually_async(|| Some(weir.get("/metrics").1).filter(|page| page.contains(last)))
                .await
                .expect("all families");
        shown.extend(declared_families(&page));
    }
    let never: Vec<_> = all_families()
        .map(|family| family.name)
        .filter(|name| !shown.contains(*name))
        .collect();
    // tests/it/service/tracing.rs and tests/it/service/grpc_tls read those of traces and of TLS,
    // which are off here.
    let seldom = [
        "weir_redis_advice",
        "weir_redis_errors_total",
        "weir_spans_total",
    ];
    let is_of_tls =
        |name: &str| name.starts_with("weir_tls_") || name.starts_with("weir_certificate_");
    assert!(
        never
            .iter()
            .all(|name| seldom.contains(name) || is_of_tls(name)),
        "declared and never shown: {never:?}"
    );
}

/// While no Sentinel names the primary, and no node of a cluster answers, something is down all the
/// same; and it is gone once a server is known.
#[tokio::test]
async fn servers_that_were_never_found_are_down() {
    let nowhere = format!("127.0.0.1:{}", RedisServer::absent().port());
    for (kind, url, sought) in [
        ("sentinel", format!("mymaster,{nowhere}"), "mymaster"),
        ("cluster", nowhere.clone(), &*nowhere),
    ] {
        let weir = Weir::start(support::DEMO, &[("REDIS_TYPE", kind), ("REDIS_URL", &url)]);
        let series = format!("weir_redis_up{{redis=\"main\",server=\"{sought}\"}}");
        assert_eq!(
            weir.metric(&series),
            Some(0.0),
            "{kind}: {}",
            weir.get("/metrics").1
        );
        let page = weir.get("/metrics").1;
        assert_eq!(
            page.lines()
                .filter(|line| line.starts_with("weir_redis_up"))
                .count(),
            1,
            "{kind}: {page}"
        );
    }
    let sentinels = SentinelSet::start(1);
    let weir = Weir::start(
        support::DEMO,
        &[("REDIS_TYPE", "sentinel"), ("REDIS_URL", &sentinels.url())],
    );
    let primary = format!(
        "weir_redis_up{{redis=\"main\",server=\"127.0.0.1:{}\"}}",
        sentinels.primary()
    );
    assert_eq!(
        eventually_async(|| weir.metric(&primary).filter(|&up| up > 0.0)).await,
        Some(1.0)
    );
    let page = weir.get("/metrics").1;
    assert_eq!(
        page.lines()
            .filter(|line| line.starts_with("weir_redis_up"))
            .count(),
        1,
        "{page}"
    );
}

/// A client that does nothing but ask makes its worker busy, and the process with it.
#[cfg(target_os = "linux")]
async fn assert_busy_is_cpu_time(weir: &Weir, client: &mut support::Client) {
    let value = |series: &str| weir.metric(series).unwrap_or_else(|| panic!("no {series}"));
    let busy = || {
        ["0", "1"]
            .map(|worker| {
                value(&format!(
                    "weir_worker_busy_seconds_total{{worker=\"{worker}\"}}"
                ))
            })
            .iter()
            .sum::<f64>()
    };
    let (busy_before, cpu_before) = (busy(), value("process_cpu_seconds_total"));
    let began = std::time::Instant::now();
    while busy() < busy_before + 0.05 {
        assert!(began.elapsed().as_secs() < 60, "{} s busy", busy());
        for _ in 0..500 {
            let _ = ask(client, "demo", vec![descriptor(&[("year", "x")])]).await;
        }
    }
    let (busy, cpu) = (
        busy() - busy_before,
        value("process_cpu_seconds_total") - cpu_before,
    );
    assert!(
        cpu >= busy - 0.03,
        "{busy} s of workers are part of {cpu} s; times are in hundredths"
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_process_its_workers_and_its_connections_are_shown() {
    use std::time::{SystemTime, UNIX_EPOCH};

    let weir = Weir::start(support::DEMO, &[("WORKERS", "2")]);
    let value = |series: &str| weir.metric(series).unwrap_or_else(|| panic!("no {series}"));
    assert_eq!(weir.metric("weir_connections"), Some(0.0));
    let files = value("process_open_fds");
    let mut clients = [
        weir.client().await,
        weir.client().await,
        weir.client().await,
    ];
    for client in &mut clients {
        let _ = ask(client, "demo", vec![descriptor(&[("year", "x")])]).await;
    }
    assert_eq!(weir.metric("weir_connections"), Some(3.0));
    assert!(value("process_open_fds") >= files + 3.0);
    assert!(value("process_max_fds") > value("process_open_fds"));
    let resident = value("process_resident_memory_bytes");
    assert!(
        (1e6..4e9).contains(&resident) && value("process_virtual_memory_bytes") > resident,
        "{resident}"
    );
    assert!(
        value("process_threads") >= 3.0,
        "two workers and the control thread"
    );
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs_f64();
    let age = now - value("process_start_time_seconds");
    assert!((-2.0..600.0).contains(&age), "{age} s old");
    for worker in ["0", "1"] {
        assert_eq!(
            weir.metric(&format!("weir_waiting_calls{{worker=\"{worker}\"}}")),
            Some(0.0)
        );
    }
    assert_busy_is_cpu_time(&weir, &mut clients[0]).await;
    drop(clients);
    assert_eq!(
        eventually_async(|| Some(()).filter(|()| weir.metric("weir_connections") == Some(0.0)))
            .await,
        Some(())
    );
}

#[tokio::test]
async fn calls_that_wait_are_shown() {
    const LIMITS: &str = "
domain: slow
descriptors:
  - { key: queue, rate_limit: { unit: second, requests_per_unit: 1, algorithm: leaky_bucket, \
      max_delay: 30s } }
";
    let weir = Weir::start(&[("limits.yaml", LIMITS)], &[("WORKERS", "1")]);
    let client = weir.client().await;
    let send = || {
        let mut client = client.clone();
        async move {
            client
                .should_rate_limit(request("slow", vec![descriptor(&[("queue", "x")])]))
                .await
                .map(|_| ())
        }
    };
    let waiting = "weir_waiting_calls{worker=\"0\"}";
    let waits_none = || (weir.metric(waiting) == Some(0.0)).then_some(());
    assert!(eventually_async(waits_none).await.is_some());
    let asked: Vec<_> = (0..4).map(|_| tokio::spawn(send())).collect();
    assert_eq!(
        eventually_async(|| weir
            .metric(waiting)
            .filter(|&count| count >= 2.0)
            .map(|_| ()))
        .await,
        Some(()),
        "three of four wait"
    );
    for call in asked {
        call.await.expect("no panic").expect("an answer");
    }
    assert_eq!(
        eventually_async(|| weir
            .metric(waiting)
            .filter(|&count| count == 0.0)
            .map(|_| ()))
        .await,
        Some(())
    );
}
