//! What one request asks of one server, from the store through a queue into a batch, and what is
//! answered to it.
//!
//! It is the only form in which checks travel: a queue holds requests, a batch and its calls of the
//! script borrow them, and name single checks by [`CheckPosition`].

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::hash_slot::Redirect;
use crate::core::time::Micros;
use crate::core::usage::Summary;
use crate::core::verdict::{StoreError, Verdict};
use crate::limits::plan::{Check, CheckIndex, CheckIndices, Checks};
use crate::store::Budget;

/// What a check with `track_usage` weighs: it takes Redis three times as long as another, because
/// its record is read and written besides.
pub const TRACKED_WEIGHT: usize = 3;

/// The answer to one check.
pub(crate) type Answer = Result<Verdict, StoreError>;

/// The checks of one request that go to one server.
#[derive(Debug)]
pub struct Request {
    /// All checks of the request.
    pub checks: Arc<Checks>,
    /// The checks that go to the server.
    pub picked: CheckIndices,
    /// The time limit of the request.
    pub budget: Budget,
    /// The server imports the slot of these checks: it executes a command on the slot only directly
    /// behind ASKING. Source: Redis Cluster specification, "ASK redirection".
    pub is_asking: bool,
    /// When it was made.
    pub since: Instant,
    /// Closed when the request was cancelled.
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// The answers to a [`Request`].
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// The server's time when it executed the commands; 0 when no reply contained it.
    pub(crate) now: Micros,
    /// One per picked check, in their order.
    pub(crate) answers: SmallVec<[Answer; 4]>,
    /// The checks that another node has to decide, and where it is. Their answers are
    /// `NotExecuted`.
    pub(crate) redirects: Vec<(CheckIndex, Redirect)>,
    /// The totals of the subjects of tracked checks.
    pub(crate) usage: Vec<(CheckIndex, Summary)>,
}

/// The position of one check among the requests of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckPosition {
    /// The index of its request.
    pub(crate) request: usize,
    /// The index into the picked checks of that request.
    pub(crate) pick: usize,
}

impl Request {
    /// The checks at `picked`, and where the reply to them arrives. Dropping the receiver cancels
    /// what was not sent yet.
    pub(crate) fn new(
        checks: &Arc<Checks>,
        picked: CheckIndices,
        budget: Budget,
    ) -> (Self, oneshot::Receiver<Reply>) {
        let (reply, receiver) = oneshot::channel();
        let request = Self {
            checks: Arc::clone(checks),
            picked,
            budget,
            is_asking: false,
            since: Instant::now(),
            reply,
        };
        (request, receiver)
    }

    /// A request for all of these checks whose reply is not awaited: for probes and tests.
    #[must_use]
    pub fn unawaited(checks: Checks, budget: Budget) -> Self {
        let picked = checks.indices();
        Self::new(&Arc::new(checks), picked, budget).0
    }

    /// The number of usual checks that take Redis as long as these.
    pub(crate) fn weight(&self) -> usize {
        let is_picked = |index: CheckIndex| {
            self.picked
                .binary_search_by_key(&index.0, |picked| picked.0)
        };
        let tracked = self.checks.all_tracking();
        let tracked = tracked.filter(|&(index, _)| is_picked(index).is_ok());
        self.picked.len() + (TRACKED_WEIGHT - 1) * tracked.count()
    }

    /// Whether one of the picked checks hits this key.
    pub(crate) fn hits(&self, key: &[u8]) -> bool {
        self.picked
            .iter()
            .map(|&index| &self.checks[index])
            .any(|check| check.hits > 0 && self.checks.key(check) == key)
    }

    /// A picked check, by its index into them.
    pub(crate) fn check(&self, pick: usize) -> &Check {
        &self.checks[self.picked[pick]]
    }
}

impl CheckPosition {
    /// The positions of all picked checks of these requests.
    #[must_use]
    pub fn all(requests: &[&Request]) -> Vec<Self> {
        let picks = |(request, of): (usize, &&Request)| {
            (0..of.picked.len()).map(move |pick| Self { request, pick })
        };
        requests.iter().enumerate().flat_map(picks).collect()
    }
}

impl Reply {
    /// The same error for all of `count` answers.
    pub(crate) fn failed(count: usize, error: StoreError) -> Self {
        Self {
            now: Micros::default(),
            answers: SmallVec::from_elem(Err(error), count),
            redirects: Vec::new(),
            usage: Vec::new(),
        }
    }
}
