//! Metrics: what the process counts, and its text for Prometheus.
//!
//! Where envoyproxy/ratelimit has a metric, its name and its labels are kept, so that dashboards go on working; Weir's own begin with
//! `weir_`. On the request path a count is an addition to a cell of the core's own; labels are put together only when somebody scrapes.
//! Nothing that a client sends may make the number of series grow without bound.

mod cells;
mod dynamic;
mod families;
mod partition;
mod process;
mod tallies;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tonic::Code;

pub use cells::Core;
pub use families::{Kind, Sample};
pub use tallies::Tallies;

use crate::rules::Rules;
use dynamic::Dynamic;
use families::Families;
use process::Process;

/// Unknown domains that get a series of their own; a domain comes from Envoy's configuration, but nothing forces it to.
const MAX_UNKNOWN_DOMAINS: usize = 100;

/// Names that depend on requests, at most. Each has a series in six families: at 2,000 a scrape has some three megabytes.
const MAX_DYNAMIC_SERIES: usize = 2_000;

/// Samples that another part of the process gives when it is scraped.
pub type Source = Box<dyn Fn() -> Vec<Sample> + Send + Sync>;

/// The counters of the process.
pub struct Metrics {
    near_limit_ratio: f32,
    cores: usize,
    process: Process,
    dynamic: Dynamic,
    series: Mutex<tallies::Register>,
    unknown_domains: Mutex<BTreeMap<String, u64>>,
    config: Config,
    panics: AtomicU64,
    connections_refused: AtomicU64,
    calls_refused: AtomicU64,
    sources: Mutex<Vec<Source>>,
}

/// Written by reloads only, one at a time.
#[derive(Debug, Default)]
struct Config {
    loaded: AtomicU64,
    refused: AtomicU64,
    last_refused: AtomicU64,
    loaded_at_secs: AtomicU64,
    generation: AtomicU64,
    limits: AtomicU64,
    domains: AtomicU64,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Metrics").field("near_limit_ratio", &self.near_limit_ratio).field("cores", &self.cores).finish_non_exhaustive()
    }
}

impl Metrics {
    /// All zero. `cores` is how many threads count, the control thread included; hits beyond the share `near_limit_ratio` of a limit count
    /// as near it.
    #[must_use]
    pub fn new(cores: usize, near_limit_ratio: f32) -> Arc<Self> {
        Arc::new(Self {
            near_limit_ratio,
            cores,
            process: Process::new(cores),
            dynamic: Dynamic::new(MAX_DYNAMIC_SERIES),
            series: Mutex::default(),
            unknown_domains: Mutex::default(),
            config: Config::default(),
            panics: AtomicU64::new(0),
            connections_refused: AtomicU64::new(0),
            calls_refused: AtomicU64::new(0),
            sources: Mutex::default(),
        })
    }

    /// A request has no answer: because of its store (`err_type="redis_error"`, whatever the store), or for any other reason
    /// (`err_type="service_error"`).
    pub fn failed(&self, core: Core, by_store: bool) {
        self.process.count(core, if by_store { process::Count::StoreFailed } else { process::Count::ServiceFailed });
    }

    /// A request over gRPC was answered with `code`.
    pub fn request(&self, core: Core, status: Code, took: Duration) {
        self.process.request(core, status, took);
    }

    /// A request was over a limit, and let pass because the whole process is in shadow mode.
    pub fn global_shadow(&self, core: Core) {
        self.process.count(core, process::Count::GlobalShadow);
    }

