//! Reads records, the index, and rings of counters, for operators.

use bb8_redis::redis::{Value, from_redis_value_ref};
use futures_util::{StreamExt, TryStreamExt, stream};
use indexmap::IndexSet;
use tokio::time::Instant;

use super::UsageClient;
use crate::core::algorithm::sliding_window_buckets::Ring;
use crate::core::algorithm::{SlidingWindowBuckets, State};
use crate::core::time::Micros;
use crate::core::usage::{HEADER_BYTES, Order, Page, Record, Top, Tracking};
use crate::core::verdict::StoreError;
use crate::limits::plan::features::usage;
use crate::store::redis::error;
use crate::store::redis::wire::replies::time_of;

/// Queries at a time, in a cluster.
const AT_A_TIME: usize = 8;

/// Subjects of the index that one query reads: Redis needs some ten microseconds.
const SUBJECTS_PER_PART: usize = 256;

impl UsageClient {
    /// The usage record of a counter, and Redis's time.
    ///
    /// # Errors
    /// Redis does not answer in time.
    pub async fn record(
        &self,
        counter: &[u8],
        deadline: Instant,
    ) -> Result<(Micros, Option<Record>), StoreError> {
        let key = usage::key_of(counter);
        let snapshots = usage::snapshots_of(&key);
        let (now, values) = self.values(&[&key, &snapshots], deadline).await?;
        let [record, snapshots] = [0, 1].map(|at| values[at].as_deref().unwrap_or_default());
        let record = Record::from_stored(record);
        Ok((now, record.map(|record| record.with_snapshots(snapshots))))
    }

    /// The ring of a counter with buckets, and Redis's time.
    ///
    /// # Errors
    /// Redis does not answer in time.
    pub async fn ring(
        &self,
        counter: &[u8],
        buckets: &SlidingWindowBuckets,
        deadline: Instant,
    ) -> Result<(Micros, Option<State>), StoreError> {
        let (now, mut values) = self.values(&[counter], deadline).await?;
        let value = values.pop().flatten();
        let ring = value.and_then(|stored| stored_ring(&stored, buckets.buckets));
        Ok((now, ring.map(|ring| State::Buckets(Box::new(ring)))))
    }

    /// Redis's time, and the values of keys of one slot, each with an element.
    async fn values(
        &self,
        keys: &[&[u8]],
        deadline: Instant,
    ) -> Result<(Micros, Vec<Option<Vec<u8>>>), StoreError> {
        let replies = self.direct.query(keys[0], deadline, |out| {
            out.push([b"TIME"]);
            for key in keys {
                out.push([b"GET", *key]);
            }
        });
        let replies = replies.await?;
        let [now, values @ ..] = &replies[..] else {
            return Err(StoreError::Unknown(error::PROTOCOL));
        };
        let now = time_of(now).filter(|_| values.len() == keys.len());
        let now = now.ok_or(StoreError::Unknown(error::PROTOCOL))?;
        let value = |reply: &Value| Ok(bytes(reply)?.map(<[u8]>::to_vec));
        Ok((now, values.iter().map(value).collect::<Result<_, _>>()?))
    }

    /// Subjects of the index with their records, and the number of subjects in the index. An entry
    /// whose record has expired, or has begun anew and is no longer in this order, is removed from
    /// the index and not returned.
    ///
    /// # Errors
    /// Redis does not answer in time.
    pub async fn top(
        &self,
        tracking: &Tracking,
        order: Order,
        page: Page,
        deadline: Instant,
    ) -> Result<Top, StoreError> {
        let index = |order| usage::index(&self.prefix, tracking, order);
        let key = index(order);
        let (members, total) = self.members(&key, page, deadline).await?;
        let records = self.records(tracking, &members, deadline).await?;
        let (mut subjects, mut expired, mut renewed) = (Vec::new(), Vec::new(), Vec::new());
        for (subject, record) in members.into_iter().zip(records) {
            match record {
                Some(record) if order.lists(&record.summary()) => subjects.push((subject, record)),
                Some(_) => renewed.push(subject),
                None => expired.push(subject),
            }
        }
        if !expired.is_empty() || !renewed.is_empty() {
            let removed = self.direct.query(&key, deadline, |out| {
                let orders = Order::NAMED
                    .into_iter()
                    .filter(|(_, other)| *other == order || !expired.is_empty());
                for (_, other) in orders {
                    let command = out.command("ZREM").arg(index(other)).arg(&expired);
                    if other == order {
                        command.arg(&renewed);
                    }
                    out.end();
                }
            });
            // If it fails, the next reader removes them.
            let _ = removed.await;
        }
        Ok(Top { subjects, total })
    }

    /// The subjects in the index of a limit, each once, those with the most hits first. Reads the
    /// index in parts, because one of all would block Redis for milliseconds.
    ///
    /// # Errors
    /// Redis does not answer in time.
    pub async fn subjects(
        &self,
        tracking: &Tracking,
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let index = usage::index(&self.prefix, tracking, Order::Total);
        let count = SUBJECTS_PER_PART;
        // A subject that others overtake meanwhile is in two parts.
        let mut subjects = IndexSet::new();
        for offset in (0..tracking.settings.subjects as usize).step_by(count) {
            let page = Page { offset, count };
            let (part, _) = self.members(&index, page, deadline).await?;
            let is_last = part.len() < count;
            subjects.extend(part);
            if is_last {
                break;
            }
        }
        Ok(subjects.into_iter().collect())
    }

