//! Sentinel: who the primary is, asked at the start and followed ever after.
//!
//! Every Sentinel is listened to for `+switch-master`, and asked then and now and then. Of what they say at present the highest configuration
//! epoch counts: a Sentinel that was cut off does not lead back to a primary that was, and Sentinels that were made anew, whose epochs begin
//! again, are followed all the same. That what they name is a primary is verified by whoever connects there.

use std::sync::{Mutex, PoisonError};

use bb8_redis::redis::Value;
use futures_util::future::join_all;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::deployment::Deployment;
use crate::store::redis::connection::exchange::Connection;
use crate::store::redis::connection::handshake::{self, Purpose};
use crate::store::redis::connection::options::Address;
use crate::store::redis::error::{self, ConnectError};

/// Between two questions to a Sentinel that says nothing by itself, while all is well.
const FRESH: Duration = Duration::from_secs(10);

/// The same while the primary cannot be used, and between attempts to reach a Sentinel.
const SOON: Duration = Duration::from_millis(250);

/// What each Sentinel says at present; nothing of those that cannot be reached.
type Said = Mutex<Vec<Option<PrimaryReport>>>;

/// Keeps the primary's address true; never ends.
pub(crate) async fn follow(deployment: &Deployment, master: &str, sentinels: &[Address]) {
    let said = Said::new(vec![None; sentinels.len()]);
    let listen_to = |(index, sentinel)| listen(deployment, master, sentinel, SentinelVoice { said: &said, index });
    join_all(sentinels.iter().enumerate().map(listen_to)).await;
}

/// One Sentinel's place among what all say.
#[derive(Clone, Copy)]
struct SentinelVoice<'s> {
    said: &'s Said,
    index: usize,
}

impl SentinelVoice<'_> {
    /// What this Sentinel says from now on. Returns what counts of all that is said.
    fn say(self, seen: Option<PrimaryReport>, in_use: Option<&Address>) -> Option<PrimaryReport> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said[self.index] = seen;
        let newest = said.iter().flatten().map(|seen| seen.epoch).max()?;
        let mut named = said.iter().flatten().filter(|seen| seen.epoch == newest);
        // Of several that are equally new the one in use.
        named.clone().find(|seen| Some(&seen.address) == in_use).or_else(|| named.next()).cloned()
    }
}

async fn listen(deployment: &Deployment, master: &str, sentinel: &Address, seat: SentinelVoice<'_>) {
    loop {
        if let Err(error) = hear_out(deployment, master, sentinel, seat).await {
            // What it said last may be long past.
            seat.say(None, None);
            deployment.error_counters().record_failed_connect(&error);
        }
        sleep(SOON.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
    }
}

/// Until the Sentinel is gone.
async fn hear_out(deployment: &Deployment, master: &str, sentinel: &Address, seat: SentinelVoice<'_>) -> Result<(), ConnectError> {
    let open = async || handshake::open(sentinel, deployment.options(), Purpose::QuerySentinel).await.map(|opened| opened.connection);
    let (mut asking, mut listening) = (open().await?, open().await?);
    let out = listening.outgoing();
    out.command("SUBSCRIBE").arg("+switch-master");
    out.end();
    let deadline = Instant::now() + deployment.options().connect_timeout;
    listening.query(deadline).await?;
    loop {
        // Asked after having subscribed, so that no change goes unheard in between.
        believe(deployment, ask(deployment, master, &mut asking).await?.as_ref(), seat);
        let asked = Instant::now();
        loop {
            let wait = if deployment.is_fully_available() { FRESH.saturating_sub(asked.elapsed()) } else { SOON };
            match timeout(wait.min(SOON), listening.listen()).await {
                // Whatever it says: the answer to a question has the epoch with it.
                Ok(Ok(_)) => break,
                Ok(Err(name)) => return Err(ConnectError { name, cause: None }),
                Err(_) if !deployment.is_fully_available() || asked.elapsed() >= FRESH => break,
                Err(_) => {}
            }
        }
    }
}

/// Where a Sentinel sees the primary, and since which epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PrimaryReport {
    address: Address,
    epoch: u64,
}

