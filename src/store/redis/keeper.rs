//! What goes on beside the requests, on the control thread: servers are found and found again, and whoever fell silent is probed until it
//! writes again. The slow look at all of them is in `watch`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Duration, Instant, sleep};

use super::batch::{Batch, Manner, Now, Work};
use super::error::{self, Refusal};
use super::link::Link;
use super::node::Node;
use super::options::Topology;
use super::shared::{Map, Shared};
use super::{cluster, sentinel, watch};
use crate::algorithm::{Algorithm, FixedWindow};
use crate::breaker::Why;
use crate::plan::{Check, Plan, Role};
use crate::store::Within;
use crate::time::Span;
use crate::verdict::StoreError;

/// How long the counters of probes are kept: no longer than it takes to look at them.
const PROBE_WINDOW: Span = Span::from_secs(1);

/// All circuits are looked at at least so often.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Looks after a deployment: finds its servers, follows them, and probes those that fell silent. Never ends; one per process is enough.
pub async fn keep(shared: Arc<Shared>) {
    let find = async {
        match &shared.options().topology {
            Topology::Single(_) => {}
            Topology::Sentinel { master, sentinels } => sentinel::follow(&shared, master, sentinels).await,
            Topology::Cluster(seeds) => cluster::follow(&shared, seeds).await,
        }
    };
    tokio::join!(find, probe_whoever_fell_silent(&shared), watch::watch(&shared));
}

/// Probes every server whose circuit is open when it is due; none waits for another's probe.
pub(super) async fn probe_whoever_fell_silent(shared: &Shared) {
    // The link of a good probe is kept for the second one.
    let mut links: HashMap<u64, Link> = HashMap::new();
    let mut under_way: HashSet<u64> = HashSet::new();
    let mut probes = FuturesUnordered::new();
    loop {
        let opened = shared.opened_circuit.notified();
        let mut next = LONGEST_WAIT;
        let map = shared.map();
        for node in &map.nodes {
            match node.next_probe() {
                _ if under_way.contains(&node.id) => {}
                Some(wait) if wait.is_zero() => {
                    under_way.insert(node.id);
                    probes.push(probe_and_tell(shared, Arc::clone(&map), Arc::clone(node), links.remove(&node.id)));
                }
                Some(wait) => next = next.min(wait),
                None => drop(links.remove(&node.id)),
            }
        }
        tokio::select! {
            Some((id, link)) = probes.next() => {
                under_way.remove(&id);
                links.extend(link.map(|link| (id, link)));
            }
            () = opened => {}
            // Who is due may be due earlier by then, if its circuit closes and opens again.
            () = sleep(next) => {}
        }
    }
}

async fn probe_and_tell(shared: &Shared, map: Arc<Map>, node: Arc<Node>, link: Option<Link>) -> (u64, Option<Link>) {
    let key = map.key_of(&node, |number| shared.options().probe_key(number));
    let (link, result) = match key {
        Some(key) => probe(&node, link, &key, shared.manner()).await,
        // It has no slot any more, and nobody asks it.
        None => (None, Ok(())),
    };
    if let Err((_, name)) = result {
        shared.tallies().record(name, None);
    }
    node.probed(result);
    (node.id, link)
}

type Probed = (Option<Link>, Result<(), (Why, &'static str)>);

/// Counts a hit, by transaction and by script, as requests do: only that shows that the server takes writes in time.
async fn probe(node: &Node, link: Option<Link>, key: &[u8], manner: Manner) -> Probed {
    let usable = link.and_then(|mut link| (!link.is_spent() && link.is_quiet()).then_some(link));
    let mut link = match usable {
        Some(link) => link,
        None => match node.connect().await {
            Ok((link, _)) => link,
            Err(Refusal { name, .. }) => return (None, Err((error::why(name), name))),
        },
    };
    match count(node, &mut link, key, manner).await {
        Ok(()) => (Some(link), Ok(())),
        Err(error) => (None, Err((error::why(error::name(error)), error::name(error)))),
    }
}

async fn count(node: &Node, link: &mut Link, key: &[u8], manner: Manner) -> Result<(), StoreError> {
    for by_script in [false, true] {
        // The text of the script may have to be sent, and takes its time; what requests need is measured by the transaction.
        let budget = if by_script { node.options().connect_timeout } else { node.budget() };
        let at = Instant::now();
        let time = node.clock().read(at).ok_or(StoreError::NotExecuted(error::PROTOCOL))?;
        let work = work(key, at + budget);
        let manner = Manner { fixed_windows_by_script: by_script || manner.fixed_windows_by_script, ..manner };
        let batch = Batch::new([&work], manner, Now { time, at }, link.expiring());
        let mut replies = batch.unanswered();
        batch.write(link.outgoing());
        batch.read(link.exchange(work.within.deadline).await?, &mut replies);
        if let Some(again) = batch.without_script(&replies) {
            again.write(link.outgoing());
            again.read(link.exchange(work.within.deadline).await?, &mut replies);
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
    let plan = Arc::new(Plan::of_checks([(key, Check::new(window, 1, Role::default()))]));
    Work { places: plan.all(), plan, within: Within::until(deadline), is_asking: false }
}
