//! The content of a store of overrides: the overrides and their version; and a change of it.
//!
//! One whose `until` is past has *expired*. One that has expired or was removed has *ended*: it is
//! not in force, and its record is kept for a week.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::core::time::{Micros, Span};
use crate::limits::overrides::{MAX_OVERRIDES, MAX_RECORD_BYTES, Override, Record, parse_instant};
use crate::net::{clock, random};

/// Records of overrides that have ended, of at most [`MAX_RECORD_BYTES`].
pub(crate) const MAX_ENDED: usize = 1_000;

/// How long the records of ended overrides are kept.
pub(super) const ENDED_KEPT: Span = Span::from_secs(7 * 86_400);

/// Unreadable overrides that are named when they are found; all of them are counted.
const MAX_NAMED: usize = 10;

/// Identifies a state of a store: equal versions, equal overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Version(pub(super) Vec<u8>);

/// An override, and its text in Redis.
#[derive(Clone, Debug)]
pub(super) struct StoredOverride {
    /// Shared with those in force.
    pub(super) one: Arc<Override>,
    pub(super) text: Box<str>,
}

/// Everything in a store, in bounded memory.
#[derive(Clone, Debug, Default)]
pub struct Versioned {
    pub(super) version: Version,
    pub(super) all: Vec<StoredOverride>,
    /// Older ones that are not among all, because there are too many.
    pub(super) left_out: usize,
    /// Number of overrides that cannot be read.
    pub(super) unreadable: usize,
    /// Ids of the first of these, and the problem with each.
    pub(super) errors: Vec<(String, String)>,
    /// The records of those that have ended, in any order.
    pub(super) ended: Vec<Record>,
}

/// A change, which is made in one step.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    /// Added, and replaces one with its id.
    pub(super) set: Option<Override>,
    /// The records of those that end, each with the text of the override: one that was changed
    /// meanwhile stays. An empty text is any.
    pub(super) ended: Vec<(Record, Box<str>)>,
    /// Written if there is nothing.
    pub(super) restored: Vec<StoredOverride>,
    /// A counter was reset, which concerns all replicas.
    pub(super) is_reset: bool,
}

impl Version {
    pub(super) fn random() -> String {
        format!("{:032x}", random::bits())
    }
}

impl Versioned {
    /// Adds the records that were read, and drops older ones where there are too many.
    pub(super) fn add(
        &mut self,
        id: impl FnOnce() -> String,
        read: Result<StoredOverride, String>,
    ) {
        match read {
            Ok(stored) => self.all.push(stored),
            Err(error) => {
                self.unreadable += 1;
                if self.errors.len() < MAX_NAMED {
                    self.errors.push((id(), error));
                }
            }
        }
        if self.all.len() >= 2 * MAX_OVERRIDES {
            self.keep_newest();
        }
    }

    /// Keeps the newest [`MAX_OVERRIDES`], each once, and in addition [`MAX_ENDED`] that have
    /// expired and are to be swept.
    pub(super) fn keep_newest(&mut self) {
        let (now, all) = (clock::now(), &mut self.all);
        all.sort_unstable_by(|one, other| one.order().cmp(&other.order()));
        // A page of Redis may repeat one.
        all.dedup_by(|stored, before| stored.one == before.one);
        let (before, mut kept) = (all.len(), [0, 0]);
        all.retain(|stored| {
            let has_expired = usize::from(stored.one.has_ended(now));
            kept[has_expired] += 1;
            kept[has_expired] <= [MAX_OVERRIDES, MAX_ENDED][has_expired]
        });
        self.left_out += before - all.len();
    }

    pub(super) fn apply(&mut self, change: Change) {
        self.version = Version(Version::random().into_bytes());
        self.all.retain(|stored| !change.replaces(&stored.one.id));
        let ended = change.ended.into_iter().map(|(record, _)| record);
        keep_ended(&mut self.ended, ended);
        let set = change.set.map(|one| StoredOverride::new(one, ""));
        self.all.extend(set);
    }
}

impl Change {
    /// Whether the override of this id ends or is set anew.
    pub(super) fn replaces(&self, id: &str) -> bool {
        let is_set = self.set.as_ref().is_some_and(|one| *one.id == *id);
        is_set || self.ended.iter().any(|(record, _)| record.id == id)
    }
}

impl StoredOverride {
    /// One with this text in Redis; elsewhere it is empty.
    pub(super) fn new(one: Override, text: &str) -> Self {
        Self {
            one: one.into(),
            text: text.into(),
        }
    }

    /// The newest come first.
    fn order(&self) -> (Reverse<Micros>, &str) {
        (Reverse(self.one.created_at), &self.one.id)
    }

    /// The record of one that has expired.
    pub(super) fn expired(&self) -> Record {
        Record::ended(&self.one, Micros(u64::MAX), "")
    }
}

/// The earliest end that is kept.
pub(super) fn oldest_end() -> Micros {
    Micros(clock::now().0.saturating_sub(ENDED_KEPT.micros()))
}

/// Adds records that ended, and drops the oldest. They are in the order of their ends then.
pub(super) fn keep_ended(all: &mut Vec<Record>, more: impl IntoIterator<Item = Record>) {
    let (oldest, end) = (oldest_end(), |record: &Record| {
        parse_instant(&record.ended.as_ref()?.at).ok()
    });
    all.extend(more);
    all.retain(|record| end(record) > Some(oldest));
    all.sort_by_cached_key(end);
    all.drain(..all.len().saturating_sub(MAX_ENDED));
}

/// The problem with a record that is too long.
pub(super) fn too_long() -> String {
    let most = MAX_RECORD_BYTES >> 10;
    format!("it is longer than {most} KiB; shorten it")
}

/// The longest id that a person may give an override.
const MAX_ID_BYTES: usize = 64;

/// Reads one record of at most so many bytes. `id` is the name under which it is kept, where it has
/// one.
pub(super) fn read_record(id: Option<&str>, text: &str, most: usize) -> Result<Override, String> {
    if text.len() > most {
        return Err(too_long());
    }
    let record: Record = serde_json::from_str(text)
        .map_err(|error| format!("it is no override in JSON: {error}"))?;
    let mut one = record.read().map_err(|error| error.0)?;
    let own = Some(&*record.id).filter(|own| !own.is_empty());
    if let Some(id) = id.or(own) {
        let is_part_of_id = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if id.is_empty() || id.len() > MAX_ID_BYTES || !id.bytes().all(is_part_of_id) {
            let what = "letters, digits, and characters of ._-";
            return Err(format!("an id has 1 to {MAX_ID_BYTES} {what}"));
        }
        one.id = id.into();
    }
    Ok(one)
}
