//! Weir's behaviour, through real sockets and real servers. One binary, so that it links once.

#![allow(
    unreachable_pub,
    reason = "what `support` offers is for this binary alone"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests have their own clocks, tasks and waits"
)]
#![allow(
    clippy::float_cmp,
    reason = "metrics are whole numbers, which f64 holds exactly"
)]
#![allow(
    clippy::panic,
    reason = "how a test fails, in functions beside the tests too"
)]

mod admin;
mod admin_page;
mod algorithms;
mod all_or_none;
mod amounts;
mod calendars;
mod cli;
mod concurrency;
mod counting;
mod debug;
mod denial_cache;
mod deploy;
mod docs;
mod envoy;
mod exporters;
mod failure_policies;
mod faults;
mod grpc_tls;
mod hits;
mod house;
mod http;
mod in_flight;
mod instructions;
mod leases;
mod listeners;
mod load;
mod logs;
mod matching;
mod metrics;
mod outages;
mod overrides;
mod plots;
mod redis;
mod regions;
mod reload;
mod replay;
mod replicas;
mod requests;
mod rules;
mod server;
mod shaping;
mod size;
mod subjects;
mod support;
mod tables;
mod tracing;
mod trials;
mod usage;
mod variables;
mod words;
mod xds;
