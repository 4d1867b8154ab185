//! Sentinel: who the primary is, asked at the start and followed ever after.
//!
//! Every Sentinel is listened to for `+switch-master`, and asked then and now and then. Of different answers the one of the highest
//! configuration epoch counts: a Sentinel that was cut off does not lead back to a primary that was. That what it names is a primary is
//! verified by whoever connects there.

use std::sync::{Mutex, PoisonError};

use bb8_redis::redis::Value;
use futures_util::future::join_all;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::error::{self, Refusal};
use super::link::{Link, Purpose};
use super::options::Address;
use super::shared::Shared;

/// Between two questions to a Sentinel that says nothing by itself, while all is well.
const FRESH: Duration = Duration::from_secs(10);

/// The same while the primary cannot be used, and between attempts to reach a Sentinel.
const SOON: Duration = Duration::from_millis(250);

/// The configuration epoch of the primary that is in use.
type Epoch = Mutex<Option<u64>>;

/// Keeps the primary's address true; never ends.
pub(super) async fn follow(shared: &Shared, master: &str, sentinels: &[Address]) {
    let epoch = Epoch::default();
    join_all(sentinels.iter().map(|sentinel| listen(shared, master, sentinel, &epoch))).await;
}

async fn listen(shared: &Shared, master: &str, sentinel: &Address, epoch: &Epoch) {
    loop {
        if let Err(Refusal { name, cause }) = hear_out(shared, master, sentinel, epoch).await {
            shared.tallies().record(name, cause.as_ref().map(|cause| cause as &dyn std::fmt::Display));
        }
        sleep(SOON.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
    }
}

/// Until the Sentinel is gone.
async fn hear_out(shared: &Shared, master: &str, sentinel: &Address, epoch: &Epoch) -> Result<(), Refusal> {
    let open = async || Link::open(sentinel, shared.options(), Purpose::AskSentinel).await.map(|opened| opened.link);
    let (mut asking, mut listening) = (open().await?, open().await?);
    let out = listening.outgoing();
    out.command("SUBSCRIBE").arg("+switch-master");
    out.end();
    let deadline = Instant::now() + shared.options().connect_timeout;
    listening.ask(deadline).await.map_err(|error| Refusal { name: error::name(error), cause: None })?;
    loop {
        // Asked after having subscribed, so that no change goes unheard in between.
        believe(shared, ask(shared, master, &mut asking).await?, epoch);
        let asked = Instant::now();
        loop {
            let wait = if shared.is_well() { FRESH.saturating_sub(asked.elapsed()) } else { SOON };
            match timeout(wait.min(SOON), listening.listen()).await {
                // Whatever it says: the answer to a question has the epoch with it.
                Ok(Ok(_)) => break,
                Ok(Err(name)) => return Err(Refusal { name, cause: None }),
                Err(_) if !shared.is_well() || asked.elapsed() >= FRESH => break,
                Err(_) => {}
            }
        }
    }
}

/// Where a Sentinel sees the primary, and since which epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    address: Address,
    epoch: u64,
}

async fn ask(shared: &Shared, master: &str, link: &mut Link) -> Result<Option<Seen>, Refusal> {
    let out = link.outgoing();
    out.command("SENTINEL").arg("MASTER").arg(master);
    out.end();
    let replies = link.ask(Instant::now() + shared.options().connect_timeout).await;
    match replies.map_err(|error| Refusal { name: error::name(error), cause: None })? {
        // It does not know the name; another one may.
        [Value::ServerError(_)] => Ok(None),
        [reply] => read(reply).map(Some).ok_or(Refusal { name: error::PROTOCOL, cause: None }),
        _ => Err(Refusal { name: error::PROTOCOL, cause: None }),
    }
}

/// Fields and their values, one behind the other.
fn read(reply: &Value) -> Option<Seen> {
    let Value::Array(fields) = reply else { return None };
    let text = |value: &Value| if let Value::BulkString(text) = value { String::from_utf8(text.clone()).ok() } else { None };
    let field = |name: &str| fields.chunks_exact(2).find(|pair| text(&pair[0]).as_deref() == Some(name)).and_then(|pair| text(&pair[1]));
    let address = Address::Tcp { host: field("ip")?, port: field("port")?.parse().ok()? };
    Some(Seen { address, epoch: field("config-epoch")?.parse().ok()? })
}

fn believe(shared: &Shared, seen: Option<Seen>, epoch: &Epoch) {
    let Some(seen) = seen else {
        shared.tallies().record(error::NO_PRIMARY, None);
        return;
    };
    let mut known = epoch.lock().unwrap_or_else(PoisonError::into_inner);
    if known.is_some_and(|known| seen.epoch < known) {
        return;
    }
    *known = Some(seen.epoch);
    for node in &shared.map().nodes {
        if node.place().is_none_or(|place| place.address != seen.address) {
            tracing::info!(primary = %seen.address, epoch = seen.epoch, "Sentinel names the primary");
            node.move_to(seen.address.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::options::{Options, Topology};

    fn at(port: u16) -> Address {
        Address::Tcp { host: "h".to_owned(), port }
    }

    #[tokio::test]
    async fn an_answer_of_an_older_epoch_is_not_believed() {
        let topology = Topology::Sentinel { master: "m".to_owned(), sentinels: Vec::new() };
        let shared = Shared::new(Options { topology, ..Options::new(at(1)) });
        let (epoch, place) = (Epoch::default(), || shared.map().nodes[0].place().map(|place| place.address.clone()));
        assert_eq!(place(), None);
        for (seen, expected) in [((7, 3), 7), ((8, 4), 8), ((7, 3), 8), ((9, 4), 9), ((8, 5), 8)] {
            believe(&shared, Some(Seen { address: at(seen.0), epoch: seen.1 }), &epoch);
            assert_eq!(place(), Some(at(expected)), "{seen:?}");
        }
        believe(&shared, None, &epoch);
        assert_eq!(place(), Some(at(8)), "who does not know it changes nothing");
    }

    #[test]
    fn what_a_sentinel_answers_is_read() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let reply = |fields: &[&str]| Value::Array(fields.iter().map(|field| text(field)).collect());
        let good = reply(&["name", "m", "ip", "h", "port", "7", "flags", "master", "config-epoch", "3"]);
        assert_eq!(read(&good), Some(Seen { address: at(7), epoch: 3 }));
        for bad in [reply(&["ip", "h", "port", "7"]), reply(&["ip", "h", "port", "x", "config-epoch", "3"]), Value::Nil, reply(&[])] {
            assert_eq!(read(&bad), None, "{bad:?}");
        }
    }
}
