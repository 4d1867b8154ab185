//! Commands outside the request path: queries and changes of operators, and writes that follow the
//! answers.
//!
//! They have connections of their own, because they must not delay a request, and report nothing to
//! circuit breakers. The caller passes a key: all commands of a query have to be about its slot.
//! Replies of one query may have a megabyte together; long values are read in parts (HSCAN,
//! ZRANGE).
//!
//! The reset of a counter lets a key count from zero. The key is deleted, which means the same as a
//! recovered one for every algorithm. A connection that has its TTL in its set finds a count from
//! zero with the next hit, and sets the TTL again. The counters of a fixed window have the number
//! of the window in their keys. The counters of the windows before and after the current one of
//! Redis's clock are deleted too, because a replica's estimate of that clock may be in one of them.

use std::sync::{Arc, Mutex};

use bb8_redis::redis::Value;
use tokio::time::{Instant, timeout_at};

use super::connection::Connection;
use super::topology::Deployment;
use super::topology::node::Node;
use super::wire::call::write_key;
use super::wire::commands::CommandBuffer;
use super::wire::hash_slot::Redirect;
use super::wire::replies::time_of;
use super::{Redis, error};
use crate::core::algorithm::Algorithm;
use crate::core::breaker::CircuitState;
use crate::core::lock;
use crate::core::time::{Micros, Span};
use crate::core::verdict::StoreError;
use crate::limits::plan::features;
use crate::limits::plan::{CheckIndex, Checks};

/// Maximum number of idle connections. A query that finds none opens one; if it is one too many, it
/// is closed after the query.
const MAX_IDLE: usize = 16;

/// A client of one deployment for the control thread.
#[derive(Debug)]
pub struct Direct {
    deployment: Arc<Deployment>,
    /// Idle connections, each with the id of its node.
    idle: Mutex<Vec<(u64, Connection)>>,
}

impl Direct {
    /// A client that connects with its first query. All queries have to be made in one runtime.
    pub fn new(deployment: Arc<Deployment>) -> Self {
        Self {
            deployment,
            idle: Mutex::default(),
        }
    }

    /// Sends the commands that `write` writes to the owner of `key`, and returns a reply to each.
    /// An error of one command is a [`Value::ServerError`] in its place. Where the slot has moved,
    /// all commands are sent once more, to its new owner.
    ///
    /// # Errors
    /// `NotExecuted` if no command ran: the server cannot be reached, its circuit is open, or the
    /// slot is moving. `Unknown` if some may have run.
    pub(crate) async fn query(
        &self,
        key: &[u8],
        deadline: Instant,
        mut write: impl FnMut(&mut CommandBuffer),
    ) -> Result<Vec<Value>, StoreError> {
        let map = self.deployment.map_by(deadline).await;
        let owner = Arc::clone(map.owner(map.slot(key)).map_err(StoreError::NotExecuted)?);
        let replies = self.query_node(&owner, deadline, &mut write).await?;
        let Some(redirect) = redirect(&replies) else {
            return Ok(replies);
        };
        // ASKING is for one command, and the migration of a slot ends soon.
        if redirect.is_ask {
            return Err(StoreError::NotExecuted(error::TRY_AGAIN));
        }
        let owner = self.deployment.redirected(&owner.complete(redirect));
        let owner = owner.map_err(StoreError::NotExecuted)?;
        self.query_node(&owner, deadline, &mut write).await
    }

    async fn query_node(
        &self,
        node: &Node,
        deadline: Instant,
        write: &mut impl FnMut(&mut CommandBuffer),
    ) -> Result<Vec<Value>, StoreError> {
        if node.state() == CircuitState::Open {
            return Err(StoreError::NotExecuted(error::CONNECT));
        }
        let mut connection = match self.idle_connection(node) {
            Some(idle) => idle,
            None => match timeout_at(deadline, node.connect()).await {
                Ok(Ok(connected)) => connected,
                Ok(Err(failure)) => return Err(StoreError::NotExecuted(failure.error)),
                Err(_) => return Err(StoreError::NotExecuted(error::CONNECT_TIMEOUT)),
            },
        };
        write(connection.outgoing());
        let replies = connection.query(deadline).await?.to_vec();
        let mut idle = lock(&self.idle);
        if connection.is_reusable() && idle.len() < MAX_IDLE {
            idle.push((node.id, connection));
        }
        Ok(replies)
    }

    /// An idle connection to where the node is now that its server has not closed. After a failover
    /// the node has moved, and the server there may still take writes.
    fn idle_connection(&self, node: &Node) -> Option<Connection> {
        let mut idle = lock(&self.idle);
        while let Some(index) = idle.iter().position(|(id, _)| *id == node.id) {
            let (_, mut connection) = idle.swap_remove(index);
            let leads_there = node.is_at(connection.generation);
            if leads_there && !connection.is_old() && connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }
}

/// The new owner of the commands' slot, if no command ran because the slot has moved.
fn redirect(replies: &[Value]) -> Option<Redirect> {
    let read = |reply: &Value| match reply {
        Value::ServerError(error) => Redirect::read(
            format!("{} {}", error.code(), error.details().unwrap_or_default()).as_bytes(),
        ),
        _ => None,
    };
    let redirects: Option<Vec<_>> = replies.iter().map(read).collect();
    redirects?.into_iter().next()
}

impl Redis {
    /// Deletes the counter of a check, on the server that counts it. Returns whether it existed.
    ///
    /// # Errors
    /// The counter was not deleted, or it is unknown whether it was.
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
            let now = time.first().and_then(time_of);
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
        keys.extend(features::further_keys(check, owner));
        let replies = direct.query(owner, deadline, |out| {
            out.command("DEL").arg(&keys);
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
const REFUSED: &str = "Redis refuses DEL; its log or `weir_redis_errors_total` may show why";

#[cfg(test)]
mod tests {
    use super::*;
    use bb8_redis::redis::parse_redis_value;

    #[test]
    fn only_commands_of_which_none_ran_are_sent_again() {
        let reply = |line: &str| parse_redis_value(line.as_bytes()).expect("a reply");
        let moved = || reply("-MOVED 3999 10.0.0.1:6381\r\n");
        let to = redirect(&[moved(), moved()]).expect("a redirect");
        assert_eq!(
            (to.slot, &*to.host, to.port, to.is_ask),
            (3_999, "10.0.0.1", 6_381, false)
        );
        assert!(redirect(&[reply("-ASK 1 [::1]:7000\r\n")]).is_some_and(|to| to.is_ask));
        for replies in [
            vec![],
            vec![moved(), reply("+OK\r\n")],
            vec![reply("-ERR MOVED 1 h:1\r\n")],
            vec![reply("$-1\r\n")],
        ] {
            assert!(redirect(&replies).is_none(), "{replies:?}");
        }
    }
}
