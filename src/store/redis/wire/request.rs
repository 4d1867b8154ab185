//! The part of one request for one server, from the store through a queue into a batch, and its
//! answers.
//!
//! It is the only form in which checks travel: a queue holds requests, a batch and its calls of the
//! script borrow them, and name single checks by [`CheckPosition`].

use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::hash_slot::{Redirect, Slot};
use crate::core::answer::Answer;
use crate::core::lock;
use crate::core::time::Micros;
use crate::core::usage::Summary;
use crate::core::verdict::{StoreError, Verdict};
use crate::limits::plan::{Check, CheckIndex, Checks};
use crate::observe::metrics::Tallies;
use crate::store::Budget;
use crate::store::redis::error;

/// Weight of a check with `track_usage`: it takes Redis three times as long as another, because its
/// record is also read and written.
pub const TRACKED_WEIGHT: usize = 3;

/// A check that goes to a server, with the hash slot of its key if that decided the server.
#[derive(Clone, Copy, Debug)]
pub struct Picked {
    pub(crate) index: CheckIndex,
    pub(crate) slot: Option<Slot>,
}

pub(crate) type PickedChecks = SmallVec<[Picked; 4]>;

/// The checks of one request that go to one server. The caller and the queue share it, and the
/// reply is passed inside of it, because a channel would cost a further allocation and two more
/// copies of the reply.
#[derive(Debug)]
pub struct Request {
    /// All checks of the request.
    pub checks: Arc<Checks>,
    /// The checks that go to the server.
    pub(crate) picked: PickedChecks,
    /// The time limit of the request.
    pub budget: Budget,
    /// The server imports the slot of these checks: it executes a command on the slot only directly
    /// after ASKING. Source: Redis Cluster specification, "ASK redirection".
    pub is_asking: bool,
    /// Instant of its creation.
    pub since: Instant,
    /// Counts the effects of a reply that comes after the caller has gone.
    pub(crate) tallies: Option<Tallies>,
    reply: Mutex<ReplySlot>,
}

/// State of the reply to a [`Request`].
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all become the large one")]
enum ReplySlot {
    /// The caller waits for it, if there is a waker, or has not begun to wait.
    Open(Option<Waker>),
    Filled(Reply),
    /// The caller has gone.
    Cancelled,
}

/// A request on its way to a server. If it is dropped without a reply, the outcome is unknown.
#[derive(Debug)]
pub(crate) struct QueuedRequest(Arc<Request>);

/// The reply to come. Dropping it cancels the request, if that was not sent yet.
#[derive(Debug)]
pub(crate) struct PendingReply(Arc<Request>);

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckPosition {
    /// The index of its request.
    pub(crate) request: usize,
    /// The index into the picked checks of that request.
    pub(crate) pick: usize,
}

impl Request {
    /// A request without picked checks.
    pub(crate) fn new(checks: &Arc<Checks>, is_asking: bool, budget: Budget) -> Self {
        Self {
            checks: Arc::clone(checks),
            picked: PickedChecks::new(),
            budget,
            is_asking,
            since: Instant::now(),
            tallies: None,
            reply: Mutex::new(ReplySlot::Open(None)),
        }
    }

    /// The two ends of the request, for the queue and for the caller.
    pub(crate) fn share(self) -> (QueuedRequest, PendingReply) {
        let shared = Arc::new(self);
        (QueuedRequest(Arc::clone(&shared)), PendingReply(shared))
    }

    /// A request for all of these checks whose reply is not awaited: for probes and tests.
    pub fn unawaited(checks: Checks, budget: Budget) -> Self {
        let mut request = Self::new(&Arc::new(checks), false, budget);
        let picked = request.checks.indexed();
        let picked = picked.map(|(index, _)| Picked { index, slot: None });
        request.picked = picked.collect();
        request
    }

    /// The number of usual checks that take Redis as long as these.
    pub(crate) fn weight(&self) -> usize {
        let is_tracked = |picked: &&Picked| self.checks[picked.index].is_tracked();
        let tracked = self.picked.iter().filter(is_tracked).count();
        self.picked.len() + (TRACKED_WEIGHT - 1) * tracked
    }

