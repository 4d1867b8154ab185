//! Reads the state of `sliding_window_buckets` as `lua/log.lua` stores it, for operators. Requests
//! never read it whole.

/// The buckets that have hits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredBuckets {
    /// The number of the bucket of the latest change.
    pub(crate) newest: u64,
    /// Numbers of buckets, and their hits.
    pub(crate) buckets: Vec<(u64, u64)>,
}

/// The sizes of the numbers of the header: version, first, last, room, newest, tip, base, total.
const HEADER: [usize; 8] = [1, 4, 4, 4, 7, 7, 6, 6];

const HEADER_BYTES: usize = 39;

/// Bytes of a cell: the number of a bucket, and the total after it.
const CELL: [usize; 2] = [7, 6];
const CELL_BYTES: usize = 13;

/// Totals count modulo this.
const MODULUS: u64 = 1 << 48;

const VERSION: u64 = 1;

/// Reads a stored state; `None` if it is something else.
pub(crate) fn buckets(stored: &[u8]) -> Option<StoredBuckets> {
    let (header, cells) = stored.split_at_checked(HEADER_BYTES)?;
    let [version, first, last, room, newest, tip, base, total] = numbers(header, HEADER)?;
    let (first, last) = (usize::try_from(first).ok()?, usize::try_from(last).ok()?);
    if version != VERSION || first > last || last as u64 > room {
        return None;
    }
    let (mut buckets, mut before) = (Vec::with_capacity(last - first + 1), base);
    let mut add = |number, total: u64| {
        let hits = total.wrapping_sub(before) % MODULUS;
        before = total;
        if hits > 0 {
            buckets.push((number, hits));
        }
    };
    for cell in cells
        .get(first * CELL_BYTES..last * CELL_BYTES)?
        .as_chunks::<CELL_BYTES>()
        .0
    {
        let [number, total] = numbers(cell, CELL)?;
        add(number, total);
    }
    add(tip, total);
    Some(StoredBuckets { newest, buckets })
}

/// Numbers of these sizes, big-endian.
fn numbers<const N: usize>(mut bytes: &[u8], sizes: [usize; N]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, size) in numbers.iter_mut().zip(sizes) {
        let (own, rest) = bytes.split_at_checked(size)?;
        *number = own
            .iter()
            .fold(0, |number, &byte| (number << 8) | u64::from(byte));
        bytes = rest;
    }
    Some(numbers)
}
