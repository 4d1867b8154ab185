//! Weir: a rate-limit service for Envoy.
//!
//! Start at [`rls`], which holds the whole request path: decode, match, decide, count, respond.
//! `ARCHITECTURE.md` has the invariants and the decisions with their reasons.
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | domain, descriptor, entry | Envoy's: a request names one domain and has descriptors; a descriptor is a list of entries, which are key and value |
//! | ask | a decoded request: its domain, its descriptors and their hits ([`ask`]) |
//! | hits | how much a descriptor asks for (`hits_addend`), 1 by default |
//! | look | a descriptor with 0 hits: it reads the state of a limit and counts nothing |
//! | give-back | a descriptor with negative hits (`is_negative_hits`): it takes hits back |
//! | limit | one compiled `rate_limit` of the configuration, with its algorithm ([`rules::limit`]) |
//! | rules | the compiled configuration, immutable: all domains and all limits ([`rules`]) |
//! | tick | the unit of time in which an algorithm counts: 1 µs, or a power of ten of it; each limit has its own ([`algorithm`]) |
//! | override | what an operator orders for some descriptors in place of their limit: block, exempt or raise ([`overrides`]) |
//! | debt | hits that a limit counted beyond its amount, at most `max_debt` full amounts; only limits with `count_denied` have it |
//! | shaper | a limit that delays requests to a constant rate instead of refusing them: `leaky_bucket` |
//! | check | one thing to decide: a counter key, an algorithm with its numbers, and hits ([`plan`]) |
//! | plan | the checks of one request, and which slot of the response each one fills ([`plan`]) |
//! | store | keeps the counters and decides checks atomically: Redis or memory ([`store`]) |
//! | verdict | a store's answer to one check: allowed or not, remaining, reset after, retry after ([`verdict`]) |
//! | decision | the final answer to one check, by its source: the store, the denial cache, or the failure policy ([`verdict`]) |
//! | denial cache | the keys that a store has refused lately; their checks are refused without the store ([`limiter`]) |
//! | outage | a store cannot answer before the deadline of a request |
//! | failure policy | what decides checks in an outage: `error`, `allow`, `deny` or `local` (`on_store_failure`) |
//! | tally | the counters of one limit in the metrics: hits and outcomes ([`metrics`]) |
//! | subject | one counter of a limit: the domain and the entries of a descriptor ([`usage`]) |
//! | usage record | what a subject has asked of a limit with `track_usage`: totals, first and last seen, and a ring of buckets ([`usage`]) |
//! | deployment | one Redis as a whole: a single server, a primary with its Sentinels, or a cluster ([`store::redis`]) |
//! | lane | a connection to one Redis server in use by one thread: it sends what waits as one batch, and reads the replies |
//! | span | one step of a call in a trace: the call, its decision, or its trip to Redis ([`traces`]) |
//! | room | a top-level module, of those below |
//!
//! # Layout
//!
//! A file imports only from rooms above its own in this list, and no files import in a circle;
//! `tests/it/house.rs` holds every import to both.
//!
//! * [`time`], [`ask`], [`verdict`]: the types of instants and spans, of requests, and of answers.
//! * [`algorithm`]: one pure `step` per algorithm; `lua/` has the same steps for Redis.
//! * [`usage`]: the record of what a subject has asked of a limit with `track_usage`, and its pure
//!   step; `lua/usage.lua` is its twin.
//! * [`rules`]: the configuration, from YAML (`source`) by `compile` to the tree in which
//!   descriptors are matched.
//! * [`overrides`]: what operators order for some descriptors, compiled to trees as the rules are.
//! * [`plan`]: makes the checks of an ask, and their counter keys.
//! * [`breaker`]: the circuit breaker of one Redis server, as a pure state machine.
//! * [`proto`]: the generated protobuf messages and gRPC service.
//! * [`metrics`], [`health`], [`telemetry`], [`background`], [`bounds`]: the metric families and
//!   counters, the health status, the logs, the priority of background threads, and bounds on what
//!   clients leave unfinished.
//! * [`subjects`]: the heaviest subjects by hits and by refusals, and descriptors that no limit
//!   matched.
//! * [`tls`]: certificates, keys and authorities from files, and the certificates of peers that are
//!   accepted.
//! * [`traces`]: spans of calls, and their export to a collector.
//! * [`store`]: the memory store and the Redis store, with batches, connections, Sentinel and
//!   Cluster.
//! * [`limiter`]: one worker's way to its store: deadline, denial cache, failure policies, and the
//!   delay of shapers.
//! * [`live`]: the rules in force, and their reload when files change.
//! * [`rls`]: the request path.
//! * [`http`], [`server`]: the HTTP listener (health, metrics, JSON) and the gRPC listener with its
//!   workers.
//! * [`exporters`]: the metrics under the names of envoyproxy/ratelimit, for its Prometheus port
//!   and for StatsD servers.
//! * [`admin`]: the admin API: what operators ask a running process, and what they change.
//! * [`debug`]: the debug listener: the limits in force and where each is written, and the
//!   counters.
//! * [`settings`], [`app`], [`cli`]: flags and variables, the process from start-up to exit, and
//!   the commands.
//! * `fuzzing`: properties of everything that reads bytes from outside; compiled for tests and for
//!   the fuzz targets in `fuzz/` only.

// Core: plain data and pure functions, without tokio, tonic, redis, environment and clock.
pub mod algorithm;
pub mod ask;
pub mod breaker;
pub mod overrides;
pub mod plan;
pub mod rules;
pub mod time;
pub mod usage;
pub mod verdict;

// Edges.
pub mod admin;
pub mod app;
pub mod background;
pub mod bounds;
pub mod cli;
pub mod debug;
pub mod exporters;
pub mod health;
pub mod http;
pub mod limiter;
pub mod live;
pub mod metrics;
pub mod proto;
pub mod rls;
pub mod server;
pub mod settings;
pub mod store;
pub mod subjects;
pub mod telemetry;
pub mod tls;
pub mod traces;

// Compiled for tests and fuzz targets only.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
