//! Reads the holds of counters, for operators.

use std::sync::Arc;

use bb8_redis::redis::Value;
use tokio::time::Instant;

use super::wire::replies::time_of;
use super::{Direct, Redis, error};
use crate::core::algorithm::reservations::{BAND, HeldHits, Hold};
use crate::core::verdict::StoreError;
use crate::limits::plan::features::reservations;
use crate::limits::plan::{CheckIndex, Checks};

impl Redis {
    /// The sum of the holds of the counter of a check that have not expired.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn held_hits(
        &self,
        checks: &Checks,
        index: CheckIndex,
        deadline: Instant,
    ) -> Result<Option<HeldHits>, StoreError> {
        let lanes = self.worker_lanes(checks, index);
        let direct = Direct::new(Arc::clone(&lanes.deployment));
        let owner = checks.key(&checks[index]);
        let [order, hits] = reservations::keys_of(owner);
        let unread = StoreError::NotExecuted(error::PROTOCOL);
        // Groups, in which most holds of a crowded key are, are among the first.
        let last = (BAND - 1).to_string();
        let open = direct.query(owner, deadline, |out| {
            out.push([b"TIME"]);
            out.push([b"ZRANGEBYSCORE", &order[..], b"0", last.as_bytes()]);
        });
        let open = open.await?;
        let now = open.first().and_then(time_of).ok_or(unread)?;
        let ids = texts(open.get(1))?;
        if ids.is_empty() {
            return Ok(None);
        }
        let values = direct.query(owner, deadline, |out| {
            out.command("HMGET").arg(&hits).arg(&ids);
            out.end();
        });
        let values = values.await?;
        let values = texts(values.first())?;
        let holds: Vec<_> = values.into_iter().filter_map(Hold::unpack).collect();
        Ok(HeldHits::of(holds.iter(), now))
    }
}

/// The texts of a reply; what is missing is left out.
fn texts(reply: Option<&Value>) -> Result<Vec<&[u8]>, StoreError> {
    let texts = match reply {
        Some(Value::Array(values)) => values.iter(),
        Some(Value::ServerError(error)) => return Err(error::classify(error)),
        _ => return Err(StoreError::NotExecuted(error::PROTOCOL)),
    };
    let texts = texts.filter_map(|value| match value {
        Value::BulkString(text) => Some(&text[..]),
        _ => None,
    });
    Ok(texts.collect())
}
