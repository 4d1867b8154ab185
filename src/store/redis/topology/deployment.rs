//! One deployment of Redis (a server, what Sentinels watch, or a cluster), as all threads of the process see it: which servers there are,
//! which one a key belongs to, and what went wrong.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::counters::Counts;
use super::node::Node;
use super::slot_map::{NodeIndex, SlotMap};
use super::status::ServerStatus;
use crate::breaker::{State, Transitions};
use crate::store::redis::connection::handshake::Purpose;
use crate::store::redis::connection::options::{Address, Options, Topology};
use crate::store::redis::error::ErrorCounters;
use crate::store::redis::wire::batch::BatchOptions;
use crate::store::redis::wire::hash_slot::Slot;

/// What all runtimes of a process share of one deployment.
pub struct Deployment {
    options: Arc<Options>,
    error_counters: Arc<ErrorCounters>,
    map: ArcSwap<SlotMap>,
    /// Told when there is another map, or when looking for the first one failed.
    discovered: Notify,
    is_discovered: AtomicBool,
    /// Told when the map is found to be wrong.
    pub(crate) map_invalidated: Notify,
    /// Told when a circuit opens.
    pub(crate) circuit_opened: Arc<Notify>,
    request_counters: RequestCounters,
}

/// What happened to whole requests.
#[derive(Debug, Default)]
struct RequestCounters {
    unknown_outcomes: AtomicU64,
    retries: AtomicU64,
}

/// Connections of all runtimes, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionCounts {
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
    pub status: Arc<ServerStatus>,
}

impl Deployment {
    /// Nothing is connected yet.
    #[must_use]
    pub fn new(options: Options) -> Arc<Self> {
        let (options, error_counters, circuit_opened) = (Arc::new(options), Arc::new(ErrorCounters::default()), Arc::new(Notify::new()));
        let node = |address, purpose| Node::new(address, &options, purpose, &error_counters, &circuit_opened);
        let nodes = match &options.topology {
            Topology::Single(address) => vec![node(Some(address.clone()), Purpose::Count)],
            Topology::Sentinel { .. } => vec![node(None, Purpose::CountOnPrimary)],
            Topology::Cluster(_) => Vec::new(),
        };
        Arc::new(Self {
            map: ArcSwap::from_pointee(SlotMap::without_slots(nodes)),
            options,
            error_counters,
            discovered: Notify::new(),
            is_discovered: AtomicBool::new(false),
            map_invalidated: Notify::new(),
            circuit_opened,
            request_counters: RequestCounters::default(),
        })
    }

    /// How often each error happened, by name: once per plan that it spoiled, once per failed attempt to connect. The names stay the same
    /// over versions.
    #[must_use]
    pub fn error_counts(&self) -> Vec<(&'static str, u64)> {
        self.error_counters.counts()
    }

    /// Connections, opened and open, of the servers that are in use now.
    #[must_use]
    pub fn connections(&self) -> ConnectionCounts {
        let connections =
            self.map.load().nodes.iter().map(|node| node.connections()).fold((0, 0), |sum, (opened, open)| (sum.0 + opened, sum.1 + open));
        ConnectionCounts { opened: connections.0, open: connections.1 }
    }

    /// The servers that are in use now.
    #[must_use]
    pub fn servers(&self) -> Vec<Server> {
        let address = |node: &Node| node.location().map(|location| location.address.to_string()).unwrap_or_default();
        let server = |node: &Arc<Node>| Server {
            address: address(node),
            state: node.state(),
            transitions: node.transitions(),
            counts: node.counters.counts(),
            status: node.latest_status.load(),
        };
        self.map.load().nodes.iter().map(server).collect()
    }

    /// Whether every server can be asked.
    #[must_use]
    pub fn is_fully_available(&self) -> bool {
        let map = self.map.load();
        !map.nodes.is_empty() && map.nodes.iter().all(|node| node.state() != State::Open && node.location().is_some())
    }

