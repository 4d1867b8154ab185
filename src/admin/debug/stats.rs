//! `/stats`: the counters and gauges under the names of envoyproxy/ratelimit, as it sends them to
//! StatsD. Limits without hits are left out.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::{Format, View};
use crate::observe::exporters::reference_names::{self, HITS, RESPONSE_TIME};
use crate::observe::metrics::Metrics;

/// The text of the page, cut after `max_bytes`.
pub(super) fn page(metrics: &Metrics, view: &View, max_bytes: usize) -> String {
    let mut text = String::new();
    if view.format == Format::Json {
        text.push('{');
    }
    let mut add = |name: &str, value: u64| {
        if text.len() >= max_bytes {
            return;
        }
        // Writing to a string does not fail.
        let _ = match view.format {
            Format::Text => writeln!(text, "{name}: {value}"),
            Format::Json => {
                let comma = if text.len() > 1 { ",\n" } else { "" };
                write!(text, "{comma}{}:{value}", Value::from(name))
            }
        };
    };
    let samples = metrics.samples();
    let mut process = reference_names::stats(&samples);
    process.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    for stat in process {
        add(&stat.name, stat.value);
    }
    if let Some(times) = reference_names::response_times(&samples) {
        add(&format!("{RESPONSE_TIME}.count"), times.counts.iter().sum());
        add(&format!("{RESPONSE_TIME}.sum_us"), (times.sum * 1e6) as u64);
    }
    let mut limits: BTreeMap<String, [u64; HITS.len()]> = BTreeMap::new();
    metrics.read_limits(|limit| {
        let domain = view.domain.as_deref();
        if domain.is_none_or(|domain| *domain == *limit.labels.domain) {
            let sums = limits.entry(reference_names::limit(limit)).or_default();
            for (sum, hits) in sums.iter_mut().zip(limit.hits) {
                *sum += hits;
            }
        }
    });
    for (name, hits) in limits {
        for (stat, count) in HITS.into_iter().zip(hits) {
            add(&format!("{name}.{stat}"), count);
        }
    }
    let end = match view.format {
        Format::Text if text.len() >= max_bytes => "# cut; ?domain=NAME shows one domain\n",
        Format::Text => "",
        Format::Json => "}\n",
    };
    text + end
}
