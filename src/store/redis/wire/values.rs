//! Readers for replies that the redis crate has parsed.
//!
//! The redis crate allocates for every value, so that only rare replies are read like this: those
//! of the handshake, of probes and of inspections. The replies to requests go through `replies`.

use bb8_redis::redis::{Value, from_redis_value_ref};

use crate::core::time::Micros;

/// Reads the reply to TIME: an array of Unix seconds and the microseconds of the current second.
/// `None` for any other reply.
///
/// Source: redis.io, command page of TIME.
pub(crate) fn time(reply: &Value) -> Option<Micros> {
    // The redis crate casts integers to smaller and unsigned types.
    let (seconds, micros): (i64, i64) = from_redis_value_ref(reply).ok()?;
    let (seconds, micros) = (u64::try_from(seconds).ok()?, u64::try_from(micros).ok()?);
    seconds
        .checked_mul(1_000_000)?
        .checked_add(micros)
        .map(Micros)
}
