//! One deployment of Redis (a server, what Sentinels watch, or a cluster), as all threads of the process see it: which servers there are,
//! which one a key belongs to, and what went wrong.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::batch::Manner;
use super::error::{self, Tallies};
use super::figures::Counts;
use super::link::Purpose;
use super::node::Node;
use super::options::{Address, Options, Topology};
use super::slots::{self, SLOTS, Slot};
use super::watch::Sight;
use crate::breaker::{State, Transitions};

/// What all runtimes of a process share of one deployment.
pub struct Shared {
    options: Arc<Options>,
    tallies: Arc<Tallies>,
    map: ArcSwap<Map>,
    /// Told when there is another map, or when looking for the first one failed.
    looked: Notify,
    has_looked: AtomicBool,
    /// Told when the map is found to be wrong.
    pub(super) is_stale: Notify,
    /// Told when a circuit opens.
    pub(super) opened_circuit: Arc<Notify>,
    events: Events,
}

/// What happened to whole requests.
#[derive(Debug, Default)]
struct Events {
    unknown_outcomes: AtomicU64,
    retries: AtomicU64,
}

/// Which server has what.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    pub(super) nodes: Vec<Arc<Node>>,
    /// By slot the place in `nodes`, or [`NOBODY`]; without it the first node has all.
    owners: Option<Box<[u16]>>,
}

/// No node has the slot.
const NOBODY: u16 = u16::MAX;

/// Connections of all runtimes, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Opened since the start.
    pub opened: u64,
    /// Open now.
    pub open: usize,
}

/// One server, for metrics.
#[derive(Clone, Debug)]
pub struct Server {
    /// Where it is; empty while that is not known.
    pub address: String,
    /// Whether it is asked.
    pub state: State,
    /// How often that changed.
    pub transitions: Transitions,
    /// What went there.
    pub counts: Counts,
    /// What it looked like last.
    pub sight: Arc<Sight>,
}

impl Shared {
    /// Nothing is connected yet.
    #[must_use]
    pub fn new(options: Options) -> Arc<Self> {
        let (options, tallies, opened_circuit) = (Arc::new(options), Arc::new(Tallies::default()), Arc::new(Notify::new()));
        let node = |address, purpose| Node::new(address, &options, purpose, &tallies, &opened_circuit);
        let nodes = match &options.topology {
            Topology::Single(address) => vec![node(Some(address.clone()), Purpose::Count)],
            Topology::Sentinel { .. } => vec![node(None, Purpose::CountOnPrimary)],
            Topology::Cluster(_) => Vec::new(),
        };
        Arc::new(Self {
            map: ArcSwap::from_pointee(Map { nodes, owners: None }),
            options,
            tallies,
            looked: Notify::new(),
            has_looked: AtomicBool::new(false),
            is_stale: Notify::new(),
            opened_circuit,
            events: Events::default(),
        })
    }

    /// How often each error happened, by name: once per plan that it spoiled, once per failed attempt to connect. The names stay the same
    /// over versions.
    #[must_use]
    pub fn error_counts(&self) -> Vec<(&'static str, u64)> {
        self.tallies.counts()
    }

    /// Connections, opened and open, of the servers that are in use now.
    #[must_use]
    pub fn connections(&self) -> Connections {
        let links =
            self.map.load().nodes.iter().map(|node| node.links()).fold((0, 0), |sum, (opened, open)| (sum.0 + opened, sum.1 + open));
        Connections { opened: links.0, open: links.1 }
    }

    /// The servers that are in use now.
    #[must_use]
    pub fn servers(&self) -> Vec<Server> {
        let address = |node: &Node| node.place().map(|place| place.address.to_string()).unwrap_or_default();
        let server = |node: &Arc<Node>| Server {
            address: address(node),
            state: node.state(),
            transitions: node.transitions(),
            counts: node.figures.counts(),
            sight: node.seen.load(),
        };
        self.map.load().nodes.iter().map(server).collect()
    }

