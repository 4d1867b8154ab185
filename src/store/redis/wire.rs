//! The bytes on the wire: how the checks of many requests become commands, and what the replies to them mean.
//!
//! Nothing here opens a connection, waits, or knows which servers there are: commands go into a buffer, and replies come out of one.

pub(crate) mod batch;
pub(crate) mod call;
pub(crate) mod commands;
pub(crate) mod hash_slot;
pub(crate) mod known_ttls;
pub(crate) mod replies;
pub(crate) mod script;
pub(crate) mod values;
