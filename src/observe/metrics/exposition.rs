//! The exposition: the samples of one scrape, gathered by family, and their text for Prometheus.
//!
//! Samples of one family with equal labels are added up: Prometheus refuses a whole scrape if a
//! series is in it twice. Each limit has more than a dozen series, and a scrape of very many limits
//! has millions of lines. Therefore series with the same labels share their text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

use super::families::{Family, MetricType, Sample, Value};

/// All samples of one scrape, by the name of their family.
#[derive(Debug, Default)]
pub struct Exposition {
    families: BTreeMap<&'static str, (&'static Family, Vec<ExposedSeries>)>,
    /// Further labels of every series of the families of envoyproxy/ratelimit.
    extra: Vec<(String, String)>,
}

/// Series with the same labels, perhaps except the last one.
#[derive(Debug)]
pub struct LabelledSamples<'e> {
    exposition: &'e mut Exposition,
    pub(super) labels: Rc<str>,
}

impl LabelledSamples<'_> {
    /// Adds one counter; `last` is the value of the family's last label, where they differ.
    pub fn count(&mut self, family: &'static Family, last: Option<&'static str>, count: u64) {
        let labels = Rc::clone(&self.labels);
        self.exposition.push(family, "", labels, last, count as f64);
    }

    /// Adds one gauge.
    pub(super) fn gauge(&mut self, family: &'static Family, value: f64) {
        let labels = Rc::clone(&self.labels);
        self.exposition.push(family, "", labels, None, value);
    }

    /// Adds series with one more label.
    pub(super) fn with(&mut self, name: &str, value: &str) -> LabelledSamples<'_> {
        let labels = format!("{},{}", self.labels, labels([(name, value)]));
        self.exposition.of(labels.into())
    }
}

#[derive(Debug)]
struct ExposedSeries {
    /// The suffix of the family's name.
    suffix: &'static str,
    labels: Rc<str>,
    /// The value of the family's last label, where it is not in `labels`.
    last: Option<&'static str>,
    value: f64,
}

/// Labels as the text format writes them between the braces, for [`Exposition::of`].
pub(super) fn labels<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Rc<str> {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        for char in value.chars() {
            match char {
                '\\' | '"' => text.extend(['\\', char]),
                '\n' => text.push_str("\\n"),
                char => text.push(char),
            }
        }
        text.push('"');
    }
    text.into()
}

impl Exposition {
    /// Empty. Every series of a family of envoyproxy/ratelimit also gets the labels of `extra`,
    /// whose names must be valid.
    pub fn with_extra_labels(extra: Vec<(String, String)>) -> Self {
        let families = BTreeMap::new();
        Self { families, extra }
    }

    /// The text of these labels of `family`, for [`Exposition::of`].
    pub fn labels<'a>(
        &'a self,
        family: &Family,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Rc<str> {
        labels(pairs.into_iter().chain(self.extra_of(family)))
    }

    fn extra_of(&self, family: &Family) -> impl Iterator<Item = (&str, &str)> {
        let has_extra = family.is_of_the_reference();
        let extra = self.extra.iter().filter(move |_| has_extra);
        extra.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Adds one sample; of a histogram the observations up to each bound, their sum and their
    /// number.
    pub fn add(&mut self, sample: Sample) {
        let family = sample.family;
        let values = sample.labels.iter().map(String::as_str);
        let named = family.labels.iter().copied().zip(values);
        let labels = self.labels(family, named.clone());
        let observed = match sample.value {
            Value::Number(value) => return self.push(family, "", labels, None, value),
            Value::Observations(observations) => observations,
        };
        let mut cumulative = 0_u64;
        let bounds = observed.bounds.iter().map(ToString::to_string);
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(observed.counts) {
            cumulative += count;
            let le = [("le", bound.as_str())];
            let labels = self::labels(named.clone().chain(self.extra_of(family)).chain(le));
            self.push(family, "_bucket", labels, None, cumulative as f64);
        }
        self.push(family, "_sum", Rc::clone(&labels), None, observed.sum);
        self.push(family, "_count", labels, None, cumulative as f64);
    }

    /// Adds series that share these labels, and their text.
    pub fn of(&mut self, labels: Rc<str>) -> LabelledSamples<'_> {
        LabelledSamples {
            exposition: self,
            labels,
        }
    }

    fn push(
        &mut self,
        family: &'static Family,
        suffix: &'static str,
        labels: Rc<str>,
        last: Option<&'static str>,
        value: f64,
    ) {
        let none = || (family, Vec::new());
        let (_, series) = self.families.entry(family.name).or_insert_with(none);
        series.push(ExposedSeries {
            suffix,
            labels,
            last,
            value,
        });
    }

