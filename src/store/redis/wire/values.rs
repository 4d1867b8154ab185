//! Replies that are read as values of the redis crate, which allocates: for what Weir asks rarely.

use bb8_redis::redis::Value;

use crate::time::Micros;

/// The reply to TIME.
pub(crate) fn time(reply: &Value) -> Option<Micros> {
    let Value::Array(parts) = reply else { return None };
    let [seconds, micros, ..] = parts.as_slice() else { return None };
    let (seconds, micros) = (u64::try_from(whole(seconds)?).ok()?, u64::try_from(whole(micros)?).ok()?);
    seconds.checked_mul(1_000_000)?.checked_add(micros).map(Micros)
}

/// A whole number, sent as such or as text.
pub(crate) fn whole(reply: &Value) -> Option<i64> {
    match reply {
        Value::Int(number) => Some(*number),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}
