//! Markers: keys by which a process notices that Redis has lost its counters.
//!
//! Each server has one marker, in a hash slot of its own, with a random value that the first
//! process writes. A process remembers the value of each key. Another value, or none, means that the
//! keys of that slot were lost: by FLUSHALL, a restart without a disk, or a failover to an empty
//! server. A failover to a replica that has the key, and slots that move with their keys, change
//! nothing. Each inspection renews the TTL.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bb8_redis::redis::Value;

use crate::core::lock;
use crate::net::random;
use crate::store::redis::wire::commands::CommandBuffer;

/// Seconds for which a marker outlives the last process that inspects its server.
const TTL_SECONDS: &[u8] = b"2592000";

/// The markers of a deployment that this process has seen: at most one for each hash slot.
#[derive(Debug, Default)]
pub(crate) struct Markers {
    /// The values by their keys; nil where the server had none.
    seen: Mutex<HashMap<Vec<u8>, Value>>,
    /// Number of losses since the start.
    pub(crate) losses: AtomicU64,
}

impl Markers {
    /// Adds the commands that write a marker if it is missing, read it, and renew its TTL. The user
    /// of requests has the right to all of them.
    pub(crate) fn write(key: &[u8], out: &mut CommandBuffer) {
        let value = format!("{:032x}", random::bits()).into_bytes();
        out.push([b"SET", key, &value, b"NX", b"EX", TTL_SECONDS]);
        out.push([b"GET", key]);
        out.push([b"EXPIRE", key, TTL_SECONDS]);
    }

    /// Whether the reply to GET shows that the counters were lost. An error shows nothing.
    pub(crate) fn is_lost(&self, key: &[u8], replies: &[Value]) -> bool {
        let found = match replies.get(1) {
            // Another program may have written a long one.
            Some(found @ Value::BulkString(value)) if value.len() <= 64 => found,
            Some(found @ Value::Nil) => found,
            _ => return false,
        };
        let before = lock(&self.seen).insert(key.to_vec(), found.clone());
        let is_lost = before.is_some_and(|before| before != Value::Nil && before != *found);
        self.losses.fetch_add(is_lost.into(), Ordering::Relaxed);
        is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_that_is_gone_or_another_is_a_loss_once() {
        let markers = Markers::default();
        let value = |text: &str| Value::BulkString(text.into());
        let error = Value::ServerError(
            match bb8_redis::redis::parse_redis_value(b"-READONLY x\r\n") {
                Ok(Value::ServerError(error)) => error,
                other => panic!("{other:?}"),
            },
        );
        for (key, reply, is_lost) in [
            ("a", Value::Nil, false),
            ("a", value("1"), false),
            ("b", value("9"), false),
            ("a", value("1"), false),
            ("a", error, false),
            ("a", Value::Okay, false),
            ("a", value("2"), true),
            ("a", value("2"), false),
            // A full server accepts no new one.
            ("a", Value::Nil, true),
            ("a", Value::Nil, false),
            ("a", value("3"), false),
            ("b", value("9"), false),
        ] {
            let replies = [Value::Okay, reply.clone(), Value::Int(1)];
            assert_eq!(
                markers.is_lost(key.as_bytes(), &replies),
                is_lost,
                "{key} {reply:?}"
            );
        }
        assert!(
            !markers.is_lost(b"a", &[]),
            "the server closed the connection"
        );
        assert_eq!(markers.losses.load(Ordering::Relaxed), 2);
    }
}
