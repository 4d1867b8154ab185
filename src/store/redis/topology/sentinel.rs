//! Discovery of the primary by Redis Sentinels: finds its address at the start and follows every
//! failover.
//!
//! Weir subscribes to `+switch-master` at every Sentinel. It queries a Sentinel after subscribing,
//! after each message, and at intervals. Of the present reports of all Sentinels, one with the
//! highest configuration epoch counts. A Sentinel that was cut off can therefore not lead back to
//! an old primary. Sentinels that were created again, whose epochs begin at 0, are followed
//! nevertheless. Nothing here verifies that the server at a reported address is a primary: each
//! connection to it does, in its handshake.
//!
//! Sources: redis.io, "High availability with Redis Sentinel" and "Sentinel client spec", which has
//! SENTINEL GET-MASTER-ADDR-BY-NAME.

use std::collections::HashMap;
use std::sync::Mutex;

use bb8_redis::redis::{Value, from_redis_value_ref};
use futures_util::future::join_all;
use tokio::time::{Duration, Instant, sleep, timeout};

use super::Deployment;
use crate::core::lock;
use crate::store::redis::connection::Connection;
use crate::store::redis::connection::handshake::{self, Purpose};
use crate::store::redis::connection::options::Address;
use crate::store::redis::error::{self, RedisFailure};

/// The interval between queries to a Sentinel that sends no message, while the primary is
/// available.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// The interval between queries while the primary is unavailable, and between attempts to connect
/// to a Sentinel.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Keeps the primary's address up to date. Never returns.
pub(crate) async fn follow(deployment: &Deployment, master: &str, sentinels: &[Address]) {
    let reports = Mutex::new(vec![None; sentinels.len()]);
    let client = |(index, address)| SentinelClient {
        deployment,
        master,
        address,
        index,
        reports: &reports,
    };
    let clients: Vec<SentinelClient<'_>> = sentinels.iter().enumerate().map(client).collect();
    join_all(clients.iter().map(SentinelClient::run)).await;
}

/// The address of the primary, and the configuration epoch in which it became one, as a Sentinel
/// reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PrimaryReport {
    address: Address,
    epoch: u64,
}

/// The latest report of each Sentinel; `None` for one that cannot be reached or does not have the
/// primary.
type Reports = Mutex<Vec<Option<PrimaryReport>>>;

/// Follows one Sentinel.
struct SentinelClient<'s> {
    deployment: &'s Deployment,
    /// The name under which the Sentinels monitor the primary.
    master: &'s str,
    address: &'s Address,
    index: usize,
    /// The reports of all Sentinels of the deployment.
    reports: &'s Reports,
}

