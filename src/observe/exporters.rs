//! Exporters: the metrics under the names that envoyproxy/ratelimit gives them, where its users
//! look for them: on a port for Prometheus, and in what StatsD and DogStatsD servers receive.
//!
//! They read `metrics` on threads of their own and when they are asked. Nothing on the request path
//! knows them.

pub mod prometheus;
pub mod reference_names;
pub mod statsd;