    /// Counts the effects of a reply that no caller takes.
    fn observe_lost(&self, reply: &Reply) {
        if let Some(tallies) = &self.tallies {
            for (picked, answer) in self.picked.iter().zip(&reply.answers) {
                tallies.observe_effect(&self.checks[picked.index], answer.effect);
            }
        }
    }

    /// A picked check, by its index into them.
    pub(crate) fn check(&self, pick: usize) -> &Check {
        &self.checks[self.picked[pick].index]
    }
}

impl QueuedRequest {
    /// Whether the caller waits for the reply.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(*lock(&self.reply), ReplySlot::Open(_))
    }

    /// Replies to all checks with an error, like [`QueuedRequest::reply`].
    pub(crate) fn fail(&self, error: StoreError) -> bool {
        self.reply(Reply::failed(self.picked.len(), error))
    }

    /// Passes the reply to the caller. False: the caller no longer waits.
    pub(crate) fn reply(&self, reply: Reply) -> bool {
        let mut slot = lock(&self.reply);
        let ReplySlot::Open(waker) = &mut *slot else {
            drop(slot);
            self.observe_lost(&reply);
            return false;
        };
        let waker = waker.take();
        *slot = ReplySlot::Filled(reply);
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

impl Deref for QueuedRequest {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.0
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        if self.is_awaited() {
            self.fail(StoreError::Unknown(error::IO));
        }
    }
}

impl Deref for PendingReply {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.0
    }
}

impl Future for PendingReply {
    type Output = Reply;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        let mut slot = lock(&self.0.reply);
        match &mut *slot {
            ReplySlot::Open(Some(waker)) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
            ReplySlot::Open(none) => {
                *none = Some(context.waker().clone());
                Poll::Pending
            }
            other => match std::mem::replace(other, ReplySlot::Cancelled) {
                ReplySlot::Filled(reply) => Poll::Ready(reply),
                // It was taken before: no caller polls it again.
                ReplySlot::Open(_) | ReplySlot::Cancelled => Poll::Pending,
            },
        }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        let slot = std::mem::replace(&mut *lock(&self.0.reply), ReplySlot::Cancelled);
        if let ReplySlot::Filled(reply) = slot {
            self.observe_lost(&reply);
        }
    }
}

impl CheckPosition {
    /// The verdict of these replies on the check.
    pub(crate) fn verdict(self, replies: &[Reply]) -> Result<Verdict, StoreError> {
        replies[self.request].answers[self.pick].verdict
    }

    /// The positions of all picked checks of these requests.
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
            answers: SmallVec::from_elem(error.into(), count),
            redirects: Vec::new(),
            usage: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::algorithm::places::Change;
    use crate::core::answer::Effect;
    use crate::core::time::Span;
    use crate::limits::plan::{self, Plan, request_of};
    use crate::limits::rules::compile::rules_of;
    use crate::observe::metrics::Metrics;

    #[test]
    fn effects_count_although_the_caller_has_gone_before_or_after_the_reply() {
        let rules = Arc::new(rules_of(
            "domain: d\ndescriptors:\n- key: user\n  descriptors:\n  - key: request\n    \
             rate_limit: { algorithm: concurrency, requests_per_unit: 2, max_duration: 60s }\n",
        ));
        let request = request_of(b"d", &[(b"user", b"a"), (b"request", b"1")]);
        let checks = Plan::new(&rules, &request, &plan::Options::default()).checks;
        for is_before in [true, false] {
            let metrics = Metrics::new(1, 0.8);
            let mut request = Request::new(&checks, false, Budget::until(Instant::now()));
            request.tallies = Some(metrics.tallies(&rules));
            let (index, slot) = (CheckIndex(0), None);
            request.picked.push(Picked { index, slot });
            let (queued, pending) = request.share();
            let mut reply = Reply::failed(1, StoreError::Unknown("a test"));
            reply.answers[0].effect = Effect::Acquired(Change {
                age: Span::ZERO,
                places: 1,
            });
            if is_before {
                drop(pending);
                assert!(!queued.reply(reply), "no caller takes it");
            } else {
                assert!(queued.reply(reply));
                drop(pending);
            }
            let page = metrics.encode();
            let mut holders = page
                .lines()
                .filter(|line| line.starts_with("weir_concurrency_holders{"));
            let counted = holders.next().is_some_and(|line| line.ends_with(" 1"));
            assert!(counted, "the caller goes before the reply: {is_before}");
        }
    }
}
