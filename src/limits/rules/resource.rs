//! Limits as a control plane sends them: the messages of `ratelimit.config.ratelimit.v3` as plain
//! data.
//!
//! The fields are those of `RateLimitConfig`, `RateLimitDescriptor` and `RateLimitPolicy`.
//! `replaces` holds the names alone, and `metadata` is a `google.protobuf.Struct` as JSON.

use super::limit::Metadata;

/// `RateLimitConfig`: the limits of one domain, or with `MERGE_DOMAIN_CONFIG` a part of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resource {
    /// The name of the resource.
    pub name: String,
    /// The domain that Envoy sends.
    pub domain: String,
    /// The first level of the tree.
    pub descriptors: Vec<Descriptor>,
}

/// `RateLimitDescriptor`: a node of the tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Descriptor {
    /// The key of an entry, or a pattern with `*`.
    pub key: String,
    /// The value of an entry, or a pattern with `*`; empty: any value.
    pub value: String,
    /// The limit; `None`: not limited.
    pub rate_limit: Option<Policy>,
    /// The next level.
    pub descriptors: Vec<Descriptor>,
    /// As in a file.
    pub shadow_mode: bool,
    /// As in a file.
    pub detailed_metric: bool,
    /// As in a file.
    pub quota_mode: bool,
    /// As in a file, except that its field `weir` has no effect.
    pub metadata: Option<Metadata>,
}

/// `RateLimitPolicy`: a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// `RateLimitUnit`, as it is on the wire; 0 is UNKNOWN.
    pub unit: i32,
    /// The hits that one window admits.
    pub requests_per_unit: u32,
    /// Never refuses; the unit and the hits have no meaning then.
    pub unlimited: bool,
    /// Its name; empty: none.
    pub name: String,
    /// The names of limits that it switches off within a request.
    pub replaces: Vec<String>,
}
