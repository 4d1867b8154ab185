//! What responses say about the configuration, and how several of them become one, so that the
//! newest wins and each configuration is compiled once.

use bytes::Bytes;

use crate::core::proto::xds::{DeltaDiscoveryResponse, DiscoveryResponse};

/// What one or several responses say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// All resources: each an encoded `Any`.
    All(Vec<Bytes>),
    /// Changes, in the order of their arrival.
    Edits(Vec<Edit>),
}

/// A change of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    /// It is new or has changed: an encoded `Resource`.
    Set(Bytes),
    /// It is gone: its name.
    Remove(Bytes),
}

/// One or several responses of one stream that wait to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Update {
    /// The number of the stream.
    pub(super) stream: u64,
    /// The version of the last of them.
    pub(super) version: Bytes,
    /// Their nonces. A state of the world has that of the last response only: the server ignores an
    /// answer to others.
    pub(super) nonces: Vec<Bytes>,
    pub(super) change: Change,
}

/// A response, and what its variant does not matter for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) type_url: Bytes,
    pub(super) version: Bytes,
    pub(super) nonce: Bytes,
    pub(super) change: Change,
}

impl From<DiscoveryResponse> for Response {
    fn from(it: DiscoveryResponse) -> Self {
        Self {
            type_url: it.type_url,
            version: it.version_info,
            nonce: it.nonce,
            change: Change::All(it.resources),
        }
    }
}

impl From<DeltaDiscoveryResponse> for Response {
    fn from(it: DeltaDiscoveryResponse) -> Self {
        let removed = it.removed_resources.into_iter().map(Edit::Remove);
        let edits = removed
            .chain(it.resources.into_iter().map(Edit::Set))
            .collect();
        Self {
            type_url: it.type_url,
            version: it.system_version_info,
            nonce: it.nonce,
            change: Change::Edits(edits),
        }
    }
}

impl Update {
    /// This update and a later one, as one. Answers to an earlier stream are of no use.
    pub(super) fn then(mut self, later: Self) -> Self {
        let change = match (self.change, later.change) {
            (Change::Edits(mut first), Change::Edits(then)) => {
                first.extend(then);
                Change::Edits(first)
            }
            (_, change) => change,
        };
        let nonces = match &change {
            Change::Edits(_) if self.stream == later.stream => {
                self.nonces.extend(later.nonces);
                self.nonces
            }
            _ => later.nonces,
        };
        Self {
            stream: later.stream,
            version: later.version,
            nonces,
            change,
        }
    }

    /// The bytes of the edits that wait, with their places in the list; 0 for a state of the world,
    /// of which only one waits.
    pub(super) fn len_edit_bytes(&self) -> usize {
        match &self.change {
            Change::All(_) => 0,
            Change::Edits(edits) => edits
                .iter()
                .map(|(Edit::Set(bytes) | Edit::Remove(bytes))| size_of::<Edit>() + bytes.len())
                .sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(stream: u64, nonce: &'static str, change: Change) -> Update {
        Update {
            stream,
            version: nonce.into(),
            nonces: vec![nonce.into()],
            change,
        }
    }

    fn set(name: &'static str) -> Edit {
        Edit::Set(name.into())
    }

    #[test]
    fn a_later_state_of_the_world_replaces_an_earlier_one() {
        let (first, then) = (
            update(1, "a", Change::All(vec!["x".into()])),
            update(1, "b", Change::All(Vec::new())),
        );
        assert_eq!(first.then(then.clone()), then);
    }

    #[test]
    fn edits_stay_in_order_and_every_nonce_of_the_stream_is_answered() {
        let removed = Edit::Remove("x".into());
        let first = update(1, "a", Change::Edits(vec![set("x")]));
        let both = first
            .then(update(1, "b", Change::Edits(vec![removed.clone()])))
            .then(update(1, "c", Change::Edits(vec![set("x")])));
        assert_eq!(
            both.change,
            Change::Edits(vec![set("x"), removed, set("x")])
        );
        assert_eq!(
            (both.nonces.len(), &both.version[..], both.len_edit_bytes()),
            (3, &b"c"[..], 3 * (1 + size_of::<Edit>()))
        );
        let next = both.then(update(2, "d", Change::Edits(vec![set("y")])));
        assert_eq!(next.nonces, ["d"], "the first stream is gone");
        assert_eq!(
            next.len_edit_bytes(),
            4 * (1 + size_of::<Edit>()),
            "also an empty one counts"
        );
    }
}
