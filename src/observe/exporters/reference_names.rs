//! The names of envoyproxy/ratelimit: those that it sends to StatsD, with dots, and those that its
//! Prometheus port shows.
//!
//! The labels of Prometheus come from the levels of a limit, and not from cutting a name at its
//! dots, so that domains and values may hold dots. Source: envoyproxy/ratelimit,
//! `src/stats/manager_impl.go`, `src/limiter/local_cache_stats.go`, `src/observe/metrics/metrics.go`,
//! `src/stats/prom/default_mapper.yaml`.

use std::sync::LazyLock;

use regex::Regex;

use crate::observe::metrics::families::{self, Family, MetricType, Observations, Sample, Value};
use crate::observe::metrics::reading::LimitReading;

/// What the counters of a limit are called, in the order of [`LimitReading::hits`].
pub const HITS: [&str; LimitReading::FAMILIES.len()] = [
    "total_hits",
    "within_limit",
    "near_limit",
    "over_limit",
    "shadow_mode",
    "over_limit_with_local_cache",
];

/// How a value is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows: what it grew by is sent.
    Counter,
    /// As it is.
    Gauge,
}

/// One value that is not of a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Stat {
    /// The name, with dots.
    pub name: String,
    /// Counter or gauge.
    pub kind: Kind,
    /// Its value now; never negative.
    pub value: u64,
}

/// The name of the response time of requests.
pub const RESPONSE_TIME: &str = "ratelimit_server.ShouldRateLimit.response_time";

/// Families without labels: their name.
static PLAIN: &[(&Family, Kind, &str)] = &[
    (
        &families::TOTAL_REQUESTS,
        Kind::Counter,
        "ratelimit_server.ShouldRateLimit.total_requests",
    ),
    (
        &families::GLOBAL_SHADOW_MODE,
        Kind::Counter,
        "ratelimit.service.global_shadow_mode",
    ),
    (
        &families::CONFIG_LOAD_SUCCESS,
        Kind::Counter,
        "ratelimit.service.config_load_success",
    ),
    (
        &families::CONFIG_LOAD_ERROR,
        Kind::Counter,
        "ratelimit.service.config_load_error",
    ),
    (
        &families::REDIS_CONNECTIONS_OPEN,
        Kind::Gauge,
        "ratelimit.redis_pool.cx_active",
    ),
    (
        &families::REDIS_CONNECTIONS_OPENED,
        Kind::Counter,
        "ratelimit.redis_pool.cx_total",
    ),
    (
        &families::REDIS_PER_SECOND_CONNECTIONS_OPEN,
        Kind::Gauge,
        "ratelimit.redis_per_second_pool.cx_active",
    ),
    (
        &families::REDIS_PER_SECOND_CONNECTIONS_OPENED,
        Kind::Counter,
        "ratelimit.redis_per_second_pool.cx_total",
    ),
    (
        &families::DENIAL_CACHE_ENTRIES,
        Kind::Gauge,
        "ratelimit.localcache.entryCount",
    ),
];

/// The look-ups of the local cache: the label of ours, then the name there.
const LOCAL_CACHE: [(&str, &str); 2] = [
    ("hit", "ratelimit.localcache.hitCount"),
    ("miss", "ratelimit.localcache.missCount"),
];
const LOCAL_CACHE_LOOKUPS: &str = "ratelimit.localcache.lookupCount";

