//! The code that `build.rs` generates from `proto/`: messages, the client, the server's trait, and the descriptors.
//!
//! The messages hold keys and values of entries as bytes; in the descriptors, which are the published ones, they are strings.

#![allow(missing_docs, clippy::pedantic, clippy::nursery, clippy::all, reason = "generated")]

mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages/all.rs"));
}

mod server {
    include!(concat!(env!("OUT_DIR"), "/server/envoy.service.ratelimit.v3.RateLimitService.rs"));
}

pub use messages::envoy::config::core::v3::HeaderValue;
pub use messages::envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor};
pub use messages::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
pub use messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response};
pub use server::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};

/// The full name of the service.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The path of its only method.
pub const METHOD_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The published descriptors and all their imports, as an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rls.fds"));
