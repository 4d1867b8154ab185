//! How requests of one runtime get to one server: together, without a timer.
//!
//! What is asked waits in a bounded queue. A lane is a task with a connection of the pool in its hand: it takes what waits, sends it in one write,
//! hands out the answers, and goes on until nothing waits. While all lanes are busy the next batch grows by itself, and a request that meets
//! an idle lane is sent at once. Who has left by then costs Redis nothing.

mod pool;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::Instant;

use self::pool::Pool;
use super::error;
use crate::store::redis::connection::exchange::Connection;
use crate::store::redis::topology::node::{Node, Outcome};
use crate::store::redis::wire::batch::{Batch, BatchOptions, ClockReading, Work, WorkReply};
use crate::verdict::StoreError;

/// So many checks are worth a further lane, where a round rtt is long and many requests wait for it. Where it is short, only a full batch is.
const WORTH_A_LANE: usize = 16;

/// Checks in one batch at most (but one request always goes whole): a script takes about 4 us each, and must not hold up Redis for more
/// than half a millisecond.
const MOST_CHECKS: usize = 96;

/// So many under way are as much as any server needs to be busy all the time, unless it is very far.
const MANY_CHECKS: usize = 2 * MOST_CHECKS;

/// Checks that wait at most, however much time there is.
const LONGEST_QUEUE: usize = 4_096;

/// The way of one runtime to one server; clones are the same way.
#[derive(Clone, Debug)]
pub(super) struct Lanes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    node: Arc<Node>,
    pool: Pool,
    batch_options: BatchOptions,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<QueuedWork>,
    /// In all jobs.
    checks: usize,
    /// Of each batch that is under way: since when, and how many checks.
    under_way: Vec<(Instant, usize)>,
    /// Lanes at work, and those of them that have a connection in their hand.
    busy: u32,
    connected: u32,
}

/// Work, and who waits for it.
#[derive(Debug)]
struct QueuedWork {
    work: Work,
    since: Instant,
    reply: oneshot::Sender<WorkReply>,
}

impl Lanes {
    /// A way to `node` that begins to connect with the first request; to be used in the runtime that it is made in.
    pub(super) fn new(node: &Arc<Node>, batch_options: BatchOptions) -> Self {
        Self(Arc::new(Inner { node: Arc::clone(node), pool: Pool::new(node), batch_options, queue: Mutex::default() }))
    }

    pub(super) fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    /// Puts work in the queue. To leave early, drop the receiver.
    ///
    /// # Errors
    /// `NotExecuted` when too much waits already: behind it, there would not be time enough.
    #[expect(clippy::disallowed_methods, reason = "a lane ends when nothing waits, or with its runtime")]
    pub(super) fn send(&self, work: Work) -> Result<oneshot::Receiver<WorkReply>, StoreError> {
        let (reply, receiver) = oneshot::channel();
        let mut queue = self.0.queue();
        let (since, rtt) = (Instant::now(), &self.0.node.rtt);
        let is_full = queue.checks + work.picked.len() > LONGEST_QUEUE && queue.checks > 0;
        if is_full || rtt.is_queue_too_long(queue.batches(), work.budget, since) {
            return Err(StoreError::NotExecuted(error::QUEUE_FULL));
        }
        queue.checks += work.picked.len();
        // Whoever would be too late behind the batches under way is worth a lane of his own.
        let worth = if rtt.is_deadline_too_close(work.budget, since) { 1 } else { self.0.worth() };
        queue.jobs.push_back(QueuedWork { work, since, reply });
        if self.0.are_worth_it(queue.busy + 1, worth, &queue, since) {
            queue.busy += 1;
            drop(queue);
            // The task begins after those that are ready now, so that what they ask goes along.
            tokio::spawn(RunningLane { inner: Arc::clone(&self.0), is_counted: true, is_connected: false, since: None }.run());
        }
        Ok(receiver)
    }
}

#[cfg(test)]
impl Lanes {
    /// Jobs and checks that wait, and lanes at work.
    pub(super) fn load(&self) -> (usize, usize, u32) {
        let queue = self.0.queue();
        (queue.jobs.len(), queue.checks, queue.busy)
    }
}

impl Queue {
    /// How many full batches each lane that is at work will have to take before who comes now.
    fn batches(&self) -> u32 {
        u32::try_from(self.checks / MOST_CHECKS).unwrap_or(u32::MAX) / self.busy.max(1)
    }

