//! The slot map: which node owns each hash slot, and with it every key of the slot. Without a
//! cluster, the first node owns all keys.
//!
//! It is plain data, so that a changed copy can replace it at once for all threads. It knows
//! nothing of where its entries come from. Source: Redis Cluster specification, "Key distribution
//! model".

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::node::Node;
use crate::store::redis::connection::options::Address;
use crate::store::redis::error;
use crate::store::redis::wire::hash_slot::{self, SLOTS, Slot};

/// The most nodes: each has connections of every worker and of the monitor. Redis Cluster is designed
/// for up to 1,000 nodes (Redis Cluster specification, "Redis Cluster goals").
pub(crate) const MAX_NODES: usize = 1_000;

/// The index of a node in a [`SlotMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeIndex(u16);

impl NodeIndex {
    /// The value in the table of owners if no node owns the slot.
    const NONE: Self = Self(u16::MAX);

    fn new(index: usize) -> Self {
        // A cluster has at most as many primaries as slots.
        u16::try_from(index).map_or(Self::NONE, Self)
    }
}

/// The nodes of a deployment, and the owners of its slots.
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
            owners: Some(vec![NodeIndex::NONE; SLOTS].into_boxed_slice()),
        }
    }

    /// The slot of a key; 0 without a cluster.
    pub(crate) fn slot(&self, key: &[u8]) -> Slot {
        self.owners.as_ref().map_or(0, |_| hash_slot::of(key))
    }

    /// The owner of a slot.
    ///
    /// # Errors
    /// `no_primary` if no node is known, `clusterdown` if no node of the cluster owns the slot.
    pub(crate) fn owner(&self, slot: Slot) -> Result<&Arc<Node>, &'static str> {
        let Some(owners) = &self.owners else {
            return self.nodes.first().ok_or(error::NO_PRIMARY);
        };
        let owner = owners.get(usize::from(slot));
        let owner = owner.and_then(|owner| self.nodes.get(usize::from(owner.0)));
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

    /// How many slots have an owner.
    pub(crate) fn owned_slots(&self) -> usize {
        let owners = self.owners.iter().flatten();
        owners.filter(|&&owner| owner != NodeIndex::NONE).count()
    }

    /// Whether the address of any node is known.
    pub(crate) fn has_location(&self) -> bool {
        self.nodes.iter().any(|node| node.location().is_some())
    }

    pub(crate) fn find(&self, address: &Address) -> Option<NodeIndex> {
        self.nodes
            .iter()
            .position(|node| node.has_address(address))
            .map(NodeIndex::new)
    }

    pub(crate) fn node(&self, index: NodeIndex) -> &Arc<Node> {
        &self.nodes[usize::from(index.0)]
    }

    /// Adds a node, which owns no slot yet.
    pub(crate) fn push(&mut self, node: Arc<Node>) -> NodeIndex {
        self.nodes.push(node);
        NodeIndex::new(self.nodes.len() - 1)
    }

    /// The first of the keys that `key` makes of 0, 1, 2 and so on whose owner is so; `None` if
    /// there is none. For probes.
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
