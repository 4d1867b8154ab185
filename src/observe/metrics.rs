//! Metrics: the counters of the process, and their text for Prometheus.
//!
//! `families` declares every name. On the request path a count is an addition to a cell of the
//! core's own row; labels are put together only by a scrape. No client may make the number of
//! series grow without bound.

mod counts;
pub mod dynamic;
pub mod exposition;
pub mod families;
mod http2;
pub(crate) mod process;
mod tallies;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use counts::Core;
pub use dynamic::Labels;
pub use families::Sample;
pub use http2::{ConnectionError, Ended, Http2};
pub use process::{Count, PolicyAnswers, Process};
pub use tallies::{REQUEST_LIMIT, Tallies};

use crate::core::lock;
use crate::limits::rules::Rules;
use crate::net::clock;
use dynamic::Dynamic;
use exposition::Exposition;
use families::Family;

/// Maximum number of unknown domains with a series of their own: a client that is not Envoy may
/// send any domain.
const MAX_UNKNOWN_DOMAINS: usize = 100;

/// Maximum number of series whose labels depend on requests. Each is in six families: 2,000 of them
/// are some three megabytes of a scrape.
const MAX_DYNAMIC_SERIES: usize = 2_000;

/// All metric families, in the order of the page of metrics.
pub fn all_families() -> impl Iterator<Item = &'static Family> {
    let limits = [families::UP_TO_PEEKS].into_iter().chain(tallies::FAMILIES);
    limits.chain([families::REST]).flatten().copied()
}

/// Returns the samples of another module at each scrape.
type Source = Box<dyn Fn() -> Vec<Sample> + Send + Sync>;

/// Options of the series of limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Hits above this share (0 to 1) of a limit count as near it.
    pub near_limit_ratio: f32,
    /// Whether a limit without any check has no series.
    pub omits_unused_limits: bool,
}

/// The counters of the process, and the sources of further samples.
pub struct Metrics {
    options: Options,
    cores: usize,
    pub process: Process,
    dynamic: Dynamic,
    series: Mutex<tallies::Register>,
    free: Mutex<Arc<tallies::FreeByDomain>>,
    unknown_domains: Mutex<BTreeMap<String, u64>>,
    config: Mutex<Config>,
    panics: AtomicU64,
    connections_refused: AtomicU64,
    calls_refused: AtomicU64,
    pub http2: Http2,
    sources: Mutex<Vec<Source>>,
}

/// The state of the configuration. Only reloads write it.
#[derive(Clone, Debug, Default)]
struct Config {
    loaded: u64,
    refused: u64,
    last_refused: bool,
    loaded_at_secs: u64,
    generation: u64,
    limits: u64,
    domains: u64,
    /// When the newest configuration was last known to be in force; at first, the start.
    in_force_at: Option<Instant>,
    memory: u64,
    /// Of the limits in force; `None` before the first.
    digest: Option<String>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Metrics")
            .field("options", &self.options)
            .field("cores", &self.cores)
            .finish_non_exhaustive()
    }
}

impl Metrics {
    /// As [`Metrics::with_options`], with series for every limit.
    pub fn new(cores: usize, near_limit_ratio: f32) -> Arc<Self> {
        let options = Options {
            near_limit_ratio,
            omits_unused_limits: false,
        };
        Self::with_options(cores, options)
    }

    /// Metrics that are all zero. `cores` is the number of threads that count, including the
    /// control thread.
    pub fn with_options(cores: usize, options: Options) -> Arc<Self> {
        Arc::new(Self {
            options,
            cores,
            process: Process::new(cores),
            dynamic: Dynamic::new(MAX_DYNAMIC_SERIES),
            series: Mutex::default(),
            free: Mutex::default(),
            unknown_domains: Mutex::default(),
            config: Mutex::new(Config {
                in_force_at: Some(Instant::now()),
                ..Config::default()
            }),
            panics: AtomicU64::new(0),
            connections_refused: AtomicU64::new(0),
            calls_refused: AtomicU64::new(0),
            http2: Http2::default(),
            sources: Mutex::default(),
        })
    }

