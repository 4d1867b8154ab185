//! The reset of a counter: an operator lets a key count from zero.
//!
//! The key is deleted, which means the same as a recovered one for every algorithm. A connection
//! that knows its TTL finds a count from zero with the next hit, and sets the TTL again. The
//! counters of a fixed window have the number of the window in their keys: those of the windows
//! before and after the one of Redis's clock are deleted too, because a replica's estimate of that
//! clock may still be, or be already, in one of them.

use std::sync::Arc;

use bb8_redis::redis::Value;
use tokio::time::Instant;

use super::wire::call::write_key;
use super::wire::values;
use super::{Direct, Redis, error};
use crate::core::algorithm::Algorithm;
use crate::core::time::{Micros, Span};
use crate::core::verdict::StoreError;
use crate::limits::plan::{CheckIndex, Checks};

impl Redis {
    /// Deletes the counter of a check, on the server that counts it. Returns whether there was one.
    ///
    /// # Errors
    /// It was not deleted, or perhaps it was.
    pub async fn reset(
        &self,
        checks: &Checks,
        index: CheckIndex,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let check = &checks[index];
        let lanes = self.worker_lanes(checks, index);
        let direct = Direct::new(Arc::clone(&lanes.deployment));
        let owner = checks.key(check);
        let mut keys = Vec::new();
        if let Algorithm::FixedWindow(fixed) = &check.algorithm {
            let time = direct.query(owner, deadline, |out| out.push([b"TIME"]));
            let time = time.await?;
            let now = time.first().and_then(values::time);
            let now = now.ok_or(StoreError::NotExecuted(error::PROTOCOL))?;
            let number = fixed.number(now);
            // An instant in each of the three windows.
            let before = fixed.end(number.saturating_sub(1)).0;
            let before = Micros(before.saturating_sub(1));
            for instant in [before, now, fixed.end(number) + Span::from_micros(1)] {
                let mut key = Vec::new();
                write_key(checks, check, instant, &mut key);
                keys.push(key);
            }
            keys.dedup();
        } else {
            keys.push(owner.to_vec());
        }
        let replies = direct.query(owner, deadline, |out| {
            let command = out.command("DEL");
            for key in &keys {
                command.arg(key);
            }
            out.end();
        });
        match replies.await?.first() {
            Some(Value::Int(deleted)) => Ok(*deleted > 0),
            Some(Value::ServerError(error)) if error.code() == "NOPERM" => {
                Err(StoreError::NotExecuted(NO_RIGHT))
            }
            Some(Value::ServerError(_)) => Err(StoreError::NotExecuted(REFUSED)),
            _ => Err(StoreError::Unknown(error::PROTOCOL)),
        }
    }
}

/// Why a server did not delete a key.
const NO_RIGHT: &str = "the user of Redis has no right to DEL; see the ACL in deploy/redis.md";
const REFUSED: &str = "Redis refuses DEL; its log or `weir_redis_errors_total` may say why";
