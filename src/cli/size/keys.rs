//! The memory of a key: in Redis by its structures and the size classes of its allocator, in memory
//! by what was measured.
//!
//! The model is Redis 7.0 with an allocator whose classes are 16 bytes apart, as Debian builds it.
//! The images of Redis have classes of 8 bytes and need a little less; Redis 8 and Valkey 8 have
//! smaller structures. `tests/it/size.rs` compares the model with a real server.

use std::time::Duration;

use super::costs;
use super::measured::USAGE_BYTES;
use crate::core::algorithm::AlgorithmKind;
use crate::core::usage;

/// A key, as far as its memory depends on it.
#[derive(Clone, Copy, Debug)]
pub struct KeyShape {
    /// Its algorithm.
    pub algorithm: AlgorithmKind,
    /// Bytes of its name in Redis, without the number of a fixed window.
    pub bytes: u32,
    /// Entries of a log, buckets with hits, or requests in flight; without a meaning for the
    /// others.
    pub entries: u32,
    /// The window of its limit.
    pub window: Duration,
}

/// A Redis value begins with 16 bytes. One of up to 44 bytes is in one piece with them, behind a
/// header of 3 bytes, and ends with a zero.
const OBJECT: u64 = 16;
const LONGEST_EMBEDDED: u64 = 44;

/// An entry of a hash table: key, value, next. Every key of Weir is in two tables, of which the
/// second has its expiry.
const TABLE_ENTRY: u64 = 24;
const TABLES: u64 = 2;
const TABLE_SLOT: f64 = 8.0;

/// Slots of a table for each key, right after it was doubled.
const MOST_SLOTS: f64 = 2.0;

/// Bytes of the states that are one packed text (`lua/`).
const BUCKET_STATE: u64 = 24;
const COUNTER_STATE: u64 = 32;

/// The text of a log: a header, which has the newest entry, and cells for the others
/// (`lua/log.lua`).
const LOG_HEADER: u64 = 39;
const LOG_CELL: u64 = 10;
const RING_CELL: u64 = 13;

/// A sorted set of up to so many members is one text (`zset-max-listpack-entries`): a header, and
/// for a holder its id and its time, each with its length before and behind it.
const LISTED_HOLDERS: u64 = 128;
const LIST_HEADER: u64 = 7;
const LIST_HOLDER: u64 = 28;
const HOLDER_ID: u64 = 16;

/// A holder in the memory store: an entry in each of two trees, whose nodes may be half empty.
const MEMORY_HOLDER: f64 = 110.0;

/// Seconds by which the key of a fixed window outlives the window, and the longest random time on
/// top (`EXPIRATION_JITTER_MAX_SECONDS`).
const GRACE_SECS: f64 = 5.0;
const JITTER_SECS: f64 = 300.0;

/// A usage record: its header, and a cell for each closed bucket (`src/core/usage/stored.rs`).
const RECORD_HEADER: u64 = 105;
const RECORD_CELL: u64 = 18;

/// A text that SETRANGE makes longer gets space for as much again, up to a megabyte.
const SETRANGE_ROOM: u64 = 2;

/// The lists of a limit: sorted sets, of which each has an entry of a table, the subject, and a
/// node of a skiplist: 24 bytes and 16 for each of its levels, of which a quarter of the nodes has
/// each next one.
const LISTS: f64 = 4.0;
const NODE_BYTES: f64 = 53.5;

/// Subjects of a list (`usage_subjects`).
const LISTED_SUBJECTS: f64 = 10_000.0;

/// The order of magnitude of the time, which numbers windows: January 2027.
const SECONDS_SINCE_1970: u64 = 1_800_000_000;

/// Expired keys that Redis has not deleted yet, as a share of all: its default effort tolerates a
/// tenth.
const EXPIRED: f64 = 0.1;

/// Bytes that Redis counts for a key in a server with `keys` of them; at most, if their number is
/// not given.
#[must_use]
pub fn redis_bytes(shape: &KeyShape, keys: Option<f64>) -> f64 {
    let name = allocated(text_bytes(u64::from(shape.bytes) + window_bytes(shape)));
    let cells = u64::from(shape.entries.max(1)) - 1;
    let log = |cell: u64| value_bytes(LOG_HEADER + log_room(cells) * cell);
    let value = match shape.algorithm {
        // Counts below 10,000 are objects that Redis shares.
        AlgorithmKind::FixedWindow => 0,
        AlgorithmKind::TokenBucket | AlgorithmKind::LeakyBucket => value_bytes(BUCKET_STATE),
        AlgorithmKind::SlidingWindowCounter => value_bytes(COUNTER_STATE),
        AlgorithmKind::SlidingWindowLog => log(LOG_CELL),
        AlgorithmKind::SlidingWindowBuckets => log(RING_CELL),
        AlgorithmKind::Concurrency => holders_bytes(cells + 1),
    };
    // A table has a power of two of slots, at least one for each key.
    let slots = keys.map_or(MOST_SLOTS, |keys| {
        keys.max(1.0).log2().ceil().exp2() / keys.max(1.0)
    });
    (TABLES * allocated(TABLE_ENTRY) + name + value) as f64 + TABLES as f64 * TABLE_SLOT * slots
}

