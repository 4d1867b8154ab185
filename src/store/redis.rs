//! The Redis store: counters that all replicas share.
//!
//! The checks of a request go to the servers that own their keys (`topology`). Each worker has one
//! queue per server, whose requests it sends together (`lanes`), as commands on a pooled connection
//! (`wire`, `connection`). `monitor` runs on the control thread: it finds the servers, probes those
//! that stopped answering, and inspects all of them. `direct` sends what is no decision. `rtt`
//! estimates how long a server takes to answer. `error` names each error and says whether the
//! command ran.
//!
//! No hit may count twice: a check is sent a second time only if it certainly did not run the first
//! time.
//!
//! They import in this order: `error`, `rtt`, `wire`, `connection`, `topology`, then `lanes` and
//! `monitor`, which do not know each other.
//!
//! # Rules
//!
//! - A request never borrows a connection. A request that is cancelled leaves the queue, or its
//!   reply is discarded; the connection goes on.
//! - The circuit breaker belongs to the store and to one server: in a cluster the outage of one
//!   server does not affect the others.
//! - A retry happens once, within the deadline, and only after an error that proves that nothing
//!   ran: `MOVED`, `ASK`, `TRYAGAIN`, `READONLY`, a bare `EXECABORT`, or a connection that broke
//!   before a byte was written. A script that Redis does not know is sent as text on the same
//!   connection; a check that it refused as late, although its caller has time by the clock in that
//!   reply, is sent once more.
//! - A request with a give-back sends its fixed windows by script too, so that checks on one key
//!   keep their order.

mod connection;
mod direct;
pub(crate) mod error;
mod lanes;
mod monitor;
mod reset;
mod rtt;
#[cfg(test)]
mod simulation;
mod topology;
pub(crate) mod usage;
pub(crate) mod wire;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep, timeout_at};

pub use self::connection::options::{
    Address, Login, NameCheck, Options, OptionsError, Password, PasswordFileError, RawOptions,
    Secret, Tls, TlsError, TlsFiles, Topology,
};
pub use self::direct::Direct;
pub use self::error::Failure;
use self::lanes::Lanes;
pub use self::lanes::{MAX_BATCH_CHECKS, TRACKED_WEIGHT};
pub use self::monitor::supervisor::supervise;
pub use self::topology::counters::Counts;
pub use self::topology::deployment::{ConnectionCounts, Deployment, FailingServer, Server};
use self::topology::node::Node;
pub use self::topology::round_trips::{BOUNDS as ROUND_TRIP_BOUNDS, RoundTripCounts};
pub use self::topology::status::{Diagnostic, Report, ServerStatus};
pub use self::usage::{
    MOST_LISTED_AT_ONCE, UsageCounts, UsageReader, UsageWriter, WRITES_PER_SECOND,
};
use self::wire::batch::{Work, WorkReply};
pub use self::wire::call::{Call, CallRequest, RefusedHits, ScriptRef};
use self::wire::hash_slot::{Redirect, Slot};
use super::{Budget, Store};
use crate::core::verdict::{Answers, StoreError};
use crate::limits::plan::{CheckIndex, CheckIndices, Checks};
use crate::limits::rules::Commit;

/// The wait before a check is sent again after TRYAGAIN. A slot of few keys has migrated by then.
const MIGRATION_WAIT: Duration = Duration::from_millis(5);

/// The Redis store of one runtime. Clones share its connections.
#[derive(Clone)]
pub struct Redis {
    main: Arc<WorkerLanes>,
    /// The deployment that counts the limits per second, if they have a Redis of their own.
    per_second: Option<Arc<WorkerLanes>>,
}

/// The lanes of one runtime to the servers of one deployment.
struct WorkerLanes {
    deployment: Arc<Deployment>,
    /// One per server in use. They are made by the first request, because a connection belongs to
    /// the runtime that opened it.
    lanes: Mutex<SmallVec<[Lanes; 1]>>,
    supervisor: Option<JoinHandle<()>>,
}

