//! Discovery of a Redis Cluster: queries the owners of the slots with CLUSTER SLOTS.
//!
//! It queries at the start, every 30 s, after MOVED, and more often while a circuit is open or a
//! slot has no owner. The reply of one node counts if it has all slots; otherwise it queries up to
//! two more nodes. A reply that is out of date does no harm, because the nodes that it names answer
//! MOVED. Nothing here uses a connection of requests. Sources: redis.io, the page of CLUSTER SLOTS;
//! Redis Cluster specification, "MOVED Redirection".

use std::collections::HashSet;
use std::ops::RangeInclusive;

use bb8_redis::redis::{Value, from_redis_value_ref};
use tokio::time::{Duration, Instant, sleep, timeout};

use super::Deployment;
use super::MAX_NODES;
use crate::core::breaker::CircuitState;
use crate::store::redis::connection::handshake::{self, Purpose};
use crate::store::redis::connection::options::Address;
use crate::store::redis::error::{self, RedisFailure};
use crate::store::redis::wire::hash_slot::{SLOTS, Slot};
use crate::store::redis::wire::replies;

/// The interval between queries while nothing contradicts the map.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// The interval between queries while a circuit is open or a slot has no owner: a failover may end,
/// or the cluster may be formed, at any moment. The interval at which both are checked.
const UNSETTLED_INTERVAL: Duration = Duration::from_millis(200);

/// The same after longer than a failover takes.
const LONG_UNSETTLED_INTERVAL: Duration = Duration::from_secs(1);
const FAILOVER_DURATION: Duration = Duration::from_secs(10);

/// After this many replies that have slots or are too large, the one with the most slots counts.
const MAX_REPLIES: usize = 3;

/// The least time between two queries for any reason: many requests report the same moved slot at
/// once.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// Keeps the slot map up to date. Never returns.
pub(crate) async fn follow(deployment: &Deployment, seeds: &[Address]) {
    let mut settled_at = Instant::now();
    loop {
        let queried_at = Instant::now();
        match query_nodes(deployment, seeds).await {
            Ok(ranges) => deployment.update_slots(&ranges),
            Err(error) => {
                deployment.record_failed_discovery(&error);
                deployment.finish_discovery();
            }
        }
        sleep(MIN_INTERVAL).await;
        while queried_at.elapsed() < interval(deployment, &mut settled_at) {
            let invalidated = deployment.map_invalidated.notified();
            if timeout(UNSETTLED_INTERVAL, invalidated).await.is_ok() {
                break;
            }
        }
    }
}

/// The interval between queries in the present state. `settled_at`: when all slots last had owners
/// that were available.
fn interval(deployment: &Deployment, settled_at: &mut Instant) -> Duration {
    if deployment.is_fully_available() && deployment.map().owned_slots() == SLOTS {
        *settled_at = Instant::now();
        REFRESH_INTERVAL
    } else if settled_at.elapsed() < FAILOVER_DURATION {
        UNSETTLED_INTERVAL
    } else {
        LONG_UNSETTLED_INTERVAL
    }
}

/// Ranges of slots, each with the address of its primary.
type SlotRanges = Vec<(RangeInclusive<Slot>, Address)>;

/// Queries one node after the other until a reply has all slots. First come the nodes with a closed
/// circuit, in random order, then the nodes of the settings, then the others.
///
/// # Errors
/// The last error, if no node returned a usable reply.
async fn query_nodes(
    deployment: &Deployment,
    seeds: &[Address],
) -> Result<SlotRanges, RedisFailure> {
    let map = deployment.map();
    let (mut candidates, mut others) = (Vec::new(), Vec::new());
    for node in &map.nodes {
        let Some(location) = node.location() else {
            continue;
        };
        let nodes = match node.state() {
            CircuitState::Closed => &mut candidates,
            CircuitState::Open | CircuitState::Ramp { .. } => &mut others,
        };
        nodes.push(location.address.clone());
    }
    fastrand::shuffle(&mut candidates);
    for address in seeds.iter().chain(&others) {
        if !candidates.contains(address) {
            candidates.push(address.clone());
        }
    }
    let mut error = RedisFailure::new(error::NO_PRIMARY);
    let (mut best, mut replies) = (SlotRanges::new(), 0);
    for address in &candidates {
        match query_node(deployment, address).await {
            // A node that was reset and has not joined the cluster again has no slots.
            Ok(ranges) if ranges.is_empty() => {
                error = RedisFailure::new(error::CLUSTER_DOWN).of(address);
                continue;
            }
            Ok(ranges) if slot_count(&ranges) > slot_count(&best) => best = ranges,
            Ok(_) => {}
            Err(latest) => {
                let is_too_large = latest.error == error::CLUSTER_SIZE;
                error = latest.of(address);
                if !is_too_large {
                    continue;
                }
            }
        }
        replies += 1;
        if replies == MAX_REPLIES || slot_count(&best) >= SLOTS {
            break;
        }
    }
    if best.is_empty() {
        Err(error)
    } else {
        Ok(best)
    }
}

