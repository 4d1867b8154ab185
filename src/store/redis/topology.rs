//! The servers of a Redis deployment (a single server, a primary with Sentinels, or a cluster): the
//! owner of each key, and the address, clock, circuit breaker, counters and status of each server.
//!
//! All threads share this state: every worker routes by the same map, and one worker's failures
//! warn the others. A reader takes a snapshot of the slot map without a lock, and a writer replaces
//! the whole map, because every request reads it and it changes rarely. Nothing here sends a check
//! or inspects a server. Only `cluster` and `sentinel` query servers, for the addresses of the
//! others, and report them here.

mod clock;
pub(crate) mod cluster;
pub(crate) mod markers;
pub(crate) mod node;
pub(crate) mod sentinel;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant, timeout_at};

use self::markers::Markers;
use self::node::{ConnectionCounts, Node, ServerStatus};
use crate::core::breaker::{CircuitState, Transitions};
use crate::core::lock;
use crate::store::redis::connection::handshake::Purpose;
use crate::store::redis::connection::options::{Address, Options, Topology};
use crate::store::redis::error::{self, ErrorCounters, RedisFailure, Times};
use crate::store::redis::features::{self, Uses};
use crate::store::redis::rtt::RoundTripCounts;
use crate::store::redis::usage::queue::UsageQueue;
use crate::store::redis::wire::batch::{BatchOptions, KeyScope};
use crate::store::redis::wire::hash_slot::{self, Redirect, SLOTS, Slot};
use crate::store::redis::wire::request::Request;

/// The state of one deployment that all runtimes of a process share.
#[derive(Debug)]
pub struct Deployment {
    pub(crate) options: Arc<Options>,
    pub(crate) error_counters: Arc<ErrorCounters>,
    map: ArcSwap<SlotMap>,
    /// Wakes the requests that wait for the first map, when it is found or its discovery failed.
    discovered: watch::Sender<bool>,
    /// Wakes discovery when a redirect contradicts the map.
    pub(crate) map_invalidated: Notify,
    /// Wakes the supervisor when a circuit opens.
    pub(crate) circuit_opened: Arc<Notify>,
    /// Number of requests since the start for which it is unknown whether Redis executed commands.
    pub(crate) unknown_outcomes: AtomicU64,
    /// Number of retries of requests since the start.
    pub(crate) retries: AtomicU64,
    /// The error of the latest attempt to find the servers.
    failed_discovery: Mutex<Option<RedisFailure>>,
    /// Features of limits that requests needed.
    uses: AtomicU8,
    /// Usage records that are not written yet.
    pub(crate) usage: UsageQueue,
    /// Markers of the counters' loss.
    pub(crate) markers: Markers,
}

/// A server that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingServer {
    /// `host:port` or the path of a socket; the addresses in the settings while no server has been
    /// found.
    pub server: String,
    /// Error of the latest failure.
    pub failure: RedisFailure,
}

/// A snapshot of one server, for metrics.
#[derive(Clone, Debug)]
pub struct Server {
    /// `host:port` or the path of a socket; empty before Sentinel has named the primary.
    pub address: String,
    /// Whether its circuit breaker admits requests.
    pub state: CircuitState,
    /// Number of changes of that state.
    pub transitions: Transitions,
    /// The requests in the batches that it answered.
    pub requests: u64,
    /// The requests that were not sent, because they were cancelled or too late.
    pub abandoned: u64,
    /// Times in which it answered batches.
    pub round_trips: RoundTripCounts,
    /// The result of its latest inspection.
    pub status: Arc<ServerStatus>,
    /// The failure because of which it cannot be used.
    pub failure: Option<RedisFailure>,
}

impl Deployment {
    /// A deployment without connections. It has its server at once if `options` name a single
    /// server. Otherwise [`supervise`](crate::store::redis::supervise) finds them.
    pub fn new(options: Options) -> Arc<Self> {
        let deployment = Self {
            map: ArcSwap::default(),
            options: Arc::new(options),
            error_counters: Arc::default(),
            discovered: watch::Sender::default(),
            map_invalidated: Notify::new(),
            circuit_opened: Arc::default(),
            unknown_outcomes: AtomicU64::default(),
            retries: AtomicU64::default(),
            failed_discovery: Mutex::default(),
            uses: AtomicU8::default(),
            usage: UsageQueue::default(),
            markers: Markers::default(),
        };
        let new = |address, purpose| Some(Node::new(address, purpose, &deployment));
        let node = match &deployment.options.topology {
            Topology::Single(address) => new(Some(address.clone()), Purpose::Count),
            Topology::Sentinel { .. } => new(None, Purpose::CountOnPrimary),
            Topology::Cluster(_) => None,
        };
        let mut map = SlotMap::default();
        map.nodes.extend(node);
        deployment.map.store(Arc::new(map));
        Arc::new(deployment)
    }

