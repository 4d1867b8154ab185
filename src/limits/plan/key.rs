//! Counter keys: injective, readable, of bounded length.
//!
//! ```text
//! <prefix>w1{<domain>|<key>=<value>|<key>~<pattern>|<key>#<digest>}fw60
//! <prefix>w1{<domain>}|<key>=<value>|<key>~<pattern>|<key>#<digest>}fw60
//! ```
//!
//! Two different (domain, path of entries, algorithm) never have the same key, whatever bytes a
//! client sends: separators are percent-encoded inside the parts, and a long part is replaced by
//! its SHA-256 after a mark that no short part can contain. The text between the first brace and
//! the first closing one is the hash tag of Redis Cluster: the subject, or in a domain with
//! `commit: all_or_none` (the second line) the domain, whose checks one script call has to decide.
//! The store appends the window number.

pub(crate) mod subject;

pub use subject::EntryText;
pub(crate) use subject::{Part, Subject, SubjectEntry};

use crate::core::algorithm::Algorithm;
use crate::core::digest::{LONGEST_PLAIN, push_hex, sha256};
use crate::core::request::Entry;
use crate::limits::rules::Commit;
use crate::limits::rules::address::{self, AddressText};
use crate::limits::rules::limit::{Level, Matching};

/// The version of this format. A new version resets all counters.
pub(super) const VERSION: &[u8] = b"w1";

pub(super) const VALUE: u8 = b'=';
const PATTERN: u8 = b'~';
const DIGEST: u8 = b'#';

/// Tag that follows the subject in the keys of checks that take no part in the decision, before the
/// rest. No algorithm has it.
pub(super) const APART: &[u8] = b"tr";

/// The subject of a record's key, or of a counter's: the text between its braces. A brace closes
/// after the domain where the domain is the hash tag.
pub(crate) fn subject(key: &[u8]) -> &[u8] {
    let subject = up_to_subject(key);
    let subject = subject.strip_suffix(b"}").unwrap_or(subject);
    let begin = subject.iter().position(|&byte| byte == b'{');
    begin.map_or(subject, |begin| &subject[begin + 1..])
}

/// A counter key up to the end of its subject. Parts have no braces: a path follows the first
/// closing one only where the domain alone is the hash tag.
pub(super) fn up_to_subject(counter: &[u8]) -> &[u8] {
    let is_end = |&at: &usize| counter[at] == b'}' && counter.get(at + 1) != Some(&b'|');
    let end = (0..counter.len()).find(is_end);
    end.map_or(counter, |end| &counter[..=end])
}

