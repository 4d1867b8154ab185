//! The queue and the lanes of one worker for one server: requests are batched without a timer.
//!
//! Requests wait in a bounded queue. A lane is a task that holds a connection of the pool: it takes
//! the waiting requests, sends them in one write, distributes the answers, and repeats until the
//! queue is empty. Batching needs no timer: while all lanes are busy the next batch grows. A lane
//! that is free takes its batch after a turn of the worker that has queued nothing: without other
//! requests at once, and under load with all that have arrived. A request that was cancelled or is
//! past its deadline is never sent.
//!
//! One timer for all requests ends each of them at its deadline. It is set to the earliest deadline,
//! and nearly always finds that the request was answered long ago: a timer for each request would
//! cost more than its part of the batch.
//!
//! A lane never sends anything a second time, except a script that Redis did not have, or that it
//! refused as late because its clock had jumped, and checks that it refused because of the slots of
//! their keys. It never decides how a failed request is answered.
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
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use self::pool::ConnectionPool;
use super::error;
use crate::core::lock;
use crate::core::time::Micros;
use crate::core::verdict::StoreError;
use crate::store::redis::connection::Connection;
use crate::store::redis::topology::Deployment;
use crate::store::redis::topology::node::{BatchOutcome, Node};
use crate::store::redis::wire::batch::{Batch, Retry};
use crate::store::redis::wire::request::{QueuedRequest, Reply};

/// The checks that have to wait before a further lane starts for a server that is far. For one that
/// is near it is a full batch.
const MIN_CHECKS_FAR: usize = 16;

/// The most checks of a batch, unless a single request has more. A script takes about 4 µs per
/// check, and must not block Redis for more than half a millisecond. Here and below, a check with
/// usage counts as several: see `Request::weight`.
pub const MAX_BATCH_CHECKS: usize = 96;

/// The longest time for which a lane that is free lets its batch grow.
const MAX_GATHERING: Duration = Duration::from_micros(500);

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
    /// Notified when a request has a deadline before the alarm.
    is_alarm_late: Notify,
}

#[derive(Debug, Default)]
struct LaneQueue {
    waiting: VecDeque<QueuedRequest>,
    /// The weight of all waiting requests together.
    weight: usize,
    under_way: Vec<BatchUnderWay>,
    /// The empty list of a batch that has ended, for the next one.
    spare: Option<Arc<Vec<QueuedRequest>>>,
    /// The instant at which [`Lanes::end_at_deadlines`] wakes up; `None` if it does not run.
    alarm: Option<Instant>,
    /// Running lanes.
    busy: u32,
    /// Running lanes that hold a connection.
    connected: u32,
}

