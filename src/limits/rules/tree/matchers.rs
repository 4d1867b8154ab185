//! What a level matches beside texts and wildcards: sets of values, networks, and regular
//! expressions.
//!
//! Only levels that have some pay for them. A look-up takes one hash of the value for all sets of a
//! key, one walk down a trie for all networks, and one search for all regular expressions, however
//! many there are.
//!
//! Where a key knows addresses, a look-up and a counter have one spelling. If only the counter had
//! it, `::ffff:10.0.0.1` would find the network and count with `10.0.0.1`, which an exact value
//! takes out of it: two limits in one counter. A group of `prefix` has the mark of a shared pattern
//! and the network as its text, which no other branch of a level writes.
//!
//! Branches of one level differ by their texts (`set:`, `cidr:`, `regex:` and what they match): a
//! literal value that reads the same is refused as a duplicate. So names of limits, keys of indexes
//! and shared counters need no further mark.

use core::net::IpAddr;

use hashbrown::HashMap;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use smallvec::SmallVec;

use super::BranchIndex;
use super::regexes::{Regexes, TooLarge};
use super::trace::How;
use crate::limits::rules::address::{self, Text};

/// The branches of a level that match by more than text, by key.
#[derive(Debug, Default)]
pub(super) struct Matchers {
    by_key: HashMap<Box<[u8]>, OfKey>,
}

/// Those of one key.
#[derive(Debug, Default)]
pub(super) struct OfKey {
    values: HashMap<Box<[u8]>, Owners>,
    /// An address is looked up by its canonical text too.
    has_addresses: bool,
    v4: Networks<Ipv4Net>,
    v6: Networks<Ipv6Net>,
    regexes: Regexes,
    /// How each branch is written.
    written: Vec<(BranchIndex, Box<str>)>,
}

/// The branches that name a value or a network: the first of the files counts.
#[derive(Debug)]
struct Owners {
    first: BranchIndex,
    later: Vec<BranchIndex>,
}

/// A trie of networks.
struct Networks<N>(PrefixMap<N, Owners>);

impl<N: prefix_trie::Prefix> Default for Networks<N> {
    fn default() -> Self {
        Self(PrefixMap::new())
    }
}

impl<N: prefix_trie::Prefix> std::fmt::Debug for Networks<N> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} networks", self.0.len())
    }
}

impl<N: prefix_trie::Prefix> Networks<N> {
    /// The branch of the network with the longest prefix.
    fn find(&self, address: &N) -> Option<BranchIndex> {
        self.0.get_lpm(address).map(|(_, owners)| owners.first)
    }

    /// One branch of each network that has all of this one, which may be an address.
    fn all(&self, network: &N) -> SmallVec<[BranchIndex; 2]> {
        self.0
            .cover(network)
            .map(|(_, owners)| owners.first)
            .collect()
    }

    /// Whether a network of the branch has the address.
    fn has(&self, address: &N, branch: BranchIndex) -> bool {
        self.0.cover(address).any(|(_, owners)| owners.has(branch))
    }

    fn add(&mut self, network: N, branch: BranchIndex) -> Option<BranchIndex> {
        if let Some(owners) = self.0.get_mut(&network) {
            return Some(owners.add(branch));
        }
        self.0.insert(network, Owners::new(branch));
        None
    }
}

impl Owners {
    const fn new(first: BranchIndex) -> Self {
        Self {
            first,
            later: Vec::new(),
        }
    }

    /// Adds one, and returns the first.
    fn add(&mut self, branch: BranchIndex) -> BranchIndex {
        if !self.has(branch) {
            self.later.push(branch);
        }
        self.first
    }

    fn has(&self, branch: BranchIndex) -> bool {
        self.first == branch || self.later.contains(&branch)
    }
}

impl Matchers {
    pub(super) fn of_key(&self, key: &[u8]) -> Option<&OfKey> {
        self.by_key.get(key)
    }

    /// The matchers of a key, to which a branch is added.
    pub(super) fn begin(&mut self, key: &str, branch: BranchIndex, written: &str) -> &mut OfKey {
        let of_key = self.by_key.entry(key.as_bytes().into()).or_default();
        of_key.written.push((branch, written.into()));
        of_key
    }

