//! Usage outside the request path: writes that follow the answers, and queries of operators.
//!
//! A tracked check returns the totals of its subject with its answer. They wait here, the latest of
//! each subject, and are written to the index of the limit within a second: a sorted set for each
//! order, in a hash slot of its own. Totals are absolute. A total that is written twice or lost
//! does no harm, because the subject's next check returns it again. Hits that the denial cache
//! refused wait here too, and are added to the records with a script call.
//!
//! No request waits for any of this. The queue is bounded, and dropped totals and hits are counted.
//!
//! The control thread writes 2,500 totals twice a second, because many replicas should not fill a
//! core of Redis; others wait for their turn. A page of the index shows the records themselves:
//! only the order is late. In memory there is no index: a query walks the records.
//!
//! Refused hits are written into the records first, then totals into the index. Refused hits are
//! rows of the same script that name no check: one text writes all records. A write that certainly
//! did not run is sent again. A write that may have run is not, and it is counted as lost.

pub(crate) mod queue;
mod reader;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bb8_redis::redis::Value;
use futures_util::{StreamExt, stream};
use hashbrown::HashMap;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::queue::Totals;
pub use self::queue::UsageCounts;
use super::topology::Deployment;
use super::wire::batch::KeyScope;
use super::wire::call::{Call, ClockReading, Notes, RefusedHits, ScriptRef};
use super::wire::hash_slot;
use super::{Direct, Redis, error};
use crate::core::time::Micros;
use crate::core::usage::{Order, Summary};
use crate::core::verdict::StoreError;
use crate::limits::plan::features::usage;
use crate::limits::plan::{CheckIndex, Checks, key};

/// Writes per second. With the time of a write the index is at most a second late, unless more
/// subjects wait than one write takes.
pub const WRITES_PER_SECOND: u32 = 2;

/// Maximum number of subjects that one write adds to the index; the others wait for the next one.
/// Redis needs about 4 µs for each: a process takes about 2 % of its core.
pub const MOST_LISTED_AT_ONCE: usize = 2_500;

/// The time between two writes.
const EVERY: Duration = Duration::from_millis(1_000 / WRITES_PER_SECOND as u64);

/// The time for one write. Records that are not written in it wait for the next one.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Records that one script call adds to: it blocks Redis for less than half a millisecond.
const RECORDS_PER_CALL: usize = 64;

/// Subjects of one ZADD, which takes about a microsecond for each.
const SUBJECTS_PER_COMMAND: usize = 100;

/// Subjects of one pipeline.
const SUBJECTS_PER_QUERY: usize = 1_000;

/// Queries at a time. In a cluster each slot needs its own.
const AT_A_TIME: usize = 8;

/// Writes and reads the usage of one deployment, on the control thread.
#[derive(Debug)]
pub struct UsageClient {
    deployment: Arc<Deployment>,
    direct: Direct,
    /// `CACHE_KEY_PREFIX`.
    prefix: String,
}

impl Redis {
    /// Notes hits on tracked checks that the denial cache refused.
    pub fn note_refused(&self, checks: &Checks, is_refused: impl Fn(CheckIndex) -> bool) {
        let tracked = checks.all_tracked();
        for (index, (limit, _)) in tracked.filter(|(index, _)| is_refused(*index)) {
            let (check, lanes) = (&checks[index], self.worker_lanes(checks, index));
            let hits = check.hits.unsigned_abs();
            let record = usage::key_of(checks.key(check));
            lanes.deployment.usage.refuse(record, limit, hits);
        }
    }
}

impl UsageClient {
    /// A client that connects with its first query.
    pub fn new(deployment: Arc<Deployment>, prefix: String) -> Self {
        Self {
            direct: Direct::new(Arc::clone(&deployment)),
            deployment,
            prefix,
        }
    }

    /// The deployment that keeps the usage.
    pub fn deployment(&self) -> &Arc<Deployment> {
        &self.deployment
    }

