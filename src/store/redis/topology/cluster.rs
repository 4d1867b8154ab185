//! Redis Cluster: who has which slots, asked at the start and whenever something speaks against what is known.
//!
//! The answer of a node is believed unless it knows of fewer slots than we do; then others are asked too. Where it is behind the others, the
//! nodes that it names say so (MOVED).

use std::ops::RangeInclusive;

use bb8_redis::redis::Value;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::deployment::Deployment;
use crate::breaker::State;
use crate::store::redis::connection::handshake::{self, Purpose};
use crate::store::redis::connection::options::Address;
use crate::store::redis::error::{self, ConnectError};
use crate::store::redis::wire::hash_slot::Slot;
use crate::store::redis::wire::values::integer;

/// How old the map may get while nothing speaks against it.
const FRESH: Duration = Duration::from_secs(30);

/// Between looks at the nodes' circuits, and between two questions while one of them is open: a failover is over in the meantime, or soon.
const TICK: Duration = Duration::from_millis(200);

/// The same when that has lasted for longer than a failover takes.
const LATER: Duration = Duration::from_secs(2);
const FAILOVER: Duration = Duration::from_secs(10);

/// Nodes that are asked at most before the best answer is taken.
const OPINIONS: usize = 3;

/// Between two questions for any reason: a slot that moves is reported by many requests at once.
const AT_LEAST: Duration = Duration::from_millis(50);

/// Keeps the map true; never ends.
pub(crate) async fn follow(deployment: &Deployment, seeds: &[Address]) {
    let mut well_at = Instant::now();
    loop {
        match ask_anybody(deployment, seeds).await {
            Ok(ranges) => deployment.update_slots(&ranges),
            Err(error) => {
                deployment.error_counters().record_failed_connect(&error);
                deployment.finish_discovery();
            }
        }
        sleep(AT_LEAST).await;
        let asked = Instant::now();
        while deployment.is_fully_available() && asked.elapsed() < FRESH {
            if timeout(TICK, deployment.map_invalidated.notified()).await.is_ok() {
                break;
            }
        }
        if deployment.is_fully_available() {
            well_at = Instant::now();
        } else {
            let wait = if well_at.elapsed() < FAILOVER { TICK } else { LATER };
            let _ = timeout(wait, deployment.map_invalidated.notified()).await;
        }
    }
}

type Ranges = Vec<(RangeInclusive<Slot>, Address)>;

/// Asks one node after the other until one knows at least as many slots as we do: first those that are well, in any order, then those of the
/// settings, then the others.
async fn ask_anybody(deployment: &Deployment, seeds: &[Address]) -> Result<Ranges, ConnectError> {
    let map = deployment.map();
    let (mut known, mut others) = (Vec::new(), Vec::new());
    for node in &map.nodes {
        let Some(location) = node.location() else { continue };
        if node.state() == State::Closed { &mut known } else { &mut others }.push(location.address.clone());
    }
    fastrand::shuffle(&mut known);
    for address in seeds.iter().chain(&others) {
        if !known.contains(address) {
            known.push(address.clone());
        }
    }
    let mut error = ConnectError { name: error::NO_PRIMARY, cause: None };
    let mut best: Option<Ranges> = None;
    let mut opinions = 0;
    for address in &known {
        match ask(deployment, address).await {
            // A node that was made anew knows of none.
            Ok(ranges) if ranges.is_empty() => error = ConnectError { name: error::CLUSTER_DOWN, cause: None },
            Ok(ranges) => {
                opinions += 1;
                if best.as_ref().is_none_or(|best| slots(best) < slots(&ranges)) {
                    best = Some(ranges);
                }
                if opinions == OPINIONS || best.as_ref().is_some_and(|best| slots(best) >= map.slots()) {
                    break;
                }
            }
            Err(other) => error = other,
        }
    }
    best.ok_or(error)
}

fn slots(ranges: &Ranges) -> usize {
    ranges.iter().map(|(range, _)| range.len()).sum()
}

async fn ask(deployment: &Deployment, address: &Address) -> Result<Ranges, ConnectError> {
    let options = deployment.options();
    let mut connection = handshake::open(address, options, Purpose::QueryCluster).await?.connection;
    let out = connection.outgoing();
    out.command("CLUSTER").arg("SLOTS");
    out.end();
    let reply = connection.query(Instant::now() + options.connect_timeout).await?;
    let refused = |name| ConnectError { name, cause: None };
    match reply {
        [Value::ServerError(error)] => Err(refused(error::classify(error).name)),
        [Value::Array(rows)] => rows.iter().map(|row| range(row, address)).collect::<Option<Ranges>>().ok_or(refused(error::PROTOCOL)),
        _ => Err(refused(error::PROTOCOL)),
    }
}

/// A row of CLUSTER SLOTS: first and last slot, then the primary, then its replicas, which are never asked. A node that does not know its
/// own host is where we asked.
fn range(row: &Value, asked: &Address) -> Option<(RangeInclusive<Slot>, Address)> {
    let Value::Array(row) = row else { return None };
    let [first, last, Value::Array(primary), ..] = row.as_slice() else { return None };
    let [host, port, ..] = primary.as_slice() else { return None };
    let slot = |value| Slot::try_from(integer(value)?).ok();
    let host = match host {
        Value::BulkString(host) if !host.is_empty() && host != b"?" => String::from_utf8(host.clone()).ok()?,
        Value::BulkString(_) | Value::Nil => match asked {
            Address::Tcp { host, .. } => host.clone(),
            Address::Unix(_) => return None,
        },
        _ => return None,
    };
    Some((slot(first)?..=slot(last)?, Address::Tcp { host, port: u16::try_from(integer(port)?).ok()? }))
}

#[cfg(test)]
mod tests {
    use bb8_redis::redis::parse_redis_value;

    use super::*;

    fn read(row: &str) -> Option<(RangeInclusive<Slot>, Address)> {
        let text = format!("{}\r\n", row.replace(' ', "\r\n"));
        let asked = Address::Tcp { host: "asked".to_owned(), port: 1 };
        range(&parse_redis_value(text.as_bytes()).expect("a good reply"), &asked)
    }

    #[test]
    fn rows_are_read_and_an_unknown_host_is_where_we_asked() {
        let at = |host: &str, port| Address::Tcp { host: host.to_owned(), port };
        let replica = "*4 $1 r :8 $2 id *0";
        assert_eq!(read(&format!("*4 :0 :5460 *4 $3 abc :7000 $2 id *0 {replica}")), Some((0..=5_460, at("abc", 7_000))));
        assert_eq!(read("*3 :7 :7 *4 $0  :7000 $2 id *0"), Some((7..=7, at("asked", 7_000))));
        assert_eq!(read("*3 :7 :7 *3 $-1 :7000 $2 id"), Some((7..=7, at("asked", 7_000))));
        for row in ["*2 :0 :1", "*3 :0 :1 *1 $1 a", "*3 :-1 :1 *2 $1 a :7", "*3 :0 :70000 *2 $1 a :7", "*3 :0 :1 *2 $1 a :70000", ":0"] {
            assert_eq!(read(row), None, "{row}");
        }
    }
}
