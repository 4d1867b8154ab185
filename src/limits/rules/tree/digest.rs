//! The digest of a tree: equal for trees in which every descriptor finds the same.
//!
//! It is a sum of hashes, so the order of its parts does not matter. The order of two patterns is a
//! part of its own if one value may match both; of many patterns on one level every order is, for
//! the time of loading. A condition that is never reached is no part.

use std::borrow::Cow;
use std::collections::HashSet;

use super::{BranchIndex, Tree};
use crate::core::digest::{mix, short};
use crate::limits::rules::limit::LimitId;

/// Patterns of a level that are compared in pairs.
const MOST_PAIRED: usize = 200;

/// The paths of a tree that decide which limit a descriptor finds, besides the paths of limits.
#[derive(Debug, Default)]
pub(crate) struct Precedence {
    /// The path to a level, and two of its patterns that may match one value.
    orders: HashSet<[u64; 3]>,
    /// All paths, and those that end without a limit.
    paths: HashSet<u64>,
    ends: HashSet<u64>,
}

impl Precedence {
    /// Whether patterns that both have are in another order, or only one has a path that ends
    /// without a limit.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        let is_turned = |&[level, one, two]: &[u64; 3]| other.orders.contains(&[level, two, one]);
        let has_more = |one: &Self, other: &Self| !one.ends.is_subset(&other.paths);
        self.orders.iter().any(is_turned) || has_more(self, other) || has_more(other, self)
    }
}

impl Tree {
    /// Adds the paths below `above`.
    pub(crate) fn precedence(&self, above: u64, all: &mut Precedence) {
        let (own, orders) = self.parts();
        let orders = orders
            .into_iter()
            .map(|[earlier, later]| [above, earlier, later]);
        all.orders.extend(orders);
        for (branch, own) in self.branches.iter().zip(own).filter(|(_, own)| *own != 0) {
            let path = mix(above, own);
            all.paths.insert(path);
            match &branch.children {
                Some(below) => below.precedence(path, all),
                None if branch.leaf.is_none() => _ = all.ends.insert(path),
                None => {}
            }
        }
    }

    /// The digest of each branch, and of pairs of patterns in their order.
    fn parts(&self) -> (Vec<u64>, Vec<[u64; 2]>) {
        let mut own = vec![0_u64; self.branches.len()];
        let mut patterns = Vec::new();
        self.texts(|branch, text| {
            let parts = || [Some(&text.key), text.value.as_ref()].into_iter().flatten();
            let is_regex = text.is_matcher && parts().any(|part| part.starts_with("regex:"));
            if text.is_matcher && !is_regex {
                return;
            }
            own[branch.0] = short(parts().map(|part| part.as_bytes())) ^ u64::from(is_regex);
            if is_regex || parts().any(|part| part.contains('*')) {
                let value = text.value.filter(|_| !is_regex);
                patterns.push((branch, [text.key, value.unwrap_or("*".into())]));
            }
        });
        for (key, of_key) in self.matchers.iter().flat_map(|all| all.iter()) {
            let mut add = |branch: BranchIndex, value: &[u8]| {
                own[branch.0] = own[branch.0].wrapping_add(short([b"member", &**key, value]));
            };
            // The first of the files counts.
            for (value, owners) in &of_key.values {
                add(owners[0], value);
            }
            let networks = of_key.networks.iter();
            networks.for_each(|(network, owners)| add(owners[0], network.to_string().as_bytes()));
        }
        patterns.sort_unstable_by_key(|(branch, _)| *branch);
        let mut orders = Vec::new();
        let are_paired = patterns.len() <= MOST_PAIRED;
        for (place, (later, ends)) in patterns.iter().enumerate() {
            let first = match are_paired {
                true => 0,
                false => place.saturating_sub(1),
            };
            for (earlier, other) in &patterns[first..place] {
                if !are_paired || may_both_match(ends, other) {
                    orders.push([own[earlier.0], own[later.0]]);
                }
            }
        }
        (own, orders)
    }

    /// Digest of this level. `above` is the digest of the path to it, and `content` of a limit.
    pub(crate) fn digest(&self, above: u64, content: &dyn Fn(LimitId) -> u64) -> u64 {
        let (own, orders) = self.parts();
        let orders = orders
            .iter()
            .map(|[earlier, later]| mix(above, mix(*earlier, *later)));
        let mut sum = orders.fold(0, u64::wrapping_add);
        for (branch, own) in self.branches.iter().zip(own).filter(|(_, own)| *own != 0) {
            let path = mix(above, own);
            let below = branch.children.as_deref();
            sum = sum
                .wrapping_add(mix(path, branch.leaf.map_or(0, content)))
                .wrapping_add(below.map_or(0, |below| below.digest(path, content)));
        }
        sum
    }
}

/// Whether a pair of key and value may match both, by the texts before the first and after the last
/// `*` of each.
fn may_both_match(one: &[Cow<'_, str>; 2], other: &[Cow<'_, str>; 2]) -> bool {
    one.iter().zip(other).all(|(one, other)| {
        let [first, begin] = [one, other].map(|text| text.split('*').next().unwrap_or_default());
        let [last, end] = [one, other].map(|text| text.rsplit('*').next().unwrap_or_default());
        (first.starts_with(begin) || begin.starts_with(first))
            && (last.ends_with(end) || end.ends_with(last))
    })
}
