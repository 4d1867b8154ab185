//! Writes what waits: refused hits into the records, then totals into the index.

use std::time::Duration;

use bb8_redis::redis::Value;
use futures_util::{StreamExt, stream};
use hashbrown::HashMap;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::UsageClient;
use crate::core::time::Micros;
use crate::core::usage::{Order, Summary};
use crate::core::verdict::StoreError;
use crate::limits::plan::key;
use crate::store::redis::error;
use crate::store::redis::usage::queue::Totals;
use crate::store::redis::wire::call::{Call, ClockReading, Notes, RefusedHits, ScriptRef};
use crate::store::redis::wire::hash_slot;

/// Writes per second. With the time of a write the index is at most a second behind, unless more
/// subjects wait than one write takes.
pub const WRITES_PER_SECOND: u32 = 2;

/// Subjects that one write adds to the index at most; the others wait for the next one. Redis needs
/// about 4 µs for each, so that a process takes about 2 % of its core.
pub const MOST_LISTED_AT_ONCE: usize = 2_500;

/// The time between two writes.
const EVERY: Duration = Duration::from_millis(1_000 / WRITES_PER_SECOND as u64);

/// The time for one write. What is not written then waits for the next one.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Records that one script call adds to, so that it blocks Redis for less than half a millisecond.
const RECORDS_PER_CALL: usize = 64;

/// Subjects of one ZADD, which takes about a microsecond for each.
const SUBJECTS_PER_COMMAND: usize = 100;

/// Subjects of one pipeline.
const SUBJECTS_PER_QUERY: usize = 1_000;

/// Queries at a time. In a cluster each slot needs its own.
const AT_A_TIME: usize = 8;

type Subjects = Vec<Totals>;

impl UsageClient {
    /// Writes what waits, twice a second; never ends.
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

    /// Writes what waits now; of the totals, those of so many subjects at most.
    async fn write(&self, most: usize) {
        let deadline = Instant::now() + TIMEOUT;
        let by_slot = self.deployment.is_cluster();
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
        let (mut limits, mut index): (HashMap<_, Subjects>, _) = (HashMap::new(), Vec::new());
        for (record, tracking, summary) in self.deployment.usage.take_summaries(most) {
            key::write_index(&self.prefix, &tracking, Order::Total, &mut index);
            let subjects = limits.entry_ref(&index).or_default();
            subjects.push((record, tracking, summary));
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
        match outcome {
            Ok(summaries) => {
                for (refused, summary) in refused.iter().zip(summaries) {
                    match summary {
                        Some(summary) => {
                            queue.note(refused.record.clone(), &refused.tracking, summary);
                        }
                        // The key is of another type.
                        None => queue.lose(refused.hits),
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
                queue.lose(refused.iter().map(|refused| refused.hits).sum());
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
        let mut index = Vec::new();
        key::write_index(&self.prefix, tracking, Order::Total, &mut index);
        let settings = tracking.settings;
        let expiry_ms = settings.expiry.micros().div_ceil(1_000);
        let replies = self.direct.query(&index, deadline, |out| {
            let mut key = Vec::new();
            for (_, order) in Order::NAMED {
                key::write_index(&self.prefix, tracking, order, &mut key);
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
        if replies
            .await
            .map_or(true, |replies| replies.iter().any(is_error))
        {
            let queue = &self.deployment.usage;
            queue.drop_subjects(subjects.len() as u64);
        }
    }
}
