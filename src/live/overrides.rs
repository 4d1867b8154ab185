//! The overrides in force, and where they are kept: in Redis for all replicas, in a file, or in
//! this process only.
//!
//! The control thread reads them where they are kept twice a second, and puts them in force if they
//! changed. While they cannot be read, the last known ones stay in force, and end at their instants
//! all the same. A change is made where they are kept first; then this process reads it back, and
//! the other replicas within [`POLL`] and a round trip. Requests know only the compiled tree of a
//! snapshot.

mod audit;
pub(crate) mod file;
pub(crate) mod kept;
mod place;
mod shared;

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

pub(crate) use self::file::read_overrides;
pub use self::kept::Keeping;
use self::kept::{Change, Kept, Mark, RESET, Reading, keep_ended};
use self::place::Place;
use super::Live;
use crate::core::lock;
use crate::core::time::Span;
use crate::limits::overrides::{Kind, Override, Overrides, Record};
use crate::net::clock;
use crate::observe::metrics::{Sample, families};

/// The time between two readings. With a round trip it keeps what is promised: in force everywhere
/// within a second.
pub const POLL: Duration = Duration::from_millis(500);

/// How long the start waits for the first reading. Redis in the same data centre answers within a
/// tenth of it.
const START_WAIT: Duration = Duration::from_millis(250);

/// How long an override that has ended stays where it is kept, so that the clocks of all replicas
/// agree that it has.
const KEPT_AFTER_END: Span = Span::from_secs(60);

/// Ended overrides that one sweep removes at most. What is left is removed by the next one.
const MAX_SWEPT: usize = 100;

/// On average one reading of so many sweeps, so that replicas do not all sweep at once.
const SWEEP_ODDS: u32 = 20;

/// Why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The override is not possible.
    #[error("{0}")]
    Invalid(String),
    /// No override has this id.
    #[error("no override has the id {0}; `weir overrides` lists them")]
    Unknown(String),
    /// Nothing can be changed where they are kept.
    #[error("nothing was changed: {0}")]
    Unavailable(String),
}

/// The overrides of a process.
#[derive(Debug)]
pub struct Registry {
    live: Arc<Live>,
    place: Place,
    /// Held from the reading to the end of what follows from it, so that a later reading is not
    /// replaced by an earlier one.
    gate: tokio::sync::Mutex<()>,
    known: Mutex<Known>,
    changes: Changes,
    on_reset: OnReset,
}

struct OnReset(Box<dyn Fn() + Send + Sync>);

/// What was read last.
#[derive(Debug, Default)]
struct Known {
    mark: Option<Mark>,
    all: Vec<Kept>,
    unreadable: usize,
    /// How many were read and are not among all, because there are too many.
    left_out: usize,
    /// How many were not in force for that when it was logged.
    logged_left_out: usize,
    /// Records of those that have ended, and are not among all.
    past: Vec<Record>,
    read_at: Option<Instant>,
    /// Those whose end was logged.
    ended: HashSet<Box<str>>,
    /// Why the last reading failed.
    error: Option<String>,
}

#[derive(Debug, Default)]
struct Changes {
    set: AtomicU64,
    removed: AtomicU64,
    ended: AtomicU64,
    reset: AtomicU64,
}

impl fmt::Debug for OnReset {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("OnReset").finish()
    }
}

impl Registry {
    /// A registry that has read nothing. It calls `on_reset` after any replica has reset a counter.
    #[must_use]
    pub fn new(live: Arc<Live>, keeping: Keeping, on_reset: Box<dyn Fn() + Send + Sync>) -> Self {
        let place = Place::new(keeping);
        Self {
            live,
            place,
            gate: tokio::sync::Mutex::new(()),
            known: Mutex::default(),
            changes: Changes::default(),
            on_reset: OnReset(on_reset),
        }
    }

    /// Reads the overrides for the first time, so that they are in force with the first request.
    /// Where that takes too long, the process serves without them until [`Registry::follow`] has
    /// read them.
    pub async fn start(&self) {
        if timeout(START_WAIT, self.poll()).await.is_err() {
            tracing::warn!(
                "overrides: not read yet; requests are answered without them until they are"
            );
        }
    }

    /// Follows changes; never ends.
    pub async fn follow(self: Arc<Self>) {
        let mut tick = interval(POLL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            // Errors are logged where they begin and end.
            let _ = self.poll().await;
            self.live.free_old();
        }
    }

    /// Whether the overrides are lost when the process ends.
    #[must_use]
    pub const fn is_for_this_process_only(&self) -> bool {
        matches!(self.place, Place::Process(_))
    }

