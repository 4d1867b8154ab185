//! The Redis store: counters that all replicas share.
//!
//! The checks of a request go to the servers that own their keys (`topology`). Each worker has one
//! queue per server, whose requests it sends together (`lanes`), as commands on a pooled connection
//! (`wire`, `connection`). `monitor` runs on the control thread: it finds the servers, probes the
//! servers that stopped answering, and inspects all of them. `direct` sends commands that are no
//! decisions. `rtt` estimates how long a server takes to answer. `error` names each error and
//! defines whether the command ran. `features` lists what only some limits need.
//!
//! No hit may count twice: a check is sent a second time only if it certainly did not run the first
//! time.
//!
//! They import in this order: `error`, `rtt`, `features`, `wire`, `connection`, `topology`, then
//! `lanes` and `monitor`, which do not depend on each other.
//!
//! # Rules
//!
//! - A request never borrows a connection. A request that is cancelled leaves the queue, or its
//!   reply is discarded; the connection stays in use.
//! - The circuit breaker belongs to the store and to one server: in a cluster the outage of one
//!   server does not affect the others.
//! - A retry happens once, within the deadline, and only after an error that proves that nothing
//!   ran: `MOVED`, `ASK`, `TRYAGAIN`, `READONLY`, a bare `EXECABORT`, a key refused to a script, or a
//!   connection that broke before a byte was written. On the same connection, a script that Redis
//!   does not have is sent as text; checks that it refused because of the keys of other slots are
//!   sent again slot by slot; a check that it refused as late, although its caller has time by the
//!   clock in that reply, is sent once more.
//! - A request with a refund sends its fixed windows by script too, to keep the order of checks on
//!   one key.

mod connection;
mod direct;
pub(crate) mod error;
mod features;
mod lanes;
mod monitor;
mod reservations;
mod rtt;
#[cfg(test)]
mod simulation;
pub(crate) mod topology;
pub(crate) mod usage;
pub(crate) mod wire;

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use smallvec::SmallVec;
use tokio::time::{Duration, Instant, sleep};

pub use self::connection::options::{
    Address, Login, NameCheck, Options, OptionsError, Password, RawOptions, Secret, Tls, TlsError,
    TlsFiles, Topology,
};
pub use self::direct::Direct;
pub use self::error::RedisFailure;
use self::lanes::Lanes;
pub use self::lanes::MAX_BATCH_CHECKS;
pub use self::monitor::supervise;
pub use self::rtt::{BOUNDS as ROUND_TRIP_BOUNDS, RoundTripCounts};
use self::topology::node::Node;
pub use self::topology::node::{ConnectionCounts, Diagnostic, InfoReport, ServerStatus};
pub use self::topology::{Deployment, FailingServer, Server};
pub use self::usage::{MOST_LISTED_AT_ONCE, UsageClient, UsageCounts, WRITES_PER_SECOND};
pub use self::wire::call::{Call, ClockReading, Notes, RefusedHits, ScriptRef};
use self::wire::hash_slot::Redirect;
pub use self::wire::request::{CheckPosition, Request, TRACKED_WEIGHT};
use self::wire::request::{PendingReply, Picked};
use super::Budget;
use crate::core::answer::Answers;
use crate::core::lock;
use crate::core::verdict::StoreError;
use crate::limits::plan::{CheckIndex, Checks};
use crate::limits::rules::Commit;
use crate::net::rare::rare;
use crate::observe::metrics::Tallies;

/// The wait before a check is sent again after TRYAGAIN, or after a node refused a declared key. A
/// slot of few keys has migrated by then.
const MIGRATION_WAIT: Duration = Duration::from_millis(5);

/// The answer to a check apart that was not awaited.
const ABANDONED: StoreError = StoreError::Unknown("abandoned");

/// The Redis store of one runtime. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Redis {
    main: Arc<WorkerLanes>,
    /// The deployment that counts the limits per second, if they have a Redis of their own.
    per_second: Option<Arc<WorkerLanes>>,
    /// Counts the effects of replies that come after their callers have gone.
    tallies: Option<Tallies>,
}

/// The lanes of one runtime to the servers of one deployment.
#[derive(Debug)]
struct WorkerLanes {
    deployment: Arc<Deployment>,
    /// One per server in use. They are made by the first request, because a connection belongs to
    /// the runtime that opened it.
    lanes: Mutex<SmallVec<[Arc<Lanes>; 1]>>,
}

/// A request that was sent, until its reply arrives.
struct Sent {
    node: Arc<Node>,
    reply: PendingReply,
}

/// A check, and the redirect that names its server; without one, the slot map does.
type RoutedCheck = (CheckIndex, Option<Redirect>);

