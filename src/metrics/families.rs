//! Families: samples gathered by name, and their text for Prometheus.
//!
//! Two samples of one name with equal labels are added up: a scrape with a series twice would be refused as a whole. Each limit has more than a
//! dozen series, so that a scrape of very many limits has millions of lines: labels are written once for all series that share them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};

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
    series: Vec<Series>,
}

/// A label whose value is one of few.
pub(super) type LastLabel = Option<(&'static str, &'static str)>;

#[derive(Debug)]
struct Series {
    labels: Rc<str>,
    last: LastLabel,
    value: f64,
}

/// What names a counter, apart from its labels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub name: &'static str,
    pub help: &'static str,
}

/// Labels as they stand between the braces, for [`Families::count`].
pub(super) fn labels<'a>(pairs: impl IntoIterator<Item = (&'static str, &'a str)>) -> Rc<str> {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        for piece in value.split_inclusive(['\\', '"', '\n']) {
            let (plain, escaped) = match piece.as_bytes().last() {
                Some(b'\\') => (&piece[..piece.len() - 1], "\\\\"),
                Some(b'"') => (&piece[..piece.len() - 1], "\\\""),
                Some(b'\n') => (&piece[..piece.len() - 1], "\\n"),
                _ => (piece, ""),
            };
            text.push_str(plain);
            text.push_str(escaped);
        }
        text.push('"');
    }
    text.into()
}

impl Families {
    /// Adds one sample.
    pub(super) fn add(&mut self, sample: Sample) {
        let Sample { name, help, kind, labels: pairs, value } = sample;
        let labels = labels(pairs.iter().map(|(name, value)| (*name, value.as_str())));
        self.family(Named { name, help }, kind).push(Series { labels, last: None, value });
    }

    /// Adds one counter with labels that others share.
    pub(super) fn count(&mut self, named: Named, labels: &Rc<str>, last: LastLabel, count: u64) {
        self.family(named, Kind::Counter).push(Series { labels: Rc::clone(labels), last, value: count as f64 });
    }

    fn family(&mut self, Named { name, help }: Named, kind: Kind) -> &mut Vec<Series> {
        &mut self.values.entry(name).or_insert_with(|| Values { help, kind, series: Vec::new() }).series
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
        let mut histograms = self.histograms.into_iter().peekable();
        let mut text = String::new();
        // It fails only for a family without samples or name, and there is none.
        let encode = |family: MetricFamily| TextEncoder::new().encode_to_string(&[family]).unwrap_or_default();
        for (name, values) in self.values {
            while let Some((_, family)) = histograms.next_if(|(histogram, _)| *histogram < name) {
                text.push_str(&encode(family));
            }
            values.write(name, &mut text);
        }
        for (_, family) in histograms {
            text.push_str(&encode(family));
        }
        text
    }
}

impl Values {
    fn write(mut self, name: &str, text: &mut String) {
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a text does not fail.
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", self.help.replace('\\', "\\\\").replace('\n', "\\n"));
        // Most come in order already, which this takes advantage of.
        self.series.sort_by(|one, other| (&one.labels, one.last).cmp(&(&other.labels, other.last)));
        for same in self.series.chunk_by(|one, other| one.labels == other.labels && one.last == other.last) {
            text.push_str(name);
            same[0].write_labels(text);
            write_value(same.iter().map(|series| series.value).sum(), text);
        }
    }
}

impl Series {
    fn write_labels(&self, text: &mut String) {
        if self.labels.is_empty() && self.last.is_none() {
            return;
        }
        text.push('{');
        text.push_str(&self.labels);
        if let Some((name, value)) = self.last {
            let comma = if self.labels.is_empty() { "" } else { "," };
            for piece in [comma, name, "=\"", value, "\""] {
                text.push_str(piece);
            }
        }
        text.push('}');
    }
}

fn write_value(value: f64, text: &mut String) {
    /// Whole numbers are exact up to here.
    const WHOLE: f64 = 9_007_199_254_740_992.0;
    text.push(' ');
    if value.fract() == 0.0 && (0.0..WHOLE).contains(&value) {
        text.push_str(itoa::Buffer::new().format(value as u64));
    } else {
        let _ = write!(text, "{value}");
    }
    text.push('\n');
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
        let shared = labels([("k", "a\"b\\c\nd")]);
        families.count(Named { name: "weir_b", help: "B." }, &shared, None, 4);
        families.count(Named { name: "weir_b", help: "B." }, &shared, Some(("z", "one")), 1);
        families.count(Named { name: "weir_b", help: "B." }, &shared, Some(("z", "one")), 1);
        assert_eq!(
            families.text(),
            "# HELP weir_a A.\n# TYPE weir_a gauge\nweir_a 0.5\n\
             # HELP weir_b B.\n# TYPE weir_b counter\nweir_b{k=\"a\\\"b\\\\c\\nd\"} 9\nweir_b{k=\"a\\\"b\\\\c\\nd\",z=\"one\"} 2\n"
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
