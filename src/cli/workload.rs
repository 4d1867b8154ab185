//! Requests that are made up: templates of descriptors, amounts of hits, and instants at which
//! requests arrive. `weir load` and `weir replay` share them; all randomness is of one generator,
//! so that a seed repeats a workload.

mod arrivals;
mod part;
mod template;

pub(super) use arrivals::{ArrivalKind, Arrivals};
pub(super) use part::Hits;
pub(super) use template::{Fields, Filled, Template};