/// The values of these samples that envoyproxy/ratelimit has too, under its names.
#[must_use]
pub fn stats(samples: &[Sample]) -> Vec<Stat> {
    let mut stats = Vec::new();
    let mut lookups = None;
    for sample in samples {
        let Value::Number(value) = *sample.value() else {
            continue;
        };
        // Whole numbers that are never negative.
        let value = value as u64;
        let family = sample.family();
        let label = sample.labels().first().map_or("", String::as_str);
        let named =
            if let Some(&(_, kind, name)) = PLAIN.iter().find(|(known, ..)| *known == family) {
                Some((kind, name.to_owned()))
            } else if *family == families::REQUEST_ERRORS {
                Some((
                    Kind::Counter,
                    format!("ratelimit.service.call.should_rate_limit.{label}"),
                ))
            } else if *family == families::DOMAIN_NOT_FOUND {
                (value > 0).then(|| {
                    (
                        Kind::Counter,
                        format!(
                            "ratelimit.service.rate_limit.{}.domain_not_found",
                            sanitized(label)
                        ),
                    )
                })
            } else if *family == families::DENIAL_CACHE_LOOKUPS {
                lookups = Some(lookups.unwrap_or(0) + value);
                LOCAL_CACHE
                    .iter()
                    .find(|(result, _)| *result == label)
                    .map(|&(_, name)| (Kind::Gauge, name.to_owned()))
            } else {
                None
            };
        stats.extend(named.map(|(kind, name)| Stat { name, kind, value }));
    }
    stats.extend(lookups.map(|value| Stat {
        name: LOCAL_CACHE_LOOKUPS.to_owned(),
        kind: Kind::Gauge,
        value,
    }));
    stats
}

/// The response times among these samples.
#[must_use]
pub fn response_times(samples: &[Sample]) -> Option<&Observations> {
    samples
        .iter()
        .find(|sample| *sample.family() == families::RESPONSE_TIME)
        .and_then(|sample| match sample.value() {
            Value::Observations(observations) => Some(observations),
            Value::Number(_) => None,
        })
}

/// The name of a limit, to which a dot and a name of [`HITS`] belong.
#[must_use]
pub fn limit(limit: &LimitReading<'_>) -> String {
    let mut key = format!("{}.{}", limit.domain, limit.key1);
    if !limit.below.is_empty() {
        key.push('.');
        key.push_str(limit.below);
    }
    format!("ratelimit.service.rate_limit.{}", sanitized(&key))
}

/// Replaces what a line of StatsD cannot hold: `:` and `|`, as envoyproxy/ratelimit does, and
/// control characters, with which a client could write lines of its own. The dots of IPv4 addresses
/// become `_`, as there.
fn sanitized(key: &str) -> String {
    static IPV4: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}").ok());
    let clean: String = key
        .chars()
        .map(|char| {
            if matches!(char, ':' | '|') || char.is_control() {
                '_'
            } else {
                char
            }
        })
        .collect();
    match &*IPV4 {
        Some(ipv4) if clean.bytes().filter(|&byte| byte == b'.').count() >= 3 => ipv4
            .replace_all(&clean, |address: &regex::Captures<'_>| {
                address[0].replace('.', "_")
            })
            .into_owned(),
        _ => clean,
    }
}

/// Families that only envoyproxy/ratelimit's own port has.
pub(super) mod only_there {
    use super::{Family, MetricType::Gauge};

    pub(in super::super) static LOCAL_CACHE_HITS: Family = Family::new(
        "ratelimit_localcache_hitCount",
        Gauge,
        &[],
        "Checks that the denial cache refused, since the start.",
    );
    pub(in super::super) static LOCAL_CACHE_MISSES: Family = Family::new(
        "ratelimit_localcache_missCount",
        Gauge,
        &[],
        "Checks that the denial cache did not know, since the start.",
    );
    pub(in super::super) static LOCAL_CACHE_LOOKUPS: Family = Family::new(
        "ratelimit_localcache_lookupCount",
        Gauge,
        &[],
        "Checks that were looked up in the denial cache, since the start.",
    );
    pub(in super::super) static LOCAL_CACHE_ENTRIES: Family = Family::new(
        "ratelimit_localcache_entryCount",
        Gauge,
        &[],
        "Keys in the denial cache that are over their limit now.",
    );
    pub(in super::super) static GC_CPU_FRACTION: Family = Family::new(
        "go_memstats_gc_cpu_fraction",
        Gauge,
        &[],
        "Always 0, for dashboards of envoyproxy/ratelimit: Weir has no garbage collector.",
    );
}