    /// Counts a caught panic.
    pub fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that was closed because there are too many.
    pub fn connection_refused(&self) {
        self.connections_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts calls that were refused because too many were waiting, or because they had waited too
    /// long.
    pub fn calls_refused(&self, count: u64) {
        self.calls_refused.fetch_add(count, Ordering::Relaxed);
    }

    /// Records that `rules` are in force.
    pub fn config_loaded(&self, rules: &Rules, generation: u64) {
        let mut config = lock(&self.config);
        *config = Config {
            loaded: config.loaded + 1,
            last_refused: false,
            loaded_at_secs: clock::now().0 / 1_000_000,
            generation,
            limits: rules.limit_count() as u64,
            domains: rules.domains().count() as u64,
            memory: rules.memory(),
            digest: Some(rules.digest()),
            ..*config
        };
    }

    /// Records that a configuration was refused; the rules in force stay.
    pub fn config_refused(&self) {
        let mut config = lock(&self.config);
        config.refused += 1;
        config.last_refused = true;
    }

    /// Records that the last configuration is in force, after one was refused.
    pub fn config_confirmed(&self) {
        lock(&self.config).last_refused = false;
    }

    /// Records that the configuration of this time is in force: older changes do not wait.
    pub fn config_in_force(&self, at: Instant) {
        lock(&self.config).in_force_at = Some(at);
    }

    /// Time since the newest configuration was known to be in force, or since the start.
    pub fn config_age(&self) -> Duration {
        let at = lock(&self.config).in_force_at;
        at.map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Adds the samples of `source` to every scrape.
    pub fn register<S>(&self, source: impl Fn() -> S + Send + Sync + 'static)
    where
        S: IntoIterator<Item = Sample>,
    {
        let source = move || source().into_iter().collect::<Vec<_>>();
        lock(&self.sources).push(Box::new(source));
    }

    /// All metrics in Prometheus's text format, version 0.0.4.
    pub fn encode(&self) -> String {
        let mut exposition = Exposition::default();
        for sample in self.samples() {
            exposition.add(sample);
        }
        self.gather_limits(&mut exposition, dynamic::gather);
        exposition.text()
    }

    /// The samples of everything but limits: of the process, its domains, and all sources. The
    /// caller has to add up samples with equal labels.
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        self.process.gather(&mut samples);
        process::gather(&mut samples);
        self.gather_free(&mut samples);
        self.gather_rest(&mut samples);
        self.http2.gather(&mut samples);
        for (domain, &count) in &*lock(&self.unknown_domains) {
            samples.push(families::DOMAIN_NOT_FOUND.count(&[domain], count));
        }
        // The family has to be in the output before the first such request.
        samples.push(families::DOMAIN_NOT_FOUND.count(&[dynamic::OTHER], 0));
        for source in &*lock(&self.sources) {
            samples.extend(source());
        }
        samples
    }

    fn gather_rest(&self, samples: &mut Vec<Sample>) {
        let config = lock(&self.config).clone();
        let sum = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let build = [env!("CARGO_PKG_VERSION"), env!("WEIR_COMMIT")];
        let was_loaded = u64::from(!config.last_refused);
        samples.extend([
            families::BUILD_INFO.count(&build, 1),
            families::CONFIG_LOAD_SUCCESS.count(&[], config.loaded),
            families::CONFIG_LOAD_ERROR.count(&[], config.refused),
            families::CONFIG_LOADED_TIMESTAMP.count(&[], config.loaded_at_secs),
            families::CONFIG_GENERATION.count(&[], config.generation),
            families::CONFIG_LIMITS.count(&[], config.limits),
            families::CONFIG_DOMAINS.count(&[], config.domains),
            families::CONFIG_MEMORY.count(&[], config.memory),
            families::CONFIG_LAST_LOAD_SUCCESSFUL.count(&[], was_loaded),
            families::PANICS.count(&[], sum(&self.panics)),
            families::CONNECTIONS_REFUSED.count(&[], sum(&self.connections_refused)),
            families::CALLS_REFUSED.count(&[], sum(&self.calls_refused)),
            families::CONFIG_AGE.sample(&[], self.config_age().as_secs_f64()),
        ]);
        samples.extend((config.digest).map(|digest| families::CONFIG_INFO.count(&[&digest], 1)));
    }

    fn domain_not_found(&self, domain: &[u8]) {
        let mut domains = lock(&self.unknown_domains);
        let mut name = dynamic::cut(String::from_utf8_lossy(domain).into_owned());
        if domains.len() >= MAX_UNKNOWN_DOMAINS && !domains.contains_key(&name) {
            dynamic::OTHER.clone_into(&mut name);
        }
        *domains.entry(name).or_insert(0) += 1;
    }
}

impl crate::net::http::Events for Metrics {
    fn connection_refused(&self) {
        self.connection_refused();
    }

    fn panicked(&self) {
        self.panicked();
    }
}

#[cfg(test)]
mod page_tests;
#[cfg(test)]
mod tests;