/// The checks of a request that were sent to one server, until its reply comes.
struct PendingReply {
    node: Arc<Node>,
    sent_at: Instant,
    picked: CheckIndices,
    receiver: oneshot::Receiver<WorkReply>,
}

/// The picked checks for one server, and whether ASKING precedes their commands.
type NodeGroup = (Arc<Node>, bool, CheckIndices);

/// How the server of a check is found. Source: Redis Cluster specification, "MOVED Redirection" and
/// "ASK redirection".
#[derive(Clone, Debug)]
enum Route {
    /// The slot map names the owner of the key.
    ByKey,
    /// The slot now belongs to the server at this address.
    Moved { slot: Slot, to: Address },
    /// The slot is migrating to the server at this address, which accepts a command for the key
    /// only after ASKING.
    Ask { to: Address },
}

impl Route {
    /// The route that a redirect of the server at `node` gives. An empty host in the redirect means
    /// the host of that server.
    fn new(redirect: &Redirect, node: Option<&Address>) -> Self {
        let host = match node {
            Some(Address::Tcp { host, .. }) if redirect.host.is_empty() => host,
            _ => &redirect.host,
        };
        let to = Address::Tcp {
            host: host.clone(),
            port: redirect.port,
        };
        if redirect.is_ask {
            Self::Ask { to }
        } else {
            Self::Moved {
                slot: redirect.slot,
                to,
            }
        }
    }
}

impl Redis {
    /// A store with its own deployment and its own supervisor, which is a task of the calling
    /// runtime. The call never fails and never waits: the store connects with the first request,
    /// and again after a connection has closed.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the supervisor ends with the store"
    )]
    pub fn connect_lazily(options: Options) -> Self {
        let deployment = Deployment::new(options);
        let supervisor = Some(tokio::spawn(supervise(Arc::clone(&deployment))));
        Self {
            main: Arc::new(WorkerLanes {
                deployment,
                lanes: Mutex::default(),
                supervisor,
            }),
            per_second: None,
        }
    }

    /// The store for one runtime. All stores of the same deployments use the same counters. The
    /// first [`Store::decide`] binds the store and its clones to the runtime that it runs in. The
    /// caller has to run [`supervise`] for each deployment.
    #[must_use]
    pub fn new(main: Arc<Deployment>, per_second: Option<Arc<Deployment>>) -> Self {
        let worker_lanes = |deployment| {
            Arc::new(WorkerLanes {
                deployment,
                lanes: Mutex::default(),
                supervisor: None,
            })
        };
        Self {
            main: worker_lanes(main),
            per_second: per_second.map(worker_lanes),
        }
    }

    /// The main deployment, which counts all limits or all but those per second.
    #[must_use]
    pub fn deployment(&self) -> &Arc<Deployment> {
        &self.main.deployment
    }

    /// The [`Deployment::error_counts`] of the main deployment.
    #[must_use]
    pub fn error_counts(&self) -> Vec<(&'static str, u64)> {
        self.deployment().error_counts()
    }

    /// The [`Deployment::connections`] of the main deployment.
    #[must_use]
    pub fn connections(&self) -> ConnectionCounts {
        self.deployment().connections()
    }

    /// What the caller of a request that failed with this error may read. It names neither
    /// addresses nor settings.
    #[must_use]
    pub fn text_for_callers(error: StoreError) -> &'static str {
        error::for_callers(error)
    }

    /// Whether this error says that the Redis user lacks a right.
    #[must_use]
    pub fn is_missing_right(error: StoreError) -> bool {
        error::is_missing_right(error)
    }

    /// Notes hits on tracked checks that the denial cache refused.
    pub fn note_refused(&self, checks: &Checks, is_refused: impl Fn(CheckIndex) -> bool) {
        for (index, tracking) in checks
            .all_tracking()
            .filter(|(index, _)| is_refused(*index))
        {
            let (check, queue) = (
                &checks[index],
                self.worker_lanes(checks, index).deployment.usage_queue(),
            );
            queue.note_refused(checks.key(check), tracking, check.hits.unsigned_abs());
        }
    }

    fn worker_lanes(&self, checks: &Checks, index: CheckIndex) -> &WorkerLanes {
        match &self.per_second {
            // Checks that commit all or none have to be decided by one server.
            Some(worker_lanes) if checks[index].per_second && checks.commit == Commit::Each => {
                worker_lanes
            }
            _ => &self.main,
        }
    }
}

