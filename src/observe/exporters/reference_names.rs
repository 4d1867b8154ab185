//! The names of envoyproxy/ratelimit: with dots for StatsD, and with labels for its Prometheus
//! port.
//!
//! The labels of Prometheus come from the levels of a limit, and not from cutting a name at its
//! dots, because domains and values may contain dots. Source: envoyproxy/ratelimit,
//! `src/stats/manager_impl.go`, `src/limiter/local_cache_stats.go`,
//! `src/observe/metrics/metrics.go`, `src/stats/prom/default_mapper.yaml`.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::observe::metrics::dynamic::LimitReading;
use crate::observe::metrics::families::{self, Family, MetricType, Observations, Sample, Value};

/// Names of a limit's counters, in the order of [`LimitReading::hits`].
pub const HITS: [&str; LimitReading::FAMILIES.len()] = [
    "total_hits",
    "within_limit",
    "near_limit",
    "over_limit",
    "shadow_mode",
    "over_limit_with_local_cache",
];

/// One value that is not of a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Stat {
    /// The name, with dots.
    pub name: String,
    /// Counter, of which its growth is sent, or gauge, which is sent as it is.
    pub kind: MetricType,
    /// Its value now; never negative.
    pub value: u64,
}

/// The name of the response time of requests.
pub const RESPONSE_TIME: &str = "ratelimit_server.ShouldRateLimit.response_time";

/// The name of a family without labels.
fn plain(family: &Family) -> Option<&'static str> {
    Some(match family.name {
        "ratelimit_service_total_requests" => "ratelimit_server.ShouldRateLimit.total_requests",
        "ratelimit_service_global_shadow_mode" => "ratelimit.service.global_shadow_mode",
        "ratelimit_service_config_load_success" => "ratelimit.service.config_load_success",
        "ratelimit_service_config_load_error" => "ratelimit.service.config_load_error",
        "ratelimit_redis_pool_cx_active" => "ratelimit.redis_pool.cx_active",
        "ratelimit_redis_pool_cx_total" => "ratelimit.redis_pool.cx_total",
        "ratelimit_redis_per_second_pool_cx_active" => "ratelimit.redis_per_second_pool.cx_active",
        "ratelimit_redis_per_second_pool_cx_total" => "ratelimit.redis_per_second_pool.cx_total",
        "weir_denial_cache_entries" => LOCAL_CACHE_ENTRIES,
        _ => return None,
    })
}

/// Look-ups of the local cache: Weir's label, then envoyproxy/ratelimit's name.
const LOCAL_CACHE: [(&str, &str); 2] = [
    ("hit", "ratelimit.localcache.hitCount"),
    ("miss", "ratelimit.localcache.missCount"),
];
const LOCAL_CACHE_LOOKUPS: &str = "ratelimit.localcache.lookupCount";
const LOCAL_CACHE_ENTRIES: &str = "ratelimit.localcache.entryCount";

/// The values of these samples that envoyproxy/ratelimit has too, under its names.
pub fn stats(samples: &[Sample]) -> Vec<Stat> {
    let mut stats: Vec<Stat> = Vec::new();
    let mut add = |kind, name: String, value| match stats.iter_mut().find(|stat| stat.name == name)
    {
        Some(stat) => stat.value += value,
        None => stats.push(Stat { name, kind, value }),
    };
    for sample in samples {
        let Value::Number(value) = sample.value else {
            continue;
        };
        let (family, value) = (sample.family, value as u64);
        let label = sample.labels.first().map_or("", String::as_str);
        if let Some(name) = plain(family) {
            add(family.metric_type, name.to_owned(), value);
        } else if *family == families::REQUEST_ERRORS {
            let name = format!("ratelimit.service.call.should_rate_limit.{label}");
            add(MetricType::Counter, name, value);
        } else if *family == families::DOMAIN_NOT_FOUND && value > 0 {
            let domain = sanitized(label);
            let name = format!("ratelimit.service.rate_limit.{domain}.domain_not_found");
            add(MetricType::Counter, name, value);
        } else if *family == families::DENIAL_CACHE_LOOKUPS {
            let names = LOCAL_CACHE.iter().filter(|(result, _)| *result == label);
            for name in names.map(|(_, name)| *name).chain([LOCAL_CACHE_LOOKUPS]) {
                add(MetricType::Gauge, name.to_owned(), value);
            }
        }
    }
    stats
}

