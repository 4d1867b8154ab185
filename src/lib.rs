//! Weir: a rate-limit service for Envoy.
//!
//! Start at [`rls`]: it holds the whole request path, one verb a line. The words used everywhere:
//!
//! | word | meaning |
//! |---|---|
//! | domain, descriptor, entry | Envoy's: a request names one domain and carries descriptors; a descriptor is a list of key/value entries |
//! | hits | how much a descriptor asks for; 0 = look without counting; negative = give back |
//! | limit | one compiled `rate_limit` of the configuration, with its algorithm |
//! | rules | the immutable compiled configuration: all domains, all limits |
//! | check | one thing to decide: a key, an algorithm with its numbers, the hits |
//! | plan | the checks of one request, and which slot of the response each one answers |
//! | verdict | the answer to one check: allowed, remaining, reset after, retry after |
//! | store | who decides checks atomically: Redis or memory |
//! | denial cache | keys known to be over their limit until an instant; such a check needs no store |
//! | outage | the store cannot answer in time; the limit's `on_store_failure` answers instead |
//! | decision | what became of one check, by the word of the store, the denial cache or the policy |
//!
//! A file imports only from files above it in this list; `tests/it/house.rs` holds every `use crate::` to it.

// Core: plain data and pure functions. No tokio, tonic, redis, environment or clock in here.
pub mod time;
pub mod ask;
pub mod verdict;
pub mod algorithm;
pub mod rules;
pub mod plan;
pub mod breaker;

// Edges.
pub mod proto;
pub mod metrics;
pub mod background;
pub mod health;
pub mod telemetry;
pub mod store;
pub mod limiter;
pub mod live;
pub mod rls;
pub mod http;
pub mod server;
pub mod settings;
pub mod app;
pub mod cli;
