//! A record as `lua/usage.lua` stores it: a header with the open bucket, and behind it the cells of
//! the closed ones.
//!
//! The header is one byte, [`VERSION`], and thirteen numbers as little-endian doubles: the expiry
//! of the key in milliseconds; the length of a bucket; the number of buckets; `base`; `current`;
//! the three totals; when it was first and last seen; the open bucket. A cell is three numbers of
//! six bytes, little-endian.
//!
//! A hit reads and writes 105 bytes, and a cell only when a bucket ends. With Redis 7.0, 32 records
//! in one call took 3.0 µs each. Reading the whole string took 3.8 µs with 60 buckets and 28 µs
//! with 1,000, three HINCRBY on a hash 4.6 µs, HMGET and HSET 6.4 µs.

use super::{Hits, MOST_BUCKETS, Record};
use crate::core::time::{MAX_SAFE_INTEGER, Micros};

/// The first byte of a stored record.
pub const VERSION: u8 = 1;

const NUMBERS: usize = 13;
const NUMBER_BYTES: usize = 8;

/// The bytes before the cells.
pub const HEADER_BYTES: usize = 1 + NUMBERS * NUMBER_BYTES;

/// Bytes of one number of a cell.
const CELL_NUMBER_BYTES: usize = 6;
const CELL_BYTES: usize = 3 * CELL_NUMBER_BYTES;

impl Record {
    /// Reads a stored record. `None`: it is none, and the next step replaces it.
    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        let (&version, rest) = bytes.split_first()?;
        let (numbers, cells) = rest.split_at_checked(NUMBERS * NUMBER_BYTES)?;
        let numbers = numbers.as_chunks::<NUMBER_BYTES>().0.iter();
        let mut numbers = numbers.map(|bytes| whole(f64::from_le_bytes(*bytes)));
        let mut number = || numbers.next().flatten();
        let _expiry = number()?;
        let (interval, buckets) = (number()?, u32::try_from(number()?).ok()?);
        let (base, current) = (number()?, number()?);
        let total = hits(&mut number)?;
        let (first_seen, last_seen) = (Micros(number()?), Micros(number()?));
        let open = hits(&mut number)?;
        let is_ring = (1..=MOST_BUCKETS).contains(&buckets) && interval > 0 && base <= current;
        if version != VERSION || !is_ring {
            return None;
        }
        let cells = cells.as_chunks::<CELL_BYTES>().0.iter();
        Some(Self {
            total,
            first_seen,
            last_seen,
            interval,
            buckets,
            base,
            current,
            open,
            cells: cells.take(buckets as usize).filter_map(cell).collect(),
        })
    }
}

/// Three numbers, in the order in which they are stored.
fn hits(mut number: impl FnMut() -> Option<u64>) -> Option<Hits> {
    Some(Hits {
        asked: number()?,
        refused: number()?,
        given_back: number()?,
    })
}

fn cell(bytes: &[u8; CELL_BYTES]) -> Option<Hits> {
    let mut numbers = bytes.as_chunks::<CELL_NUMBER_BYTES>().0.iter();
    hits(|| {
        let bytes = numbers.next()?.iter().rev();
        Some(bytes.fold(0, |number, &byte| (number << 8) | u64::from(byte)))
    })
}

fn whole(number: f64) -> Option<u64> {
    (number >= 0.0 && number.fract() == 0.0 && number <= MAX_SAFE_INTEGER as f64)
        .then_some(number as u64)
}
