//! What real processes show on `/metrics`: with counters in memory, with two Redis servers, with a
//! control plane, and with TLS.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::support::certificates::{Authority, Files};
use crate::support::ports;
use crate::support::wait::eventually;
use crate::support::{RedisServer, Weir};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: path
    descriptors:
      - key: user
        rate_limit: { unit: second, requests_per_unit: 1, name: per-path, notify: [80%, 100%] }
",
)];

/// The series of some pages: each metric's labels with their values.
#[derive(Debug, Default)]
pub(super) struct Scrape(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Scrape {
    fn add(&mut self, page: &str) {
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (series, _) = line.rsplit_once(' ').expect("a value");
            let (metric, labels) = series.split_once('{').unwrap_or((series, "}"));
            let known = self.0.entry(metric.to_owned()).or_default();
            for part in labels
                .trim_end_matches('}')
                .split("\",")
                .filter(|part| !part.is_empty())
            {
                let (label, value) = part.split_once("=\"").expect("a label");
                known
                    .entry(label.to_owned())
                    .or_default()
                    .insert(value.trim_end_matches('"').to_owned());
            }
        }
    }

    pub(super) fn has_metric(&self, metric: &str) -> bool {
        self.0.contains_key(metric)
    }

    pub(super) fn has_label(&self, metric: &str, label: &str) -> bool {
        self.0
            .get(metric)
            .is_some_and(|labels| labels.contains_key(label))
    }

    pub(super) fn has_value(&self, metric: &str, label: &str, value: &str) -> bool {
        self.0
            .get(metric)
            .and_then(|labels| labels.get(label))
            .is_some_and(|values| values.contains(value))
    }
}

/// The page of a process once the page has this text.
fn page_with(weir: &Weir, text: &str) -> String {
    eventually(|| Some(weir.get("/metrics").1).filter(|page| page.contains(text)))
        .unwrap_or_else(|| panic!("{text} is not on /metrics"))
}

fn with_two_redis_servers(redis: &RedisServer, per_second: &RedisServer) -> Weir {
    let (url, per_second_url) = (redis.url(), per_second.url());
    Weir::start(
        LIMITS,
        &[
            ("REDIS_URL", &url),
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_URL", &per_second_url),
        ],
    )
}

/// The first scrapes, after Redis was inspected and before any request.
pub(super) fn fresh() -> Scrape {
    let mut scrape = Scrape::default();
    scrape.add(&page_with(&Weir::start(LIMITS, &[]), "weir_memory_keys"));
    let [redis, per_second] = [(); 2].map(|()| RedisServer::start());
    let weir = with_two_redis_servers(&redis, &per_second);
    scrape.add(&page_with(
        &weir,
        "weir_redis_used_memory_bytes{redis=\"per_second\"",
    ));
    // A control plane that does not answer.
    let control_plane = ports::free().to_string();
    let settings = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &control_plane),
    ];
    scrape.add(&page_with(
        &Weir::start(&[], &settings),
        "weir_xds_connected",
    ));
    let files = Files::new();
    files.write_issued("tls", &Authority::new("an authority").issue(&["localhost"]));
    let [certificate, key] =
        ["tls.crt", "tls.key"].map(|name| files.path(name).to_string_lossy().into_owned());
    let tls = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &certificate[..]),
        ("GRPC_SERVER_TLS_KEY", &key[..]),
    ];
    scrape.add(&page_with(
        &Weir::start(LIMITS, &tls),
        "weir_certificate_expiry_timestamp_seconds",
    ));
    scrape
}

/// The same processes after requests within and over limits, for an unknown domain, and without
/// Redis.
pub(super) fn eventful() -> Scrape {
    let mut scrape = fresh();
    let [mut redis, per_second] = [(); 2].map(|()| RedisServer::start());
    let weir = with_two_redis_servers(&redis, &per_second);
    let memory = Weir::start(LIMITS, &[]);
    page_with(&weir, "weir_redis_used_memory_bytes{redis=\"main\"");
    for weir in [&weir, &memory] {
        for entries in [&["user=ann"][..], &["path=/", "user=ann"], &["page=/"]] {
            hit(weir, "shop", entries);
        }
        hit(weir, "shopp", &["user=ann"]);
        scrape.add(&page_with(weir, "domain=\"shopp\""));
    }
    redis.kill();
    hit(&weir, "shop", &["user=bob"]);
    scrape.add(&page_with(&weir, "weir_redis_errors_total{"));
    scrape
}

/// Three requests over gRPC.
fn hit(weir: &Weir, domain: &str, entries: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .args([
            "hit",
            "--count",
            "3",
            "--domain",
            domain,
            "--address",
            &weir.grpc_addr().to_string(),
        ])
        .args(entries);
    let output = command.env_clear().output().expect("the binary runs");
    assert!(
        !output.stdout.is_empty() || !output.stderr.is_empty(),
        "{output:?}"
    );
}