/// The sorted set of so many holders: one text while they are few, later a skiplist and a table
/// (`lua/concurrency.lua`).
fn holders_bytes(holders: u64) -> u64 {
    if holders <= LISTED_HOLDERS {
        return allocated(OBJECT) + allocated(LIST_HEADER + holders * LIST_HOLDER);
    }
    let each = allocated(TABLE_ENTRY)
        + allocated(text_bytes(HOLDER_ID))
        + (NODE_BYTES + TABLE_SLOT * MOST_SLOTS) as u64;
    allocated(OBJECT) + holders * each
}

/// Bytes that Redis counts for the usage record of a subject with so many buckets, in a server with
/// many of them, at most. `name` is the length of its counter's key, which is about as long.
#[must_use]
pub fn record_bytes(name: u32, buckets: u32) -> f64 {
    let cells = u64::from(buckets.max(1)) - 1;
    let length = RECORD_HEADER + cells * RECORD_CELL;
    let room = if cells == 0 {
        length
    } else {
        SETRANGE_ROOM * length
    };
    let value = allocated(OBJECT) + allocated(text_bytes(room));
    (TABLES * allocated(TABLE_ENTRY) + allocated(text_bytes(name.into())) + value) as f64
        + TABLES as f64 * TABLE_SLOT * MOST_SLOTS
}

/// Bytes of the lists of `limits` limits that have so many subjects together, at most: each list
/// has 10,000 by default.
#[must_use]
pub fn lists_bytes(name: u32, subjects: f64, limits: u32) -> f64 {
    let entry = allocated(TABLE_ENTRY) + allocated(text_bytes(name.into()));
    subjects.min(LISTED_SUBJECTS * f64::from(limits.max(1)))
        * LISTS
        * (entry as f64 + NODE_BYTES + TABLE_SLOT * MOST_SLOTS)
}

/// Bytes of a usage record in the memory store.
#[must_use]
pub fn memory_record_bytes(buckets: u32) -> f64 {
    let [one, all] = USAGE_BYTES;
    costs::straight(
        &[
            (1.0, one),
            (f64::from(usage::Settings::default().buckets), all),
        ],
        f64::from(buckets),
    )
}

/// The colon and the number of the window in the key of a fixed window.
fn window_bytes(shape: &KeyShape) -> u64 {
    if shape.algorithm != AlgorithmKind::FixedWindow {
        return 0;
    }
    let number = SECONDS_SINCE_1970 / shape.window.as_secs().max(1);
    2 + u64::from(number.max(1).ilog10())
}

/// How many keys Redis has for each key of a window: those of past fixed windows wait for their
/// expiry. The others continue in the same key.
#[must_use]
pub fn redis_copies(shape: &KeyShape) -> f64 {
    if shape.algorithm != AlgorithmKind::FixedWindow {
        return 1.0;
    }
    let window = shape.window.as_secs_f64();
    let life = window + GRACE_SECS + JITTER_SECS.min(window) / 2.0;
    life / window / (1.0 - EXPIRED)
}

/// Bytes of a key in the memory store.
#[must_use]
pub fn memory_bytes(shape: &KeyShape) -> f64 {
    let measured = costs::of(shape.algorithm).memory_bytes;
    match shape.algorithm {
        // A log begins with space for four entries of 16 bytes, and doubles it.
        AlgorithmKind::SlidingWindowLog => {
            measured + (f64::from(shape.entries.max(4).next_power_of_two()) - 4.0) * 16.0
        }
        // Two trees of at most half-empty nodes.
        AlgorithmKind::Concurrency => {
            measured + f64::from(shape.entries.max(4) - 4) * MEMORY_HOLDER
        }
        _ => measured,
    }
}

/// Cells for which a log has space that has grown to `cells`: one that is full gets space for an
/// eighth more and two. A log that slides has up to so much more.
fn log_room(cells: u64) -> u64 {
    let mut room = 2;
    while room < cells {
        room = room + 1 + (room + 1) / 8 + 2;
    }
    room
}

/// A value with its object.
fn value_bytes(length: u64) -> u64 {
    if length <= LONGEST_EMBEDDED {
        allocated(OBJECT + 3 + length + 1)
    } else {
        allocated(OBJECT) + allocated(text_bytes(length))
    }
}

/// A text of Redis: a header whose size depends on the length, and a zero behind it.
fn text_bytes(length: u64) -> u64 {
    let header = match length {
        0..32 => 1,
        32..256 => 3,
        256..65_536 => 5,
        _ => 9,
    };
    header + length + 1
}

/// What the allocator takes for a size: steps of 16 bytes up to 128, then four steps to each
/// doubling.
fn allocated(bytes: u64) -> u64 {
    match bytes {
        0..=8 => 8,
        9..=128 => bytes.next_multiple_of(16),
        _ => bytes.next_multiple_of(1 << ((bytes - 1).ilog2() - 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_grow_by_an_eighth() {
        for (cells, room) in [(0, 2), (2, 2), (3, 5), (8, 8), (9, 12), (100, 103)] {
            assert_eq!(log_room(cells), room, "{cells}");
        }
    }

    #[test]
    fn sizes_are_those_of_the_allocator() {
        for (bytes, size) in [
            (1, 8),
            (8, 8),
            (9, 16),
            (24, 32),
            (128, 128),
            (129, 160),
            (160, 160),
            (161, 192),
            (256, 256),
            (257, 320),
            (513, 640),
            (1_024, 1_024),
            (1_025, 1_280),
            (1_281, 1_536),
        ] {
            assert_eq!(allocated(bytes), size, "{bytes}");
        }
    }
}
