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
    let mut stats = Text {
        format: view.format,
        written: String::new(),
        max_bytes,
    };
    if view.format == Format::Json {
        stats.written.push('{');
    }
    let samples = metrics.samples();
    let mut process = reference_names::stats(&samples);
    process.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    for stat in process {
        stats.add(&stat.name, stat.value);
    }
    if let Some(times) = reference_names::response_times(&samples) {
        stats.add(&format!("{RESPONSE_TIME}.count"), times.counts.iter().sum());
        stats.add(&format!("{RESPONSE_TIME}.sum_us"), (times.sum * 1e6) as u64);
    }
    let mut limits: BTreeMap<String, [u64; HITS.len()]> = BTreeMap::new();
    metrics.read_limits(|limit| {
        if view
            .domain
            .as_deref()
            .is_none_or(|domain| *domain == *limit.labels.domain)
        {
            let sums = limits.entry(reference_names::limit(limit)).or_default();
            for (sum, hits) in sums.iter_mut().zip(limit.hits) {
                *sum += hits;
            }
        }
    });
    for (name, hits) in limits {
        for (stat, count) in HITS.into_iter().zip(hits) {
            stats.add(&format!("{name}.{stat}"), count);
        }
    }
    stats.end()
}

struct Text {
    format: Format,
    written: String,
    max_bytes: usize,
}

impl Text {
    fn add(&mut self, name: &str, value: u64) {
        if self.written.len() >= self.max_bytes {
            return;
        }
        // Writing to a string does not fail.
        let _ = match self.format {
            Format::Text => writeln!(self.written, "{name}: {value}"),
            Format::Json => write!(
                self.written,
                "{}{}:{value}",
                if self.written.len() > 1 { ",\n" } else { "" },
                Value::from(name)
            ),
        };
    }

    fn end(mut self) -> String {
        let is_cut = self.written.len() >= self.max_bytes;
        match self.format {
            Format::Text if is_cut => self
                .written
                .push_str("# cut; ?domain=NAME shows one domain\n"),
            Format::Text => {}
            Format::Json => self.written.push_str("}\n"),
        }
        self.written
    }
}
