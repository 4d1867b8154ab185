//! The background work of a Redis deployment: the supervisor keeps the topology up to date, probes
//! the servers whose circuit is open, and inspects all servers at intervals.
//!
//! It runs on the control thread, where it costs requests nothing. No request waits for anything
//! here, and no request is decided here.
//!
//! A probe counts a hit on a counter of its own, as a request does, because only that shows whether
//! a server accepts writes in time. A probe never touches a counter of requests, and no probe waits
//! for the probe of another server.

mod diagnostics;
mod inspection;
mod queries;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Duration, sleep};

use crate::core::algorithm::{Algorithm, FixedWindow};
use crate::core::time::{Period, Span};
use crate::core::verdict::StoreError;
use crate::limits::plan::{Check, Checks, Modes};
use crate::store::Budget;
use crate::store::redis::connection::Connection;
use crate::store::redis::connection::options::Topology;
use crate::store::redis::error;
use crate::store::redis::topology::node::Node;
use crate::store::redis::topology::{Deployment, SlotMap, cluster, sentinel};
use crate::store::redis::wire::batch::{Batch, BatchOptions, KeyScope, Retry};
use crate::store::redis::wire::request::Request;

/// The window of the counters of probes, which is short because they should expire soon.
const PROBE_WINDOW: Span = Span::from_secs(1);

/// The longest wait between two checks of all circuits.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Discovers and follows the servers of a deployment, probes those whose circuit is open, and
/// inspects all of them. Never returns. A process runs one for each deployment.
pub async fn supervise(deployment: Arc<Deployment>) {
    let discover = async {
        match &deployment.options.topology {
            Topology::Single(_) => {}
            Topology::Sentinel { master, sentinels } => {
                sentinel::follow(&deployment, master, sentinels).await;
            }
            Topology::Cluster(seeds) => cluster::follow(&deployment, seeds).await,
        }
    };
    tokio::join!(
        discover,
        probe_open_circuits(&deployment),
        inspection::inspect_all(&deployment)
    );
}

/// Probes each server whose circuit is open, when its probe is due. Never returns.
pub(crate) async fn probe_open_circuits(deployment: &Deployment) {
    // The connection of a successful probe, for the next one, by the id of the node.
    let mut connections: HashMap<u64, Connection> = HashMap::new();
    let mut under_way: HashSet<u64> = HashSet::new();
    let mut probes = FuturesUnordered::new();
    loop {
        let opened = deployment.circuit_opened.notified();
        let mut next = MAX_WAIT;
        let map = deployment.map();
        for node in &map.nodes {
            match node.next_probe() {
                _ if under_way.contains(&node.id) => {}
                Some(wait) if wait.is_zero() => {
                    under_way.insert(node.id);
                    probes.push(probe_and_record(
                        deployment,
                        Arc::clone(&map),
                        Arc::clone(node),
                        connections.remove(&node.id),
                    ));
                }
                Some(wait) => next = next.min(wait),
                None => drop(connections.remove(&node.id)),
            }
        }
        tokio::select! {
            Some((id, connection)) = probes.next() => {
                under_way.remove(&id);
                connections.extend(connection.map(|connection| (id, connection)));
            }
            () = opened => {}
            // A probe may become due earlier if a circuit closes and opens again. Therefore all are
            // checked again.
            () = sleep(next) => {}
        }
    }
}

/// Probes a server and reports the result to its circuit breaker. Returns the id of the node, and
/// the connection if the probe succeeded.
async fn probe_and_record(
    deployment: &Deployment,
    map: Arc<SlotMap>,
    node: Arc<Node>,
    connection: Option<Connection>,
) -> (u64, Option<Connection>) {
    let probe_key = |number| deployment.options.probe_key(number);
    let result = match map.key_where(|owner| owner.id == node.id, probe_key) {
        Some(key) => {
            let counted = count_hit(
                &node,
                connection,
                &key,
                deployment.batch_options(KeyScope::Slot),
            );
            counted.await.map(Some).map_err(error::name)
        }
        // The node owns no slot any more, and no request goes there.
        None => Ok(None),
    };
    if let Err(name) = result {
        deployment.error_counters.record(name);
    }
    node.record_probe(result.as_ref().map(drop).map_err(|name| *name));
    (node.id, result.ok().flatten())
}

/// Counts a hit on `key` by transaction and by script, as requests do, over `connection`, or over a
/// new one if that cannot be used. Returns the one that was used.
///
/// # Errors
/// The first error that proves something about the server. Redirects do not, nor does the value of
/// the key.
async fn count_hit(
    node: &Node,
    mut connection: Option<Connection>,
    key: &[u8],
    batch_options: BatchOptions,
) -> Result<Connection, StoreError> {
    let mut connection = match connection.take_if(Connection::is_usable) {
        Some(connection) => connection,
        None => {
            let connected = node.connect().await;
            connected.map_err(|failure| StoreError::NotExecuted(failure.error))?
        }
    };
    let window = Algorithm::FixedWindow(FixedWindow {
        limit: u32::MAX.into(),
        window: Period::Even(PROBE_WINDOW),
        count_denied: true,
    });
    let checks = Checks::of([(key, Check::new(window, 1, Modes::default()))]);
    for by_script in [false, true] {
        // The script may need a second round trip, with its text. The transaction alone shows
        // whether requests get answers in time.
        let budget = if by_script {
            node.options.connect_timeout
        } else {
            node.budget()
        };
        let now = node.clock.reading();
        let now = now.ok_or(StoreError::NotExecuted(error::PROTOCOL))?;
        let deadline = now.at + budget;
        let request = Request::unawaited(checks.clone(), Budget::until(deadline));
        let batch_options = BatchOptions {
            fixed_windows_by_script: by_script || batch_options.fixed_windows_by_script,
            ..batch_options
        };
        let batch = Batch::new([&request], batch_options, now, &mut connection.known_ttls);
        let mut replies: Vec<_> = batch.unanswered().collect();
        batch.write(connection.outgoing());
        batch.read(connection.exchange(deadline).await?, &mut replies);
        if let Some(again) = batch.retries(Retry::NoScript, &replies) {
            again.write(connection.outgoing());
            again.read(connection.exchange(deadline).await?, &mut replies);
        }
        for answer in &replies[0].answers {
            match answer.verdict {
                Ok(_) | Err(StoreError::Data(_)) => {}
                // The server works. The slot is migrating or has moved, or the user has no right to
                // a command that other requests may not need.
                Err(StoreError::NotExecuted(
                    error::MOVED
                    | error::ASK
                    | error::NON_LOCAL_KEY
                    | error::TRY_AGAIN
                    | error::NO_PERMISSION
                    | error::UNSUPPORTED,
                )) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(connection)
}
