//! The overrides in force, and where they are kept: in Redis for all replicas, in a file, or in
//! this process only.
//!
//! The control thread reads them from their store twice a second, and puts them in force if they
//! changed. While they cannot be read, the previous ones stay in force, and still end at their
//! instants. A change is made in the store first; then this process reads it back, and the other
//! replicas within [`POLL`] and a round trip. Requests use only the compiled tree of a snapshot.

pub(crate) mod file;
mod redis;
mod store;
pub(crate) mod versioned;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

pub(crate) use self::file::read_overrides;
pub use self::store::OverrideStore;
use self::versioned::{Change, StoredOverride, Version, Versioned, keep_ended};
use super::Live;
use crate::core::lock;
use crate::core::time::{Micros, Span};
use crate::limits::overrides::{Kind, Override, Overrides, Pattern, Record, instant};
use crate::limits::plan::key::EntryText;
use crate::net::clock;
use crate::net::rare::rare;
use crate::observe::logged_values::LoggedValues;
use crate::observe::metrics::{Sample, families};
use crate::observe::telemetry::AUDIT;

/// The time between two readings. With a round trip it keeps the promise of the documentation: in
/// force everywhere within a second.
pub const POLL: Duration = Duration::from_millis(500);

/// Maximum time for which the start waits for the first reading. Redis in the same data centre
/// answers within a tenth of it.
const START_WAIT: Duration = Duration::from_millis(250);

/// Time for which an expired override stays in its store. After it, the clocks of all replicas
/// agree that the override has expired.
const KEPT_AFTER_END: Span = Span::from_secs(60);

/// Maximum number of expired overrides that one sweep removes. The next sweep removes the rest.
const MAX_SWEPT: usize = 100;

/// One reading in this many sweeps, on average: replicas seldom sweep at the same time.
const SWEEP_ODDS: u32 = 20;

/// Writes an audit line about a change by an operator or an expiry. It is written at every log
/// level. If its fields follow an override, the line is about that override.
macro_rules! audit {
    ($values:expr, $one:expr; $($field:tt)*) => {{
        let (values, one): (&LoggedValues, &Override) = ($values, $one);
        let to = match &one.kind {
            Kind::Raise(rate) => Some(rate.to_string()),
            Kind::Block | Kind::Exempt => None,
        };
        let entries: Vec<_> = one.entries.iter().map(|entry| values.entry(entry)).collect();
        audit!(
            id = &*one.id, kind = one.kind.name(), to, domain = &*one.domain,
            entries = entries.join(" "), until = one.until.map(instant), $($field)*
        );
    }};
    ($($field:tt)*) => { tracing::info!(target: AUDIT, $($field)*) };
}

/// The reason why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The override is not possible.
    #[error("{0}")]
    Invalid(String),
    /// No override has this id.
    #[error("no override has the id {0}; `weir overrides` lists them")]
    Unknown(String),
    /// The store of the overrides cannot be changed.
    #[error("nothing was changed: {0}")]
    Unavailable(String),
}

/// The overrides of a process.
pub struct Registry {
    live: Arc<Live>,
    store: OverrideStore,
    /// How the log shows values.
    values: LoggedValues,
    /// Held from a reading until its result is in force, because an earlier reading must not
    /// replace a later one.
    gate: tokio::sync::Mutex<()>,
    state: Mutex<LoadedOverrides>,
    changes: ChangeLog,
    on_reset: Box<dyn Fn() + Send + Sync>,
}

/// The state that was loaded last.
#[derive(Debug, Default)]
struct LoadedOverrides {
    loaded: Versioned,
    /// Number of overrides that were not in force because there are too many, when it was logged.
    logged_left_out: usize,
    loaded_at: Option<Instant>,
    /// The error of the last attempt to load; `None` if it succeeded.
    error: Option<String>,
}

#[derive(Debug, Default)]
struct ChangeLog {
    set: AtomicU64,
    removed: AtomicU64,
    ended: AtomicU64,
    reset: AtomicU64,
}

