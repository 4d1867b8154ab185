//! Overrides as they are kept: what is read and changed, wherever that is.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::sync::Arc;

use crate::core::time::{Micros, Span};
use crate::limits::overrides::{MAX_OVERRIDES, MAX_RECORD_BYTES, Override, Record, parse_instant};
use crate::net::clock;
use crate::store::redis::Direct;

/// Overrides that have ended and are kept, as records of at most [`MAX_RECORD_BYTES`].
pub(crate) const MAX_ENDED: usize = 1_000;

/// How long they are kept.
pub(super) const ENDED_KEPT: Span = Span::from_secs(7 * 86_400);

/// Where overrides are kept.
#[derive(Debug)]
pub enum Keeping {
    /// In this process, until it ends.
    Process,
    /// In this file (`OVERRIDES_FILE`).
    File(PathBuf),
    /// In Redis, in one hash under this key.
    Redis(Direct, Vec<u8>),
}

/// Identifies a state of a place: equal marks, equal overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark(pub(super) Vec<u8>);

/// The mark begins so after the reset of a counter, which changes no override.
pub(super) const RESET: &str = "reset";

/// Unreadable overrides that are named when they are found; all of them are counted.
const MAX_NAMED: usize = 10;

/// An override, and its text in Redis.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// Shared with those in force.
    pub(super) one: Arc<Override>,
    pub(super) text: Box<str>,
}

/// Everything that was read, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) mark: Mark,
    pub(super) all: Vec<Kept>,
    /// Older ones that are not among all, because there are too many.
    pub(super) left_out: usize,
    /// How many cannot be read.
    pub(super) unreadable: usize,
    /// Ids of the first of these, and what is wrong with each.
    pub(super) errors: Vec<(String, String)>,
    /// The records of those that have ended, in any order.
    pub(super) ended: Vec<Record>,
}

impl Reading {
    /// Adds what was read, and drops older ones where there are too many.
    pub(super) fn add(&mut self, id: impl FnOnce() -> String, read: Result<Kept, String>) {
        match read {
            Ok(kept) => self.all.push(kept),
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

    /// Keeps the newest [`MAX_OVERRIDES`], each once, and beside them [`MAX_ENDED`] that have ended
    /// and are to be swept.
    pub(super) fn keep_newest(&mut self) {
        let (now, all) = (clock::now(), &mut self.all);
        all.sort_unstable_by(|Kept { one, .. }, Kept { one: other, .. }| {
            (Reverse(one.created_at), &one.id).cmp(&(Reverse(other.created_at), &other.id))
        });
        // A page of Redis may repeat one.
        all.dedup_by(|one, before| one.one == before.one);
        let (before, mut kept) = (all.len(), [0, 0]);
        all.retain(|Kept { one, .. }| {
            let has_ended = usize::from(one.has_ended(now));
            kept[has_ended] += 1;
            kept[has_ended] <= [MAX_OVERRIDES, MAX_ENDED][has_ended]
        });
        self.left_out += before - all.len();
    }
}

/// A change.
#[derive(Debug)]
pub(super) enum Change {
    /// Adds this one, in the place of one with its id.
    Set(Box<Record>),
    /// Removes the one of this record, which says so.
    Remove(Box<Record>),
    /// Only removes those that have ended.
    Sweep,
    /// Writes all of these, if there is nothing.
    Restore(Vec<Kept>),
    /// Changes none, but tells all replicas that a counter was reset.
    Reset,
}

impl Change {
    /// The records of those that have ended with it, each once. `ended` are those that ended by
    /// themselves.
    pub(super) fn past(&self, ended: &[Kept]) -> Vec<Record> {
        let removed = match self {
            Self::Remove(record) => Some(&**record),
            _ => None,
        };
        let by_themselves = ended
            .iter()
            .filter(|kept| removed.is_none_or(|record| *record.id != *kept.one.id))
            .map(Kept::expired);
        by_themselves.chain(removed.cloned()).collect()
    }
}

impl Kept {
    /// The record of one that has ended by itself.
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

/// What is wrong with a record that is too long.
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
            return Err(format!(
                "an id has 1 to {MAX_ID_BYTES} letters, digits, and characters of ._-"
            ));
        }
        one.id = id.into();
    }
    Ok(one)
}