/// Requests that a lane has taken together.
#[derive(Clone, Debug)]
struct BatchUnderWay {
    /// When they were taken.
    since: Instant,
    weight: usize,
    requests: Arc<Vec<QueuedRequest>>,
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
            is_alarm_late: Notify::new(),
        })
    }

    /// Queues a request, and starts a lane if one is due.
    ///
    /// # Errors
    /// `NotExecuted("queue_full")` when the queue is full, or so long that the wait would take more
    /// than half of the time left until the deadline.
    #[expect(
        clippy::disallowed_methods,
        reason = "both tasks end soon after the last request, or with their runtime"
    )]
    pub(super) fn enqueue(self: &Arc<Self>, request: QueuedRequest) -> Result<(), StoreError> {
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
        match queue.alarm {
            None => {
                queue.alarm = Some(budget.deadline);
                tokio::spawn(Arc::clone(self).end_at_deadlines());
            }
            Some(alarm) if budget.deadline < alarm => self.is_alarm_late.notify_one(),
            Some(_) => {}
        }
        if !queue.is_lane_free() && self.should_run(queue.busy + 1, min_checks, &queue, since) {
            queue.busy += 1;
            drop(queue);
            // The task runs after the tasks that are ready now, whose requests then join its batch.
            tokio::spawn(
                RunningLane {
                    inner: Arc::clone(self),
                    is_busy: true,
                    is_connected: false,
                    batch: None,
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
    fn push(&mut self, request: QueuedRequest) {
        self.weight += request.weight();
        self.waiting.push_back(request);
    }

    /// Whether a lane that has a connection will take the next batch in a moment.
    fn is_lane_free(&self) -> bool {
        self.connected as usize > self.under_way.len()
    }

    /// The full batches that each running lane has to take before a request that arrives now.
    fn batches(&self) -> u32 {
        u32::try_from(self.weight / MAX_BATCH_CHECKS).unwrap_or(u32::MAX) / self.busy.max(1)
    }

    fn take_all(&mut self) -> VecDeque<QueuedRequest> {
        self.weight = 0;
        std::mem::take(&mut self.waiting)
    }

    /// Takes the next batch, in the order of arrival. Requests that were cancelled or are past
    /// their deadlines are dropped. Also returns how many those were.
    fn take(&mut self, now: Instant) -> (Option<BatchUnderWay>, u64) {
        let mut requests = self.spare.take().unwrap_or_default();
        let (mut weight, mut abandoned) = (0, 0);
        // No batch has the spare list.
        let Some(taken) = Arc::get_mut(&mut requests) else {
            return (None, 0);
        };
        while let Some(next) = self.waiting.front().map(|next| next.weight()) {
            if weight > 0 && weight + next > MAX_BATCH_CHECKS {
                break;
            }
            let Some(request) = self.waiting.pop_front() else {
                break;
            };
            self.weight -= next;
            if request.is_awaited() && request.budget.deadline > now {
                weight += next;
                taken.push(request);
            } else {
                abandoned += 1;
            }
        }
        let batch = (!requests.is_empty()).then_some(BatchUnderWay {
            since: now,
            weight,
            requests,
        });
        self.under_way.extend(batch.clone());
        (batch, abandoned)
    }

    /// Removes a batch from those under way, whatever its result.
    fn batch_ended(&mut self, batch: BatchUnderWay) {
        let is_same = |other: &BatchUnderWay| Arc::ptr_eq(&other.requests, &batch.requests);
        if let Some(index) = self.under_way.iter().position(is_same) {
            self.under_way.swap_remove(index);
        }
        let mut requests = batch.requests;
        if let Some(last) = Arc::get_mut(&mut requests) {
            last.clear();
            self.spare = Some(requests);
        }
    }

    /// The requests whose replies are awaited.
    fn awaited(&self) -> impl Iterator<Item = &QueuedRequest> {
        let under_way = self.under_way.iter().flat_map(|batch| &*batch.requests);
        let all = self.waiting.iter().chain(under_way);
        all.filter(|request| request.is_awaited())
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
        let is_overdue = |batch: &&BatchUnderWay| self.node.rtt.is_overdue(batch.since, now);
        let overdue = queue.under_way.iter().filter(|batch| is_overdue(batch));
        overdue.map(|_| 1).sum()
    }

    /// The most lanes: the size of the pool. When 192 checks are under way and a reply takes more
    /// than a quarter of a request's time, the server is overloaded, and the batch of another lane
    /// would only wait inside of it.
    fn max_lanes(&self, queue: &LaneQueue, now: Instant) -> u32 {
        let under_way: usize = queue.under_way.iter().map(|batch| batch.weight).sum();
        let is_slow = |next: &QueuedRequest| {
            let available = next.budget.deadline.saturating_duration_since(next.since);
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

    /// Takes the next batch; none when more lanes run than there should be.
    fn take(&self, now: Instant) -> Option<BatchUnderWay> {
        let mut queue = self.queue();
        if queue.busy > self.max_lanes(&queue, now) {
            return None;
        }
        let (batch, abandoned) = queue.take(now);
        drop(queue);
        if abandoned > 0 {
            let counted = &self.node.abandoned;
            counted.fetch_add(abandoned, Ordering::Relaxed);
        }
        batch
    }

    /// Answers each request at its deadline. One timer serves all of them: it is set to the
    /// earliest deadline, and most requests are answered long before it ends. Ends when no reply is
    /// awaited.
    async fn end_at_deadlines(self: Arc<Self>) {
        loop {
            let alarm = {
                let mut queue = self.queue();
                let deadlines = queue.awaited().map(|request| request.budget.deadline);
                queue.alarm = deadlines.min();
                queue.alarm
            };
            let Some(alarm) = alarm else { return };
            tokio::select! {
                () = sleep_until(alarm) => {}
                () = self.is_alarm_late.notified() => continue,
            }
            let now = Instant::now();
            for request in self
                .queue()
                .awaited()
                .filter(|request| request.budget.deadline <= now)
            {
                if request.fail(StoreError::Unknown(error::TIMEOUT)) {
                    self.node.record_timeout(request.since, request.budget);
                }
            }
        }
    }

    /// Sends a batch for the requests, and distributes the answers.
    async fn exchange(&self, connection: &mut Connection, taken: &[QueuedRequest]) {
        // Every handshake sets the clock. It can be read here unless it shows a time before 1970 or
        // the server has just moved.
        let Some(now) = self.node.clock.reading() else {
            connection.give_up();
            return self.refuse(taken, error::PROTOCOL);
        };
        let mut replies = std::mem::take(&mut connection.of_requests);
        let needs_expire = {
            let known_ttls = &mut connection.known_ttls;
            let scope = self.deployment.scope(&self.node);
            let batch = Batch::new(
                taken.iter().map(|request| &**request),
                self.deployment.batch_options(scope),
                now,
                known_ttls,
            );
            replies.extend(batch.unanswered());
            let deadlines = taken.iter().map(|request| request.budget.deadline);
            let deadline = deadlines.max().unwrap_or(now.at);
            self.send(connection, &batch, deadline, &mut replies).await;
            let without_ttl = batch.learn(&replies, &mut connection.known_ttls);
            if !without_ttl.is_empty() {
                batch.write_expiries(&without_ttl, connection.outgoing());
            }
            !without_ttl.is_empty()
        };
        let mut outcome = BatchOutcome::default();
        let (mut usage, now) = (Vec::new(), Instant::now());
        for (request, mut reply) in taken.iter().zip(replies.drain(..)) {
            let mut with_this = outcome;
            with_this.add(&reply, request, now);
            if !reply.usage.is_empty() {
                usage.push((request, std::mem::take(&mut reply.usage)));
            }
            // A request that was cancelled at its deadline was reported to the node as timed out
            // already.
            if request.reply(reply) {
                outcome = with_this;
            }
        }
        connection.of_requests = replies;
        self.node.record_outcome(outcome);
        for (request, summaries) in usage {
            self.deployment
                .usage
                .enqueue_all(&request.checks, summaries);
        }
        if needs_expire {
            // The answers are sent, and no request waits for this. If the connection breaks here,
            // the counter keeps no TTL until another connection counts on it, and stays for ever if
            // none does.
            let deadline = Instant::now() + self.node.options.connect_timeout;
            let _ = connection.exchange(deadline).await;
        }
    }

    /// Sends a batch, and fills `replies`. What Redis did not execute of it is sent again, where that
    /// may succeed on the same connection.
    async fn send(
        &self,
        connection: &mut Connection,
        batch: &Batch<'_>,
        deadline: Instant,
        replies: &mut [Reply],
    ) {
        for round in 0..3 {
            let retry = match round {
                0 => None,
                1 => Some(Retry::Slots),
                // The reply that refused checks as late has renewed the estimate of the clock.
                _ => match self.node.clock.reading() {
                    None => return,
                    reading => reading.map(Retry::Late),
                },
            };
            let again = retry.map(|retry| batch.retries(retry, replies));
            let Some(sent) = again.as_ref().map_or(Some(batch), Option::as_ref) else {
                continue;
            };
            let refused = sent.refused_for_slots(replies);
            self.send_once(connection, sent, deadline, replies).await;
            for retry in [Retry::NoScript, Retry::NoSharedScript] {
                let Some(again) = sent.retries(retry, replies) else {
                    break;
                };
                self.send_once(connection, &again, deadline, replies).await;
            }
            // Otherwise a slot may have moved.
            if refused.iter().any(|at| at.verdict(replies).is_ok()) {
                self.node.refuse_slots();
            }
            let mut answers = replies.iter().flat_map(|reply| &reply.answers);
            if answers.all(|answer| answer.verdict.is_ok()) {
                return;
            }
        }
    }

    async fn send_once(
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
                if answers.any(|answer| answer.verdict.is_err_and(error::breaks_connection)) {
                    connection.give_up();
                }
            }
            Err(error) => batch.fail(error, replies),
        }
    }

    /// Answers requests that get no connection with an error of this name.
    fn refuse<'r>(
        &self,
        requests: impl IntoIterator<Item = &'r QueuedRequest>,
        name: &'static str,
    ) {
        let is_answered = |request: &&QueuedRequest| request.fail(StoreError::NotExecuted(name));
        let answered = requests.into_iter().filter(is_answered);
        let answered = u32::try_from(answered.count()).unwrap_or(u32::MAX);
        self.node.record_failed(answered, name);
    }
}

/// Waits while each turn of the worker adds to the weight of the queue, up to a full batch, and at
/// most [`MAX_GATHERING`].
async fn gather(weight: impl Fn() -> usize) {
    let (began, mut before) = (Instant::now(), weight());
    loop {
        yield_now().await;
        let now = weight();
        let is_growing = (before + 1..MAX_BATCH_CHECKS).contains(&now);
        if !is_growing || began.elapsed() > MAX_GATHERING {
            return;
        }
        before = now;
    }
}

/// A running lane. Dropping it, whatever the reason, removes it from the queue's counts.
struct RunningLane {
    inner: Arc<Lanes>,
    is_busy: bool,
    is_connected: bool,
    batch: Option<BatchUnderWay>,
}

impl RunningLane {
    fn batch_ended(&mut self, queue: &mut LaneQueue) {
        if let Some(batch) = self.batch.take() {
            queue.batch_ended(batch);
        }
    }

    async fn run(mut self) {
        let inner = Arc::clone(&self.inner);
        loop {
            let is_needed = match inner.pool.connection().await {
                Ok(mut connection) => {
                    inner.queue().connected += 1;
                    self.is_connected = true;
                    while inner.node.accepts(&connection) {
                        inner.pool.renew(&mut connection);
                        gather(|| inner.queue().weight).await;
                        let now = Instant::now();
                        self.batch = inner.take(now);
                        let Some(batch) = &self.batch else { break };
                        inner.exchange(&mut connection, &batch.requests).await;
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
                    inner.refuse(waiting.iter().flatten(), name);
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
