//! Commands outside the request path: for what operators ask and change, and for what is written
//! behind the answers.
//!
//! They have connections of their own, so that they delay no request, and tell no circuit breaker
//! anything. The caller gives a key: all commands of a query have to be about its slot. Replies of
//! one query may have a megabyte together; long values are read in parts (HSCAN, ZRANGE).

use std::sync::{Arc, Mutex};

use bb8_redis::redis::Value;
use tokio::time::{Instant, timeout_at};

use super::connection::exchange::Connection;
use super::error;
use super::topology::deployment::Deployment;
use super::topology::node::Node;
use super::wire::commands::CommandBuffer;
use super::wire::hash_slot::Redirect;
use crate::core::breaker::CircuitState;
use crate::core::lock;
use crate::core::verdict::StoreError;

/// Idle connections at most. A query that finds none opens one, and one too many is closed after
/// it.
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
        // ASKING is for one command. A slot has migrated soon.
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

/// Where the slot of the commands has moved, if no command ran because of that.
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
