//! Runs the background work of a deployment on the control thread: discovery of its servers, probes of those whose circuit is open, and the
//! inspection of all of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Duration, Instant, sleep};

use super::inspection;
use crate::algorithm::{Algorithm, FixedWindow};
use crate::breaker::Why;
use crate::plan::{Check, Checks, Modes};
use crate::store::Budget;
use crate::store::redis::connection::exchange::Connection;
use crate::store::redis::connection::options::Topology;
use crate::store::redis::error::{self, ConnectError};
use crate::store::redis::topology::deployment::Deployment;
use crate::store::redis::topology::node::Node;
use crate::store::redis::topology::slot_map::SlotMap;
use crate::store::redis::topology::{cluster, sentinel};
use crate::store::redis::wire::batch::{Batch, BatchOptions, ClockReading, Work};
use crate::time::Span;
use crate::verdict::StoreError;

/// How long the counters of probes are kept: no longer than it takes to look at them.
const PROBE_WINDOW: Span = Span::from_secs(1);

/// All circuits are looked at at least so often.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Looks after a deployment: finds its servers, follows them, and probes those that fell silent. Never ends; one per process is enough.
pub async fn supervise(deployment: Arc<Deployment>) {
    let find = async {
        match &deployment.options().topology {
            Topology::Single(_) => {}
            Topology::Sentinel { master, sentinels } => sentinel::follow(&deployment, master, sentinels).await,
            Topology::Cluster(seeds) => cluster::follow(&deployment, seeds).await,
        }
    };
    tokio::join!(find, probe_open_circuits(&deployment), inspection::inspect_all(&deployment));
}

/// Probes every server whose circuit is open when it is due; none waits for another's probe.
pub(crate) async fn probe_open_circuits(deployment: &Deployment) {
    // The connection of a good probe is kept for the second one.
    let mut connections: HashMap<u64, Connection> = HashMap::new();
    let mut under_way: HashSet<u64> = HashSet::new();
    let mut probes = FuturesUnordered::new();
    loop {
        let opened = deployment.circuit_opened.notified();
        let mut next = LONGEST_WAIT;
        let map = deployment.map();
        for node in &map.nodes {
            match node.next_probe() {
                _ if under_way.contains(&node.id) => {}
                Some(wait) if wait.is_zero() => {
                    under_way.insert(node.id);
                    probes.push(probe_and_tell(deployment, Arc::clone(&map), Arc::clone(node), connections.remove(&node.id)));
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
            // Who is due may be due earlier by then, if its circuit closes and opens again.
            () = sleep(next) => {}
        }
    }
}

async fn probe_and_tell(
    deployment: &Deployment,
    map: Arc<SlotMap>,
    node: Arc<Node>,
    connection: Option<Connection>,
) -> (u64, Option<Connection>) {
    let key = map.key_of(&node, |number| deployment.options().probe_key(number));
    let (connection, result) = match key {
        Some(key) => probe(&node, connection, &key, deployment.batch_options()).await,
        // It has no slot any more, and nobody asks it.
        None => (None, Ok(())),
    };
    if let Err((_, name)) = result {
        deployment.error_counters().record(name, None);
    }
    node.record_probe(result);
    (node.id, connection)
}

type ProbeResult = (Option<Connection>, Result<(), (Why, &'static str)>);

/// Counts a hit, by transaction and by script, as requests do: only that shows that the server takes writes in time.
async fn probe(node: &Node, connection: Option<Connection>, key: &[u8], batch_options: BatchOptions) -> ProbeResult {
    let usable = connection.and_then(|mut connection| (connection.is_reusable() && connection.is_quiet()).then_some(connection));
    let mut connection = match usable {
        Some(connection) => connection,
        None => match node.connect().await {
            Ok((connection, _)) => connection,
            Err(ConnectError { name, .. }) => return (None, Err((error::failure_kind(name), name))),
        },
    };
    match count(node, &mut connection, key, batch_options).await {
        Ok(()) => (Some(connection), Ok(())),
        Err(error) => (None, Err((error::failure_kind(error::name(error)), error::name(error)))),
    }
}

async fn count(node: &Node, connection: &mut Connection, key: &[u8], batch_options: BatchOptions) -> Result<(), StoreError> {
    for by_script in [false, true] {
        // The text of the script may have to be sent, and takes its time; what requests need is measured by the transaction.
        let budget = if by_script { node.options().connect_timeout } else { node.budget() };
        let at = Instant::now();
        let time = node.clock().read(at).ok_or(StoreError::NotExecuted(error::PROTOCOL))?;
        let work = work(key, at + budget);
        let batch_options = BatchOptions { fixed_windows_by_script: by_script || batch_options.fixed_windows_by_script, ..batch_options };
        let batch = Batch::new([&work], batch_options, ClockReading { time, at }, connection.known_ttls());
        let mut replies = batch.unanswered();
        batch.write(connection.outgoing());
        batch.read(connection.exchange(work.budget.deadline).await?, &mut replies);
        if let Some(again) = batch.calls_to_resend(&replies) {
            again.write(connection.outgoing());
            again.read(connection.exchange(work.budget.deadline).await?, &mut replies);
        }
        for answer in &replies[0].answers {
            match answer {
                Ok(_) | Err(StoreError::Data(_)) => {}
                // It is well, and just gives this slot away.
                Err(StoreError::NotExecuted(error::MOVED | error::ASK | error::TRY_AGAIN)) => {}
                Err(error) => return Err(*error),
            }
        }
    }
    Ok(())
}

fn work(key: &[u8], deadline: Instant) -> Work {
    let window = Algorithm::FixedWindow(FixedWindow { limit: u32::MAX, window: PROBE_WINDOW, count_denied: true });
    let checks = Arc::new(Checks::of([(key, Check::new(window, 1, Modes::default()))]));
    Work { picked: checks.indices(), checks, budget: Budget::until(deadline), is_asking: false }
}
