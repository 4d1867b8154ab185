//! Families: samples gathered by name, and their text for Prometheus.
//!
//! Two samples of one name with equal labels are added up: a scrape with a series twice would be refused as a whole.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// What a sample's value means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One value of one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name, as Prometheus allows it.
    pub name: &'static str,
    /// What it counts and in which unit, in one sentence.
    pub help: &'static str,
    /// Counter or gauge; the same for all samples of a name.
    pub kind: Kind,
    /// Names and values of the labels; the same names in the same order for all samples of a name. Values may hold any text.
    pub labels: Vec<(&'static str, String)>,
    /// The value now.
    pub value: f64,
}

impl Sample {
    /// A counter's value.
    #[must_use]
    pub fn counter(name: &'static str, help: &'static str, labels: Vec<(&'static str, String)>, value: u64) -> Self {
        Self { name, help, kind: Kind::Counter, labels, value: value as f64 }
    }

    /// A gauge's value.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str, labels: Vec<(&'static str, String)>, value: f64) -> Self {
        Self { name, help, kind: Kind::Gauge, labels, value }
    }
}

/// How long things took: upper bounds in seconds with the observations up to each (not cumulative), then those above the last bound.
#[derive(Debug)]
pub(super) struct Durations<'a> {
    pub name: &'static str,
    pub help: &'static str,
    pub labels: Vec<(&'static str, String)>,
    pub bounds: &'a [f64],
    pub counts: &'a [u64],
    pub sum_seconds: f64,
}

/// Everything of one scrape.
#[derive(Debug, Default)]
pub(super) struct Families {
    values: BTreeMap<&'static str, Values>,
    histograms: BTreeMap<&'static str, MetricFamily>,
}

#[derive(Debug)]
struct Values {
    help: &'static str,
    kind: Kind,
    series: BTreeMap<Vec<(&'static str, String)>, f64>,
}

impl Families {
    /// Adds one sample.
    pub(super) fn add(&mut self, sample: Sample) {
        let Sample { name, help, kind, labels, value } = sample;
        let family = self.values.entry(name).or_insert_with(|| Values { help, kind, series: BTreeMap::new() });
        match family.series.entry(labels) {
            Entry::Vacant(place) => _ = place.insert(value),
            Entry::Occupied(mut place) => *place.get_mut() += value,
        }
    }

    /// Adds one histogram.
    pub(super) fn add_durations(&mut self, durations: Durations<'_>) {
        let mut cumulative = 0_u64;
        let mut buckets = Vec::with_capacity(durations.bounds.len());
        for (&bound, &count) in durations.bounds.iter().zip(durations.counts) {
            cumulative += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(cumulative);
            buckets.push(bucket);
        }
        let mut histogram = Histogram::default();
        histogram.set_sample_count(durations.counts.iter().sum());
        histogram.set_sample_sum(durations.sum_seconds);
        histogram.set_bucket(buckets);
        let mut metric = Metric::from_label(pairs(durations.labels));
        metric.set_histogram(histogram);
        let family = self.histograms.entry(durations.name).or_insert_with(|| family(durations.name, durations.help, MetricType::HISTOGRAM));
        family.mut_metric().push(metric);
    }

    /// The text that Prometheus reads, families in the order of their names.
    #[must_use]
    pub(super) fn text(self) -> String {
        let mut families: Vec<MetricFamily> = self.values.into_iter().map(|(name, values)| values.family(name)).collect();
        families.extend(self.histograms.into_values());
        families.sort_by(|one, other| one.name().cmp(other.name()));
        // It fails only for a family without samples or name, and there is none.
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }
}

impl Values {
    fn family(self, name: &str) -> MetricFamily {
        let field_type = match self.kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
        };
        let mut family = family(name, self.help, field_type);
        let metric = |(labels, value): (Vec<(&'static str, String)>, f64)| {
            let mut metric = Metric::from_label(pairs(labels));
            match self.kind {
                Kind::Counter => {
                    let mut counter = Counter::default();
                    counter.set_value(value);
                    metric.set_counter(counter);
                }
                Kind::Gauge => {
                    let mut gauge = Gauge::default();
                    gauge.set_value(value);
                    metric.set_gauge(gauge);
                }
            }
            metric
        };
        family.set_metric(self.series.into_iter().map(metric).collect());
        family
    }
}

fn family(name: &str, help: &str, field_type: MetricType) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(field_type);
    family
}

fn pairs(labels: Vec<(&'static str, String)>) -> Vec<LabelPair> {
    let pair = |(name, value): (&'static str, String)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value);
        pair
    };
    labels.into_iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_series_are_one_and_label_values_are_escaped() {
        let mut families = Families::default();
        for value in [2, 3] {
            families.add(Sample::counter("weir_b", "B.", vec![("k", "a\"b\\c\nd".to_owned())], value));
        }
        families.add(Sample::gauge("weir_a", "A.", Vec::new(), 0.5));
        assert_eq!(
            families.text(),
            "# HELP weir_a A.\n# TYPE weir_a gauge\nweir_a 0.5\n\
             # HELP weir_b B.\n# TYPE weir_b counter\nweir_b{k=\"a\\\"b\\\\c\\nd\"} 5\n"
        );
    }

    #[test]
    fn buckets_are_cumulative() {
        let mut families = Families::default();
        families.add_durations(Durations {
            name: "weir_t",
            help: "T.",
            labels: vec![("m", "x".to_owned())],
            bounds: &[0.5, 1.0],
            counts: &[1, 2, 4],
            sum_seconds: 9.5,
        });
        let text = families.text();
        for line in ["_bucket{m=\"x\",le=\"0.5\"} 1", "_bucket{m=\"x\",le=\"1\"} 3", "_bucket{m=\"x\",le=\"+Inf\"} 7"] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(text.contains("weir_t_count{m=\"x\"} 7") && text.contains("weir_t_sum{m=\"x\"} 9.5"), "{text}");
    }
}