    /// Number of errors by name. A failed attempt to connect counts once, and so does a failed
    /// probe. Consecutive checks of one request that failed with the same error count once
    /// together. The names are the same in all versions.
    pub fn error_counts(&self) -> Vec<(&'static str, u64)> {
        let failures = self.error_counters.failures().into_iter();
        failures
            .map(|(failure, count)| (failure.error, count))
            .collect()
    }

    /// The number of connections to the servers of the present map.
    pub fn connections(&self) -> ConnectionCounts {
        let mut sum = ConnectionCounts::default();
        for node in &self.map.load().nodes {
            sum.opened += node.connections.opened.load(Ordering::Relaxed);
            sum.open += node.connections.open.load(Ordering::Relaxed);
        }
        sum
    }

    /// The servers of the present map.
    pub fn servers(&self) -> Vec<Server> {
        let server = |node: &Arc<Node>| Server {
            address: node
                .location()
                .map_or_else(String::new, |location| location.address.to_string()),
            state: node.state(),
            transitions: node.transitions(),
            requests: node.requests.load(Ordering::Relaxed),
            abandoned: node.abandoned.load(Ordering::Relaxed),
            round_trips: node.round_trips.counts(),
            status: node.latest_status.load_full(),
            failure: node.failure(),
        };
        self.map.load().nodes.iter().map(server).collect()
    }

    /// The servers that cannot be used.
    pub fn failing_servers(&self) -> Vec<FailingServer> {
        let map = self.map.load();
        let failing = |node: &Arc<Node>| {
            let server = node.location()?.address.to_string();
            let mut failure = node.failure()?;
            failure.times = self.times(failure.error, node.round_trip());
            Some(FailingServer { server, failure })
        };
        let mut all: Vec<FailingServer> = map.nodes.iter().filter_map(failing).collect();
        // Before the first discovery has failed, a missing server is no failure.
        let sought = lock(&self.failed_discovery).clone();
        if let Some(failure) = sought.filter(|_| !map.has_location()) {
            let server = self.options.topology.to_string();
            all.push(FailingServer { server, failure });
        }
        all
    }

    /// Number of errors by name, with the cause and the times of the latest one.
    pub(crate) fn failures(&self) -> Vec<(RedisFailure, u64)> {
        let map = self.map.load();
        let slowest = map.nodes.iter().filter_map(|node| node.round_trip()).max();
        let mut all = self.error_counters.failures();
        for (failure, _) in &mut all {
            failure.times = self.times(failure.error, slowest);
        }
        all
    }

    /// The times of the latest failure with this error, if the server was too slow.
    fn times(&self, name: &str, round_trip: Option<Duration>) -> Option<Times> {
        let times = match name {
            error::CONNECT_TIMEOUT => Times {
                allowed: self.options.connect_timeout,
                ..Times::default()
            },
            _ => self.error_counters.times(name)?,
        };
        Some(Times {
            round_trip,
            ..times
        })
    }

    /// Counts a failed attempt to find the servers.
    pub(crate) fn record_failed_discovery(&self, failure: &RedisFailure) {
        self.error_counters.record_failed_connect(failure);
        *lock(&self.failed_discovery) = Some(failure.clone());
    }

    /// Names by which the servers are sought until one is found: the name of the primary for its
    /// Sentinels, or the configured addresses of a cluster.
    pub fn undiscovered(&self) -> Vec<String> {
        if self.map.load().has_location() {
            return Vec::new();
        }
        match &self.options.topology {
            Topology::Single(_) => Vec::new(),
            Topology::Sentinel { master, .. } => vec![master.clone()],
            Topology::Cluster(addresses) => addresses.iter().map(ToString::to_string).collect(),
        }
    }

    /// Whether every server has an address and a circuit that is not open. `false` until a server
    /// is found.
    pub fn is_fully_available(&self) -> bool {
        let nodes = &self.map.load().nodes;
        !nodes.is_empty() && nodes.iter().all(|node| node.is_available())
    }

    /// Whether any server has an address, a circuit that is not open, and answered its latest
    /// inspection. While none does, Redis decides no request.
    pub fn is_usable(&self) -> bool {
        let is_usable =
            |node: &Arc<Node>| node.is_available() && node.latest_status.load().is_usable();
        self.map.load().nodes.iter().any(is_usable)
    }

