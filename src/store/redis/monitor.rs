//! The background work of a Redis deployment: the supervisor keeps the topology up to date, probes
//! the servers whose circuit is open, and inspects all servers at intervals.
//!
//! It runs on the control thread, so that requests pay for none of it. No request waits for
//! anything here, and no request is decided here.

mod diagnostics;
mod inspection;
mod queries;
pub(crate) mod supervisor;