/// The response times among these samples.
pub fn response_times(samples: &[Sample]) -> Option<&Observations> {
    samples.iter().find_map(|sample| match &sample.value {
        Value::Observations(times) if *sample.family == families::RESPONSE_TIME => Some(times),
        _ => None,
    })
}

/// The name of a limit, to which a dot and a name of [`HITS`] belong.
pub fn limit(limit: &LimitReading<'_>) -> String {
    let levels: Vec<_> = limit.labels.pairs().map(|(_, level)| level).collect();
    let path = sanitized(&levels.join("."));
    format!("ratelimit.service.rate_limit.{path}")
}

/// Replaces the characters that a line of StatsD cannot contain in a name or in one level of it:
/// `:` and `|`, as envoyproxy/ratelimit does, and control characters, with which a client could
/// forge lines. The dots of IPv4 addresses become `_`, as in envoyproxy/ratelimit.
pub(super) fn sanitized(key: &str) -> String {
    static IPV4: LazyLock<Regex> = LazyLock::new(|| {
        let address = r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}";
        Regex::new(address).expect("a regular expression")
    });
    let is_unusable = |char: char| matches!(char, ':' | '|') || char.is_control();
    let clean = key.replace(is_unusable, "_");
    if clean.bytes().filter(|&byte| byte == b'.').count() < 3 {
        return clean;
    }
    let replaced = |address: &Captures<'_>| address[0].replace('.', "_");
    IPV4.replace_all(&clean, replaced).into_owned()
}

/// Families that only envoyproxy/ratelimit's own port has.
mod only_there {
    use crate::observe::metrics::families::families;

    families! { ALL:
        /// Checks that the denial cache refused, since the start.
        LOCAL_CACHE_HITS = Gauge "ratelimit_localcache_hitCount" [];
        /// Checks that the denial cache did not know, since the start.
        LOCAL_CACHE_MISSES = Gauge "ratelimit_localcache_missCount" [];
        /// Checks that were looked up in the denial cache, since the start.
        LOCAL_CACHE_LOOKUPS = Gauge "ratelimit_localcache_lookupCount" [];
        /// Keys in the denial cache that are over their limit now.
        LOCAL_CACHE_ENTRIES = Gauge "ratelimit_localcache_entryCount" [];
        /// Always 0, for dashboards of envoyproxy/ratelimit: Weir has no garbage collector.
        GC_CPU_FRACTION = Gauge "go_memstats_gc_cpu_fraction" [];
    }
}

/// The samples that the port of envoyproxy/ratelimit shows in addition to Weir's own page.
pub fn further_samples(samples: &[Sample]) -> Vec<Sample> {
    let stats = stats(samples);
    let value = |name: &str| {
        let stat = stats.iter().find(|stat| stat.name == name);
        stat.map(|stat| stat.value)
    };
    let counts = [
        value(LOCAL_CACHE[0].1),
        value(LOCAL_CACHE[1].1),
        value(LOCAL_CACHE_LOOKUPS),
        value(LOCAL_CACHE_ENTRIES),
        Some(0),
    ];
    // In the order of their declarations.
    let counted = only_there::ALL.iter().zip(counts);
    counted
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
                MetricType::Counter,
                7,
            ),
            (
                "ratelimit.service.call.should_rate_limit.redis_error",
                MetricType::Counter,
                1,
            ),
            (
                "ratelimit.service.rate_limit.1_2_3_4_x.domain_not_found",
                MetricType::Counter,
                2,
            ),
            ("ratelimit.localcache.hitCount", MetricType::Gauge, 3),
            ("ratelimit.localcache.lookupCount", MetricType::Gauge, 7),
            ("ratelimit.localcache.missCount", MetricType::Gauge, 4),
            ("ratelimit.redis_pool.cx_active", MetricType::Gauge, 5),
        ];
        assert_eq!(
            named,
            expected.map(|(name, kind, value)| (name.to_owned(), kind, value))
        );
        let further = further_samples(&samples);
        let names: Vec<_> = further.iter().map(|sample| sample.family.name).collect();
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
