//! Limits of requests in flight: the last entry of a descriptor is the id of its request, which is
//! no part of its subject.
//!
//! The id stands in a list beside the checks (`Checks::holder`), so that checks of other limits are
//! not larger; only the step of a set of holders and the script read it. The entry keeps its key and
//! an empty value, and everything behind the plan sees that: keys, overrides, usage, metrics,
//! subjects.

use smallvec::SmallVec;

use super::checks::Holding;
use super::{CheckIndex, Checks};
use crate::core::algorithm::concurrency::HolderId;
use crate::core::ask::Entry;
use crate::limits::rules::limit::Limit;

/// The id and the subject of a check of a limit of requests in flight.
pub(super) struct Holder<'a> {
    id: &'a [u8],
    /// The entries of the descriptor without the id: the last one has an empty value. Keys,
    /// overrides, usage and metrics see these.
    pub(super) subject: SmallVec<[Entry<'a>; 4]>,
}

impl<'a> Holder<'a> {
    /// `None` if the limit is another one.
    #[inline]
    pub(super) fn new(limit: &'a Limit, entries: &[Entry<'a>]) -> Option<Self> {
        if !limit.counts_in_flight() {
            return None;
        }
        let mut subject: SmallVec<[Entry<'a>; 4]> = SmallVec::from_slice(entries);
        let id = std::mem::take(&mut subject.last_mut()?.value);
        Some(Self { id, subject })
    }

    /// Names the holder to this check.
    pub(super) fn ask(&self, check: CheckIndex, checks: &mut Checks) {
        // A limit that the request brings along takes the place of the configured one.
        if checks[check].algorithm.has_holders() {
            checks.holders.push(Holding {
                check,
                id: HolderId::of(self.id),
                gauge: None,
            });
        }
    }
}
