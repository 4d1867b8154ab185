//! Weir: a rate-limit service for Envoy.
//!
//! Start at [`service::rls`], which holds the whole request path: decode, match, decide, count,
//! respond. `ARCHITECTURE.md` has the life of a call and the invariants; the top of each file
//! explains its design.
//!
//! # Glossary
//!
//! `config/concepts.md` defines the words of users, such as descriptor, hits, peek, refund, lease
//! and failure policy. The code adds these:
//!
//! | word | meaning |
//! |---|---|
//! | request | what Envoy asks, decoded: its domain, its descriptors and their hits ([`core::request`]) |
//! | reservation, hold, settlement | a hold is what the id of a request has reserved ([`core::algorithm::reservations`]) |
//! | limit | one compiled `rate_limit` of the configuration, with its algorithm ([`limits::rules::limit`]) |
//! | rules | the compiled configuration, immutable: all domains and all limits ([`limits::rules`]) |
//! | tick | the unit of time in which an algorithm counts: 1 µs, or a power of ten of it; each limit has its own ([`core::algorithm`]) |
//! | override | a block, an exemption or a raise by an operator ([`limits::overrides`]) |
//! | debt | hits that a limit counted beyond its amount, at most `max_debt` full amounts; only limits with `count_denied` have it |
//! | shaper | a limit that delays requests to a constant rate instead of refusing them: `leaky_bucket` |
//! | check | one thing to decide: a counter key, an algorithm with its numbers, and hits ([`limits::plan`]) |
//! | plan | the checks of one request, and which slot of the response each one fills ([`limits::plan`]) |
//! | store | keeps the counters and decides checks atomically: Redis or memory ([`store`]) |
//! | answer, verdict, effect | a store's answer to one check has the verdict (allowed or not, remaining, reset after, retry after) and the effect: what the check held, settled, acquired, released or drew ([`core::answer`], [`core::verdict`]) |
//! | decision | the final answer to one check, by its source: the store, a lease, the denial cache, or the failure policy ([`core::answer`]) |
//! | outage | a store cannot answer before the deadline of a request |
//! | tally | the counters of one limit in the metrics: hits and outcomes ([`observe::metrics`]) |
//! | subject | one counter of a limit: the domain and the entries of a descriptor ([`core::usage`]) |
//! | usage record | what a subject has asked of a limit with `track_usage`: totals, first and last seen, and a ring of buckets ([`core::usage`]) |
//! | deployment | one Redis as a whole: a single server, a primary with its Sentinels, or a cluster ([`store::redis`]) |
//! | lane | a connection to one Redis server in use by one thread: it sends what waits as one batch, and reads the replies |
//! | span | one step of a call in a trace: the call, its decision, or its trip to Redis ([`observe::traces`]) |
//! | layer, module | a folder of `src/`, of those below; a module in it |
//!
//! # Layers
//!
//! The lowest layer comes first. A file imports only from its own layer and from layers above it in
//! this list, within a layer only from modules above its own, and no files import in a circle;
//! `tests/it/form/layers.rs` checks every import.
//!
//! | layer | contents |
//! |---|---|
//! | `testing` | shared by the tests of all layers; compiled for tests only |
//! | [`core`] | instants and spans, requests, answers, algorithms, usage records, the circuit breaker, the generated messages |
//! | [`limits`] | the configuration from YAML to the tree in which descriptors are matched, overrides, and the plan of a request |
//! | [`net`] | the wall clock, TLS, bounds on what peers leave unfinished, the dialer of all clients, and HTTP: the server of the listeners for operators and the client |
//! | [`observe`] | metrics, the heaviest subjects, traces, logs, health, and the exporters |
//! | [`store`] | the memory store and the Redis store, with batches, connections, Sentinel and Cluster |
//! | [`live`] | the rules and overrides in force, and their reload |
//! | [`limiter`] | one worker's way to its store: deadline, leases, denial cache, failure policies, and the delay of shapers |
//! | [`service`] | the request path, the gRPC listener with its workers, and the HTTP listener |
//! | [`admin`] | the admin API, the admin page and the debug listener |
//! | [`process`] | flags and variables, and the process from start-up to exit |
//! | [`cli`] | the commands |
//! | `fuzzing` | properties of everything that reads bytes from outside; compiled for tests and fuzz targets only |
//!
//! # As a library
//!
//! `weir serve` runs the service on a listener of its own ([`service::server`]). The service
//! implements the trait that tonic generates from Envoy's proto, and any tonic server can serve it.
//! [`service::rls::Builder`] has the parts that can be set, such as the store; here the counters
//! are in memory:
//!
//! ```
//! use weir::live::files;
//! use weir::service::rls::{RateLimitServiceServer, Rls};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let stop = async {};
//! let live = files::load(&files::Options::default()).expect("config/ has no mistakes");
//! tonic::transport::Server::builder()
//!     .add_service(RateLimitServiceServer::new(Rls::builder(live).build()))
//!     .serve_with_shutdown("127.0.0.1:0".parse()?, stop)
//!     .await?;
//! # Ok(())
//! # }
//! ```

pub mod admin;
pub mod cli;
pub mod core;
pub mod limiter;
pub mod limits;
pub mod live;
pub mod net;
pub mod observe;
pub mod process;
pub mod service;
pub mod store;

// Compiled for tests and fuzz targets only.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;

#[cfg(test)]
mod testing;