    /// All overrides that have not ended, in the order in which they apply.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Override>> {
        let now = clock::now();
        let all = self.live.overrides().unwrap_or_default();
        let in_force = all.list.iter().filter(|one| !one.has_ended(now));
        in_force.cloned().collect()
    }

    /// The records of those that ended within the last week, the last one first.
    #[must_use]
    pub fn list_ended(&self) -> Vec<Record> {
        let (now, known) = (clock::now(), self.known());
        let mut all = known.past.clone();
        let ended = known.all.iter().filter(|kept| kept.one.has_ended(now));
        keep_ended(&mut all, ended.map(Kept::expired));
        all.reverse();
        all
    }

    /// Puts an override in force, in the place of one with the same kind and entries. Returns that
    /// one.
    ///
    /// # Errors
    /// It was not set.
    pub async fn set(&self, one: Override) -> Result<Option<Arc<Override>>, ChangeError> {
        let _gate = self.gate.lock().await;
        self.read().await.map_err(ChangeError::Unavailable)?;
        let now = clock::now();
        if one.has_ended(now) {
            return Err(ChangeError::Invalid(
                "until is in the past; write a later instant, or leave it out".to_owned(),
            ));
        }
        let current = self.live.overrides().unwrap_or_default();
        current
            .admit(&one, now)
            .map_err(|error| ChangeError::Invalid(error.0))?;
        let before = current
            .list
            .iter()
            .find(|other| other.id == one.id && !other.has_ended(now))
            .cloned();
        let record = Record::from(&one);
        self.change(Change::Set(Box::new(record))).await?;
        self.changes.set.fetch_add(1, Ordering::Relaxed);
        audit::set(&one, before.as_deref());
        Ok(before)
    }

    /// Ends an override. Returns it.
    ///
    /// # Errors
    /// It was not removed.
    pub async fn remove(&self, id: &str, by: &str) -> Result<Arc<Override>, ChangeError> {
        let _gate = self.gate.lock().await;
        self.read().await.map_err(ChangeError::Unavailable)?;
        let unknown = || ChangeError::Unknown(id.escape_debug().to_string());
        let find = |known: &Known| known.all.iter().find(|kept| *kept.one.id == *id).cloned();
        let one = find(&self.known()).ok_or_else(unknown)?.one;
        let ended = Record::ended(&one, clock::now(), by);
        self.change(Change::Remove(Box::new(ended))).await?;
        self.changes.removed.fetch_add(1, Ordering::Relaxed);
        audit::removed(&one, by);
        Ok(one)
    }

    /// Logs and counts that the counter of a descriptor was reset, and tells the other replicas.
    pub async fn record_reset(
        &self,
        domain: &str,
        entries: &str,
        limit: &str,
        existed: bool,
        by: &str,
    ) {
        self.changes.reset.fetch_add(1, Ordering::Relaxed);
        audit::reset(domain, entries, limit, existed, by);
        if !matches!(self.place, Place::Redis(_)) {
            return;
        }
        let _gate = self.gate.lock().await;
        // In a box of its own: it would make every call of the admin API larger.
        if let Err(error) = Box::pin(self.change(Change::Reset)).await {
            tracing::warn!(%error, "overrides: other replicas may use hits that they hold of a \
                counter that was reset");
        }
    }

    async fn change(&self, change: Change) -> Result<(), ChangeError> {
        let again = match &change {
            Change::Set(record) => record.id.as_str(),
            _ => "",
        };
        let ended = self.ended_before(again);
        self.place
            .change(&change, &ended)
            .await
            .map_err(ChangeError::Unavailable)?;
        // It was made. If it cannot be read back now, the next reading puts it in force.
        let _ = self.read().await;
        Ok(())
    }

    /// Reads the overrides, and puts them in force if they changed, or if one of them ended.
    async fn poll(&self) -> Result<(), String> {
        let _gate = self.gate.lock().await;
        let result = self.read().await;
        if result.is_ok() && fastrand::u32(..SWEEP_ODDS) == 0 {
            let ended = self.ended_before("");
            if !ended.is_empty() && self.place.change(&Change::Sweep, &ended).await.is_ok() {
                let _ = self.read().await;
            }
        }
        result
    }

    async fn read(&self) -> Result<(), String> {
        // Before a new reading takes them out.
        self.log_ended();
        let mark = self.known().mark.clone();
        let mut read = self.place.read(mark.as_ref()).await;
        if let Ok(Some(reading)) = &read
            && self.place.has_lost(&reading.mark)
        {
            read = match self.restore().await {
                Ok(true) => self.place.read(mark.as_ref()).await,
                Ok(false) => read,
                Err(error) => Err(format!(
                    "Redis has lost them, and they cannot be written again: {error}"
                )),
            };
        }
        let mut known = self.known();
        match read {
            Ok(reading) => {
                known.read_at = Some(Instant::now());
                if let Some(reading) = reading {
                    self.take(&mut known, reading);
                }
                if known.error.take().is_some() {
                    tracing::info!("overrides: read again");
                }
                Ok(())
            }
            Err(error) => {
                if known.error.as_ref() != Some(&error) {
                    tracing::warn!(
                        error,
                        "overrides: they cannot be read; those known last stay in force"
                    );
                    known.error = Some(error.clone());
                }
                Err(error)
            }
        }
    }

    /// Writes the overrides that this process knows to a Redis that has lost them, as after a
    /// restart without persistence: no operator removed them. False: it knows none.
    async fn restore(&self) -> Result<bool, String> {
        let now = clock::now();
        let mut all = self.known().all.clone();
        all.retain(|kept| !kept.one.has_ended(now));
        if all.is_empty() {
            return Ok(false);
        }
        let count = all.len();
        self.place.change(&Change::Restore(all), &[]).await?;
        tracing::warn!(
            count,
            "overrides: Redis has lost them; this process has written those that it knows"
        );
        Ok(true)
    }

    fn take(&self, known: &mut Known, reading: Reading) {
        known.past = reading.ended;
        known.unreadable = reading.unreadable;
        known.left_out = reading.left_out;
        if reading.mark.0.starts_with(RESET.as_bytes()) {
            (self.on_reset.0)();
        }
        known.mark = Some(reading.mark);
        known.all = reading.all;
        let ids: HashSet<_> = known.all.iter().map(|kept| kept.one.id.clone()).collect();
        known.ended.retain(|id| ids.contains(id));
        self.put_in_force(known);
        for (id, error) in &reading.errors {
            tracing::warn!(id = %id.escape_debug(), error = %error.escape_debug(), "overrides: one \
                cannot be read, and is not in force");
        }
    }

    fn put_in_force(&self, known: &mut Known) {
        let now = clock::now();
        let in_force = known.all.iter().filter(|kept| !kept.one.has_ended(now));
        let overrides = Overrides::new(in_force.map(|kept| Arc::clone(&kept.one)).collect());
        let left_out = known.left_out + overrides.left_out;
        if left_out > 0 && left_out != known.logged_left_out {
            tracing::error!(
                left_out,
                "overrides: there are too many; the oldest are not in force"
            );
        }
        known.logged_left_out = left_out;
        tracing::debug!(in_force = overrides.list.len(), "overrides: in force");
        self.live.replace_overrides(overrides);
    }

    /// Logs those that have ended since the last call, and takes them out of the tree, which passes
    /// them over already.
    fn log_ended(&self) {
        let (now, mut known) = (clock::now(), self.known());
        let known = &mut *known;
        let mut any = false;
        for Kept { one, .. } in known.all.iter().filter(|kept| kept.one.has_ended(now)) {
            if known.ended.insert(one.id.clone()) {
                any = true;
                // Not those that had ended before this process started.
                if self
                    .live
                    .overrides()
                    .is_some_and(|all| all.list.iter().any(|other| other.id == one.id))
                {
                    self.changes.ended.fetch_add(1, Ordering::Relaxed);
                    audit::ended(one);
                }
            }
        }
        if any {
            self.put_in_force(known);
        }
    }

    /// Those that ended so long ago that all replicas know. Also the one of this id, which is about
    /// to be replaced.
    fn ended_before(&self, again: &str) -> Vec<Kept> {
        let now = clock::now();
        let is_old = |Kept { one, .. }: &&Kept| {
            let kept_for = match *one.id == *again {
                true => Span::ZERO,
                false => KEPT_AFTER_END,
            };
            one.until.is_some_and(|until| until + kept_for <= now)
        };
        let known = self.known();
        let old = known.all.iter().filter(is_old).take(MAX_SWEPT);
        old.cloned().collect()
    }

    /// The metrics.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let mut counts = [0; Kind::NAMES.len()];
        let (now, all) = (clock::now(), self.live.overrides().unwrap_or_default());
        for one in all.list.iter().filter(|one| !one.has_ended(now)) {
            counts[one.kind.index()] += 1;
        }
        let mut samples: Vec<_> = Kind::NAMES
            .iter()
            .zip(counts)
            .map(|(kind, count)| families::OVERRIDES.count(&[*kind], count))
            .collect();
        let known = self.known();
        samples.push(families::OVERRIDES_UNREADABLE.count(&[], known.unreadable as u64));
        samples.extend(
            known
                .read_at
                .map(|at| families::OVERRIDES_AGE.sample(&[], at.elapsed().as_secs_f64())),
        );
        let changes = &self.changes;
        for (change, count) in [
            ("set", &changes.set),
            ("removed", &changes.removed),
            ("ended", &changes.ended),
            ("reset", &changes.reset),
        ] {
            samples
                .push(families::OVERRIDE_CHANGES.count(&[change], count.load(Ordering::Relaxed)));
        }
        samples
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}
