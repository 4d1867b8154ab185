//! One connection to one Redis server: its address and login, the socket, the handshake, and the exchange of commands for replies.
//!
//! A connection does not know what it is used for, and keeps nothing about its server: that is `topology`. It never repeats a command.

pub(crate) mod exchange;
pub(crate) mod handshake;
pub(crate) mod options;
#[cfg(test)]
pub(crate) mod simulated;
mod socket;