fn slot_count(ranges: &SlotRanges) -> usize {
    ranges.iter().map(|(range, _)| range.len()).sum()
}

/// Queries one node, over a connection of its own.
///
/// # Errors
/// The error of the handshake or of the reply; `protocol` if the reply is not one to CLUSTER SLOTS,
/// `cluster_size` if it has too many primaries or bytes.
async fn query_node(
    deployment: &Deployment,
    address: &Address,
) -> Result<SlotRanges, RedisFailure> {
    let options = &deployment.options;
    let (mut connection, _) = handshake::open(address, options, Purpose::QueryCluster).await?;
    let out = connection.outgoing();
    out.push([b"CLUSTER", b"SLOTS"]);
    let deadline = Instant::now() + options.connect_timeout;
    let failed = connection.query(deadline).await.err();
    let name = match (failed, &*connection.replies) {
        (None, [Value::Array(rows)]) => {
            let ranges = rows.iter().map(|row| read_range(row, address));
            let Some(ranges) = ranges.collect::<Option<SlotRanges>>() else {
                return Err(RedisFailure::new(error::PROTOCOL));
            };
            let primaries: HashSet<_> = ranges.iter().map(|(_, address)| address).collect();
            if primaries.len() <= MAX_NODES {
                return Ok(ranges);
            }
            error::CLUSTER_SIZE
        }
        (None, [Value::ServerError(error)]) => error::name(error::classify(error)),
        (Some(_), _) if connection.received().len() >= replies::MAX_BYTES => error::CLUSTER_SIZE,
        (Some(error), _) => error::name(error),
        _ => error::PROTOCOL,
    };
    Err(RedisFailure::new(name))
}

/// Reads an entry of the reply: the first and the last slot of a range, its primary, and then its
/// replicas, which Weir does not use. A primary is its host, its port and further fields. A host
/// that is empty, `?` or null is the host of the queried node. Source: redis.io, the page of
/// CLUSTER SLOTS.
fn read_range(row: &Value, queried: &Address) -> Option<(RangeInclusive<Slot>, Address)> {
    let Value::Array(row) = row else { return None };
    let [first, last, Value::Array(primary), ..] = row.as_slice() else {
        return None;
    };
    let [host, port, ..] = primary.as_slice() else {
        return None;
    };
    // The redis crate casts integers to smaller types.
    let number = |value| from_redis_value_ref::<i64>(value).ok();
    let slot = |value| Slot::try_from(number(value)?).ok();
    let host = match host {
        Value::BulkString(host) if !host.is_empty() && host != b"?" => {
            String::from_utf8(host.clone()).ok()?
        }
        Value::BulkString(_) | Value::Nil => match queried {
            Address::Tcp { host, .. } => host.clone(),
            Address::Unix(_) => return None,
        },
        _ => return None,
    };
    let port = u16::try_from(number(port)?).ok()?;
    Some((slot(first)?..=slot(last)?, Address::Tcp { host, port }))
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::parse_redis_value;

    use super::*;

    fn read(row: &str) -> Option<(RangeInclusive<Slot>, Address)> {
        let text = format!("{}\r\n", row.replace(' ', "\r\n"));
        let queried = Address::Tcp {
            host: "queried".to_owned(),
            port: 1,
        };
        read_range(
            &parse_redis_value(text.as_bytes()).expect("the reply is valid RESP"),
            &queried,
        )
    }

    #[test]
    fn ranges_are_read_and_an_unknown_host_is_that_of_the_queried_node() {
        let at = |host: &str, port| Address::Tcp {
            host: host.to_owned(),
            port,
        };
        let replica = "*4 $1 r :8 $2 id *0";
        assert_eq!(
            read(&format!("*4 :0 :5460 *4 $3 abc :7000 $2 id *0 {replica}")),
            Some((0..=5_460, at("abc", 7_000)))
        );
        assert_eq!(
            read("*3 :7 :7 *4 $0  :7000 $2 id *0"),
            Some((7..=7, at("queried", 7_000)))
        );
        assert_eq!(
            read("*3 :7 :7 *3 $-1 :7000 $2 id"),
            Some((7..=7, at("queried", 7_000)))
        );
        for row in [
            "*2 :0 :1",
            "*3 :0 :1 *1 $1 a",
            "*3 :-1 :1 *2 $1 a :7",
            "*3 :0 :70000 *2 $1 a :7",
            "*3 :0 :1 *2 $1 a :70000",
            ":0",
        ] {
            assert_eq!(read(row), None, "{row}");
        }
    }
}
