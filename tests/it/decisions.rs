//! Which limit counts a request, and what is decided: through the real socket, on the memory store
//! unless a test needs Redis.

pub mod algorithms;
pub mod all_or_none;
pub mod calendars;
pub mod full_store;
pub mod in_flight;
pub mod notify;
pub mod regions;
pub mod requests;
pub mod reservations;
pub mod rules;
pub mod scenarios;
pub mod shaping;
pub mod tables;
pub mod trials;
