//! The states of a shard that two words cannot hold: logs, rings, and the few that are too large.
//!
//! Each has a place that its entry names, and that another takes over when it is gone.

use crate::algorithm::State;
use crate::algorithm::sliding_window_buckets::Ring;
use crate::algorithm::sliding_window_log::Log;

/// The states by their places.
#[derive(Debug, Default)]
pub(super) struct Others {
    kept: Vec<Kept>,
    /// The first of the places that are free.
    free: Option<u32>,
    used: usize,
}

/// What is at a place. Half as large as a [`State`].
#[derive(Clone, Debug)]
enum Kept {
    Log(Box<Log>),
    Buckets(Box<Ring>),
    Other(Box<State>),
    /// Taken out for the length of a step.
    Away,
    Free {
        next: Option<u32>,
    },
}

impl Others {
    /// Keeps a state and returns its place.
    pub(super) fn add(&mut self, state: State) -> u32 {
        self.keep(Kept::from(state))
    }

    /// The state at a place, which goes on being taken until it is put back or freed.
    pub(super) fn take(&mut self, place: u32) -> Option<State> {
        std::mem::replace(&mut self.kept[place as usize], Kept::Away).state()
    }

    pub(super) fn put_back(&mut self, place: u32, state: State) {
        self.kept[place as usize] = Kept::from(state);
    }

    /// A copy of the state at a place.
    pub(super) fn peek(&self, place: u32) -> Option<State> {
        self.kept[place as usize].clone().state()
    }

    pub(super) fn free(&mut self, place: u32) {
        self.kept[place as usize] = Kept::Free { next: self.free };
        self.free = Some(place);
        self.used -= 1;
    }

    /// Whether most places are free.
    pub(super) const fn is_sparse(&self) -> bool {
        self.used < self.kept.len() / 4
    }

    /// Moves a state to where there is less room between them, and returns its new place.
    pub(super) fn move_to(&mut self, others: &mut Self, place: u32) -> u32 {
        others.keep(std::mem::replace(&mut self.kept[place as usize], Kept::Away))
    }

    fn keep(&mut self, kept: Kept) -> u32 {
        self.used += 1;
        if let Some(place) = self.free
            && let Kept::Free { next } = self.kept[place as usize]
        {
            self.free = next;
            self.kept[place as usize] = kept;
            return place;
        }
        self.kept.push(kept);
        u32::try_from(self.kept.len() - 1).expect("a shard holds fewer than 2^32 keys")
    }
}

impl From<State> for Kept {
    fn from(state: State) -> Self {
        match state {
            State::Log(log) => Self::Log(log),
            State::Buckets(ring) => Self::Buckets(ring),
            other => Self::Other(Box::new(other)),
        }
    }
}

impl Kept {
    fn state(self) -> Option<State> {
        match self {
            Self::Log(log) => Some(State::Log(log)),
            Self::Buckets(ring) => Some(State::Buckets(ring)),
            Self::Other(state) => Some(*state),
            Self::Away | Self::Free { .. } => None,
        }
    }
}