/// The samples that the port of envoyproxy/ratelimit shows besides those of Weir's own page.
#[must_use]
pub fn further_samples(samples: &[Sample]) -> Vec<Sample> {
    let with = |name: &str| {
        stats(samples)
            .into_iter()
            .find(|stat| stat.name == name)
            .map(|stat| stat.value)
    };
    let (lookups, entries) = (
        with(LOCAL_CACHE_LOOKUPS),
        with("ratelimit.localcache.entryCount"),
    );
    let counts = [
        (&only_there::LOCAL_CACHE_HITS, with(LOCAL_CACHE[0].1)),
        (&only_there::LOCAL_CACHE_MISSES, with(LOCAL_CACHE[1].1)),
        (&only_there::LOCAL_CACHE_LOOKUPS, lookups),
        (&only_there::LOCAL_CACHE_ENTRIES, entries),
        (&only_there::GC_CPU_FRACTION, Some(0)),
    ];
    counts
        .into_iter()
        .filter_map(|(family, count)| Some(family.count(&[], count?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_line_without_separators() {
        for (key, expected) in [
            ("shop.user", "shop.user"),
            ("ns/gw/http.a:b|c", "ns/gw/http.a_b_c"),
            ("shop.ip_10.1.22.133", "shop.ip_10_1_22_133"),
            ("shop.cidr_10.0.0.0/8.x", "shop.cidr_10_0_0_0/8.x"),
            ("a.b_1.2.3", "a.b_1.2.3"),
            (
                "d.k_x\nratelimit.fake:1|c\r\t\u{0}",
                "d.k_x_ratelimit.fake_1_c___",
            ),
            ("d.ü", "d.ü"),
        ] {
            assert_eq!(sanitized(key), expected);
        }
    }

    #[test]
    fn samples_have_the_names_of_the_reference() {
        let samples = [
            families::TOTAL_REQUESTS.count(&["ShouldRateLimit"], 7),
            families::REQUEST_ERRORS.count(&["redis_error"], 1),
            families::DOMAIN_NOT_FOUND.count(&["1.2.3.4:x"], 2),
            families::DOMAIN_NOT_FOUND.count(&["other"], 0),
            families::MEMORY_KEYS.count(&[], 9),
            families::DENIAL_CACHE_LOOKUPS.count(&["hit"], 3),
            families::DENIAL_CACHE_LOOKUPS.count(&["miss"], 4),
            families::REDIS_CONNECTIONS_OPEN.count(&[], 5),
        ];
        let named: Vec<_> = stats(&samples)
            .into_iter()
            .map(|Stat { name, kind, value }| (name, kind, value))
            .collect();
        let expected = [
            (
                "ratelimit_server.ShouldRateLimit.total_requests",
                Kind::Counter,
                7,
            ),
            (
                "ratelimit.service.call.should_rate_limit.redis_error",
                Kind::Counter,
                1,
            ),
            (
                "ratelimit.service.rate_limit.1_2_3_4_x.domain_not_found",
                Kind::Counter,
                2,
            ),
            ("ratelimit.localcache.hitCount", Kind::Gauge, 3),
            ("ratelimit.localcache.missCount", Kind::Gauge, 4),
            ("ratelimit.redis_pool.cx_active", Kind::Gauge, 5),
            ("ratelimit.localcache.lookupCount", Kind::Gauge, 7),
        ];
        assert_eq!(
            named,
            expected.map(|(name, kind, value)| (name.to_owned(), kind, value))
        );
        let further = further_samples(&samples);
        let names: Vec<_> = further
            .iter()
            .map(|sample| sample.family().name())
            .collect();
        assert_eq!(
            names,
            [
                "ratelimit_localcache_hitCount",
                "ratelimit_localcache_missCount",
                "ratelimit_localcache_lookupCount",
                "go_memstats_gc_cpu_fraction"
            ]
        );
    }
}