    /// Prometheus's text format, version 0.0.4; families in the order of their names.
    pub fn text(self) -> String {
        let mut text = String::new();
        for (family, series) in self.families.into_values() {
            write_family(family, series, &mut text);
        }
        text
    }
}

fn write_family(family: &Family, mut series: Vec<ExposedSeries>, text: &mut String) {
    let (name, is_histogram) = (family.name, family.metric_type == MetricType::Histogram);
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "# HELP {name} {}\n# TYPE {name} {}",
        family.help.replace('\\', "\\\\").replace('\n', "\\n"),
        family.metric_type.name()
    );
    // Most series are in order already, for which this sort takes linear time. A histogram's series
    // keep their own order.
    if !is_histogram {
        series.sort_by(|one, other| (&one.labels, one.last).cmp(&(&other.labels, other.last)));
    }
    let is_same = |one: &ExposedSeries, other: &ExposedSeries| {
        one.suffix == other.suffix && one.labels == other.labels && one.last == other.last
    };
    for same in series.chunk_by(is_same) {
        text.push_str(name);
        text.push_str(same[0].suffix);
        same[0].write_labels(family.labels.last().copied().unwrap_or_default(), text);
        write_value(same.iter().map(|series| series.value).sum(), text);
    }
}

impl ExposedSeries {
    fn write_labels(&self, last_label: &str, text: &mut String) {
        if self.labels.is_empty() && self.last.is_none() {
            return;
        }
        text.push('{');
        text.push_str(&self.labels);
        if let Some(value) = self.last {
            let comma = if self.labels.is_empty() { "" } else { "," };
            for piece in [comma, last_label, "=\"", value, "\""] {
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

#[cfg(test)]
mod tests {
    use super::super::families::{self, Observations};
    use super::*;

    static A: Family = Family {
        name: "weir_a",
        metric_type: families::MetricType::Gauge,
        labels: &[],
        help: "A.",
    };
    static B: Family = Family {
        name: "weir_b",
        metric_type: families::MetricType::Counter,
        labels: &["k", "z"],
        help: "B.",
    };
    static T: Family = Family {
        name: "weir_t",
        metric_type: families::MetricType::Histogram,
        labels: &["m"],
        help: "T.",
    };

    #[test]
    fn equal_series_are_one_and_label_values_are_escaped() {
        let mut exposition = Exposition::default();
        exposition.add(Sample {
            family: &B,
            labels: vec!["a\"b\\c\nd".to_owned()],
            value: Value::Number(5.0),
        });
        exposition.add(A.sample(&[], 0.5));
        let shared = labels([("k", "a\"b\\c\nd")]);
        let mut shared = exposition.of(shared);
        shared.count(&B, None, 4);
        shared.count(&B, Some("one"), 1);
        shared.count(&B, Some("one"), 1);
        assert_eq!(
            exposition.text(),
            "# HELP weir_a A.\n# TYPE weir_a gauge\nweir_a 0.5\n\
             # HELP weir_b B.\n# TYPE weir_b counter\nweir_b{k=\"a\\\"b\\\\c\\nd\"} \
             9\nweir_b{k=\"a\\\"b\\\\c\\nd\",z=\"one\"} 2\n"
        );
    }

    #[test]
    fn extra_labels_are_those_of_the_reference_only() {
        let mut exposition =
            Exposition::with_extra_labels(vec![("az".to_owned(), "a\"1".to_owned())]);
        exposition.add(B.sample(&["x", "y"], 1.0));
        exposition.add(families::CONFIG_LOAD_SUCCESS.count(&[], 2));
        exposition.add(families::RESPONSE_TIME.histogram(
            &["m"],
            Observations {
                bounds: vec![0.5].into(),
                counts: vec![1, 0],
                sum: 0.25,
            },
        ));
        let text = exposition.text();
        for line in [
            "weir_b{k=\"x\",z=\"y\"} 1",
            "ratelimit_service_config_load_success{az=\"a\\\"1\"} 2",
            "ratelimit_service_response_time_seconds_bucket\
             {grpc_method=\"m\",az=\"a\\\"1\",le=\"0.5\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
        }
    }

    #[test]
    fn buckets_are_cumulative() {
        let mut exposition = Exposition::default();
        exposition.add(T.histogram(
            &["x"],
            Observations {
                bounds: vec![0.5, 1.0].into(),
                counts: vec![1, 2, 4],
                sum: 9.5,
            },
        ));
        let text = exposition.text();
        for line in [
            "_bucket{m=\"x\",le=\"0.5\"} 1",
            "_bucket{m=\"x\",le=\"1\"} 3",
            "_bucket{m=\"x\",le=\"+Inf\"} 7",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(
            text.contains("weir_t_count{m=\"x\"} 7") && text.contains("weir_t_sum{m=\"x\"} 9.5"),
            "{text}"
        );
    }
}
