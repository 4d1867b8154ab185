//! Exporters: the metrics under envoyproxy/ratelimit's names, on a port for Prometheus, and for
//! StatsD and DogStatsD servers.
//!
//! They read `metrics` on threads of their own, or when they are scraped. The request path does not
//! depend on them.

pub mod prometheus;
pub mod reference_names;
pub mod statsd;