    pub(crate) fn uses(&self) -> Uses {
        self.uses.load(Ordering::Relaxed)
    }

    /// Notes the features that a request needs.
    pub(crate) fn note_uses(&self, request: &Request) {
        if request.checks.may_have_features() {
            for picked in &request.picked {
                features::note(&self.uses, &request.checks[picked.index]);
            }
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.options.topology, Topology::Cluster(_))
    }

    /// The keys that a node accepts together.
    pub(crate) fn scope(&self, node: &Node) -> KeyScope {
        match (node.spans_slots(), self.is_cluster()) {
            (false, _) => KeyScope::Slot,
            (true, true) => KeyScope::Node,
            (true, false) => KeyScope::Any,
        }
    }

    /// The encoding of checks for servers that accept these keys together.
    pub(crate) fn batch_options(&self, scope: KeyScope) -> BatchOptions {
        BatchOptions {
            scope,
            follows_redirects: self.is_cluster(),
            fixed_windows_by_script: self.options.fixed_windows_by_script,
            expiry_jitter_secs: self.options.expiry_jitter_secs,
        }
    }

    /// Whether a server is known.
    pub(crate) fn has_nodes(&self) -> bool {
        !self.map.load().nodes.is_empty()
    }

    pub(crate) fn map(&self) -> Arc<SlotMap> {
        self.map.load_full()
    }

    /// The present map. While the first discovery of a cluster is under way, waits for its result,
    /// but not beyond `deadline`.
    pub(crate) async fn map_by(&self, deadline: Instant) -> Arc<SlotMap> {
        let map = self.map();
        if !map.nodes.is_empty() {
            return map;
        }
        let mut discovered = self.discovered.subscribe();
        let found = discovered.wait_for(|is_discovered| *is_discovered);
        let _ = timeout_at(deadline, found).await;
        self.map()
    }

    /// Ends the wait of requests for the first map, after a discovery that succeeded or failed.
    pub(crate) fn finish_discovery(&self) {
        self.discovered.send_replace(true);
    }

    /// Replaces the map of a cluster by the owners of all slots. A server that stays keeps its
    /// state and its connections.
    pub(crate) fn update_slots(&self, ranges: &[(RangeInclusive<Slot>, Address)]) {
        let old = self.map();
        let mut map = SlotMap::of_cluster();
        let mut owners = HashMap::new();
        for (slots, address) in ranges {
            let new = || self.index_in(&mut map, &old, address);
            let owner = *owners.entry(address).or_insert_with(new);
            map.assign(slots.clone(), owner);
        }
        self.map.store(Arc::new(map));
        self.finish_discovery();
    }

    /// The server that a redirect names. After MOVED it owns the slot, and a new map is requested;
    /// ASK changes no owner, and a server that is new owns no slot.
    ///
    /// # Errors
    /// `cluster_size`: the server is new, and the map already has [`MAX_NODES`] servers.
    pub(crate) fn redirected(&self, redirect: &Redirect) -> Result<Arc<Node>, &'static str> {
        let (address, slot) = (&redirect.address(), redirect.slot);
        let map = self.map.load();
        let known = if redirect.is_ask {
            map.find(address).map(|index| map.node(index))
        } else {
            self.map_invalidated.notify_one();
            let owner = map.owner(Some(slot)).ok();
            owner.filter(|owner| owner.has_address(address))
        };
        if let Some(node) = known {
            return Ok(Arc::clone(node));
        }
        if map.find(address).is_none() && map.nodes.len() >= MAX_NODES {
            return Err(error::CLUSTER_SIZE);
        }
        let mut node = None;
        // Another thread may replace the map first; then this is repeated.
        self.map.rcu(|old| {
            let mut map = SlotMap::clone(old);
            let index = self.index_in(&mut map, old, address);
            if !redirect.is_ask {
                map.assign(slot..=slot, index);
            }
            node = Some(Arc::clone(map.node(index)));
            map
        });
        Ok(node.expect("the map has changed"))
    }

    /// The index in `map` of the server at an address. Adds the server if `map` does not have it,
    /// with its state from `old` if that has it.
    fn index_in(&self, map: &mut SlotMap, old: &SlotMap, address: &Address) -> NodeIndex {
        map.find(address).unwrap_or_else(|| {
            let known = old.find(address).map(|index| Arc::clone(old.node(index)));
            let new = || Node::new(Some(address.clone()), Purpose::Count, self);
            map.push(known.unwrap_or_else(new))
        })
    }
}