async fn ask(deployment: &Deployment, master: &str, connection: &mut Connection) -> Result<Option<PrimaryReport>, ConnectError> {
    let out = connection.outgoing();
    // While a failover is finished, MASTER has the new epoch with the old address.
    out.command("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    out.end();
    out.command("SENTINEL").arg("MASTER").arg(master);
    out.end();
    let replies = connection.query(Instant::now() + deployment.options().connect_timeout).await;
    match replies? {
        // It does not know the name; another one may.
        [Value::Nil, _] | [_, Value::ServerError(_)] => Ok(None),
        [address, fields] => read(address, fields).map(Some).ok_or(ConnectError { name: error::PROTOCOL, cause: None }),
        _ => Err(ConnectError { name: error::PROTOCOL, cause: None }),
    }
}

/// The host and port of the primary; and what else is known of it, as fields and their values, one behind the other.
fn read(address: &Value, fields: &Value) -> Option<PrimaryReport> {
    let (Value::Array(address), Value::Array(fields)) = (address, fields) else { return None };
    let text = |value: &Value| if let Value::BulkString(text) = value { String::from_utf8(text.clone()).ok() } else { None };
    let [host, port] = address.as_slice() else { return None };
    let epoch = fields.chunks_exact(2).find(|pair| text(&pair[0]).as_deref() == Some("config-epoch")).and_then(|pair| text(&pair[1]))?;
    let address = Address::Tcp { host: text(host)?, port: text(port)?.parse().ok()? };
    Some(PrimaryReport { address, epoch: epoch.parse().ok()? })
}

fn believe(deployment: &Deployment, seen: Option<&PrimaryReport>, seat: SentinelVoice<'_>) {
    if seen.is_none() {
        deployment.error_counters().record(error::NO_PRIMARY, None);
    }
    for node in &deployment.map().nodes {
        let location = node.location();
        let Some(primary) = seat.say(seen.cloned(), location.as_ref().map(|location| &location.address)) else { continue };
        if location.is_none_or(|location| location.address != primary.address) {
            tracing::info!(primary = %primary.address, epoch = primary.epoch, "Sentinel names the primary");
            node.move_to(primary.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::connection::options::{Options, Topology};

    fn at(port: u16) -> Address {
        Address::Tcp { host: "h".to_owned(), port }
    }

    #[tokio::test]
    async fn the_newest_of_what_is_said_at_present_counts() {
        let topology = Topology::Sentinel { master: "m".to_owned(), sentinels: Vec::new() };
        let deployment = Deployment::new(Options { topology, ..Options::new(at(1)) });
        let (said, primary) = (Said::new(vec![None; 3]), || deployment.map().nodes[0].location().map(|location| location.address.clone()));
        assert_eq!(primary(), None);
        let says = |index, seen: Option<(u16, u64)>| {
            let seen = seen.map(|(port, epoch)| PrimaryReport { address: at(port), epoch });
            believe(&deployment, seen.as_ref(), SentinelVoice { said: &said, index });
        };
        let steps = [
            (0, Some((7, 3)), 7),
            (1, Some((7, 3)), 7),
            // One hears of the failover first; the others are behind.
            (1, Some((8, 4)), 8),
            (0, Some((7, 3)), 8),
            // An address of its own with the same epoch changes nothing.
            (2, Some((9, 4)), 8),
            (0, Some((8, 4)), 8),
            // Who is gone, or does not know the name, says nothing.
            (2, None, 8),
            (1, None, 8),
            // All were made anew.
            (0, Some((6, 0)), 6),
            (1, Some((6, 0)), 6),
        ];
        for (step, (sentinel, seen, expected)) in steps.into_iter().enumerate() {
            says(sentinel, seen);
            assert_eq!(primary(), Some(at(expected)), "step {step}");
        }
    }

    #[test]
    fn what_a_sentinel_answers_is_read() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let list = |fields: &[&str]| Value::Array(fields.iter().map(|field| text(field)).collect());
        let fields = list(&["name", "m", "ip", "old", "port", "1", "flags", "master", "config-epoch", "3"]);
        assert_eq!(read(&list(&["h", "7"]), &fields), Some(PrimaryReport { address: at(7), epoch: 3 }));
        for bad in [list(&["h"]), list(&["h", "x"]), list(&[]), Value::Nil] {
            assert_eq!(read(&bad, &fields), None, "{bad:?}");
        }
        for bad in [list(&["ip", "h"]), list(&["config-epoch", "x"]), Value::Nil] {
            assert_eq!(read(&list(&["h", "7"]), &bad), None, "{bad:?}");
        }
    }
}