/// The bytes of a key, to allocate them at once: its length unless parts have to be escaped.
pub(super) fn capacity(prefix: &str, domain: &[u8], entries: &[Entry<'_>]) -> usize {
    let part_bytes = |text: &[u8]| text.len().min(LONGEST_PLAIN) + 2;
    let of_entry = |entry: &Entry<'_>| part_bytes(entry.key) + part_bytes(entry.value);
    let of_entries = entries.iter().map(of_entry).sum::<usize>();
    prefix.len() + part_bytes(domain) + of_entries + REST_BYTES
}

/// Maximum bytes of the version, the braces and the tag of the algorithm. The tag of a calendar may
/// be longer because of the name of its zone.
const REST_BYTES: usize = 29;

/// Appends a key to `out`. `levels` are the levels of the configured limit, where patterns may be
/// shared; empty for a limit of the request's own. Without an algorithm, where there is no limit,
/// nothing follows the subject. `commit` is the setting of the domain.
pub(crate) fn write(
    out: &mut Vec<u8>,
    prefix: &str,
    domain: &[u8],
    entries: &[Entry<'_>],
    levels: &[Level],
    algorithm: Option<&Algorithm>,
    commit: Commit,
) {
    out.extend_from_slice(prefix.as_bytes());
    out.extend_from_slice(VERSION);
    out.push(b'{');
    write_part(out, None, domain);
    if commit == Commit::AllOrNone && !entries.is_empty() {
        out.push(b'}');
    }
    for (index, entry) in entries.iter().enumerate() {
        out.push(b'|');
        match levels.get(index) {
            // The key may be a pattern too; both are written as they are in the file.
            Some(Level {
                is_shared: true,
                key,
                value,
                ..
            }) => {
                let value = value.as_deref().unwrap_or_default();
                write_part(out, None, key.as_bytes());
                write_part(out, Some(PATTERN), value.as_bytes());
            }
            Some(level) if level.matching.counts_addresses() => write_address(out, entry, level),
            _ => {
                write_part(out, None, entry.key);
                write_part(out, Some(VALUE), entry.value);
            }
        }
    }
    out.push(b'}');
    if let Some(algorithm) = algorithm {
        algorithm.write_key_tag(out);
    }
}

/// Appends an entry whose value may be an address: all spellings of one have the same counter, and
/// with `prefix` all IPv6 addresses of one network. That is the mark of a shared pattern: no
/// pattern, and none of the names of sets, networks and expressions, is the text of a network. Two
/// levels do not write the same network, because an address belongs to the one with the longest
/// prefix.
#[inline(never)]
fn write_address(out: &mut Vec<u8>, entry: &Entry<'_>, level: &Level) {
    let counted = Counted::new(entry.value, level);
    let mark = match counted {
        Counted::Network(_) => PATTERN,
        Counted::Value(_) | Counted::Address(_) => VALUE,
    };
    write_part(out, None, entry.key);
    write_part(out, Some(mark), counted.bytes());
}

/// The text that a level counts a value as.
pub(super) enum Counted<'v> {
    Value(&'v [u8]),
    /// An address, in its one canonical text.
    Address(AddressText),
    /// The network that groups an address.
    Network(AddressText),
}

impl<'v> Counted<'v> {
    pub(super) fn new(value: &'v [u8], level: &'v Level) -> Self {
        if !level.matching.counts_addresses() {
            return Self::Value(value);
        }
        let Some(address) = address::read(value) else {
            return Self::Value(value);
        };
        let written = level.value.as_deref();
        let counted = match level.matching {
            // As it is written in the files, unless that is a pattern or no value at all.
            Matching::Address => written
                .filter(|written| !written.contains('*'))
                .map(|written| Self::Value(written.as_bytes())),
            Matching::Cidr { prefix } => prefix
                .and_then(|prefix| address::group(address, prefix))
                .map(|network| Self::Network(address::text(network))),
            _ => None,
        };
        counted.unwrap_or_else(|| Self::Address(address::text(address)))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Value(value) => value,
            Self::Address(text) | Self::Network(text) => text,
        }
    }
}

/// Appends the key of the counter of a subject up to the end of the subject, which names it.
pub(super) fn write_subject(out: &mut Vec<u8>, prefix: &str, subject: &[u8], commit: Commit) {
    let is_behind_domain = |&byte: &u8| byte == b'|' && commit == Commit::AllOrNone;
    let domain = subject.iter().position(is_behind_domain);
    let (domain, path) = subject.split_at(domain.unwrap_or_default());
    let brace: &[u8] = if domain.is_empty() { b"" } else { b"}" };
    for part in [prefix.as_bytes(), VERSION, b"{", domain, brace, path, b"}"] {
        out.extend_from_slice(part);
    }
}

/// The key of the overrides. No counter key has a separator directly after the brace, because no
/// domain is empty.
pub fn of_overrides(prefix: &str) -> Vec<u8> {
    [prefix.as_bytes(), VERSION, b"{|overrides}"].concat()
}

/// Appends one part after its mark. The mark of a digest replaces [`VALUE`], and follows
/// [`PATTERN`].
pub(super) fn write_part(out: &mut Vec<u8>, mark: Option<u8>, text: &[u8]) {
    if text.len() > LONGEST_PLAIN {
        // The digest of a pattern differs from the digest of the same text as a value.
        out.extend(mark.filter(|&mark| mark == PATTERN));
        out.push(DIGEST);
        push_hex(out, &sha256(text));
        return;
    }
    out.extend(mark);
    let mut rest = text;
    // Most parts need no escape and are copied at once.
    while let Some(index) = rest.iter().position(|&byte| is_escaped(byte)) {
        let byte = rest[index];
        out.extend_from_slice(&rest[..index]);
        out.push(b'%');
        out.extend([byte >> 4, byte & 15].map(|nibble| b"0123456789abcdef"[usize::from(nibble)]));
        rest = &rest[index + 1..];
    }
    out.extend_from_slice(rest);
}

/// The separators between parts, and the escape character.
#[inline]
const fn is_escaped(byte: u8) -> bool {
    // A look-up for each byte of a key takes half as long as seven comparisons.
    ESCAPED[byte as usize]
}

static ESCAPED: [bool; 256] = {
    let mut escaped = [false; 256];
    let mut rest: &[u8] = &[b'%', b'{', b'}', b'|', VALUE, PATTERN, DIGEST];
    while let [byte, behind @ ..] = rest {
        escaped[*byte as usize] = true;
        rest = behind;
    }
    escaped
};

#[cfg(test)]
mod tests;
