//! The vocabulary and the pure logic: plain data and total functions. No file here names a clock, a
//! socket, a file or the environment; the exceptions are the generated messages of `proto` and the
//! random secret of `fingerprint`.

pub mod algorithm;
pub mod answer;
pub mod breaker;
pub mod digest;
pub mod fingerprint;
mod lock;
pub mod message;
pub mod proto;
pub mod request;
pub mod text;
pub mod time;
pub mod usage;
pub mod verdict;

pub use lock::{lock, try_lock};
