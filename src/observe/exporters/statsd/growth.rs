//! What each counter grew by since it was last sent.
//!
//! A counter is known by a fingerprint of what identifies it, so that very many of them take little
//! memory. One that is no longer there is forgotten after the next whole flush. Counters whose names
//! are written alike grow apart, because one of them can be removed while the others go on.

use std::collections::HashMap;
use std::hash::Hash;

use crate::core::fingerprint::Fingerprint;

/// The counters as they were sent.
#[derive(Debug, Default)]
pub(super) struct Growth {
    sent: HashMap<Fingerprint, Sent>,
    /// In a buffer that has not been sent.
    unsent: Vec<Grown>,
    flush: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    value: u64,
    /// The flush that saw the counter last.
    flush: u64,
}

/// A counter that has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grown {
    /// By so much.
    pub by: u64,
    key: Fingerprint,
    value: u64,
}

impl Growth {
    /// What the counter `identity` grew by, if it did. A counter that is smaller than before has begun
    /// again.
    pub(super) fn of(&mut self, identity: impl Hash, value: u64) -> Option<Grown> {
        let key = Fingerprint::of_value(&identity);
        let before = self.sent.get_mut(&key).map_or(0, |sent| {
            sent.flush = self.flush;
            sent.value
        });
        let by = value.checked_sub(before).unwrap_or(value);
        if by == 0 && value < before {
            self.sent.remove(&key);
        }
        (by > 0).then_some(Grown { by, key, value })
    }

    /// They are in the buffer.
    pub(super) fn written(&mut self, grown: &[Grown]) {
        self.unsent.extend_from_slice(grown);
    }

    /// All that was in the buffer has been sent.
    pub(super) fn sent(&mut self) {
        for Grown { key, value, .. } in self.unsent.drain(..) {
            self.sent.insert(
                key,
                Sent {
                    value,
                    flush: self.flush,
                },
            );
        }
    }

    /// What was in the buffer has not been sent, and goes with a later flush.
    pub(super) fn forget_unsent(&mut self) {
        self.unsent.clear();
    }

    /// A whole flush has been sent: counters that it did not see are no longer there.
    pub(super) fn all_sent(&mut self) {
        self.sent();
        let flush = self.flush;
        self.sent.retain(|_, sent| sent.flush == flush);
        self.flush += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(growth: &mut Growth, name: &str, value: u64) -> Option<u64> {
        growth.of(name, value).map(|grown| {
            growth.written(&[grown]);
            grown.by
        })
    }

    #[test]
    fn only_what_was_sent_is_not_sent_again() {
        let mut growth = Growth::default();
        assert_eq!(
            (by(&mut growth, "a", 5), by(&mut growth, "b", 0)),
            (Some(5), None)
        );
        growth.all_sent();
        assert_eq!(
            (by(&mut growth, "a", 5), by(&mut growth, "a", 7)),
            (None, Some(2))
        );
        growth.forget_unsent();
        assert_eq!(by(&mut growth, "a", 8), Some(3), "the 2 were not sent");
        growth.sent();
        assert_eq!(by(&mut growth, "a", 8), None);
    }

    #[test]
    fn counters_begin_again_and_disappear() {
        let mut growth = Growth::default();
        let _ = (by(&mut growth, "a", 5), by(&mut growth, "b", 9));
        growth.all_sent();
        assert_eq!(
            by(&mut growth, "a", 3),
            Some(3),
            "a limit that was removed and added again"
        );
        growth.all_sent();
        assert_eq!(growth.sent.len(), 1, "b is gone");
        assert_eq!(by(&mut growth, "b", 9), Some(9));
    }
}
