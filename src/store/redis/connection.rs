//! The room of one connection to one Redis server: address and login, socket, handshake, and the
//! exchange of commands for replies.
//!
//! A connection holds no state of its server beyond the keys that have a TTL. What it is used for,
//! and what is known of the server, belongs to `topology`. Nothing in this room sends a command
//! twice.

pub(crate) mod exchange;
pub(crate) mod handshake;
pub(crate) mod options;
#[cfg(test)]
pub(crate) mod simulated;
mod socket;