    /// Whether any server was reached when it was looked at last and may be asked: while none is, no limit can be counted.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.map.load().nodes.iter().any(|node| node.state() != State::Open && node.location().is_some() && node.latest_status.load().is_up)
    }

    /// Requests of which nobody knows whether they were counted, because their answer was lost or late.
    #[must_use]
    pub fn unknown_outcomes(&self) -> u64 {
        self.request_counters.unknown_outcomes.load(Ordering::Relaxed)
    }

    /// Requests of which something was asked a second time, because the first time it did certainly not run.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.request_counters.retries.load(Ordering::Relaxed)
    }

    pub(crate) fn record_unknown_outcome(&self) {
        self.request_counters.unknown_outcomes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn record_retry(&self) {
        self.request_counters.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn options(&self) -> &Arc<Options> {
        &self.options
    }

    pub(crate) fn error_counters(&self) -> &ErrorCounters {
        &self.error_counters
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.options.topology, Topology::Cluster(_))
    }

    pub(crate) fn batch_options(&self) -> BatchOptions {
        let Options { fixed_windows_by_script, expiry_jitter_secs, .. } = *self.options;
        BatchOptions { by_slot: self.is_cluster(), fixed_windows_by_script, expiry_jitter_secs }
    }

    pub(crate) fn map(&self) -> Arc<SlotMap> {
        self.map.load_full()
    }

    /// The map; waits until `deadline` while the first one is being looked for.
    pub(crate) async fn map_by(&self, deadline: Instant) -> Arc<SlotMap> {
        let discovered = self.discovered.notified();
        let map = self.map();
        if map.nodes.is_empty() && !self.is_discovered.load(Ordering::Acquire) {
            let _ = timeout_at(deadline, discovered).await;
            return self.map();
        }
        map
    }

    /// The servers have been looked for, with a new map or with nothing to show for it; who waits for the first map waits no longer.
    pub(crate) fn finish_discovery(&self) {
        self.is_discovered.store(true, Ordering::Release);
        self.discovered.notify_waiters();
    }

    /// A new map of a cluster: who has which slots. What is known of servers that stay is kept.
    pub(crate) fn update_slots(&self, ranges: &[(std::ops::RangeInclusive<Slot>, Address)]) {
        let old = self.map();
        let mut map = SlotMap::of_cluster();
        for (slots, address) in ranges {
            let owner = self.index_in(&mut map, &old, address);
            map.assign(slots.clone(), owner);
        }
        self.map.store(Arc::new(map));
        self.finish_discovery();
    }

    /// A single slot has moved. Returns its new server.
    pub(crate) fn moved(&self, slot: Slot, address: &Address) -> Arc<Node> {
        self.map_invalidated.notify_one();
        if let Some(owner) = self.map.load().slot_owner(slot).filter(|owner| owner.has_address(address)) {
            return Arc::clone(owner);
        }
        self.change(|map, old| {
            let owner = self.index_in(map, old, address);
            map.assign(slot..=slot, owner);
            owner
        })
    }

    /// The server at an address. One that is new has no slot yet.
    pub(crate) fn node_at(&self, address: &Address) -> Arc<Node> {
        let map = self.map.load();
        match map.find(address) {
            Some(index) => Arc::clone(map.node(index)),
            None => self.change(|map, old| self.index_in(map, old, address)),
        }
    }

    /// Replaces the map by a changed copy; repeats the change if another thread replaced the map first. Returns the node that the change names.
    fn change(&self, change: impl Fn(&mut SlotMap, &SlotMap) -> NodeIndex) -> Arc<Node> {
        loop {
            let old = self.map();
            let mut map = SlotMap::clone(&old);
            let index = change(&mut map, &old);
            let node = Arc::clone(map.node(index));
            if Arc::ptr_eq(&self.map.compare_and_swap(&old, Arc::new(map)), &old) {
                return node;
            }
        }
    }

    /// The index in `map` of the server at an address, which is added if it is new.
    fn index_in(&self, map: &mut SlotMap, old: &SlotMap, address: &Address) -> NodeIndex {
        map.find(address).unwrap_or_else(|| {
            let known = old.find(address).map(|index| Arc::clone(old.node(index)));
            map.push(known.unwrap_or_else(|| self.node(address)))
        })
    }

    fn node(&self, address: &Address) -> Arc<Node> {
        Node::new(Some(address.clone()), &self.options, Purpose::Count, &self.error_counters, &self.circuit_opened)
    }
}

impl fmt::Debug for Deployment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Deployment").field("options", &self.options).field("error_counters", &self.error_counters).finish_non_exhaustive()
    }
}