/// Maximum number of nodes: each has connections of every worker and of the monitor. Redis Cluster
/// is designed for up to 1,000 nodes (Redis Cluster specification, "Redis Cluster goals").
pub(crate) const MAX_NODES: usize = 1_000;

/// The index of a node in a [`SlotMap`].
pub(crate) type NodeIndex = u16;

/// The owner of a slot that no node owns.
const NO_OWNER: NodeIndex = NodeIndex::MAX;

/// The owner of each hash slot, and therefore of each key of the slot. It is plain data: a changed
/// copy can replace it at once for all threads. Without a cluster, the first node owns all keys.
/// Source: Redis Cluster specification, "Key distribution model".
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotMap {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// The owner of each slot; `None` without a cluster.
    owners: Option<Box<[NodeIndex]>>,
}

impl SlotMap {
    /// The map of a cluster without nodes: no slot has an owner.
    pub(crate) fn of_cluster() -> Self {
        Self {
            nodes: Vec::new(),
            owners: Some(vec![NO_OWNER; SLOTS].into_boxed_slice()),
        }
    }

    /// The slot of a key; `None` without a cluster.
    pub(crate) fn slot(&self, key: &[u8]) -> Option<Slot> {
        self.owners.as_ref().map(|_| hash_slot::of(key))
    }

    /// The owner of a slot.
    ///
    /// # Errors
    /// `no_primary` if there is no node yet, `clusterdown` if no node of the cluster owns the slot.
    pub(crate) fn owner(&self, slot: Option<Slot>) -> Result<&Arc<Node>, &'static str> {
        let (Some(owners), Some(slot)) = (&self.owners, slot) else {
            return self.nodes.first().ok_or(error::NO_PRIMARY);
        };
        let owner = owners.get(usize::from(slot));
        let owner = owner.and_then(|&owner| self.nodes.get(usize::from(owner)));
        owner.ok_or(error::CLUSTER_DOWN)
    }

    /// Makes a node the owner of a range of slots. A range beyond the last slot changes nothing.
    pub(crate) fn assign(&mut self, slots: RangeInclusive<Slot>, owner: NodeIndex) {
        let range = usize::from(*slots.start())..=usize::from(*slots.end());
        let owners = self.owners.as_mut();
        if let Some(owners) = owners.and_then(|owners| owners.get_mut(range)) {
            owners.fill(owner);
        }
    }

    /// Number of slots that have an owner.
    pub(crate) fn owned_slots(&self) -> usize {
        let owners = self.owners.iter().flatten();
        owners.filter(|&&owner| owner != NO_OWNER).count()
    }

    /// Whether any node has an address.
    pub(crate) fn has_location(&self) -> bool {
        self.nodes.iter().any(|node| node.location().is_some())
    }

    pub(crate) fn find(&self, address: &Address) -> Option<NodeIndex> {
        let mut nodes = self.nodes.iter();
        let index = nodes.position(|node| node.has_address(address));
        index.map(|index| index as NodeIndex)
    }

    pub(crate) fn node(&self, index: NodeIndex) -> &Arc<Node> {
        &self.nodes[usize::from(index)]
    }

    /// Adds a node, which owns no slot yet.
    pub(crate) fn push(&mut self, node: Arc<Node>) -> NodeIndex {
        self.nodes.push(node);
        (self.nodes.len() - 1) as NodeIndex
    }

    /// The first of `key(0)`, `key(1)` and so on whose owner matches; `None` if no owner does. For
    /// probes.
    pub(crate) fn key_where(
        &self,
        is_owner: impl Fn(&Node) -> bool,
        key: impl Fn(u32) -> Vec<u8>,
    ) -> Option<Vec<u8>> {
        let mut keys = (0..SLOTS as u32).map(key);
        keys.find(|key| {
            self.owner(self.slot(key))
                .is_ok_and(|owner| is_owner(owner))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_add_servers_up_to_a_bound() {
        let deployment = Deployment::new(Options {
            topology: Topology::Cluster(Vec::new()),
            ..Options::new(Address::Unix("/none".into()))
        });
        for slot in 0..2_000 {
            let redirect = Redirect {
                slot,
                host: format!("h{slot}"),
                port: 1,
                is_ask: slot % 2 == 0,
            };
            let added = deployment.redirected(&redirect).map(drop);
            let expected = match slot {
                0..1_000 => Ok(()),
                _ => Err(error::CLUSTER_SIZE),
            };
            assert_eq!(added, expected, "{slot}");
        }
        let known = Redirect {
            slot: 1,
            host: "h1".to_owned(),
            port: 1,
            is_ask: false,
        };
        assert!(deployment.redirected(&known).is_ok());
    }
}
