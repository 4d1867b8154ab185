//! The Prometheus port of envoyproxy/ratelimit: its names and labels, together with Weir's own
//! metrics.
//!
//! Where the labels differ, this page has envoyproxy/ratelimit's: `key2` is the second level of a
//! limit alone, limits that differ in deeper levels only are one series, and values are written as
//! StatsD has them. Limits with equal labels are added up. `/metrics` of the HTTP listener has a
//! series for each.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};

use super::reference_names::{self, sanitized};
use crate::net::http::shared_texts::{METRICS_TYPE, SharedTexts};
use crate::net::http::{Events, Page, Site, text};
use crate::observe::metrics::dynamic::LimitReading;
use crate::observe::metrics::exposition::Exposition;
use crate::observe::metrics::families::{self, Sample, Value};
use crate::observe::metrics::{Labels, Metrics};

/// Content and address of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The path of the page: a slash, and more.
    pub path: String,
    /// Response times are in milliseconds, although the name ends in seconds, as in old versions of
    /// envoyproxy/ratelimit.
    pub response_time_as_milliseconds: bool,
    /// Labels of all metrics that envoyproxy/ratelimit has too. The names are valid, and none of
    /// those that the metrics have.
    pub labels: Vec<(String, String)>,
}

/// The page of one listener.
pub struct Pages {
    metrics: Arc<Metrics>,
    texts: SharedTexts<()>,
    path: String,
}

impl Pages {
    /// The page of all metrics.
    pub fn new(metrics: Arc<Metrics>, options: Options) -> Self {
        let path = options.path.clone();
        let scraped = Arc::clone(&metrics);
        Self {
            metrics,
            texts: SharedTexts::new(move |()| encode(&scraped, &options)),
            path,
        }
    }
}

impl Site for Pages {
    fn events(&self) -> &impl Events {
        &*self.metrics
    }

    async fn page(&self, request: Request<Incoming>) -> Page {
        match request.uri().path() {
            path if path == self.path => self.texts.page(&request, (), METRICS_TYPE).await,
            "/" => text(
                StatusCode::OK,
                format!("Weir: metrics for Prometheus are at {}\n", self.path),
            ),
            _ => text(
                StatusCode::NOT_FOUND,
                format!("no such page; metrics are at {}\n", self.path),
            ),
        }
    }
}

/// All metrics in Prometheus's text format.
pub fn encode(metrics: &Metrics, options: &Options) -> String {
    let mut exposition = Exposition::with_extra_labels(options.labels.clone());
    let samples = metrics.samples();
    for sample in reference_names::further_samples(&samples) {
        exposition.add(sample);
    }
    for sample in samples {
        exposition.add(if options.response_time_as_milliseconds {
            in_milliseconds(sample)
        } else {
            sample
        });
    }
    metrics.gather_limits(&mut exposition, add_hits);
    exposition.text()
}

fn add_hits(exposition: &mut Exposition, limit: &LimitReading<'_>) {
    let own = limit.labels;
    let levels = [&own.key1, own.second_level()].map(sanitized);
    let of_reference = Labels::new(sanitized(&own.domain), &levels);
    for (family, count) in limit.exported() {
        let is_shared = family.is_of_the_reference();
        let labels = if is_shared { &of_reference } else { own };
        let labels = exposition.labels(family, labels.pairs());
        exposition.of(labels).count(family, None, count);
    }
}

/// Response times with their bounds and sum in milliseconds; other samples as they are.
fn in_milliseconds(mut sample: Sample) -> Sample {
    if let Value::Observations(times) = &mut sample.value
        && *sample.family == families::RESPONSE_TIME
    {
        // Rounded to a nanosecond, because 0.00005 has no exact floating-point value.
        let milliseconds = |seconds: &f64| (seconds * 1e9).round() / 1e6;
        times.bounds = times.bounds.iter().map(milliseconds).collect();
        times.sum *= 1_000.0;
    }
    sample
}