    /// Subjects of an index, and the number of all its subjects.
    async fn members(
        &self,
        index: &[u8],
        Page { offset, count }: Page,
        deadline: Instant,
    ) -> Result<(Vec<Vec<u8>>, usize), StoreError> {
        let replies = self.direct.query(index, deadline, |out| {
            out.command("ZRANGE")
                .arg(index)
                .arg(offset)
                .arg(offset.saturating_add(count - 1))
                .arg("REV");
            out.end();
            out.command("ZCARD").arg(index);
            out.end();
        });
        let replies = replies.await?;
        let [members, size] = &replies[..] else {
            return Err(StoreError::Unknown(error::PROTOCOL));
        };
        if let (Value::ServerError(error), _) | (_, Value::ServerError(error)) = (members, size) {
            return Err(error::classify(error));
        }
        let other = |_| StoreError::Unknown(error::PROTOCOL);
        let members = from_redis_value_ref(members).map_err(other)?;
        let total: i64 = from_redis_value_ref(size).map_err(other)?;
        Ok((members, usize::try_from(total).unwrap_or_default()))
    }

    /// The headers of records, each without its cells.
    async fn records(
        &self,
        tracking: &Tracking,
        subjects: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let key = |subject: &Vec<u8>| usage::record(&self.prefix, tracking, subject);
        let keys: Vec<Vec<u8>> = subjects.iter().map(key).collect();
        // All keys of a query have to be in one slot of a cluster.
        let is_cluster = self.deployment.is_cluster();
        let per_query = if is_cluster { 1 } else { keys.len().max(1) };
        let parts = keys.chunks(per_query).map(<[_]>::to_vec);
        let end = (HEADER_BYTES - 1).to_string();
        let read = async |keys: Vec<Vec<u8>>| {
            let replies = self.direct.query(&keys[0], deadline, |out| {
                for key in &keys {
                    out.push([b"GETRANGE", key, b"0", end.as_bytes()]);
                }
            });
            let record = |reply: &Value| Ok(bytes(reply)?.and_then(Record::from_stored));
            let records: Result<Vec<_>, StoreError> = replies.await?.iter().map(record).collect();
            records
        };
        let parts: Vec<_> = stream::iter(parts)
            .map(read)
            .buffered(AT_A_TIME)
            .try_collect()
            .await?;
        Ok(parts.concat())
    }
}

/// The bytes of a reply. A key of another type has none.
fn bytes(reply: &Value) -> Result<Option<&[u8]>, StoreError> {
    match reply {
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::ServerError(error) => match error::classify(error) {
            StoreError::Data(_) => Ok(None),
            error => Err(error),
        },
        _ => Ok(None),
    }
}

/// The sizes of the numbers of the header of a stored log: version, first, last, room, newest, tip,
/// base, total.
const HEADER: [usize; 8] = [1, 4, 4, 4, 7, 7, 6, 6];
const HEADER_SIZE: usize = 39;

/// Bytes of a cell: the number of a bucket, and the total after it.
const CELL: [usize; 2] = [7, 6];
const CELL_BYTES: usize = 13;

/// Totals count modulo this.
const MODULUS: u64 = 1 << 48;

const VERSION: u64 = 1;

/// The last `length` buckets of a state of `sliding_window_buckets` as `lua/log.lua` stores it,
/// which requests never read whole; `None` if it is something else.
fn stored_ring(stored: &[u8], length: u16) -> Option<Ring> {
    let (header, cells) = stored.split_at_checked(HEADER_SIZE)?;
    let [version, first, last, room, newest, tip, base, total] = numbers(header, HEADER)?;
    let (first, last) = (usize::try_from(first).ok()?, usize::try_from(last).ok()?);
    if version != VERSION || first > last || last as u64 > room {
        return None;
    }
    let (mut ring, mut before) = (Ring::new(newest, length), base);
    let mut add = |number: u64, total: u64| {
        let hits = total.wrapping_sub(before) % MODULUS;
        before = total;
        let age = newest.checked_sub(number);
        if hits > 0 && age.is_some_and(|age| age < length.into()) {
            ring.counts[(number % u64::from(length)) as usize] = hits;
        }
    };
    let cells = cells.get(first * CELL_BYTES..last * CELL_BYTES)?;
    for cell in cells.as_chunks::<CELL_BYTES>().0 {
        let [number, total] = numbers(cell, CELL)?;
        add(number, total);
    }
    add(tip, total);
    Some(ring)
}

/// Numbers of these sizes, big-endian.
fn numbers<const N: usize>(mut bytes: &[u8], sizes: [usize; N]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, size) in numbers.iter_mut().zip(sizes) {
        let (own, rest) = bytes.split_at_checked(size)?;
        let shift = |number, &byte| (number << 8) | u64::from(byte);
        *number = own.iter().fold(0, shift);
        bytes = rest;
    }
    Some(numbers)
}