impl WorkerLanes {
    /// The lanes to a server.
    fn lanes(&self, node: &Arc<Node>) -> Lanes {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lanes.iter().find(|lanes| lanes.node().id == node.id) {
            return known.clone();
        }
        // Servers that left the cluster are dropped, with their connections.
        let map = self.deployment.map();
        lanes.retain(|lanes| map.nodes.iter().any(|node| node.id == lanes.node().id));
        lanes.push(Lanes::new(
            node,
            self.deployment.batch_options(),
            self.deployment.usage_queue(),
        ));
        lanes[lanes.len() - 1].clone()
    }

    /// Queues checks for their servers. Writes an error to `answers` for each check that cannot be
    /// sent.
    async fn send(
        &self,
        request: &PickedChecks<'_>,
        picked: &[(CheckIndex, Route)],
        answers: &mut Answers,
    ) -> SmallVec<[PendingReply; 1]> {
        let map = self.deployment.map_by(request.budget.deadline).await;
        let mut groups: SmallVec<[NodeGroup; 1]> = SmallVec::new();
        for (index, route) in picked {
            let (node, is_asking) = match route {
                Route::Ask { to } => (self.deployment.node_at(to), true),
                Route::Moved { slot, to } => (self.deployment.moved(*slot, to), false),
                Route::ByKey => match map.owner(request.key(*index)) {
                    Ok(node) => (Arc::clone(node), false),
                    Err(name) => {
                        answers.checks[index.0] = Err(StoreError::NotExecuted(name));
                        continue;
                    }
                },
            };
            match groups
                .iter_mut()
                .find(|(known, asking, _)| known.id == node.id && *asking == is_asking)
            {
                Some((.., picked)) => picked.push(*index),
                None => groups.push((node, is_asking, CheckIndices::from_slice(&[*index]))),
            }
        }
        let mut pending = SmallVec::new();
        for (node, is_asking, picked) in groups {
            let work = Work {
                checks: Arc::clone(request.checks),
                picked: picked.clone(),
                budget: request.budget,
                is_asking,
            };
            let sent = node
                .admit(request.budget)
                .map_err(StoreError::NotExecuted)
                .and_then(|()| self.lanes(&node).send(work));
            match sent {
                Ok(receiver) => pending.push(PendingReply {
                    node,
                    sent_at: Instant::now(),
                    picked,
                    receiver,
                }),
                Err(error) => picked
                    .iter()
                    .for_each(|index| answers.checks[index.0] = Err(error)),
            }
        }
        pending
    }
}

impl Drop for WorkerLanes {
    fn drop(&mut self) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.abort();
        }
    }
}

/// The checks of a request that the store has to decide, and its time budget.
struct PickedChecks<'a> {
    checks: &'a Arc<Checks>,
    picked: &'a [CheckIndex],
    budget: Budget,
}

impl PickedChecks<'_> {
    /// The key of a check, which determines its server. All keys of a request that commits all or
    /// none share a slot.
    fn key(&self, index: CheckIndex) -> &[u8] {
        self.checks.key(&self.checks[index])
    }
}

