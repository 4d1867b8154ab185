//! Readers for replies that the redis crate has parsed.
//!
//! The redis crate allocates for every value, so that only rare replies are read like this: those
//! of the handshake, of probes and of inspections. The replies to requests go through `replies`.

use bb8_redis::redis::Value;

use crate::core::time::Micros;

/// Reads the reply to TIME: an array of Unix seconds and the microseconds of the current second.
/// `None` for any other reply.
///
/// Source: redis.io, command page of TIME.
pub(crate) fn time(reply: &Value) -> Option<Micros> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let [seconds, micros, ..] = parts.as_slice() else {
        return None;
    };
    let part = |value| u64::try_from(integer(value)?).ok();
    let seconds = part(seconds)?.checked_mul(1_000_000)?;
    seconds.checked_add(part(micros)?).map(Micros)
}

/// The integer that an integer reply or a bulk string holds. `None` for any other reply.
pub(crate) fn integer(reply: &Value) -> Option<i64> {
    match reply {
        Value::Int(number) => Some(*number),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}
