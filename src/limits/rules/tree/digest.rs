//! The digest of a tree: equal for trees in which every descriptor finds the same.
//!
//! It is a sum of hashes, so the order of its parts does not matter. The order of two patterns is a
//! part of its own if one value may match both; of many patterns on one level every order is, for
//! the time of loading. A condition that is never reached is no part.

use std::borrow::Cow;

use super::{BranchIndex, Tree};
use crate::core::digest::{mix, short};
use crate::limits::rules::limit::LimitId;

/// Patterns of a level that are compared in pairs.
const MOST_PAIRED: usize = 200;

impl Tree {
    /// Digest of this level. `above` is the digest of the path to it, and `content` of a limit.
    pub(crate) fn digest(&self, above: u64, content: &dyn Fn(LimitId) -> u64) -> u64 {
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
        let mut sum: u64 = 0;
        let are_paired = patterns.len() <= MOST_PAIRED;
        for (place, (later, ends)) in patterns.iter().enumerate() {
            let first = match are_paired {
                true => 0,
                false => place.saturating_sub(1),
            };
            for (earlier, other) in &patterns[first..place] {
                if !are_paired || may_both_match(ends, other) {
                    sum = sum.wrapping_add(mix(above, mix(own[earlier.0], own[later.0])));
                }
            }
        }
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
