//! Bounds on what clients can make Weir hold: the memory of what they leave unfinished, and the
//! time in which they have to take what is sent to them.
//!
//! The first follow from the memory of the process ([`memory`]). Both listeners use them. Bounds on
//! single messages, on numbers and on other times are constants of the listeners.

pub(crate) mod descriptors;
pub mod memory;
mod timed_writes;
mod unfinished;

pub use descriptors::connections_after_raise;
pub use memory::Shares;
pub use timed_writes::TimedWrites;
pub use unfinished::{Charge, Cut, Unfinished};
