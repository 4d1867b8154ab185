//! HTTP/1 for people and scrapers: the server, bounded bodies, whole responses, and the guard of
//! host and origin. It runs on the control thread and is not made for load: connections, bodies and
//! times have tight bounds.

pub mod bodies;
pub mod client;
mod encoding;
pub mod guard;
pub mod responses;
pub mod serving;
pub mod shared_texts;

pub use self::serving::{Events, Site, serve};
