//! Counter keys: injective, readable, of bounded length.
//!
//! ```text
//! <prefix>w1{<domain>|<key>=<value>|<key>~<pattern>|<key>#<digest>}fw60
//! ```
//!
//! Two different (domain, path of entries, algorithm) never share a key, whatever bytes a client sends: the characters that give a key its
//! shape are escaped inside its parts, and a long part is replaced by its SHA-256, marked by a character that no short part can hold. The
//! braces are the hash tag of Redis Cluster; what stands behind them does not move the key to another slot. The store appends the window.

use sha2::{Digest, Sha256};

use crate::algorithm::Algorithm;
use crate::ask::Entry;
use crate::rules::limit::Level;

/// The version of this format; a new one forgets all counters.
const VERSION: &[u8] = b"w1";

const MICROS_PER_SECOND: u64 = 1_000_000;

/// Longer parts are digested: twice the digest's own text, so that keys stay readable where they can.
const LONGEST_PART: usize = 128;

const VALUE: u8 = b'=';
const PATTERN: u8 = b'~';
const DIGEST: u8 = b'#';

/// Room for a key of which little has to be escaped. What is long is digested, and needs no room of its length.
pub(super) fn room(prefix: &str, domain: &[u8], entries: &[Entry<'_>]) -> usize {
    let part = |text: &[u8]| text.len().min(LONGEST_PART) + 2;
    prefix.len() + part(domain) + entries.iter().map(|entry| part(entry.key) + part(entry.value)).sum::<usize>() + ROOM_FOR_REST
}

/// The version, braces, and an algorithm's tag.
const ROOM_FOR_REST: usize = 28;

/// Appends a key to `out`. `levels` are those of the configured limit, for its shared patterns; none for a limit of the request's own.
pub(super) fn write(out: &mut Vec<u8>, prefix: &str, domain: &[u8], entries: &[Entry<'_>], levels: &[Level], algorithm: &Algorithm) {
    out.extend_from_slice(prefix.as_bytes());
    out.extend_from_slice(VERSION);
    out.push(b'{');
    part(out, None, domain);
    for (index, entry) in entries.iter().enumerate() {
        out.push(b'|');
        match levels.get(index) {
            // The pattern may be in the key as well; both stand as they are written in the file.
            Some(Level { share_threshold: true, key, value, .. }) => {
                part(out, None, key.as_bytes());
                part(out, Some(PATTERN), value.as_deref().unwrap_or_default().as_bytes());
            }
            _ => {
                part(out, None, entry.key);
                part(out, Some(VALUE), entry.value);
            }
        }
    }
    out.push(b'}');
    tag(out, algorithm);
}

/// The algorithm, its window in seconds, and what else gives its state a meaning.
fn tag(out: &mut Vec<u8>, algorithm: &Algorithm) {
    out.extend_from_slice(algorithm.spec().key_tag.as_bytes());
    // Windows are whole seconds; at a tick above a second, they are whole ticks.
    let secs = algorithm.window().micros() / MICROS_PER_SECOND;
    out.extend_from_slice(itoa::Buffer::new().format(secs).as_bytes());
    algorithm.write_key_suffix(out);
}

/// One part behind its mark. A digest takes the place of the mark, or stands in front where there is none.
fn part(out: &mut Vec<u8>, mark: Option<u8>, text: &[u8]) {
    if text.len() > LONGEST_PART {
        // A pattern is marked apart from the same text as a value, digested or not.
        out.extend(mark.filter(|&mark| mark == PATTERN));
        out.push(DIGEST);
        for byte in Sha256::digest(text) {
            out.extend([byte >> 4, byte & 15].map(|nibble| b"0123456789abcdef"[usize::from(nibble)]));
        }
        return;
    }
    out.extend(mark);
    let mut rest = text;
    // Most parts need no escape, and are copied whole.
    while let Some(place) = rest.iter().position(|&byte| gives_shape(byte)) {
        let byte = rest[place];
        out.extend_from_slice(&rest[..place]);
        out.push(b'%');
        out.extend([byte >> 4, byte & 15].map(|nibble| b"0123456789abcdef"[usize::from(nibble)]));
        rest = &rest[place + 1..];
    }
    out.extend_from_slice(rest);
}

/// The characters that stand between parts, and the one that escapes them.
const fn gives_shape(byte: u8) -> bool {
    matches!(byte, b'%' | b'{' | b'}' | b'|' | VALUE | PATTERN | DIGEST)
}

#[cfg(test)]
mod tests;