impl Registry {
    /// A registry that has read nothing. It calls `on_reset` after any replica has reset a counter.
    pub fn new(
        live: Arc<Live>,
        store: OverrideStore,
        values: LoggedValues,
        on_reset: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self {
            live,
            store,
            values,
            gate: tokio::sync::Mutex::new(()),
            state: Mutex::default(),
            changes: ChangeLog::default(),
            on_reset,
        }
    }

    /// Reads the overrides for the first time, to have them in force with the first request. If
    /// that takes too long, the process serves without them until [`Registry::follow`] has read
    /// them.
    pub async fn start(&self) {
        if timeout(START_WAIT, self.poll()).await.is_err() {
            tracing::warn!("overrides: not read yet; answering requests without them");
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
    pub const fn is_for_this_process_only(&self) -> bool {
        matches!(self.store, OverrideStore::Process(_))
    }

    /// All overrides that have not ended, in the order in which they apply.
    pub fn list(&self) -> Vec<Arc<Override>> {
        let now = clock::now();
        let all = self.live.overrides().unwrap_or_default();
        let in_force = all.list.iter().filter(|one| !one.has_ended(now));
        in_force.cloned().collect()
    }

    /// The records of overrides that ended within the last week, the latest first.
    pub fn list_ended(&self) -> Vec<Record> {
        let (now, state) = (clock::now(), self.state());
        let mut all = state.loaded.ended.clone();
        let stored = state.loaded.all.iter();
        let expired = stored.filter(|stored| stored.one.has_ended(now));
        keep_ended(&mut all, expired.map(StoredOverride::expired));
        all.reverse();
        all
    }

    /// The override of this id that is in force in the store.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn current(&self, id: &str) -> Result<Option<Arc<Override>>, ChangeError> {
        let _gate = self.gate.lock().await;
        self.read().await.map_err(ChangeError::Unavailable)?;
        Ok(self.list().into_iter().find(|one| *one.id == *id))
    }

    /// Puts an override in force, and replaces one with the same kind and entries. Returns the
    /// replaced one. A sum is of the override before, `base`.
    ///
    /// # Errors
    /// It was not set.
    pub async fn set(
        &self,
        one: Override,
        base: Option<&Override>,
    ) -> Result<Option<Arc<Override>>, ChangeError> {
        let _gate = self.gate.lock().await;
        self.read().await.map_err(ChangeError::Unavailable)?;
        let now = clock::now();
        if one.has_ended(now) {
            let what = "until is in the past; write a later instant, or leave it out";
            return Err(ChangeError::Invalid(what.to_owned()));
        }
        let current = self.live.overrides().unwrap_or_default();
        let admitted = current.admit(&one, now);
        admitted.map_err(|error| ChangeError::Invalid(error.0))?;
        let is_replaced = |other: &&Arc<Override>| other.id == one.id && !other.has_ended(now);
        let before = current.list.iter().find(is_replaced).cloned();
        if base.is_some() && before.as_deref() != base {
            let why = "the raise that this one adds to was changed meanwhile; try again";
            return Err(ChangeError::Unavailable(why.to_owned()));
        }
        self.change(Some(one.clone()), None, false).await?;
        self.changes.set.fetch_add(1, Ordering::Relaxed);
        let replaced = before.as_ref().map(|before| before.until);
        let replaced_until = replaced.map(|end| end.map_or_else(|| "removed".to_owned(), instant));
        audit!(&self.values, &one; by = %one.by, reason = %one.reason, replaced_until, "override set");
        Ok(before)
    }

    /// Ends an override. Returns it.
    ///
    /// # Errors
    /// It was not removed.
    pub async fn remove(&self, id: &str, by: &str) -> Result<Arc<Override>, ChangeError> {
        let _gate = self.gate.lock().await;
        self.read().await.map_err(ChangeError::Unavailable)?;
        let find = |stored: &&StoredOverride| *stored.one.id == *id;
        let one = self.state().loaded.all.iter().find(find).cloned();
        let unknown = || ChangeError::Unknown(id.escape_debug().to_string());
        let one = one.ok_or_else(unknown)?.one;
        let removed = Record::ended(&one, clock::now(), by);
        self.change(None, Some(removed), false).await?;
        self.changes.removed.fetch_add(1, Ordering::Relaxed);
        audit!(&self.values, &one; by, set_by = %one.by, reason = %one.reason, "override removed");
        Ok(one)
    }

    /// Logs and counts that the counter of a descriptor was reset, and notifies the other replicas.
    pub async fn record_reset(
        &self,
        domain: &str,
        entries: &[EntryText],
        limit: &str,
        existed: bool,
        by: &str,
    ) {
        self.changes.reset.fetch_add(1, Ordering::Relaxed);
        let entry = |EntryText { key, value }: &EntryText| {
            // A subject may have only the digest of its value.
            let value = value.strip_prefix("sha256:").unwrap_or(value);
            self.values.entry(&Pattern::literal(key, value.as_bytes()))
        };
        let entries = entries.iter().map(entry).collect::<Vec<_>>().join(" ");
        audit!(domain, entries, limit, existed, by, "counter reset");
        if !matches!(self.store, OverrideStore::Redis(_)) {
            return;
        }
        let _gate = self.gate.lock().await;
        if let Err(error) = rare(self.change(None, None, true)).await {
            tracing::warn!(%error, "overrides: cannot announce the reset of a counter; other \
                replicas may still use hits that they have drawn from it");
        }
    }

    /// Sets an override, ends one, or announces the reset of a counter; and sweeps.
    async fn change(
        &self,
        set: Option<Override>,
        removed: Option<Record>,
        is_reset: bool,
    ) -> Result<(), ChangeError> {
        let mut ended = self.expired_before(set.as_ref().map_or("", |one| &one.id));
        if let Some(removed) = removed {
            ended.retain(|(record, _)| record.id != removed.id);
            ended.push((removed, Box::default()));
        }
        let change = Change {
            set,
            ended,
            is_reset,
            ..Change::default()
        };
        let applied = self.store.apply(change).await;
        applied.map_err(ChangeError::Unavailable)?;
        // The change was made. If it cannot be read back now, the next reading puts it in force.
        let _ = self.read().await;
        Ok(())
    }

    /// Reads the overrides, and puts them in force if they changed, or if one of them expired.
    async fn poll(&self) -> Result<(), String> {
        let _gate = self.gate.lock().await;
        self.read().await?;
        if fastrand::u32(..SWEEP_ODDS) == 0 && !self.expired_before("").is_empty() {
            let _ = self.change(None, None, false).await;
        }
        Ok(())
    }

    async fn read(&self) -> Result<(), String> {
        let before = self.live.overrides().unwrap_or_default();
        if before.list.iter().any(|one| one.has_ended(clock::now())) {
            self.put_in_force(&mut self.state());
        }
        let loaded = self.load().await;
        let mut state = self.state();
        let loaded = loaded.inspect_err(|error| {
            if state.error.as_ref() != Some(error) {
                let stays = "the last known overrides stay in force";
                tracing::warn!(error, "overrides: cannot be read; {stays}");
                state.error = Some(error.clone());
            }
        })?;
        state.loaded_at = Some(Instant::now());
        if let Some(mut loaded) = loaded {
            if loaded.version.last_reset() != state.loaded.version.last_reset() {
                (self.on_reset)();
            }
            let errors = std::mem::take(&mut loaded.errors);
            state.loaded = loaded;
            self.put_in_force(&mut state);
            for (id, error) in &errors {
                let (id, error) = (id.escape_debug(), error.escape_debug());
                tracing::warn!(%id, %error, "overrides: ignoring an override that cannot be read");
            }
        }
        if state.error.take().is_some() {
            tracing::info!("overrides: read again");
        }
        Ok(())
    }

    /// Loads the overrides if they changed, and restores them if Redis has lost them.
    async fn load(&self) -> Result<Option<Versioned>, String> {
        let seen = self.state().loaded.version.clone();
        let loaded = self.store.load(&seen).await?;
        let mut version = loaded.iter().map(|loaded| &loaded.version);
        if !version.any(Version::is_lost) {
            return Ok(loaded);
        }
        let lost = "Redis has lost them, and they cannot be written again";
        let restored = self.restore().await;
        match restored.map_err(|error| format!("{lost}: {error}"))? {
            true => self.store.load(&seen).await,
            false => Ok(loaded),
        }
    }

    /// Writes the overrides of this process to a Redis that has lost them, as after a restart
    /// without persistence: no operator removed them. Returns false if it has none.
    async fn restore(&self) -> Result<bool, String> {
        let now = clock::now();
        let mut restored = self.state().loaded.all.clone();
        restored.retain(|stored| !stored.one.has_ended(now));
        if restored.is_empty() {
            return Ok(false);
        }
        let count = restored.len();
        let change = Change {
            restored,
            ..Change::default()
        };
        self.store.apply(change).await?;
        let restored = "this process wrote back the overrides that it knows";
        tracing::warn!(count, "overrides: lost by Redis; {restored}");
        Ok(true)
    }

    fn put_in_force(&self, state: &mut LoadedOverrides) {
        let now = clock::now();
        self.log_expired(now);
        let stored = state.loaded.all.iter();
        let in_force = stored.filter(|stored| !stored.one.has_ended(now));
        let overrides = Overrides::new(in_force.map(|stored| Arc::clone(&stored.one)).collect());
        let left_out = state.loaded.left_out + overrides.left_out;
        if left_out > 0 && left_out != state.logged_left_out {
            tracing::error!(left_out, "overrides: too many; the oldest are not in force");
        }
        state.logged_left_out = left_out;
        tracing::debug!(in_force = overrides.list.len(), "overrides: in force");
        self.live.replace_overrides(overrides);
    }

    /// Logs the overrides in the tree that have expired by `now`, when the tree loses them; it ignores
    /// them already. Overrides that had expired before this process started were never in it.
    fn log_expired(&self, now: Micros) {
        let all = self.live.overrides().unwrap_or_default();
        for one in all.list.iter().filter(|one| one.has_ended(now)) {
            self.changes.ended.fetch_add(1, Ordering::Relaxed);
            audit!(&self.values, one; set_by = %one.by, reason = %one.reason, "override ended");
        }
    }

    /// The records and the texts of overrides that expired so long ago that all replicas know it.
    /// Also of an expired override with the id `replaced`, which is about to be replaced.
    fn expired_before(&self, replaced: &str) -> Vec<(Record, Box<str>)> {
        let now = clock::now();
        let is_old = |StoredOverride { one, .. }: &&StoredOverride| {
            let kept_for = match *one.id == *replaced {
                true => Span::ZERO,
                false => KEPT_AFTER_END,
            };
            one.until.is_some_and(|until| until + kept_for <= now)
        };
        let state = self.state();
        let old = state.loaded.all.iter().filter(is_old).take(MAX_SWEPT);
        let record = |old: &StoredOverride| (old.expired(), old.text.clone());
        old.map(record).collect()
    }

    /// Samples of the metrics of overrides.
    pub fn samples(&self) -> Vec<Sample> {
        let mut counts = [0; Kind::NAMES.len()];
        let (now, all) = (clock::now(), self.live.overrides().unwrap_or_default());
        for one in all.list.iter().filter(|one| !one.has_ended(now)) {
            counts[one.kind.index()] += 1;
        }
        let (state, mut samples) = (self.state(), Vec::new());
        for (kind, count) in Kind::NAMES.iter().zip(counts) {
            samples.push(families::OVERRIDES.count(&[*kind], count));
        }
        samples.push(families::OVERRIDES_UNREADABLE.count(&[], state.loaded.unreadable as u64));
        if let Some(at) = state.loaded_at {
            samples.push(families::OVERRIDES_AGE.sample(&[], at.elapsed().as_secs_f64()));
        }
        let changes = &self.changes;
        for (change, count) in [
            ("set", &changes.set),
            ("removed", &changes.removed),
            ("ended", &changes.ended),
            ("reset", &changes.reset),
        ] {
            let count = count.load(Ordering::Relaxed);
            samples.push(families::OVERRIDE_CHANGES.count(&[change], count));
        }
        samples
    }

    fn state(&self) -> MutexGuard<'_, LoadedOverrides> {
        lock(&self.state)
    }
}
