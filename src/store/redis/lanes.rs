//! The queue and the lanes of one worker for one server: requests are batched without a timer.
//!
//! Requests wait in a bounded queue. A lane is a task that holds a connection of the pool: it takes
//! the waiting requests, sends them in one write, distributes the answers, and repeats until the
//! queue is empty. Batching needs no timer: while all lanes are busy the next batch grows, and a
//! request that finds a lane free is sent at once. A request that was cancelled or is past its
//! deadline is never sent.
//!
//! A lane never sends anything a second time, except a script that Redis did not have, or that it
//! refused as late because its clock had jumped. It never decides how a failed request is answered.
//!
//! A near server, one whose fastest recent batch took less than a millisecond, has one lane:
//! requests that arrive meanwhile make the next batch larger, and larger batches cost less on both
//! sides. A farther server has two lanes, because a request should not wait for a whole round trip
//! before it is sent. A further lane starts only when a full batch waits (16 checks for a far
//! server), and one more for each overdue batch (four times the mean round trip, and at least 5
//! ms), because a lost packet stalls one connection only.
//!
//! When the wait ahead exceeds half of the time of a request, the request fails at once as
//! `queue_full`. If 192 checks are in flight and take a quarter of the time of a request, no lane
//! is added: otherwise a Redis that receives slightly more than it can do would answer only callers
//! that have given up. A batch holds at most 96 checks, which is half a millisecond of scripts. A
//! check with usage takes Redis three times as long, and counts as three in all of these.

mod pool;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::Instant;

use self::pool::ConnectionPool;
use super::error;
use crate::core::lock;
use crate::core::time::Micros;
use crate::core::verdict::StoreError;
use crate::store::redis::connection::Connection;
use crate::store::redis::topology::Deployment;
use crate::store::redis::topology::node::{BatchOutcome, Node};
use crate::store::redis::usage::queue;
use crate::store::redis::wire::batch::{Batch, BatchOptions};
use crate::store::redis::wire::request::{Reply, Request};

/// The checks that have to wait before a further lane starts for a server that is far. For one that
/// is near it is a full batch.
const MIN_CHECKS_FAR: usize = 16;

/// The most checks of a batch, unless a single request has more. A script takes about 4 µs per
/// check, and must not block Redis for more than half a millisecond. Here and below, a check with
/// usage counts as several: see [`Request::weight`].
pub const MAX_BATCH_CHECKS: usize = 96;

/// This many checks under way keep any server busy all the time, unless it is very far.
const SATURATING_CHECKS: usize = 2 * MAX_BATCH_CHECKS;

/// The most checks in the queue, whatever their deadlines.
const MAX_QUEUED_CHECKS: usize = 4_096;

/// The queue and the lanes of one worker for one server.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) node: Arc<Node>,
    pool: ConnectionPool,
    deployment: Arc<Deployment>,
    queue: Mutex<LaneQueue>,
}

#[derive(Debug, Default)]
struct LaneQueue {
    waiting: VecDeque<Request>,
    /// The weight of all waiting requests together.
    weight: usize,
    /// Each batch under way: when it was taken, and its weight.
    under_way: Vec<(Instant, usize)>,
    /// Running lanes.
    busy: u32,
    /// Running lanes that hold a connection.
    connected: u32,
}

impl Lanes {
    /// An empty queue for `node`. The first request opens the first connection. Must be used in the
    /// runtime that it was created in, because its connections and tasks belong to it.
    pub(super) fn new(node: &Arc<Node>, deployment: &Arc<Deployment>) -> Arc<Self> {
        Arc::new(Self {
            node: Arc::clone(node),
            pool: ConnectionPool::new(node),
            deployment: Arc::clone(deployment),
            queue: Mutex::default(),
        })
    }