    /// Whether every server can be asked.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let map = self.map.load();
        !map.nodes.is_empty() && map.nodes.iter().all(|node| node.state() != State::Open && node.place().is_some())
    }

    /// Whether any server was reached when it was looked at last and may be asked: while none is, no limit can be counted.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.map.load().nodes.iter().any(|node| node.state() != State::Open && node.place().is_some() && node.seen.load().is_up)
    }

    /// Requests of which nobody knows whether they were counted, because their answer was lost or late.
    #[must_use]
    pub fn unknown_outcomes(&self) -> u64 {
        self.events.unknown_outcomes.load(Ordering::Relaxed)
    }

    /// Requests of which something was asked a second time, because the first time it did certainly not run.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.events.retries.load(Ordering::Relaxed)
    }

    pub(super) fn had_unknown_outcome(&self) {
        self.events.unknown_outcomes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn retried(&self) {
        self.events.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn options(&self) -> &Arc<Options> {
        &self.options
    }

    pub(super) fn tallies(&self) -> &Tallies {
        &self.tallies
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.options.topology, Topology::Cluster(_))
    }

    pub(super) fn manner(&self) -> Manner {
        let Options { fixed_windows_by_script, expiry_jitter_secs, .. } = *self.options;
        Manner { by_slot: self.is_cluster(), fixed_windows_by_script, expiry_jitter_secs }
    }

    pub(super) fn map(&self) -> Arc<Map> {
        self.map.load_full()
    }

    /// The map; waits until `deadline` while the first one is being looked for.
    pub(super) async fn map_by(&self, deadline: Instant) -> Arc<Map> {
        let looked = self.looked.notified();
        let map = self.map();
        if map.nodes.is_empty() && !self.has_looked.load(Ordering::Acquire) {
            let _ = timeout_at(deadline, looked).await;
            return self.map();
        }
        map
    }

    /// The servers have been looked for, with a new map or with nothing to show for it; who waits for the first map waits no longer.
    pub(super) fn finish_looking(&self) {
        self.has_looked.store(true, Ordering::Release);
        self.looked.notify_waiters();
    }

    /// A new map of a cluster: who has which slots. What is known of servers that stay is kept.
    pub(super) fn redraw(&self, ranges: &[(std::ops::RangeInclusive<Slot>, Address)]) {
        let old = self.map();
        let mut map = Map { nodes: Vec::new(), owners: Some(vec![NOBODY; SLOTS].into_boxed_slice()) };
        for (slots, address) in ranges {
            let index = self.place_in(&mut map, &old, address);
            if let Some(owners) =
                map.owners.as_mut().and_then(|owners| owners.get_mut(usize::from(*slots.start())..=usize::from(*slots.end())))
            {
                owners.fill(index);
            }
        }
        self.put(map);
    }

    /// A single slot has moved. Returns its new server.
    pub(super) fn moved(&self, slot: Slot, address: &Address) -> Arc<Node> {
        self.is_stale.notify_one();
        let map = self.map();
        let owner = map.owners.as_ref().and_then(|owners| map.nodes.get(usize::from(*owners.get(usize::from(slot))?)));
        if let Some(owner) = owner.filter(|owner| is_at(owner, address)) {
            return Arc::clone(owner);
        }
        self.change(|map, old| {
            let index = self.place_in(map, old, address);
            if let Some(owner) = map.owners.as_mut().and_then(|owners| owners.get_mut(usize::from(slot))) {
                *owner = index;
            }
            index
        })
    }

    /// The server at an address. One that is new has no slot yet.
    pub(super) fn node_at(&self, address: &Address) -> Arc<Node> {
        let known = self.map.load().nodes.iter().find(|node| is_at(node, address)).map(Arc::clone);
        known.unwrap_or_else(|| self.change(|map, old| self.place_in(map, old, address)))
    }

    /// Puts a changed copy in the map's place, unless somebody else was faster; then changes that one. Returns the server at the place that
    /// the change names.
    fn change(&self, change: impl Fn(&mut Map, &Map) -> u16) -> Arc<Node> {
        loop {
            let old = self.map();
            let mut map = Map::clone(&old);
            let place = change(&mut map, &old);
            let node = Arc::clone(&map.nodes[usize::from(place)]);
            if Arc::ptr_eq(&self.map.compare_and_swap(&old, Arc::new(map)), &old) {
                return node;
            }
        }
    }

    /// The place of the server at an address, which is put there if it is new.
    fn place_in(&self, map: &mut Map, old: &Map, address: &Address) -> u16 {
        let place = map.nodes.iter().position(|node| is_at(node, address)).unwrap_or_else(|| {
            let known = old.nodes.iter().find(|node| is_at(node, address));
            map.nodes.push(known.map_or_else(|| self.node(address), Arc::clone));
            map.nodes.len() - 1
        });
        // A cluster has at most as many servers as slots.
        u16::try_from(place).unwrap_or(NOBODY)
    }

    fn node(&self, address: &Address) -> Arc<Node> {
        Node::new(Some(address.clone()), &self.options, Purpose::Count, &self.tallies, &self.opened_circuit)
    }

    fn put(&self, map: Map) {
        self.map.store(Arc::new(map));
        self.finish_looking();
    }
}

fn is_at(node: &Node, address: &Address) -> bool {
    node.place().is_some_and(|place| place.address == *address)
}

impl Map {
    /// Who has a key.
    ///
    /// # Errors
    /// The name of the reason why nobody has.
    pub(super) fn owner(&self, key: &[u8]) -> Result<&Arc<Node>, &'static str> {
        let node = match &self.owners {
            None => self.nodes.first().ok_or(error::NO_PRIMARY)?,
            Some(owners) => self.nodes.get(usize::from(owners[usize::from(slots::of(key))])).ok_or(error::CLUSTER_DOWN)?,
        };
        Ok(node)
    }

    /// How many slots have an owner.
    pub(super) fn slots(&self) -> usize {
        self.owners.as_ref().map_or(0, |owners| owners.iter().filter(|&&owner| owner != NOBODY).count())
    }

    /// A key of those that a node has, of this form: what a probe writes.
    pub(super) fn key_of(&self, node: &Node, key: impl Fn(u32) -> Vec<u8>) -> Option<Vec<u8>> {
        (0..SLOTS as u32).map(key).find(|key| self.owner(key).is_ok_and(|owner| owner.id == node.id))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Shared").field("options", &self.options).field("tallies", &self.tallies).finish_non_exhaustive()
    }
}