    /// Writes the queue, twice a second; never ends.
    pub async fn run(&self) {
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.write(MOST_LISTED_AT_ONCE).await;
        }
    }

    /// Writes all that waits: at the end of the process.
    pub async fn flush(&self) {
        self.write(usize::MAX).await;
    }

    /// Writes all refused hits that wait now, and the totals of at most `most` subjects.
    async fn write(&self, most: usize) {
        let deadline = Instant::now() + TIMEOUT;
        let map = self.deployment.map();
        let mut nodes = map.nodes.iter();
        let by_slot = nodes.any(|node| self.deployment.scope(node) != KeyScope::Any);
        let mut groups: HashMap<u16, Vec<RefusedHits>> = HashMap::new();
        for (record, (tracking, hits)) in self.deployment.usage.take_refused() {
            let slot = if by_slot { hash_slot::of(&record) } else { 0 };
            let group = groups.entry(slot).or_default();
            group.push(RefusedHits {
                record,
                tracking,
                hits,
            });
        }
        let calls = groups
            .values()
            .flat_map(|group| group.chunks(RECORDS_PER_CALL));
        stream::iter(calls)
            .for_each_concurrent(AT_A_TIME, |refused| self.add_refused(refused, deadline))
            .await;
        let mut limits: HashMap<_, Vec<Totals>> = HashMap::new();
        for totals in self.deployment.usage.take_summaries(most) {
            let index = usage::index(&self.prefix, &totals.1, Order::Total);
            limits.entry(index).or_default().push(totals);
        }
        for subjects in limits.into_values() {
            for part in subjects.chunks(SUBJECTS_PER_QUERY) {
                self.write_index(part, deadline).await;
            }
        }
    }

    /// Adds hits that the denial cache refused to records of one slot. Those that certainly were
    /// not added wait for the next time.
    async fn add_refused(&self, refused: &[RefusedHits], deadline: Instant) {
        let queue = &self.deployment.usage;
        let call = Call {
            requests: &[],
            checks: &[],
            refused,
            now: ClockReading {
                time: Micros::default(),
                at: Instant::now(),
            },
            is_time_given: false,
            crosses_slots: false,
            jitter_secs: 0,
        };
        let mut outcome = self.run_script(&call, ScriptRef::ByHash, deadline).await;
        if outcome == Err(StoreError::NotExecuted(error::NO_SCRIPT)) {
            outcome = self.run_script(&call, ScriptRef::ByText, deadline).await;
        }
        let lose = |hits| _ = queue.lost_hits.fetch_add(hits, Ordering::Relaxed);
        match outcome {
            Ok(summaries) => {
                for (refused, summary) in refused.iter().zip(summaries) {
                    match summary {
                        Some(summary) => {
                            queue.enqueue(refused.record.clone(), &refused.tracking, summary);
                        }
                        // The key is of another type.
                        None => lose(refused.hits),
                    }
                }
            }
            Err(StoreError::NotExecuted(_)) => {
                for refused in refused {
                    queue.refuse(refused.record.clone(), &refused.tracking, refused.hits);
                }
            }
            // They may have been added, and must not be added twice.
            Err(StoreError::Unknown(_) | StoreError::Data(_)) => {
                lose(refused.iter().map(|refused| refused.hits).sum());
            }
        }
    }

    async fn run_script(
        &self,
        call: &Call<'_>,
        script_ref: ScriptRef,
        deadline: Instant,
    ) -> Result<Vec<Option<Summary>>, StoreError> {
        let record = &call.refused[0].record;
        let replies = self.direct.query(record, deadline, |out| {
            call.write(script_ref, out.begin());
            out.end();
        });
        let reply = replies.await?.into_iter().next();
        let reply = reply.ok_or(StoreError::Unknown(error::PROTOCOL))?;
        let mut notes = Notes::default();
        call.read(&reply, &mut [], &mut notes)?;
        Ok(notes.refused)
    }

    /// Writes the totals of subjects of one limit, and trims its index.
    async fn write_index(&self, subjects: &[Totals], deadline: Instant) {
        let (_, tracking, _) = &subjects[0];
        let index = |order| usage::index(&self.prefix, tracking, order);
        let settings = tracking.settings;
        let expiry_ms = settings.expiry.micros().div_ceil(1_000);
        let owner = index(Order::Total);
        let replies = self.direct.query(&owner, deadline, |out| {
            for (_, order) in Order::NAMED {
                let key = index(order);
                let listed = subjects.iter().filter(|(.., summary)| order.lists(summary));
                let listed: Vec<_> = listed.collect();
                for part in listed.chunks(SUBJECTS_PER_COMMAND) {
                    let command = out.command("ZADD").arg(&key);
                    for (record, _, summary) in part {
                        command.arg(order.score(summary)).arg(key::subject(record));
                    }
                    out.end();
                }
                out.command("ZREMRANGEBYRANK")
                    .arg(&key)
                    .arg(0)
                    .arg(-i64::from(settings.subjects) - 1);
                out.end();
                out.command("PEXPIRE").arg(&key).arg(expiry_ms);
                out.end();
            }
        });
        let is_error = |reply: &Value| matches!(reply, Value::ServerError(_));
        let replies = replies.await;
        if replies.map_or(true, |replies| replies.iter().any(is_error)) {
            let dropped = &self.deployment.usage.dropped;
            dropped.fetch_add(subjects.len() as u64, Ordering::Relaxed);
        }
    }
}
