//! The state of a `concurrency` key: its holders, and the tombstones of releases whose ids held
//! nothing.
//!
//! Each set is found by id and by time, so that a step takes O(log n), and besides that drops what
//! has expired: each holder once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{HolderId, MOST_TOMBSTONES, TOMBSTONE_LIFE};

/// Who holds places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The tick of its acquire.
    pub since: u64,
    /// How many places; never zero.
    pub places: u64,
}

/// The holders of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    by_id: BTreeMap<HolderId, Holder>,
    by_time: BTreeSet<(u64, HolderId)>,
    /// Of all holders, with those that have expired.
    used: u64,
    /// By id: the tick of the release.
    tombstones: BTreeMap<HolderId, u64>,
    /// The oldest first.
    tombstones_by_time: BTreeSet<(u64, Reverse<HolderId>)>,
}

impl FromIterator<(HolderId, Holder)> for Holders {
    fn from_iter<I: IntoIterator<Item = (HolderId, Holder)>>(all: I) -> Self {
        let mut holders = Self::default();
        all.into_iter()
            .for_each(|(id, holder)| holders.insert(id, holder));
        holders
    }
}

/// Whether what began at `since` and lasts for `life` is there at `now`. A clock that went back is
/// behind by at most as much, or `since` is none of this clock.
const fn is_live(since: u64, now: u64, life: u64) -> bool {
    since + life > now && since <= now + life
}

impl Holders {
    /// All holders, in the order of their ids, with those that have expired.
    pub fn iter(&self) -> impl Iterator<Item = (HolderId, Holder)> {
        self.by_id.iter().map(|(&id, &holder)| (id, holder))
    }

    /// All tombstones, in the order of their ids, each with the tick of its release.
    pub fn tombstones(&self) -> impl Iterator<Item = (HolderId, u64)> {
        self.tombstones.iter().map(|(&id, &at)| (id, at))
    }

    /// The bytes that it takes at most: a node of a tree has space for 11 entries, five at least
    /// are used, and its allocation takes 32 bytes more.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let tree =
            |entries: usize, entry_bytes: usize| entries.div_ceil(5) * (11 * entry_bytes + 32);
        let (holders, tombstones) = (self.by_id.len(), self.tombstones.len());
        let of_holders = tree(holders, size_of::<(HolderId, Holder)>())
            + tree(holders, size_of::<(u64, HolderId)>());
        size_of::<Self>() + of_holders + 2 * tree(tombstones, size_of::<(HolderId, u64)>())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty() && self.tombstones.is_empty()
    }

    /// The places of all holders that have not expired.
    pub(super) fn used(&self, now: u64, life: u64) -> u64 {
        let expired = self
            .expired(now, life)
            .filter_map(|(_, id)| self.by_id.get(id));
        self.used - expired.map(|holder| holder.places).sum::<u64>()
    }

    fn expired(&self, now: u64, life: u64) -> impl Iterator<Item = &(u64, HolderId)> {
        let old = self
            .by_time
            .iter()
            .take_while(move |(since, _)| since + life <= now);
        old.chain(
            self.by_time
                .iter()
                .rev()
                .take_while(move |(since, _)| *since > now + life),
        )
    }

    /// The holder of this id, if it has not expired.
    pub(super) fn find(&self, id: HolderId, now: u64, life: u64) -> Option<Holder> {
        self.by_id
            .get(&id)
            .copied()
            .filter(|holder| is_live(holder.since, now, life))
    }

    /// Whether an id was released that held nothing.
    pub(super) fn is_released(&self, id: HolderId, now: u64) -> bool {
        self.tombstones
            .get(&id)
            .is_some_and(|&at| is_live(at, now, TOMBSTONE_LIFE.micros()))
    }

    pub(super) fn drop_expired(&mut self, now: u64, life: u64) {
        let expired: Vec<HolderId> = self.expired(now, life).map(|&(_, id)| id).collect();
        for id in expired {
            self.remove(id);
        }
        let is_old = |&at: &u64| !is_live(at, now, TOMBSTONE_LIFE.micros());
        while let Some(id) = self
            .tombstones_by_time
            .first()
            .filter(|(at, _)| is_old(at))
            .map(|&(_, Reverse(id))| id)
        {
            self.exhume(id);
        }
        while let Some(id) = self
            .tombstones_by_time
            .last()
            .filter(|(at, _)| is_old(at))
            .map(|&(_, Reverse(id))| id)
        {
            self.exhume(id);
        }
    }

    pub(super) fn insert(&mut self, id: HolderId, holder: Holder) {
        self.remove(id);
        self.by_id.insert(id, holder);
        self.by_time.insert((holder.since, id));
        self.used += holder.places;
    }

    pub(super) fn remove(&mut self, id: HolderId) {
        if let Some(holder) = self.by_id.remove(&id) {
            self.by_time.remove(&(holder.since, id));
            self.used -= holder.places;
        }
    }

    /// Leaves a tombstone, in place of the oldest if there are too many.
    pub(super) fn bury(&mut self, id: HolderId, now: u64) {
        self.exhume(id);
        if self.tombstones.len() >= MOST_TOMBSTONES
            && let Some(&(_, Reverse(oldest))) = self.tombstones_by_time.first()
        {
            self.exhume(oldest);
        }
        self.tombstones.insert(id, now);
        self.tombstones_by_time.insert((now, Reverse(id)));
    }

    fn exhume(&mut self, id: HolderId) {
        if let Some(at) = self.tombstones.remove(&id) {
            self.tombstones_by_time.remove(&(at, Reverse(id)));
        }
    }
}