impl Redis {
    /// The store for one runtime. All stores of the same deployments use the same counters. The
    /// first [`Redis::decide`] binds the store and its clones to the runtime that it runs in. The
    /// caller has to run [`supervise`] for each deployment. The call never waits: the store
    /// connects with the first request, and again after a connection has closed.
    pub fn new(main: Arc<Deployment>, per_second: Option<Arc<Deployment>>) -> Self {
        let lanes_of = |deployment| {
            Arc::new(WorkerLanes {
                deployment,
                lanes: Mutex::default(),
            })
        };
        Self {
            main: lanes_of(main),
            per_second: per_second.map(lanes_of),
            tallies: None,
        }
    }

    /// The same store, of which these tallies count the effects of late replies.
    #[must_use]
    pub fn with_tallies(&self, tallies: &Tallies) -> Self {
        Self {
            tallies: Some(tallies.clone()),
            ..self.clone()
        }
    }

    /// The main deployment, which counts all limits or all but those per second.
    pub fn deployment(&self) -> &Arc<Deployment> {
        &self.main.deployment
    }

    fn worker_lanes(&self, checks: &Checks, index: CheckIndex) -> &WorkerLanes {
        match &self.per_second {
            Some(worker_lanes) if checks.is_per_second(index) => worker_lanes,
            _ => &self.main,
        }
    }
}

impl WorkerLanes {
    /// The lanes to a server.
    fn lanes(&self, node: &Arc<Node>) -> Arc<Lanes> {
        let mut lanes = lock(&self.lanes);
        if let Some(known) = lanes.iter().find(|lanes| lanes.node.id == node.id) {
            return Arc::clone(known);
        }
        // Servers that left the cluster are dropped, with their connections.
        let map = self.deployment.map();
        lanes.retain(|lanes| map.nodes.iter().any(|node| node.id == lanes.node.id));
        let new = Lanes::new(node, &self.deployment);
        lanes.push(Arc::clone(&new));
        new
    }

    /// Queues checks for their servers. Writes an error to `answers` for each check that cannot be
    /// sent.
    fn send(
        &self,
        checks: &Arc<Checks>,
        budget: &Budget,
        picked: impl Iterator<Item = RoutedCheck>,
        answers: &mut Answers,
        all_sent: &mut SmallVec<[Sent; 1]>,
        tallies: Option<&Tallies>,
    ) {
        let map = self.deployment.map();
        let mut parts: SmallVec<[(Arc<Node>, Request); 1]> = SmallVec::new();
        for (index, redirect) in picked {
            let slot = map.slot(checks.key(&checks[index]));
            let owner = match &redirect {
                Some(redirect) => self.deployment.redirected(redirect),
                None => map.owner(slot).cloned(),
            };
            let node = match owner {
                Ok(node) => node,
                Err(name) => {
                    answers.each[index.0] = StoreError::NotExecuted(name).into();
                    continue;
                }
            };
            let is_asking = redirect.is_some_and(|redirect| redirect.is_ask);
            let is_same = |(other, request): &(Arc<Node>, Request)| {
                other.id == node.id && request.is_asking == is_asking
            };
            let at = parts.iter().position(is_same).unwrap_or_else(|| {
                parts.push((node, Request::new(checks, is_asking, *budget)));
                parts.len() - 1
            });
            parts[at].1.picked.push(Picked { index, slot });
        }
        for (node, mut request) in parts {
            self.deployment.note_uses(&request);
            request.tallies = tallies.cloned();
            let (queued, reply) = request.share();
            let admitted = node.admit(budget.deadline, queued.since);
            let admitted = admitted.map_err(StoreError::NotExecuted);
            match admitted.and_then(|()| self.lanes(&node).enqueue(queued)) {
                Ok(()) => all_sent.push(Sent { node, reply }),
                Err(error) => {
                    for Picked { index, .. } in &reply.picked {
                        answers.each[index.0] = error.into();
                    }
                }
            }
        }
    }
}

impl Sent {
    /// Waits for the reply and writes its answers to `answers`. Adds the checks that may be sent
    /// again to `again`, each with its route.
    async fn wait(&mut self, answers: &mut Answers, again: &mut Vec<RoutedCheck>) {
        let reply = (&mut self.reply).await;
        answers.now = answers.now.max(reply.now);
        for (&Picked { index, .. }, answer) in self.reply.picked.iter().zip(&reply.answers) {
            answers.each[index.0] = *answer;
            if answer.verdict.is_err_and(error::is_retryable) {
                let mut redirects = reply.redirects.iter();
                let redirect = redirects.find(|(redirected, _)| *redirected == index);
                let redirect = redirect.map(|(_, redirect)| redirect.clone());
                again.push((index, redirect.map(|redirect| self.node.complete(redirect))));
            }
        }
    }
}

impl Redis {
    /// Decides the checks at `picked`, as [`Store::decide`](super::Store::decide) does.
    pub async fn decide(
        &self,
        checks: &Arc<Checks>,
        picked: &[CheckIndex],
        budget: &Budget,
    ) -> Answers {
        let takes_part = |index: &CheckIndex| !checks.is_apart(*index);
        match picked.split_at(picked.partition_point(takes_part)) {
            (own, []) => self.query(checks, own, budget).await,
            (own, apart) => rare(self.query_both(checks, own, apart, budget)).await,
        }
    }