    fn take_all(&mut self) -> VecDeque<QueuedWork> {
        self.checks = 0;
        std::mem::take(&mut self.jobs)
    }

    /// The next batch: in the order in which it was asked, without those who have left or are too late.
    /// Returns how many those were.
    fn take(&mut self, jobs: &mut Vec<QueuedWork>, now: Instant) -> u64 {
        let (mut checks, mut left) = (0, 0);
        while let Some(job) = self.jobs.front() {
            let next = job.work.picked.len();
            if checks > 0 && checks + next > MOST_CHECKS {
                break;
            }
            let Some(job) = self.jobs.pop_front() else { break };
            self.checks -= next;
            if !job.reply.is_closed() && job.work.budget.deadline > now {
                checks += next;
                jobs.push(job);
            } else {
                left += 1;
            }
        }
        if !jobs.is_empty() {
            self.under_way.push((now, checks));
        }
        left
    }

    /// A batch is not under way any more, whatever became of it.
    fn is_back(&mut self, since: Instant) {
        if let Some(place) = self.under_way.iter().position(|&(other, _)| other == since) {
            self.under_way.swap_remove(place);
        }
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing that changes it can panic half way.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many lanes are used before a batch has to be worth another one. While an answer from near is awaited, what comes waits for the next
    /// batch, which costs least of all (measured); of a server that is farther away a second lane does not wait for the first. Nobody waits for
    /// answers that are overdue, which may be held up by themselves.
    fn eager(&self, queue: &Queue, now: Instant) -> u32 {
        self.usual() + self.held_up(queue, now)
    }

    fn usual(&self) -> u32 {
        1 + u32::from(!self.node.rtt.is_near())
    }

    fn held_up(&self, queue: &Queue, now: Instant) -> u32 {
        queue.under_way.iter().map(|&(since, _)| u32::from(self.node.rtt.is_overdue(since, now))).sum()
    }

    /// There are never more. When many checks under way take a good part of the time that there is for one, the server has more to do than it
    /// can, and what another lane brought would only wait inside of it.
    fn most(&self, queue: &Queue, now: Instant) -> u32 {
        let under_way: usize = queue.under_way.iter().map(|&(_, checks)| checks).sum();
        let is_slow = |job: &QueuedWork| self.node.rtt.is_slow_for(job.work.budget.deadline.saturating_duration_since(job.since));
        let lanes = self.node.options().pool_size.get();
        if under_way >= MANY_CHECKS && queue.jobs.front().is_some_and(is_slow) {
            // All of its answers are overdue then, which is no reason to ask for more.
            lanes.min(self.usual() + self.held_up(queue, now).min(1))
        } else {
            lanes
        }
    }

    /// Whether there is work for so many lanes, of which a further one has to be worth it.
    fn are_worth_it(&self, lanes: u32, worth: usize, queue: &Queue, now: Instant) -> bool {
        queue.checks > 0 && lanes <= self.most(queue, now) && (lanes <= self.eager(queue, now) || queue.checks >= worth)
    }

    /// So many checks are worth another one.
    fn worth(&self) -> usize {
        if self.node.rtt.is_near() { MOST_CHECKS } else { WORTH_A_LANE }
    }

    /// The next batch; none for a lane that is one too many.
    fn take(&self, jobs: &mut Vec<QueuedWork>, now: Instant) {
        let mut queue = self.queue();
        if queue.busy <= self.most(&queue, now) {
            let left = queue.take(jobs, now);
            drop(queue);
            self.node.counters.abandoned(left);
        }
    }

    async fn exchange(&self, connection: &mut Connection, jobs: &mut Vec<QueuedWork>) {
        let at = Instant::now();
        // Every handshake sets the clock, so that whoever has a connection can read it, unless the clock stands before 1970 or was just forgotten.
        let Some(time) = self.node.clock().read(at) else {
            connection.give_up();
            return self.refuse(jobs.drain(..), error::PROTOCOL);
        };
        let (replies, is_healing) = {
            let batch =
                Batch::new(jobs.iter().map(|job| &job.work), self.batch_options, ClockReading { time, at }, connection.known_ttls());
            let mut replies = batch.unanswered();
            let deadline = jobs.iter().map(|job| job.work.budget.deadline).max().unwrap_or(at);
            self.send(connection, &batch, deadline, &mut replies).await;
            if let Some(again) = batch.without_script(&replies) {
                self.send(connection, &again, deadline, &mut replies).await;
            }
            let bare = batch.learn(&replies, connection.known_ttls());
            if !bare.is_empty() {
                batch.write_expiries(&bare, connection.outgoing());
            }
            (replies, !bare.is_empty())
        };
        let mut outcome = Outcome::default();
        for (job, reply) in jobs.drain(..).zip(replies) {
            let mut with_it = outcome;
            with_it.add(&reply, job.since, job.work.budget);
            // Who has left has told the node already that it was too late.
            if job.reply.send(reply).is_ok() {
                outcome = with_it;
            }
        }
        self.node.record_outcome(outcome);
        if is_healing {
            // The counts stand, and nobody waits for this. A connection that breaks here leaves a key that may stay for ever, if nobody asks for it
            // again.
            let _ = connection.exchange(Instant::now() + self.node.options().connect_timeout).await;
        }
    }

    async fn send(&self, connection: &mut Connection, batch: &Batch<'_>, deadline: Instant, replies: &mut [WorkReply]) {
        let began = Instant::now();
        batch.write(connection.outgoing());
        match connection.exchange(deadline).await {
            Ok(values) => {
                self.node.rtt.record(began.elapsed());
                batch.read(values, replies);
                self.node.counters.answered(replies.len());
                let now = replies.iter().map(|reply| reply.now).max().unwrap_or_default();
                if now.0 > 0 {
                    self.node.clock().observe(now, Instant::now());
                }
                if replies.iter().flat_map(|reply| &reply.answers).any(|answer| answer.is_err_and(error::breaks_connection)) {
                    connection.give_up();
                }
            }
            Err(error) => batch.fail(error, replies),
        }
    }

    /// There is no connection for these.
    fn refuse(&self, jobs: impl Iterator<Item = QueuedWork>, name: &'static str) {
        let tell = |job: QueuedWork| job.reply.send(WorkReply::failed(job.work.picked.len(), StoreError::NotExecuted(name))).is_ok();
        let told = jobs.map(tell).filter(|&told| told).count();
        self.node.record_failed(u32::try_from(told).unwrap_or(u32::MAX), name);
    }
}

/// A lane that is at work; not counted any more when it is dropped, whatever ends it.
struct RunningLane {
    inner: Arc<Inner>,
    is_counted: bool,
    is_connected: bool,
    /// When its batch was taken, while one is under way.
    since: Option<Instant>,
}

impl RunningLane {
    fn is_back(&mut self, queue: &mut Queue) {
        if let Some(since) = self.since.take() {
            queue.is_back(since);
        }
    }

