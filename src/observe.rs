//! Observability: metrics, the heaviest subjects, traces, logs and health, and the metrics under
//! the names of envoyproxy/ratelimit.

pub mod exporters;
pub mod health;
pub mod history;
pub mod logged_values;
pub mod metrics;
pub mod subjects;
pub mod telemetry;
pub mod traces;
