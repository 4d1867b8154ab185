//! The service: its listeners, protocols, settings, metrics, logs and traces.

pub mod envoy;
pub mod exporters;
pub mod grpc_tls;
pub mod http;
pub mod instructions;
pub mod kuadrant;
pub mod listeners;
pub mod logs;
pub mod many_limits;
pub mod metrics;
pub mod reload;
pub mod replicas;
pub mod server;
pub mod special_files;
pub mod tracing;
pub mod variables;
pub mod xds;
