//! A part of a plan: some of its checks, with other amounts, as a plan of their own.
//!
//! Who decides a part must not forget the rest: a request whose quotas are not all over is not refused, whichever of them are in the part.

use smallvec::SmallVec;

use super::{Check, Plan};
use crate::algorithm::Algorithm;

impl Plan {
    /// The checks at the places `picked` with the algorithms that `change` makes of theirs. The others stand for themselves as `passes` says of each.
    #[must_use]
    pub fn part(&self, picked: &[usize], change: impl Fn(Algorithm) -> Algorithm, passes: impl Fn(usize) -> bool) -> Self {
        let rest = self.checks.iter().enumerate().filter(|(place, _)| !picked.contains(place));
        let passing_quotas = rest.filter(|&(place, check)| check.role.quota && passes(place)).count();
        let mut part = Self {
            rules: self.rules.clone(),
            checks: SmallVec::new(),
            slots: SmallVec::new(),
            unknown_domain: false,
            commit: self.commit,
            passing_quotas: self.passing_quotas + passing_quotas,
            keys: self.keys.clone(),
        };
        // Keys stay where they are.
        let checks = picked.iter().map(|&place| self.checks[place].clone());
        part.checks.extend(checks.map(|check| Check { algorithm: change(check.algorithm), ..check }));
        part
    }
}