    /// A panic was caught.
    pub fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection was closed because there are too many.
    pub fn connection_refused(&self) {
        self.connections_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// So many calls were refused because too many wait, or because they waited too long.
    pub fn calls_refused(&self, count: u64) {
        self.calls_refused.fetch_add(count, Ordering::Relaxed);
    }

    /// New rules are in force.
    #[expect(clippy::disallowed_methods, reason = "for people who look at a dashboard; nothing is decided by it")]
    pub fn config_loaded(&self, rules: &Rules, generation: u64) {
        let config = &self.config;
        config.loaded.fetch_add(1, Ordering::Relaxed);
        config.last_refused.store(0, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        config.loaded_at_secs.store(now.as_secs(), Ordering::Relaxed);
        config.generation.store(generation, Ordering::Relaxed);
        config.limits.store(rules.limits().len() as u64, Ordering::Relaxed);
        config.domains.store(rules.domains().count() as u64, Ordering::Relaxed);
    }

    /// A configuration was refused, and the old rules stay.
    pub fn config_refused(&self) {
        self.config.refused.fetch_add(1, Ordering::Relaxed);
        self.config.last_refused.store(1, Ordering::Relaxed);
    }

    /// Adds samples of `source` to every scrape.
    pub fn register(&self, source: Source) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }

    /// All metrics as Prometheus' text, version 0.0.4.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut families = Families::default();
        self.process.gather(&mut families);
        self.gather_limits(&mut families);
        self.gather_rest(&mut families);
        let name = "weir_domain_not_found_total";
        for (domain, &count) in &*self.unknown_domains.lock().unwrap_or_else(PoisonError::into_inner) {
            let labels = vec![("domain", domain.clone())];
            families.add(Sample::counter(name, "Requests for a domain that no file speaks of.", labels, count));
        }
        for source in &*self.sources.lock().unwrap_or_else(PoisonError::into_inner) {
            for sample in source() {
                families.add(sample);
            }
        }
        families.text()
    }

    fn gather_rest(&self, families: &mut Families) {
        let Config { loaded, refused, last_refused, loaded_at_secs, generation, limits, domains } = &self.config;
        let value = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let gauge = |name, help, value| Sample::gauge(name, help, Vec::new(), value);
        let counter = |name, help, cell| Sample::counter(name, help, Vec::new(), value(cell));
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        families.add(Sample::gauge("weir_build_info", "Always 1; the label says what runs.", version, 1.0));
        families.add(counter("ratelimit_service_config_load_success", "Configurations that were put in force.", loaded));
        families.add(counter("ratelimit_service_config_load_error", "Configurations that were refused; the old one stayed.", refused));
        families.add(counter("weir_panics_total", "Panics that were caught; each one is a defect of Weir.", &self.panics));
        let refused = &self.connections_refused;
        families.add(counter("weir_connections_refused_total", "Connections closed because there were too many.", refused));
        let refused = &self.calls_refused;
        families.add(counter(
            "weir_calls_refused_total",
            "Calls refused with RESOURCE_EXHAUSTED because too many were waiting, or for too long.",
            refused,
        ));
        let good = 1.0 - value(last_refused) as f64;
        families.add(gauge("weir_config_last_load_successful", "0 while the last configuration is a refused one.", good));
        let at = value(loaded_at_secs) as f64;
        families.add(gauge("weir_config_loaded_timestamp_seconds", "When the rules were put in force, in seconds since 1970.", at));
        let number = value(generation) as f64;
        families.add(gauge("weir_config_generation", "How many configurations this process has put in force.", number));
        families.add(gauge("weir_config_limits", "Limits in force.", value(limits) as f64));
        families.add(gauge("weir_config_domains", "Domains in force.", value(domains) as f64));
    }

    fn domain_not_found(&self, domain: &[u8]) {
        let mut domains = self.unknown_domains.lock().unwrap_or_else(PoisonError::into_inner);
        let name = dynamic::cut(String::from_utf8_lossy(domain).into_owned());
        let known = domains.len() < MAX_UNKNOWN_DOMAINS || domains.contains_key(&name);
        *domains.entry(if known { name } else { dynamic::OTHER.to_owned() }).or_insert(0) += 1;
    }

    fn series(&self) -> MutexGuard<'_, tallies::Register> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
