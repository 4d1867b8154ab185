//! The wire format: encoding of the checks of many requests as Redis commands, and of the replies
//! as verdicts.
//!
//! `request` is the part of one request for one server. `batch` packs the checks of many requests
//! for one server, as commands of their own or as calls of the script (`call`, `script`).
//! `commands` writes and `replies` parses RESP2 without an allocation per value. `hash_slot` maps
//! keys to the hash slots of a Redis Cluster, and `known_ttls` remembers the counters that have a
//! TTL.
//!
//! Nothing here opens a connection, waits, or depends on which servers exist. Commands are written
//! to a buffer, and replies are read from one.

pub(crate) mod batch;
pub(crate) mod call;
pub(crate) mod commands;
pub(crate) mod hash_slot;
pub(crate) mod known_ttls;
pub(crate) mod replies;
pub(crate) mod request;
pub(crate) mod script;
