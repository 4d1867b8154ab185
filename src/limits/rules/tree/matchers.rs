//! Conditions of a level other than texts and wildcards: sets of values, networks, and regular
//! expressions.
//!
//! Only levels that have some pay for them. A look-up takes one hash of the value for all sets of a
//! key, one walk down a trie for all networks, and one search for all regular expressions, for any
//! number of them.
//!
//! If a key has addresses, a look-up and a counter use one spelling. With the spelling in the
//! counter only, `::ffff:10.0.0.1` would find the network and count with `10.0.0.1`, which an exact
//! value takes out of it: two limits in one counter. A group of `prefix` has the mark of a shared
//! pattern and the network as its text, which no other branch of a level writes.
//!
//! Branches of one level differ by their texts (`set:`, `cidr:`, `regex:` and what they match): a
//! literal value that reads the same is refused as a duplicate. So names of limits, keys of indexes
//! and shared counters need no further mark.

use core::net::IpAddr;

use hashbrown::HashMap;
use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;
use smallvec::{SmallVec, smallvec};

use super::BranchIndex;
use super::regexes::Regexes;
use super::trace::How;
use crate::limits::rules::address;

/// The branches of a level that match by more than text, by key.
pub(super) type Matchers = HashMap<Box<[u8]>, OfKey>;

/// The branches of one key.
#[derive(Debug, Default)]
pub(super) struct OfKey {
    pub(super) values: HashMap<Box<[u8]>, Owners>,
    /// An address is looked up by its canonical text too.
    has_addresses: bool,
    pub(super) networks: JointPrefixMap<IpNet, Owners>,
    pub(super) regexes: Regexes,
    /// The text of each branch, as written.
    pub(super) sources: Vec<(BranchIndex, Box<str>)>,
}

/// The branches that name a value or a network: the first of the files counts.
type Owners = SmallVec<[BranchIndex; 1]>;

/// Adds a branch, and returns the first that was there.
fn add(owners: &mut Owners, branch: BranchIndex) -> Option<BranchIndex> {
    let first = owners.first().copied();
    if !owners.contains(&branch) {
        owners.push(branch);
    }
    first
}

impl OfKey {
    /// Adds a value of a set; an address by its canonical text. Returns the branch that has it
    /// already.
    pub(super) fn add_value(&mut self, value: &str, branch: BranchIndex) -> Option<BranchIndex> {
        let address = address::canonical(value.as_bytes());
        self.has_addresses |= address.is_some();
        let value = address.as_deref().unwrap_or(value.as_bytes());
        if let Some(owners) = self.values.get_mut(value) {
            return add(owners, branch);
        }
        self.values.insert(value.into(), smallvec![branch]);
        None
    }

    /// Adds a network. Returns the branch that has it already.
    pub(super) fn add_network(
        &mut self,
        network: IpNet,
        branch: BranchIndex,
    ) -> Option<BranchIndex> {
        self.has_addresses = true;
        add(self.networks.entry(network).or_default(), branch)
    }

    /// The exact value, if it is an address in another spelling; then the sets, then the network
    /// with the longest prefix.
    pub(super) fn before_patterns(
        &self,
        value: &[u8],
        exact: impl FnOnce(&[u8]) -> Option<BranchIndex>,
    ) -> Option<BranchIndex> {
        let set = |value: &[u8]| self.values.get(value)?.first().copied();
        let Some(address) = self.address(value) else {
            return set(value);
        };
        let text = address::text(address);
        exact(&text).or_else(|| set(&text)).or_else(|| {
            let (_, owners) = self.networks.get_lpm(&address.into())?;
            owners.first().copied()
        })
    }

    /// The address in a value, if the key has addresses.
    fn address(&self, value: &[u8]) -> Option<IpAddr> {
        match self.has_addresses {
            true => address::read(value),
            false => None,
        }
    }

    /// One branch of each network that has the value: an address or a network.
    pub(super) fn networks(&self, value: &[u8]) -> SmallVec<[BranchIndex; 2]> {
        let Some(network) = address::read_network(value) else {
            return SmallVec::new();
        };
        let all = self.networks.cover_values(&network);
        all.filter_map(|owners| owners.first().copied()).collect()
    }

    /// How a branch matches a value, independent of other branches. Slow, for explanations.
    pub(super) fn how(&self, branch: BranchIndex, value: &[u8]) -> Option<How> {
        let address = self.address(value);
        let text = address.map(address::text);
        let text = text.as_deref().unwrap_or(value);
        let has = |owners: &Owners| owners.contains(&branch);
        let in_network = |address: IpAddr| self.networks.cover_values(&address.into()).any(has);
        if self.values.get(text).is_some_and(has) {
            Some(How::Set)
        } else if address.is_some_and(in_network) {
            Some(How::Network)
        } else {
            self.regexes.has(branch, value).then_some(How::Pattern)
        }
    }
}
