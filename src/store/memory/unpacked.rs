//! The states of a shard that do not fit into two words: logs, rings, holders, and the few whose
//! numbers are too large.
//!
//! A table entry refers to such a state by its index. The index of a removed state is used again
//! for the next one.

use crate::core::algorithm::concurrency::{Holder, Holders};
use crate::core::algorithm::places::RequestId;
use crate::core::algorithm::sliding_window_buckets::Ring;
use crate::core::algorithm::sliding_window_log::{Log, LoggedHits};
use crate::core::algorithm::{Holds, State};

/// The most holders and marks of a key in one block: a step makes trees of them again.
const FEW: usize = 8;

/// The number of an unpacked state in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnpackedIndex(pub u32);

/// The unpacked states of one shard, by index.
#[derive(Debug, Default)]
pub(super) struct UnpackedStates {
    cells: Vec<Cell>,
    /// The head of the list of free cells.
    first_free: Option<UnpackedIndex>,
    used: usize,
    /// Bytes of all states that are not taken.
    bytes: usize,
}

/// Smaller than a [`State`].
#[derive(Clone, Debug)]
enum Cell {
    Log(Box<Log>),
    Buckets(Box<Ring>),
    Holders(Box<Holders>),
    /// Up to [`FEW`] with their marks, in one block; the trees of a single one take 800 bytes.
    FewHolders(Box<[(RequestId, Holder)]>),
    Holds(Box<Holds>),
    Other(Box<State>),
    /// Taken out for the length of a step.
    Taken,
    Free {
        next: Option<UnpackedIndex>,
    },
}

impl UnpackedStates {
    /// Stores a state and returns its index.
    pub(super) fn add(&mut self, state: State) -> UnpackedIndex {
        self.store(Cell::from(state))
    }

    /// Takes a state out for a step. Its index stays in use until the state is put back or removed.
    pub(super) fn take(&mut self, index: UnpackedIndex) -> Option<State> {
        self.set(index, Cell::Taken).state()
    }

    pub(super) fn put_back(&mut self, index: UnpackedIndex, state: State) {
        self.set(index, Cell::from(state));
    }

    /// The bytes of the states that are not taken, and of their cells.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + allocated(self.cells.capacity() * size_of::<Cell>())
    }

    /// The holds of a state that has some.
    pub(super) fn holds(&self, index: UnpackedIndex) -> Option<&Holds> {
        match &self.cells[index.0 as usize] {
            Cell::Holds(holds) => Some(holds),
            _ => None,
        }
    }

    /// A copy of a state.
    pub(super) fn peek(&self, index: UnpackedIndex) -> Option<State> {
        self.cells[index.0 as usize].clone().state()
    }

    pub(super) fn remove(&mut self, index: UnpackedIndex) {
        self.set(
            index,
            Cell::Free {
                next: self.first_free,
            },
        );
        self.first_free = Some(index);
        self.used -= 1;
    }

    /// Whether more than three quarters of the cells are free.
    pub(super) const fn is_sparse(&self) -> bool {
        self.used < self.cells.len() / 4
    }

    /// Moves a state to `target` and returns its index there.
    pub(super) fn move_to(&mut self, target: &mut Self, index: UnpackedIndex) -> UnpackedIndex {
        target.store(self.set(index, Cell::Taken))
    }

    /// Returns the previous content of the cell.
    fn set(&mut self, index: UnpackedIndex, cell: Cell) -> Cell {
        self.bytes += cell.bytes();
        let before = std::mem::replace(&mut self.cells[index.0 as usize], cell);
        self.bytes -= before.bytes();
        before
    }

    fn store(&mut self, cell: Cell) -> UnpackedIndex {
        self.used += 1;
        if let Some(index) = self.first_free
            && let Cell::Free { next } = self.cells[index.0 as usize]
        {
            self.first_free = next;
            self.set(index, cell);
            return index;
        }
        self.bytes += cell.bytes();
        self.cells.push(cell);
        UnpackedIndex(
            u32::try_from(self.cells.len() - 1).expect("a shard holds fewer than 2^32 keys"),
        )
    }
}

impl From<State> for Cell {
    fn from(state: State) -> Self {
        match state {
            State::Log(log) => Self::Log(log),
            State::Buckets(ring) => Self::Buckets(ring),
            State::Holders(holders) if holders.iter().nth(FEW).is_none() => {
                Self::FewHolders(holders.iter().collect())
            }
            State::Holders(holders) => Self::Holders(holders),
            State::Holds(holds) => Self::Holds(holds),
            other => Self::Other(Box::new(other)),
        }
    }
}

impl Cell {
    fn state(self) -> Option<State> {
        match self {
            Self::Log(log) => Some(State::Log(log)),
            Self::Buckets(ring) => Some(State::Buckets(ring)),
            Self::Holders(holders) => Some(State::Holders(holders)),
            Self::FewHolders(few) => Some(State::Holders(Box::new(few.iter().copied().collect()))),
            Self::Holds(holds) => Some(State::Holds(holds)),
            Self::Other(state) => Some(*state),
            Self::Taken | Self::Free { .. } => None,
        }
    }

    /// The bytes that its state takes.
    fn bytes(&self) -> usize {
        match self {
            Self::Log(log) => log_bytes(log),
            Self::Buckets(ring) => ring_bytes(ring),
            Self::Holders(holders) => allocated(holders.bytes()),
            Self::FewHolders(few) => allocated(size_of_val(&**few)),
            Self::Holds(holds) => {
                let counter = match &holds.counter {
                    Some(State::Log(log)) => log_bytes(log),
                    Some(State::Buckets(ring)) => ring_bytes(ring),
                    _ => 0,
                };
                allocated(holds.bytes()) + counter
            }
            Self::Other(_) => allocated(size_of::<State>()),
            Self::Taken | Self::Free { .. } => 0,
        }
    }
}

fn log_bytes(log: &Log) -> usize {
    allocated(size_of::<Log>()) + allocated(log.entries.capacity() * size_of::<LoggedHits>())
}

fn ring_bytes(ring: &Ring) -> usize {
    allocated(size_of::<Ring>()) + allocated(size_of_val(&*ring.counts))
}

/// The bytes that an allocation takes, as glibc's allocator rounds them.
fn allocated(bytes: usize) -> usize {
    (bytes + 8).next_multiple_of(16).max(32)
}