impl SentinelClient<'_> {
    /// Follows the Sentinel, and connects again after each failure. Never returns.
    async fn run(&self) {
        loop {
            if let Err(error) = self.follow_until_error().await {
                // The last report may be out of date.
                self.replace_report(None, None);
                self.deployment
                    .record_failed_discovery(&error.of(self.address));
            }
            sleep(RETRY_INTERVAL.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        }
    }

    /// Connects, subscribes, and updates the primary until a connection fails.
    ///
    /// # Errors
    /// Why the Sentinel cannot be followed any more.
    async fn follow_until_error(&self) -> Result<(), RedisFailure> {
        let options = &self.deployment.options;
        let open = || handshake::open(self.address, options, Purpose::QuerySentinel);
        let (mut queries, mut subscription) = (open().await?.0, open().await?.0);
        let out = subscription.outgoing();
        out.push([b"SUBSCRIBE", b"+switch-master"]);
        let deadline = Instant::now() + options.connect_timeout;
        subscription.query(deadline).await?;
        loop {
            // The first query comes after subscribing: no failover goes unnoticed in between.
            self.update_primary(self.query(&mut queries).await?.as_ref());
            let queried_at = Instant::now();
            loop {
                let left = REFRESH_INTERVAL.saturating_sub(queried_at.elapsed());
                match timeout(left.min(RETRY_INTERVAL), subscription.listen()).await {
                    // Any message leads to a query, because only the reply to a query has the
                    // epoch.
                    Ok(Ok(_)) => break,
                    Ok(Err(name)) => return Err(RedisFailure::new(name)),
                    Err(_) => {}
                }
                let is_due = queried_at.elapsed() >= REFRESH_INTERVAL;
                if is_due || !self.deployment.is_fully_available() {
                    break;
                }
            }
        }
    }

    /// Queries the primary's address and epoch. `None` if the Sentinel does not monitor a primary
    /// of that name.
    ///
    /// # Errors
    /// The error of the connection; `protocol` if a reply has another form than Sentinel's.
    async fn query(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<PrimaryReport>, RedisFailure> {
        let out = connection.outgoing();
        // At the end of a failover, SENTINEL MASTER has the new epoch but still the old address. So
        // the address comes from the other command.
        let master = self.master.as_bytes();
        out.push([b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", master]);
        out.push([b"SENTINEL", b"MASTER", master]);
        let deadline = Instant::now() + self.deployment.options.connect_timeout;
        match connection.query(deadline).await? {
            // This Sentinel does not have the name. Another one may.
            [Value::Nil, _] | [_, Value::ServerError(_)] => Ok(None),
            [address, fields] => read_report(address, fields)
                .map(Some)
                .ok_or(RedisFailure::new(error::PROTOCOL)),
            _ => Err(RedisFailure::new(error::PROTOCOL)),
        }
    }

    /// Replaces the report of this Sentinel. Returns the report that counts: one with the highest
    /// epoch. If several have it, the one with the address in use counts, because Sentinels that
    /// disagree must not move the primary back and forth.
    fn replace_report(
        &self,
        report: Option<PrimaryReport>,
        in_use: Option<&Address>,
    ) -> Option<PrimaryReport> {
        let mut reports = lock(self.reports);
        reports[self.index] = report;
        let latest_epoch = reports.iter().flatten().map(|report| report.epoch).max()?;
        let latest = reports.iter().flatten();
        let latest = latest.filter(|report| report.epoch == latest_epoch);
        // The first, if none has it.
        let latest = latest.rev();
        let agreed = latest.max_by_key(|report| Some(&report.address) == in_use);
        agreed.cloned()
    }

    /// Replaces this Sentinel's report, and moves the node to the primary that counts now. `None`
    /// counts as the error `no_primary`.
    fn update_primary(&self, report: Option<&PrimaryReport>) {
        if report.is_none() {
            let cause = format!("this Sentinel does not know the name {}", self.master);
            let error = RedisFailure::because(error::NO_PRIMARY, cause).of(self.address);
            self.deployment.record_failed_discovery(&error);
        }
        for node in &self.deployment.map().nodes {
            let location = node.location();
            let in_use = location.as_ref().map(|location| &location.address);
            let Some(primary) = self.replace_report(report.cloned(), in_use) else {
                continue;
            };
            if in_use != Some(&primary.address) {
                tracing::info!(primary = %primary.address, epoch = primary.epoch, "Sentinel \
                    reports a new primary");
                node.move_to(primary.address);
            }
        }
    }
}

/// Reads the replies to SENTINEL GET-MASTER-ADDR-BY-NAME (host and port) and to SENTINEL MASTER
/// (names of fields, each followed by its value).
fn read_report(address: &Value, fields: &Value) -> Option<PrimaryReport> {
    let (host, port): (String, String) = from_redis_value_ref(address).ok()?;
    let port = port.parse().ok()?;
    let fields: HashMap<String, Value> = from_redis_value_ref(fields).ok()?;
    let epoch: String = from_redis_value_ref(fields.get("config-epoch")?).ok()?;
    let epoch = epoch.parse().ok()?;
    let address = Address::Tcp { host, port };
    Some(PrimaryReport { address, epoch })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::connection::options::{Options, Topology};

    fn at(port: u16) -> Address {
        Address::Tcp {
            host: "h".to_owned(),
            port,
        }
    }

    #[tokio::test]
    async fn the_present_report_with_the_highest_epoch_counts() {
        let topology = Topology::Sentinel {
            master: "m".to_owned(),
            sentinels: Vec::new(),
        };
        let deployment = Deployment::new(Options {
            topology,
            ..Options::new(at(1))
        });
        let reports = Mutex::new(vec![None; 3]);
        let primary = || {
            deployment.map().nodes[0]
                .location()
                .map(|location| location.address.clone())
        };
        assert_eq!(primary(), None);
        let update = |index, report: Option<(u16, u64)>| {
            let client = SentinelClient {
                deployment: &deployment,
                master: "m",
                address: &at(1),
                index,
                reports: &reports,
            };
            client.update_primary(
                report
                    .map(|(port, epoch)| PrimaryReport {
                        address: at(port),
                        epoch,
                    })
                    .as_ref(),
            );
        };
        let steps = [
            (0, Some((7, 3)), 7),
            (1, Some((7, 3)), 7),
            // One Sentinel reports the failover first. The others are behind.
            (1, Some((8, 4)), 8),
            (0, Some((7, 3)), 8),
            // Another address with the same epoch changes nothing.
            (2, Some((9, 4)), 8),
            (0, Some((8, 4)), 8),
            // A Sentinel that does not know the name has no report.
            (2, None, 8),
            (1, None, 8),
            // All Sentinels were created again.
            (0, Some((6, 0)), 6),
            (1, Some((6, 0)), 6),
        ];
        for (step, (sentinel, report, expected)) in steps.into_iter().enumerate() {
            update(sentinel, report);
            assert_eq!(primary(), Some(at(expected)), "step {step}");
        }
    }

    #[test]
    fn replies_of_a_sentinel_are_read() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let list = |fields: &[&str]| Value::Array(fields.iter().map(|field| text(field)).collect());
        let fields = list(&[
            "name",
            "m",
            "ip",
            "old",
            "port",
            "1",
            "flags",
            "master",
            "config-epoch",
            "3",
        ]);
        assert_eq!(
            read_report(&list(&["h", "7"]), &fields),
            Some(PrimaryReport {
                address: at(7),
                epoch: 3
            })
        );
        for bad in [list(&["h"]), list(&["h", "x"]), list(&[]), Value::Nil] {
            assert_eq!(read_report(&bad, &fields), None, "{bad:?}");
        }
        for bad in [list(&["ip", "h"]), list(&["config-epoch", "x"]), Value::Nil] {
            assert_eq!(read_report(&list(&["h", "7"]), &bad), None, "{bad:?}");
        }
    }
}
