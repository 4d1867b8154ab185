//! Texts of a subject: the path of its limit, and the key of its counter, which names domain and
//! entries.
//!
//! Both are bounded, because clients choose the values in a key. A long key is cut and followed by
//! its digest: two subjects stay distinct, and replicas agree.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::core::digest::{push_hex, sha256};
use crate::core::text::{self, MARK};
use crate::limits::plan::{Block, DecidedBy, Outcome, key};
use crate::limits::rules::limit::Limit;
pub use crate::observe::metrics::REQUEST_LIMIT;

/// The path of blocked subjects that have no limit.
pub const NO_LIMIT: &str = "(none)";

/// The longest path of a limit in bytes; a longer one is cut.
const MAX_PATH_BYTES: usize = 128;

/// The longest key in bytes that is kept whole.
const MAX_KEY_BYTES: usize = 254;

/// Bytes of a longer key that are kept, minus up to two bytes of an incomplete escape sequence.
const CUT_KEY_BYTES: usize = 208;

/// The bytes of a digest that are kept: no two keys share 128 bits of SHA-256.
const DIGEST_BYTES: usize = 16;

/// The longest text of a subject.
pub(crate) const MAX_BYTES: usize = MAX_PATH_BYTES + 1 + MAX_KEY_BYTES;

/// First byte of a key that is whole. A cut key begins with [`CUT`].
const WHOLE: u8 = b'=';
const CUT: u8 = b'~';

/// A limited subject, and its limit.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
pub struct LimitedSubject {
    /// Path of the limit; truncated if it is long.
    pub limit: String,
    pub domain: String,
    /// Keys and values; the pattern if values share a counter.
    pub entries: Vec<key::EntryText>,
    /// Exact name of the subject, which calls accept instead of domain and entries; null if it is
    /// too long.
    #[serde(rename = "subject")]
    pub name: Option<String>,
}

impl LimitedSubject {
    /// The exact name; of a subject without one, its domain and entries, whose digest tells it from
    /// others.
    pub fn label(&self) -> String {
        let entries = self.entries.iter().map(|entry| format!("|{entry}"));
        let own = || self.domain.clone() + &entries.collect::<String>();
        self.name.clone().unwrap_or_else(own)
    }
}

/// The limit of a subject.
#[derive(Clone, Copy)]
pub(super) enum Path<'r> {
    /// A configured limit.
    Limit(&'r Limit),
    /// A limit in the request itself.
    Request,
    /// No limit: an override blocks the subject.
    NoLimit,
}

impl<'r> Path<'r> {
    /// The limit of a descriptor with a counter.
    #[cold]
    pub(super) const fn of(outcome: &Outcome<'r>) -> Self {
        match (outcome.limit, outcome.by) {
            (Some(found), _) => Self::Limit(found.limit),
            (None, DecidedBy::Block(Block { rate: None, .. })) => Self::NoLimit,
            (None, _) => Self::Request,
        }
    }
}

/// Appends the path and the key of a subject to `texts`. Returns the length of each.
pub(super) fn write(texts: &mut Vec<u8>, path: Path<'_>, key: &[u8]) -> (usize, usize) {
    let start = texts.len();
    match path {
        Path::Limit(limit) => write_path(texts, limit),
        Path::Request => texts.extend_from_slice(REQUEST_LIMIT.as_bytes()),
        Path::NoLimit => texts.extend_from_slice(NO_LIMIT.as_bytes()),
    }
    let path = texts.len() - start;
    if key.len() <= MAX_KEY_BYTES {
        texts.push(WHOLE);
        texts.extend_from_slice(key);
    } else {
        texts.push(CUT);
        let kept = &key[..CUT_KEY_BYTES];
        // An escape sequence has three bytes.
        let end = kept[CUT_KEY_BYTES - 2..]
            .iter()
            .position(|&byte| byte == b'%')
            .map_or(CUT_KEY_BYTES, |at| CUT_KEY_BYTES - 2 + at);
        texts.extend_from_slice(&kept[..end]);
        push_hex(texts, &sha256(key)[..DIGEST_BYTES]);
    }
    (path, texts.len() - start - path)
}

/// Writes the same text as [`Limit::path`], without an allocation of its own.
fn write_path(texts: &mut Vec<u8>, limit: &Limit) {
    let start = texts.len();
    add(texts, start, &limit.domain);
    for level in &limit.levels {
        add(texts, start, ".");
        add(texts, start, &level.key);
        if let Some(value) = &level.value {
            add(texts, start, "_");
            add(texts, start, value);
        }
    }
    cut(texts, start);
}

/// A path of a limit as [`write`] writes it.
pub(super) fn path(limit: &str) -> Vec<u8> {
    let mut path = Vec::new();
    add(&mut path, 0, limit);
    cut(&mut path, 0);
    path
}

/// Adds to the path that begins at `start`. If the path is too long, one byte too many is kept, as
/// a sign for [`cut`].
fn add(texts: &mut Vec<u8>, start: usize, part: &str) {
    let room = (MAX_PATH_BYTES + 1).saturating_sub(texts.len() - start);
    texts.extend_from_slice(&part.as_bytes()[..part.len().min(room)]);
}

/// Cuts the path that begins at `start`, between two characters.
fn cut(texts: &mut Vec<u8>, start: usize) {
    let path = &texts[start..];
    if path.len() > MAX_PATH_BYTES {
        let kept = text::cut(path, MAX_PATH_BYTES - MARK.len()).len();
        texts.truncate(start + kept);
        texts.extend_from_slice(MARK.as_bytes());
    }
}

/// Reads the output of [`write`].
pub(super) fn read(path: &[u8], key: &[u8]) -> LimitedSubject {
    let (mark, key) = key.split_first().unwrap_or((&WHOLE, &[]));
    let is_cut = *mark == CUT;
    let (key, digest) = if is_cut {
        key.split_at(key.len().saturating_sub(2 * DIGEST_BYTES))
    } else {
        (key, &[][..])
    };
    let subject = key::Subject::of_key(key);
    let mut entries = subject.texts();
    if is_cut && let Some(key::EntryText { value, .. }) = entries.last_mut() {
        value.push_str(MARK);
        value.push_str("sha256:");
        value.push_str(&String::from_utf8_lossy(digest));
    }
    LimitedSubject {
        limit: String::from_utf8_lossy(path).into_owned(),
        domain: subject.domain.to_string(),
        entries,
        name: (!is_cut).then(|| subject.to_string()),
    }
}
