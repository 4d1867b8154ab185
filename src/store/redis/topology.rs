//! The servers of a Redis deployment: which server owns a key, and the address, clock, circuit
//! breaker, counters and status of each.
//!
//! All threads share this state, so that every worker routes by the same map and one worker's
//! failures warn the others. Nothing here sends a check or inspects a server. Only `cluster` and
//! `sentinel` query servers, for the addresses of the others.

mod clock;
pub(crate) mod cluster;
pub(crate) mod deployment;
pub(crate) mod node;
pub(crate) mod round_trips;
pub(crate) mod sentinel;
pub(crate) mod slot_map;
pub(crate) mod status;