    async fn run(mut self) {
        let inner = Arc::clone(&self.inner);
        let mut jobs = Vec::new();
        loop {
            let is_needed = match inner.pool.connection().await {
                Ok(mut connection) => {
                    inner.queue().connected += 1;
                    self.is_connected = true;
                    while connection.is_reusable() {
                        inner.pool.renew(&mut connection);
                        let now = Instant::now();
                        inner.take(&mut jobs, now);
                        if jobs.is_empty() {
                            break;
                        }
                        self.since = Some(now);
                        inner.exchange(&mut connection, &mut jobs).await;
                        self.is_back(&mut inner.queue());
                    }
                    true
                }
                Err(name) => {
                    let mut queue = inner.queue();
                    // Those that have a connection go on with what waits.
                    let is_alone = queue.connected == 0;
                    let waiting = if is_alone { queue.take_all() } else { VecDeque::new() };
                    drop(queue);
                    inner.refuse(waiting.into_iter(), name);
                    is_alone
                }
            };
            // Under one lock, so that who comes next sees that a lane is free.
            let mut queue = inner.queue();
            queue.connected -= u32::from(std::mem::take(&mut self.is_connected));
            if !is_needed || !inner.are_worth_it(queue.busy, inner.worth(), &queue, Instant::now()) {
                queue.busy -= 1;
                self.is_counted = false;
                return;
            }
        }
    }
}

impl Drop for RunningLane {
    fn drop(&mut self) {
        if self.is_counted {
            let inner = Arc::clone(&self.inner);
            let mut queue = inner.queue();
            self.is_back(&mut queue);
            queue.busy -= 1;
            queue.connected -= u32::from(self.is_connected);
        }
    }
}
