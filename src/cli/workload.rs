//! Requests that are made up: templates of descriptors, amounts of hits, and instants at which
//! requests arrive. `weir load` and `weir replay` share them; all randomness is of one generator,
//! so that a seed repeats a workload.

mod arrivals;
mod part;
mod requests;
mod template;

pub(super) use arrivals::{ArrivalKind, Arrivals};
pub(crate) use part::Hits;
pub(crate) use requests::Requests;
pub(crate) use template::{Fields, Templates};