impl PendingReply {
    /// Waits for the reply and writes its answers to `answers`. Returns the checks that may be sent
    /// again, each with its route.
    async fn wait(
        self,
        request: &PickedChecks<'_>,
        answers: &mut Answers,
    ) -> SmallVec<[(CheckIndex, Route); 4]> {
        let Self {
            node,
            sent_at,
            picked,
            receiver,
        } = self;
        let reply = match timeout_at(request.budget.deadline, receiver).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => WorkReply::failed(picked.len(), StoreError::Unknown(error::IO)),
            Err(_) => {
                node.record_timeout(sent_at, request.budget);
                WorkReply::failed(picked.len(), StoreError::Unknown(error::TIMEOUT))
            }
        };
        answers.now = answers.now.max(reply.now);
        let mut again = SmallVec::new();
        for (&index, answer) in picked.iter().zip(&reply.answers) {
            answers.checks[index.0] = *answer;
            if answer.is_err_and(error::is_retryable) {
                let redirect = reply
                    .redirects
                    .iter()
                    .find(|(redirected, _)| *redirected == index)
                    .map(|(_, redirect)| redirect);
                let address = node.location().map(|location| location.address.clone());
                again.push((
                    index,
                    redirect.map_or(Route::ByKey, |redirect| {
                        Route::new(redirect, address.as_ref())
                    }),
                ));
            }
        }
        again
    }
}

impl Redis {
    /// Sends the checks, and those that certainly did not run once more.
    async fn send_with_retry(&self, request: &PickedChecks<'_>, answers: &mut Answers) {
        let mut picked: SmallVec<[(CheckIndex, Route); 4]> = request
            .picked
            .iter()
            .map(|&index| (index, Route::ByKey))
            .collect();
        for attempt in 0..2 {
            let mut pending: SmallVec<[PendingReply; 1]> = SmallVec::new();
            for worker_lanes in [Some(&self.main), self.per_second.as_ref()]
                .into_iter()
                .flatten()
            {
                let is_own = |index: CheckIndex| {
                    std::ptr::eq(
                        self.worker_lanes(request.checks, index),
                        &raw const **worker_lanes,
                    )
                };
                let own: SmallVec<[(CheckIndex, Route); 4]> = picked
                    .iter()
                    .filter(|(index, _)| is_own(*index))
                    .cloned()
                    .collect();
                if !own.is_empty() {
                    pending.extend(worker_lanes.send(request, &own, answers).await);
                }
            }
            picked.clear();
            for reply in pending {
                picked.extend(reply.wait(request, answers).await);
            }
            if picked.is_empty() || attempt > 0 {
                return;
            }
            self.worker_lanes(request.checks, picked[0].0)
                .deployment
                .record_retry();
            let is_migrating = |&(index, _): &(CheckIndex, Route)| {
                answers.checks[index.0] == Err(StoreError::NotExecuted(error::TRY_AGAIN))
            };
            if picked.iter().any(is_migrating) {
                if Instant::now() + MIGRATION_WAIT < request.budget.deadline {
                    sleep(MIGRATION_WAIT).await;
                } else {
                    // A retry would time out, and TRYAGAIN names the cause better than a timeout
                    // does.
                    picked.retain(|check| !is_migrating(check));
                }
            }
        }
    }
}

impl Store for Redis {
    async fn decide(&self, checks: &Arc<Checks>, picked: &[CheckIndex], budget: Budget) -> Answers {
        let mut answers = Answers::failed(checks.len(), StoreError::NotExecuted(error::TIMEOUT));
        if picked.is_empty() {
            return answers;
        }
        self.send_with_retry(
            &PickedChecks {
                checks,
                picked,
                budget,
            },
            &mut answers,
        )
        .await;
        // Consecutive checks with the same error count as one.
        let mut last = None;
        for (index, error) in picked
            .iter()
            .filter_map(|&index| Some((index, answers.checks[index.0].err()?)))
        {
            if last != Some(error) {
                let deployment = &self.worker_lanes(checks, index).deployment;
                deployment.error_counters().record(error::name(error));
                if matches!(error, StoreError::Unknown(_)) {
                    deployment.record_unknown_outcome();
                }
                last = Some(error);
            }
        }
        answers
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Redis")
            .field("deployment", self.deployment())
            .finish_non_exhaustive()
    }
}
