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

mod decisions;
mod deploy;
mod form;
mod operators;
mod redis;
mod service;
mod support;
#[expect(dead_code, reason = "unit tests need more of it")]
#[path = "../../src/testing.rs"]
mod testing;
