//! Which Redis servers there are, which of them owns a key, and what is known of each: its address, clock, circuit breaker and counters.
//!
//! Nothing here sends a check or inspects a server. Only `cluster` and `sentinel` ask servers anything: where the others are.

mod clock;
pub(crate) mod cluster;
pub(crate) mod counters;
pub(crate) mod deployment;
pub(crate) mod node;
pub(crate) mod sentinel;
pub(crate) mod slot_map;
pub(crate) mod status;