    /// Queues a request, and starts a lane if one is due.
    ///
    /// # Errors
    /// `NotExecuted("queue_full")` when the queue is full, or so long that the wait would take more
    /// than half of the time left until the deadline.
    #[expect(
        clippy::disallowed_methods,
        reason = "a lane ends when the queue is empty, or with its runtime"
    )]
    pub(super) fn enqueue(self: &Arc<Self>, request: Request) -> Result<(), StoreError> {
        let (since, budget, rtt) = (request.since, request.budget, &self.node.rtt);
        let mut queue = self.queue();
        let is_full = queue.weight + request.weight() > MAX_QUEUED_CHECKS && queue.weight > 0;
        if is_full || rtt.is_queue_too_long(queue.batches(), budget, since) {
            return Err(StoreError::NotExecuted(error::QUEUE_FULL));
        }
        // A request that cannot wait for the reply to a batch under way may start a lane for itself
        // alone.
        let min_checks = if rtt.is_deadline_too_close(budget, since) {
            1
        } else {
            self.min_checks()
        };
        queue.push(request);
        if self.should_run(queue.busy + 1, min_checks, &queue, since) {
            queue.busy += 1;
            drop(queue);
            // The task runs after the tasks that are ready now, whose requests then join its batch.
            tokio::spawn(
                RunningLane {
                    inner: Arc::clone(self),
                    is_busy: true,
                    is_connected: false,
                    since: None,
                }
                .run(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
impl Lanes {
    /// Queued requests, their weight, and running lanes.
    pub(super) fn load(&self) -> (usize, usize, u32) {
        let queue = self.queue();
        (queue.waiting.len(), queue.weight, queue.busy)
    }
}

impl LaneQueue {
    fn push(&mut self, request: Request) {
        self.weight += request.weight();
        self.waiting.push_back(request);
    }

    /// The full batches that each running lane has to take before a request that arrives now.
    fn batches(&self) -> u32 {
        u32::try_from(self.weight / MAX_BATCH_CHECKS).unwrap_or(u32::MAX) / self.busy.max(1)
    }

    fn take_all(&mut self) -> VecDeque<Request> {
        self.weight = 0;
        std::mem::take(&mut self.waiting)
    }

    /// Moves the next batch to `taken`, in the order of arrival. Requests that were cancelled or
    /// are past their deadlines are dropped. Returns how many those were.
    fn take(&mut self, taken: &mut Vec<Request>, now: Instant) -> u64 {
        let (mut weight, mut abandoned) = (0, 0);
        while let Some(next) = self.waiting.front().map(Request::weight) {
            if weight > 0 && weight + next > MAX_BATCH_CHECKS {
                break;
            }
            let Some(request) = self.waiting.pop_front() else {
                break;
            };
            self.weight -= next;
            if !request.reply.is_closed() && request.budget.deadline > now {
                weight += next;
                taken.push(request);
            } else {
                abandoned += 1;
            }
        }
        if !taken.is_empty() {
            self.under_way.push((now, weight));
        }
        abandoned
    }

    /// Removes a batch that was taken at `since` from those under way, whatever its result.
    fn batch_ended(&mut self, since: Instant) {
        if let Some(index) = self.under_way.iter().position(|&(other, _)| other == since) {
            self.under_way.swap_remove(index);
        }
    }
}

impl Lanes {
    fn queue(&self) -> MutexGuard<'_, LaneQueue> {
        lock(&self.queue)
    }

    /// The lanes that run for a single waiting check; a further lane needs [`Lanes::min_checks`]. A
    /// near server has one, because waiting for its reply makes larger batches, which cost least
    /// (measured). A farther server has two, because a request should not wait for a whole round
    /// trip.
    fn base_lanes(&self) -> u32 {
        1 + u32::from(!self.node.rtt.is_near())
    }

    fn overdue_batches(&self, queue: &LaneQueue, now: Instant) -> u32 {
        let is_overdue = |&(since, _): &(_, usize)| self.node.rtt.is_overdue(since, now);
        let overdue = queue.under_way.iter().filter(|batch| is_overdue(batch));
        overdue.map(|_| 1).sum()
    }

    /// The most lanes: the size of the pool. When 192 checks are under way and a reply takes more
    /// than a quarter of a request's time, the server is overloaded, and the batch of another lane
    /// would only wait inside of it.
    fn max_lanes(&self, queue: &LaneQueue, now: Instant) -> u32 {
        let under_way: usize = queue.under_way.iter().map(|&(_, weight)| weight).sum();
        let is_slow = |Request { budget, since, .. }: &Request| {
            let available = budget.deadline.saturating_duration_since(*since);
            self.node.rtt.is_slow_for(available)
        };
        let lanes = self.node.options.pool_size.get();
        if under_way >= SATURATING_CHECKS && queue.waiting.front().is_some_and(is_slow) {
            // All batches may be overdue then, which is no reason for more than one further lane.
            lanes.min(self.base_lanes() + self.overdue_batches(queue, now).min(1))
        } else {
            lanes
        }
    }

    /// Whether this many lanes should run, if a further one needs `min_checks` waiting checks. Each
    /// overdue batch adds one, because the delay may affect its connection only.
    fn should_run(&self, lanes: u32, min_checks: usize, queue: &LaneQueue, now: Instant) -> bool {
        queue.weight > 0
            && lanes <= self.max_lanes(queue, now)
            && (lanes <= self.base_lanes() + self.overdue_batches(queue, now)
                || queue.weight >= min_checks)
    }

    /// The waiting checks that a further lane needs.
    fn min_checks(&self) -> usize {
        if self.node.rtt.is_near() {
            MAX_BATCH_CHECKS
        } else {
            MIN_CHECKS_FAR
        }
    }

    /// Moves the next batch to `taken`; nothing when more lanes run than there should be.
    fn take(&self, taken: &mut Vec<Request>, now: Instant) {
        let mut queue = self.queue();
        if queue.busy <= self.max_lanes(&queue, now) {
            let abandoned = queue.take(taken, now);
            drop(queue);
            if abandoned > 0 {
                let counted = &self.node.abandoned;
                counted.fetch_add(abandoned, Ordering::Relaxed);
            }
        }
    }

    /// Sends a batch for `taken`, which it empties, and distributes the answers.
    async fn exchange(&self, connection: &mut Connection, taken: &mut Vec<Request>) {
        // Every handshake sets the clock. It can be read here unless it shows a time before 1970 or
        // the server has just moved.
        let Some(now) = self.node.clock.reading() else {
            connection.give_up();
            return self.refuse(taken.drain(..), error::PROTOCOL);
        };
        let (replies, needs_expire) = {
            let known_ttls = &mut connection.known_ttls;
            let batch_options = BatchOptions {
                crosses_slots: self.node.crosses_slots.load(Ordering::Relaxed),
                ..self.deployment.batch_options()
            };
            let batch = Batch::new(taken.iter(), batch_options, now, known_ttls);
            let mut replies = batch.unanswered();
            let deadlines = taken.iter().map(|request| request.budget.deadline);
            let deadline = deadlines.max().unwrap_or(now.at);
            self.send(connection, &batch, deadline, &mut replies).await;
            if let Some(again) = batch.calls_to_resend(&replies) {
                self.send(connection, &again, deadline, &mut replies).await;
            }
            if let Some(again) = batch.calls_by_slot(&replies) {
                self.send(connection, &again, deadline, &mut replies).await;
                if let Some(with_text) = again.calls_to_resend(&replies) {
                    self.send(connection, &with_text, deadline, &mut replies)
                        .await;
                }
            }
            // The reply that refused them as late has renewed the estimate of the clock.
            let now = || self.node.clock.reading();
            if let Some(again) = batch.calls_that_were_not_late(&replies, now) {
                self.send(connection, &again, deadline, &mut replies).await;
            }
            let without_ttl = batch.learn(&replies, &mut connection.known_ttls);
            if !without_ttl.is_empty() {
                batch.write_expiries(&without_ttl, connection.outgoing());
            }
            (replies, !without_ttl.is_empty())
        };
        let mut outcome = BatchOutcome::default();
        let mut usage = Vec::new();
        for (request, mut reply) in taken.drain(..).zip(replies) {
            let mut with_this = outcome;
            with_this.add(&reply, &request);
            if !reply.usage.is_empty() {
                usage.push((request.checks, std::mem::take(&mut reply.usage)));
            }
            // A request that was cancelled at its deadline was reported to the node as timed out
            // already.
            if request.reply.send(reply).is_ok() {
                outcome = with_this;
            }
        }
        self.node.record_outcome(outcome);
        for (checks, summaries) in usage {
            for (index, summary) in summaries {
                if let Some(tracking) = checks.tracking(index) {
                    let record = queue::record(checks.key(&checks[index]));
                    self.deployment.usage.note(record, tracking, summary);
                }
            }
        }
        if needs_expire {
            // The answers are sent, and no request waits for this. If the connection breaks here,
            // the counter keeps no TTL until another connection counts on it, and stays for ever if
            // none does.
            let deadline = Instant::now() + self.node.options.connect_timeout;
            let _ = connection.exchange(deadline).await;
        }
    }

    /// Sends a batch, and fills `replies`.
    async fn send(
        &self,
        connection: &mut Connection,
        batch: &Batch<'_>,
        deadline: Instant,
        replies: &mut [Reply],
    ) {
        let began = Instant::now();
        batch.write(connection.outgoing());
        match connection.exchange(deadline).await {
            Ok(values) => {
                let took = began.elapsed();
                self.node.rtt.record(took);
                self.node.round_trips.record(took);
                batch.read(values, replies);
                let requests = &self.node.requests;
                requests.fetch_add(replies.len() as u64, Ordering::Relaxed);
                let times = replies.iter().map(|reply| reply.now);
                if let Some(now @ Micros(1..)) = times.max() {
                    self.node.clock.observe(now, Instant::now());
                }
                let mut answers = replies.iter().flat_map(|reply| &reply.answers);
                if answers.any(|answer| answer.is_err_and(error::breaks_connection)) {
                    connection.give_up();
                }
            }
            Err(error) => batch.fail(error, replies),
        }
    }

    /// Answers requests that get no connection with an error of this name.
    fn refuse(&self, requests: impl Iterator<Item = Request>, name: &'static str) {
        let answer = |Request { picked, reply, .. }: Request| {
            let failed = Reply::failed(picked.len(), StoreError::NotExecuted(name));
            reply.send(failed).is_ok()
        };
        let answered = requests.map(answer).filter(|&is_answered| is_answered);
        let answered = u32::try_from(answered.count()).unwrap_or(u32::MAX);
        self.node.record_failed(answered, name);
    }
}

/// A running lane. Dropping it, whatever the reason, removes it from the queue's counts.
struct RunningLane {
    inner: Arc<Lanes>,
    is_busy: bool,
    is_connected: bool,
    /// Start of its batch under way.
    since: Option<Instant>,
}

impl RunningLane {
    fn batch_ended(&mut self, queue: &mut LaneQueue) {
        if let Some(since) = self.since.take() {
            queue.batch_ended(since);
        }
    }

    async fn run(mut self) {
        let inner = Arc::clone(&self.inner);
        let mut taken = Vec::new();
        loop {
            let is_needed = match inner.pool.connection().await {
                Ok(mut connection) => {
                    inner.queue().connected += 1;
                    self.is_connected = true;
                    while inner.node.accepts(&connection) {
                        inner.pool.renew(&mut connection);
                        let now = Instant::now();
                        inner.take(&mut taken, now);
                        if taken.is_empty() {
                            break;
                        }
                        self.since = Some(now);
                        inner.exchange(&mut connection, &mut taken).await;
                        self.batch_ended(&mut inner.queue());
                    }
                    true
                }
                Err(name) => {
                    let mut queue = inner.queue();
                    // If another lane has a connection, it sends the waiting requests.
                    let is_alone = queue.connected == 0;
                    let waiting = is_alone.then(|| queue.take_all());
                    drop(queue);
                    inner.refuse(waiting.into_iter().flatten(), name);
                    is_alone
                }
            };
            // Decided and counted under one lock, because the next request has to see that this
            // lane has ended.
            let mut queue = inner.queue();
            queue.connected -= u32::from(std::mem::take(&mut self.is_connected));
            if !is_needed
                || !inner.should_run(queue.busy, inner.min_checks(), &queue, Instant::now())
            {
                queue.busy -= 1;
                self.is_busy = false;
                return;
            }
        }
    }
}

impl Drop for RunningLane {
    fn drop(&mut self) {
        if self.is_busy {
            let inner = Arc::clone(&self.inner);
            let mut queue = inner.queue();
            self.batch_ended(&mut queue);
            queue.busy -= 1;
            queue.connected -= u32::from(self.is_connected);
        }
    }
}

#[cfg(test)]
mod tests;
