//! A table of records next to the counters, bounded in bytes.
//!
//! When it is full, the record that was idle for longest is dropped. It consists of many small
//! tables, each with a mutex that is held for one step, and for a walk over its records when it is
//! swept or searched.

use std::sync::{Mutex, OnceLock};

use lru::LruCache;

use crate::core::fingerprint::Fingerprint;
use crate::core::lock;
use crate::core::time::Micros;

/// The number of tables; a power of two.
const TABLES: usize = 256;

/// Cost of a record in addition to itself and its key: the pointers of the list and the map.
const OVERHEAD: usize = 64;

/// A record of a table.
pub(super) trait Bounded {
    /// The bytes that it takes in memory.
    fn bytes(&self) -> usize;

    /// Whether it means the same as none at `now`.
    fn is_expired(&self, now: Micros) -> bool;
}

/// All records.
#[derive(Debug)]
pub(super) struct BoundedTable<R> {
    /// Made for the first record: most stores have none.
    tables: OnceLock<Box<[Mutex<Part<R>>]>>,
    max_bytes: usize,
}

#[derive(Debug)]
struct Part<R> {
    /// The one that was idle for longest comes last.
    records: LruCache<Box<[u8]>, R>,
    bytes: usize,
    evicted: u64,
}

/// The size of all records, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSize {
    /// Records, with expired ones that were not swept yet.
    pub records: usize,
    /// Bytes of these records.
    pub bytes: usize,
    /// Records that were dropped because their memory was full.
    pub evicted: u64,
}

impl<R: Bounded> BoundedTable<R> {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            tables: OnceLock::new(),
            max_bytes,
        }
    }

    /// Steps the record under a key, or else the record `new`, and drops others while there
    /// are too many bytes. A record that has expired after its step is removed.
    pub(super) fn step<T>(
        &self,
        key: &[u8],
        now: Micros,
        new: impl FnOnce() -> R,
        step: impl FnOnce(&mut R) -> T,
    ) -> T {
        let tables = self.tables.get_or_init(|| {
            let part = |_| Part {
                records: LruCache::unbounded(),
                bytes: 0,
                evicted: 0,
            };
            (0..TABLES).map(part).map(Mutex::new).collect()
        });
        let mut part = lock(&tables[part_of(key)]);
        let result = match part.records.get_mut(key) {
            Some(record) if !record.is_expired(now) => {
                let before = record.bytes();
                let result = step(record);
                let (after, has_expired) = (record.bytes(), record.is_expired(now));
                part.bytes = part.bytes - before + after;
                if has_expired {
                    part.remove(key);
                }
                result
            }
            _ => {
                part.remove(key);
                let mut record = new();
                let result = step(&mut record);
                if !record.is_expired(now) {
                    part.bytes += OVERHEAD + key.len() + record.bytes();
                    part.records.put(key.into(), record);
                }
                result
            }
        };
        // The one that was just written stays, however large it is.
        while part.bytes > self.max_bytes / TABLES && part.records.len() > 1 {
            let Some((key, record)) = part.records.pop_lru() else {
                break;
            };
            part.bytes -= OVERHEAD + key.len() + record.bytes();
            part.evicted += 1;
        }
        result
    }

    /// Reads the record under a key.
    pub(super) fn read<T>(&self, key: &[u8], now: Micros, read: impl FnOnce(&R) -> T) -> Option<T> {
        let part = lock(&self.tables.get()?[part_of(key)]);
        let record = part.records.peek(key);
        record.filter(|record| !record.is_expired(now)).map(read)
    }

    /// Visits all records with their keys.
    pub(super) fn each(&self, now: Micros, mut visit: impl FnMut(&[u8], &R)) {
        for part in self.tables.get().into_iter().flatten() {
            let part = lock(part);
            let all = part.records.iter();
            all.filter(|(_, record)| !record.is_expired(now))
                .for_each(|(key, record)| visit(key, record));
        }
    }

    /// Removes the expired records of part `part` of `parts` parts.
    pub(super) fn sweep(&self, part: usize, parts: usize, now: Micros) {
        let range = part * TABLES / parts..(part + 1) * TABLES / parts;
        let tables = self.tables.get().map_or(&[][..], |tables| &tables[range]);
        for part in tables {
            let mut part = lock(part);
            let all = part.records.iter();
            let expired = all.filter(|(_, record)| record.is_expired(now));
            let expired: Vec<_> = expired.map(|(key, _)| key.clone()).collect();
            for key in expired {
                part.remove(&key);
            }
        }
    }

    /// Locks each table in turn.
    pub(super) fn size(&self) -> TableSize {
        let mut size = TableSize::default();
        for part in self.tables.get().into_iter().flatten() {
            let part = lock(part);
            size.records += part.records.len();
            size.bytes += part.bytes;
            size.evicted += part.evicted;
        }
        size
    }
}

impl<R: Bounded> Part<R> {
    fn remove(&mut self, key: &[u8]) {
        if let Some(record) = self.records.pop(key) {
            self.bytes -= OVERHEAD + key.len() + record.bytes();
        }
    }
}

/// The table of a record.
fn part_of(key: &[u8]) -> usize {
    Fingerprint::of(key).half() as usize % TABLES
}