    /// Sends checks apart in a request of their own, since each counts for itself whatever the others
    /// do. Both are in one batch, unless they go to different servers.
    ///
    /// If a check has no answer, those apart without an answer are not awaited: they would only
    /// delay the answer of a failure policy. They may be counted.
    async fn query_both(
        &self,
        checks: &Arc<Checks>,
        own: &[CheckIndex],
        apart: &[CheckIndex],
        budget: &Budget,
    ) -> Answers {
        let mut each = Arc::clone(checks);
        if checks.is_all_or_none() {
            Arc::make_mut(&mut each).commit = Commit::Each;
        }
        let decided = pin!(self.query(checks, own, budget));
        let others = pin!(self.query(&each, apart, budget));
        let (mut answers, others) = match select(decided, others).await {
            Either::Left((answers, others)) => {
                let has_failed = own
                    .iter()
                    .any(|index| answers.each[index.0].verdict.is_err());
                let others = if has_failed {
                    others.now_or_never()
                } else {
                    Some(others.await)
                };
                (answers, others)
            }
            Either::Right((others, decided)) => (decided.await, Some(others)),
        };
        for &CheckIndex(index) in apart {
            let answer = others.as_ref().map(|others| others.each[index]);
            answers.each[index] = answer.unwrap_or(ABANDONED.into());
        }
        answers
    }

    async fn query(&self, checks: &Arc<Checks>, picked: &[CheckIndex], budget: &Budget) -> Answers {
        let mut answers = Answers::failed(checks.total(), StoreError::NotExecuted(error::TIMEOUT));
        for &index in picked {
            let deployment = &self.worker_lanes(checks, index).deployment;
            if !deployment.has_nodes() {
                rare(deployment.map_by(budget.deadline)).await;
            }
        }
        let mut again = Vec::new();
        let routed = picked.iter().map(|&index| (index, None));
        let mut all_sent = self.send(checks, budget, &routed, &mut answers);
        for sent in &mut all_sent {
            sent.wait(&mut answers, &mut again).await;
        }
        if !again.is_empty() {
            rare(self.send_again(checks, budget, again, &mut answers)).await;
        }
        self.count_errors(checks, picked, budget, &answers);
        answers
    }

    /// Sends checks to the deployments that count them.
    fn send(
        &self,
        checks: &Arc<Checks>,
        budget: &Budget,
        picked: &(impl Iterator<Item = RoutedCheck> + Clone),
        answers: &mut Answers,
    ) -> SmallVec<[Sent; 1]> {
        let mut all_sent = SmallVec::new();
        for worker_lanes in std::iter::once(&self.main).chain(&self.per_second) {
            let is_own = |(index, _): &RoutedCheck| {
                std::ptr::eq(self.worker_lanes(checks, *index), &raw const **worker_lanes)
            };
            let own = picked.clone().filter(is_own);
            let tallies = self.tallies.as_ref();
            worker_lanes.send(checks, budget, own, answers, &mut all_sent, tallies);
        }
        all_sent
    }

    /// Sends the checks that certainly did not run once more.
    async fn send_again(
        &self,
        checks: &Arc<Checks>,
        budget: &Budget,
        mut picked: Vec<RoutedCheck>,
        answers: &mut Answers,
    ) {
        let first = self.worker_lanes(checks, picked[0].0);
        first.deployment.retries.fetch_add(1, Ordering::Relaxed);
        let is_migrating = |&(index, _): &RoutedCheck| {
            let verdict = answers.each[index.0].verdict;
            verdict.is_err_and(error::is_of_migration)
        };
        if picked.iter().any(is_migrating) {
            if Instant::now() + MIGRATION_WAIT < budget.deadline {
                sleep(MIGRATION_WAIT).await;
            } else {
                // A retry would time out, and these errors name the cause better than a timeout.
                picked.retain(|check| !is_migrating(check));
            }
        }
        for sent in &mut self.send(checks, budget, &picked.iter().cloned(), answers) {
            sent.wait(answers, &mut Vec::new()).await;
        }
    }

    /// Counts the errors of the checks at `picked`. Consecutive checks with the same error count as
    /// one.
    fn count_errors(
        &self,
        checks: &Checks,
        picked: &[CheckIndex],
        budget: &Budget,
        answers: &Answers,
    ) {
        let mut last = None;
        let error_of = |&index: &CheckIndex| Some((index, answers.each[index.0].verdict.err()?));
        for (index, error) in picked.iter().filter_map(error_of) {
            if last != Some(error) {
                let deployment = &self.worker_lanes(checks, index).deployment;
                let counters = &deployment.error_counters;
                counters.record_request(error::name(error), *budget);
                if matches!(error, StoreError::Unknown(_)) {
                    deployment.unknown_outcomes.fetch_add(1, Ordering::Relaxed);
                }
                last = Some(error);
            }
        }
    }
}
