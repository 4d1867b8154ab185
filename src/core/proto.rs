//! The code that `build.rs` generates from `proto/`: messages, the clients, and the descriptors.
//! `service::rls` and `service::kuadrant` have the traits of the services.
//!
//! The messages hold keys and values of entries as bytes; in the descriptors, which are the
//! published ones, they are strings.
//!
//! prost and Go refuse a protobuf `string` that is not UTF-8: that error would let a client bypass
//! its limit.

#![allow(clippy::pedantic, clippy::nursery, clippy::all, reason = "generated")]

pub mod codec;

mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages/all.rs"));
}

mod xds_messages {
    include!(concat!(env!("OUT_DIR"), "/xds/all.rs"));
}

/// The messages of xDS, its client, and its server for the tests. The resources of a control plane
/// are bytes here: see `build.rs`.
pub mod xds {
    pub use super::xds_messages::envoy::config::core::v3::{Node, node};
    pub use super::xds_messages::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
    pub use super::xds_messages::envoy::service::discovery::v3::aggregated_discovery_service_server::{
        AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
    };
    pub use super::xds_messages::envoy::service::discovery::v3::{
        DiscoveryRequest, DiscoveryResponse, Resource,
    };
    pub use super::xds_messages::google::rpc::Status;
    pub use super::xds_messages::ratelimit::config::ratelimit::v3::{
        RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
    };
}

/// Kuadrant's service: its messages, its client and the paths of its methods.
pub mod kuadrant {
    pub use super::messages::kuadrant::service::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
    pub use super::messages::kuadrant::service::ratelimit::v1::{
        CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
    };

    pub const CHECK_RATE_LIMIT: &str =
        "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit";
    pub const REPORT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Report";
    pub const RESERVE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";
    pub const COMMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Commit";
}

pub use messages::envoy::config::core::v3::HeaderValue;
pub use messages::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor,
};
pub use messages::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
pub use messages::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response,
};

/// The full name of the service.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The path of its only method.
pub const METHOD_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The published descriptors and all their imports, as an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rls.fds"));