    /// All branches, with key and text.
    pub(super) fn written(&self) -> impl Iterator<Item = (BranchIndex, &[u8], &str)> {
        self.by_key.iter().flat_map(|(key, of_key)| {
            of_key
                .written
                .iter()
                .map(move |(branch, text)| (*branch, &**key, &**text))
        })
    }

    /// Compiles the regular expressions of each key to one table, and returns the bytes of all.
    pub(super) fn compile(&mut self) -> Result<usize, TooLarge> {
        self.by_key
            .values_mut()
            .map(|of_key| of_key.regexes.compile())
            .sum()
    }
}

impl OfKey {
    /// Adds a value of a set; an address by its canonical text. Returns the branch that has it
    /// already.
    pub(super) fn add_value(&mut self, value: &str, branch: BranchIndex) -> Option<BranchIndex> {
        let Some(address) = address::read(value.as_bytes()) else {
            return self.add_text(value.as_bytes(), branch);
        };
        self.has_addresses = true;
        self.add_text(Text::new(address).bytes(), branch)
    }

    fn add_text(&mut self, value: &[u8], branch: BranchIndex) -> Option<BranchIndex> {
        if let Some(owners) = self.values.get_mut(value) {
            return Some(owners.add(branch));
        }
        self.values.insert(value.into(), Owners::new(branch));
        None
    }

    /// Adds a network. Returns the branch that has it already.
    pub(super) fn add_network(
        &mut self,
        network: IpNet,
        branch: BranchIndex,
    ) -> Option<BranchIndex> {
        self.has_addresses = true;
        match network {
            IpNet::V4(network) => self.v4.add(network, branch),
            IpNet::V6(network) => self.v6.add(network, branch),
        }
    }

    pub(super) fn add_regex(&mut self, regex: &str, branch: BranchIndex) {
        self.regexes.add(regex, branch);
    }

    /// The first regular expression that matches every value.
    pub(super) fn regex_for_all(&self) -> Option<BranchIndex> {
        self.regexes.for_all()
    }

    /// The exact value, if it is an address in another spelling; then the sets, then the network
    /// with the longest prefix.
    pub(super) fn before_patterns(
        &self,
        value: &[u8],
        exact: impl FnOnce(&[u8]) -> Option<BranchIndex>,
    ) -> Option<BranchIndex> {
        let set = |value: &[u8]| self.values.get(value).map(|owners| owners.first);
        let address = if self.has_addresses {
            address::read(value)
        } else {
            None
        };
        let Some(address) = address else {
            return set(value);
        };
        let text = Text::new(address);
        let canonical = text.bytes();
        exact(canonical)
            .or_else(|| set(canonical))
            .or_else(|| self.network(address))
    }

    fn network(&self, address: IpAddr) -> Option<BranchIndex> {
        match address {
            IpAddr::V4(address) => self.v4.find(&address.into()),
            IpAddr::V6(address) => self.v6.find(&address.into()),
        }
    }

    /// One branch of each network that has the value: an address or a network.
    pub(super) fn networks(&self, value: &[u8]) -> SmallVec<[BranchIndex; 2]> {
        match address::read_network(value) {
            Some(IpNet::V4(network)) => self.v4.all(&network),
            Some(IpNet::V6(network)) => self.v6.all(&network),
            None => SmallVec::new(),
        }
    }

    /// The first regular expression that matches the whole value.
    pub(super) fn regex(&self, value: &[u8]) -> Option<BranchIndex> {
        self.regexes.find(value)
    }

    /// How a branch matches a value, whatever else does. Slow, for people who ask.
    pub(super) fn how(&self, branch: BranchIndex, value: &[u8]) -> Option<How> {
        let address = if self.has_addresses {
            address::read(value)
        } else {
            None
        };
        let in_set = |value: &[u8]| {
            self.values
                .get(value)
                .is_some_and(|owners| owners.has(branch))
        };
        if address.map_or_else(
            || in_set(value),
            |address| in_set(Text::new(address).bytes()),
        ) {
            return Some(How::Set);
        }
        let in_network = match address {
            Some(IpAddr::V4(address)) => self.v4.has(&address.into(), branch),
            Some(IpAddr::V6(address)) => self.v6.has(&address.into(), branch),
            None => false,
        };
        if in_network {
            return Some(How::Network);
        }
        self.regexes.has(branch, value).then_some(How::Pattern)
    }
}
