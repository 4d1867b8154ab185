//! The states of a shard that do not fit into two words: logs, rings, holders, and the few whose numbers are too large.
//!
//! A table entry refers to such a state by its index. The index of a removed state is used again for the next one.

use crate::algorithm::State;
use crate::algorithm::concurrency::Holders;
use crate::algorithm::sliding_window_buckets::Ring;
use crate::algorithm::sliding_window_log::Log;

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
}

/// Half as large as a [`State`].
#[derive(Clone, Debug)]
enum Cell {
    Log(Box<Log>),
    Buckets(Box<Ring>),
    Holders(Box<Holders>),
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
        std::mem::replace(self.cell(index), Cell::Taken).state()
    }

    pub(super) fn put_back(&mut self, index: UnpackedIndex, state: State) {
        *self.cell(index) = Cell::from(state);
    }

    /// A copy of a state.
    pub(super) fn peek(&self, index: UnpackedIndex) -> Option<State> {
        self.cells[index.0 as usize].clone().state()
    }

    pub(super) fn remove(&mut self, index: UnpackedIndex) {
        *self.cell(index) = Cell::Free { next: self.first_free };
        self.first_free = Some(index);
        self.used -= 1;
    }

    /// Whether more than three quarters of the cells are free.
    pub(super) const fn is_sparse(&self) -> bool {
        self.used < self.cells.len() / 4
    }

    /// Moves a state to `target` and returns its index there.
    pub(super) fn move_to(&mut self, target: &mut Self, index: UnpackedIndex) -> UnpackedIndex {
        target.store(std::mem::replace(self.cell(index), Cell::Taken))
    }

    fn cell(&mut self, index: UnpackedIndex) -> &mut Cell {
        &mut self.cells[index.0 as usize]
    }

    fn store(&mut self, cell: Cell) -> UnpackedIndex {
        self.used += 1;
        if let Some(index) = self.first_free
            && let Cell::Free { next } = self.cells[index.0 as usize]
        {
            self.first_free = next;
            *self.cell(index) = cell;
            return index;
        }
        self.cells.push(cell);
        UnpackedIndex(u32::try_from(self.cells.len() - 1).expect("a shard holds fewer than 2^32 keys"))
    }
}

impl From<State> for Cell {
    fn from(state: State) -> Self {
        match state {
            State::Log(log) => Self::Log(log),
            State::Buckets(ring) => Self::Buckets(ring),
            State::Holders(holders) => Self::Holders(holders),
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
            Self::Other(state) => Some(*state),
            Self::Taken | Self::Free { .. } => None,
        }
    }
}
