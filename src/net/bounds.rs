//! Bounds on clients: the memory of their unfinished work, and the time in which they have to read
//! their answers.
//!
//! The memory bounds follow from the memory of the process ([`memory`]). Both listeners use them.
//! Bounds on single messages, on numbers and on other times are constants of the listeners.

pub mod memory;
mod timed_writes;
mod unfinished;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use memory::Shares;
pub use timed_writes::TimedWrites;
pub use unfinished::{Cut, MemoryBudget, MemoryReservation};

/// File descriptors that clients of the gRPC port do not get: they are for the listeners for
/// operators, Redis, files and event queues. A process with few descriptors keeps a quarter.
pub(crate) const RESERVED: u64 = 1_024;

/// Raises the process's soft limit to the hard one, and returns how many connections of clients fit
/// in it.
pub fn connections_after_raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // More than a million is of no use, and some systems refuse a value that they report as
    // unlimited.
    let wanted = maximum.unwrap_or(u64::MAX).min(1 << 20);
    let soft = current.unwrap_or(u64::MAX);
    let raised = Rlimit {
        current: Some(wanted),
        maximum,
    };
    let is_raised = soft < wanted && setrlimit(Resource::Nofile, raised).is_ok();
    connections(if is_raised { wanted } else { soft })
}

fn connections(descriptors: u64) -> u64 {
    descriptors - RESERVED.min(descriptors / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_kept_for_operators() {
        assert_eq!([64, 1_024, 65_536].map(connections), [48, 768, 64_512]);
    }
}
