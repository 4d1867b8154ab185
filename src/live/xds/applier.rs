//! The thread that puts limits of the control plane in force: it takes updates from the inbox,
//! compiles them, saves them, and returns outcomes.
//!
//! It is a thread of its own, because a large configuration must stall neither requests nor the
//! connection. At most one configuration a second is compiled; responses that arrive meanwhile
//! become one update.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep_until, timeout};

use super::cache::Cache;
use super::configuration::{Applied, Configuration};
use super::protocol::ApplyOutcome;
use super::report::Report;
use super::status::{Count, Status};
use super::{MIN_COMPILE_INTERVAL, Options};
use crate::core::lock;
use crate::limits::rules::Rules;
use crate::limits::rules::compile::{self, Problem};
use crate::limits::rules::domains::{Overlay, ReadOverlay};
use crate::live::Live;
use crate::live::files::{self, MAX_LOGGED, Read, WatchedFolder, log_problems};
use crate::net::background;
use crate::observe::metrics::Metrics;

/// The interval at which the thread checks the overlay file, frees old rules, and writes missing
/// lines to the log.
const IDLE: Duration = Duration::from_millis(250);

/// The pause after an attempt to write the cache that failed.
const SAVE_AGAIN: Duration = Duration::from_secs(10);

/// A response of the control plane, as it waits to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Update {
    /// The number of the stream.
    pub(super) stream: u64,
    pub(super) version: Bytes,
    pub(super) nonce: Bytes,
    /// All resources: each an encoded `Any`.
    pub(super) resources: Vec<Bytes>,
}

/// The result of an update, for the connection.
#[derive(Debug)]
pub(super) struct Answer {
    /// Without its resources.
    pub(super) update: Update,
    pub(super) outcome: ApplyOutcome,
}

/// The hand-over from the thread of the connection to the thread that compiles: only the newest
/// update, because compiling older ones would be wasted.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    update: Mutex<Option<Update>>,
    arrived: Notify,
}

impl Inbox {
    /// Replaces the update that waits. Returns whether there was one. It needs no answer: the
    /// server ignores an answer to any but its last response.
    pub(super) fn put(&self, update: Update) -> bool {
        let replaced = lock(&self.update).replace(update);
        self.arrived.notify_one();
        replaced.is_some()
    }

    fn is_empty(&self) -> bool {
        lock(&self.update).is_none()
    }

    /// Waits for an update, which is taken at `not_before` at the earliest, or for `idle` to pass.
    pub(super) async fn next(&self, not_before: Instant, idle: Duration) -> Option<Update> {
        let next = async {
            sleep_until(not_before.into()).await;
            loop {
                let update = lock(&self.update).take();
                match update {
                    Some(update) => return update,
                    None => self.arrived.notified().await,
                }
            }
        };
        timeout(idle, next).await.ok()
    }
}

/// The overlay file: settings for which the messages of a control plane have no field. It is
/// all-or-nothing, as the files of limits are: with a mistake in it, the overlay that was in force
/// stays.
#[derive(Debug)]
struct OverlayFile(WatchedFolder);

impl OverlayFile {
    /// Reads the file for the first time.
    fn open(path: &Path, max_memory: u64) -> (Self, Result<Overlay, Vec<Problem>>) {
        let mut options = files::Options {
            path: path.to_owned(),
            ..files::Options::default()
        };
        options.compile.max_memory = Some(max_memory);
        let compile = options.compile.clone();
        let (file, overlay) = WatchedFolder::open(options, |read| overlay(path, read, &compile));
        (Self(file), overlay)
    }

    /// Polls the file, which is to be read `now` if so. Returns the overlay if the file was read.
    fn poll(&mut self, now: bool) -> Option<Result<Overlay, Vec<Problem>>> {
        let options = self.0.options().clone();
        let load = |read: &Read| overlay(&options.path, read, &options.compile);
        let loaded = self.0.poll(now, load)?;
        match &loaded {
            Ok(overlay) => tracing::info!(entries = overlay.entries(), "overlay file loaded"),
            Err(problems) => {
                let (count, stays) = (problems.len(), "its previous content stays in force");
                tracing::error!(problems = count, "overlay file rejected; {stays}");
                log_problems(problems, "");
            }
        }
        Some(loaded)
    }
}

/// The overlay in the file at `path`.
fn overlay(path: &Path, read: &Read, options: &compile::Options) -> Result<Overlay, Vec<Problem>> {
    let text = read.only(path)?;
    let ReadOverlay { overlay, warnings } = Overlay::read(text, options)?;
    for warning in warnings.iter().take(MAX_LOGGED) {
        tracing::warn!("{warning}");
    }
    Ok(overlay)
}

/// Puts configurations in force.
pub(super) struct Applier {
    live: Arc<Live>,
    metrics: Arc<Metrics>,
    status: Status,
    configuration: Configuration,
    overlay: Option<OverlayFile>,
    cache: Option<Cache>,
    report: Report,
    /// The problems of the last response, and of the overlay file.
    refused: Vec<Problem>,
    refused_overlay: Vec<Problem>,
    /// The next attempt to write the cache, if the last one failed.
    save_again: Option<Instant>,
}

impl Applier {
    /// Reads the overlay file, and puts the saved configuration in force, if there is one. Returns
    /// the problems of the overlay file too.
    pub(super) fn open(
        live: Arc<Live>,
        metrics: Arc<Metrics>,
        status: Status,
        options: &Options,
    ) -> (Self, Vec<Problem>) {
        let (mut rules, mut refused_overlay) = (options.rules.clone(), Vec::new());
        let overlay = options.overlay_file.as_deref().map(|path| {
            let (file, read) = OverlayFile::open(path, options.max_memory);
            match read {
                Ok(overlay) => rules.overlay = Some(Arc::new(overlay)),
                Err(problems) => refused_overlay = problems,
            }
            file
        });
        let (max_bytes, max_memory) = (options.max_message_bytes, options.max_memory);
        let cache = options.cache_file.clone().map(|path| Cache {
            path,
            node: options.node.id.clone(),
            max_bytes,
        });
        let mut applier = Self {
            live,
            metrics,
            status,
            configuration: Configuration::new(rules, max_bytes, max_memory),
            overlay,
            cache,
            report: Report::new(max_memory),
            refused: Vec::new(),
            refused_overlay: refused_overlay.clone(),
            save_again: None,
        };
        applier.show_refusals();
        applier.restore();
        (applier, refused_overlay)
    }

    /// Puts the saved configuration in force, if there is one.
    fn restore(&mut self) {
        let Some(cache) = &self.cache else { return };
        let path = cache.path.display().to_string();
        match cache.load() {
            Ok(None) => tracing::info!(path, "no saved limits yet"),
            Ok(Some(saved)) => {
                let resources = saved.len();
                let applied = self.guarded(|configuration| configuration.restore(saved));
                if applied.is_known {
                    return;
                }
                tracing::info!(
                    path,
                    resources,
                    "limits restored from CONFIG_GRPC_XDS_CACHE_FILE \
                    until the control plane answers"
                );
                self.put_in_force(applied, &[], Instant::now());
            }
            Err(error) => tracing::warn!(path, "ignoring CONFIG_GRPC_XDS_CACHE_FILE: {error}"),
        }
    }

    /// Applies updates. Endless.
    pub(super) async fn run(mut self, inbox: Arc<Inbox>, answers: mpsc::Sender<Answer>) {
        let mut not_before = Instant::now();
        loop {
            let Some(update) = inbox.next(not_before, IDLE).await else {
                self.idle();
                if inbox.is_empty() && self.live.rejected().is_none() {
                    let oldest = self.overlay.as_ref().map(|file| file.0.oldest());
                    self.metrics
                        .config_in_force(oldest.unwrap_or_else(Instant::now));
                }
                continue;
            };
            let answer = self.apply(update);
            // Measured from the end: the thread rests between two large configurations.
            not_before = Instant::now() + MIN_COMPILE_INTERVAL;
            // Without a connection there is no control plane to answer.
            let _ = answers.try_send(answer);
            self.save();
        }
    }

    fn idle(&mut self) {
        self.live.free_old();
        let now = Instant::now();
        let asked = self.live.take_reload();
        match self.poll_overlay(asked) {
            Some(Ok(overlay)) => {
                self.refused_overlay.clear();
                self.show_refusals();
                let applied = self.guarded(|configuration| configuration.apply_overlay(overlay));
                self.put_in_force(applied, &[], now);
                self.save();
            }
            Some(Err(problems)) => {
                self.refused_overlay = problems;
                self.show_refusals();
            }
            None => {}
        }
        if self.save_again.is_some_and(|again| again <= now) {
            self.save();
        }
        self.report.idle(now);
    }

    fn poll_overlay(&mut self, asked: bool) -> Option<Result<Overlay, Vec<Problem>>> {
        let file = self.overlay.as_mut()?;
        let Some(polled) = files::guarded(&self.metrics, || file.poll(asked)) else {
            file.0.skip_seen();
            return None;
        };
        if polled.is_none() && asked {
            // No descriptor is free.
            self.live.ask_for_reload();
        }
        polled
    }

    /// Shows what is refused now in the status and in metrics.
    fn show_refusals(&self) {
        let problems = self.refused_overlay.iter().chain(&self.refused);
        let problems: Vec<_> = problems.cloned().collect();
        if problems.is_empty() {
            self.live.clear_rejection();
        } else {
            self.live.reject(problems);
        }
    }

    fn apply(&mut self, mut update: Update) -> Answer {
        let resources = std::mem::take(&mut update.resources);
        let applied = self.guarded(|configuration| configuration.apply(&resources));
        let outcome = applied.outcome.clone();
        self.put_in_force(applied, &update.version, Instant::now());
        self.status.answered(&outcome, &update.version);
        Answer { update, outcome }
    }

    /// Runs a step of the configuration. A panic, of which there should be none, costs this update
    /// only: it is as if nothing had been compiled.
    fn guarded(&mut self, step: impl FnOnce(&mut Configuration) -> Applied + Send) -> Applied {
        let configuration = &mut self.configuration;
        let work = || background::run("weir-load", || step(configuration));
        files::guarded(&self.metrics, work).unwrap_or_else(|| Applied {
            outcome: ApplyOutcome::Refused {
                content: 0,
                message: "Weir panicked while applying this".to_owned(),
            },
            is_known: true,
            ..Applied::default()
        })
    }

    fn put_in_force(&mut self, applied: Applied, version: &[u8], now: Instant) {
        if applied.is_known {
            return;
        }
        self.status.set_refused(applied.kept, applied.absent);
        let old = self.live.load();
        let is_first = old.is_none();
        // With no usable limit at all, requests get UNAVAILABLE: rules without domains would let
        // them pass. They may if the control plane has none.
        let is_empty = is_first && applied.problems.is_empty();
        let rules = applied.rules.or_else(|| is_empty.then(Rules::default));
        let snapshot = rules.map(|rules| self.live.replace(rules));
        if let Some(snapshot) = &snapshot {
            self.report.loaded(old.as_deref(), snapshot, version, now);
        }
        self.report.warnings(applied.warnings);
        self.refused.clone_from(&applied.problems);
        self.show_refusals();
        let counts = (applied.kept, applied.absent);
        let has_none = is_first && snapshot.is_none();
        self.report.refused(applied.problems, counts, has_none);
    }

    /// Saves the configuration in force, if it has changed since it was saved.
    fn save(&mut self) {
        let Some(cache) = &self.cache else { return };
        if !self.configuration.take_changed() {
            return;
        }
        let resources = &self.configuration.in_force;
        let written = background::run("weir-load", || cache.save(resources));
        self.status.count(match written {
            Ok(()) => Count::Saved,
            Err(_) => Count::SaveFailed,
        });
        let failed_before = self.save_again.take().is_some();
        let Err(error) = written else { return };
        self.configuration.set_changed();
        self.save_again = Some(Instant::now() + SAVE_AGAIN);
        if !failed_before {
            let path = cache.path.display();
            tracing::warn!(
                "CONFIG_GRPC_XDS_CACHE_FILE: {path} cannot be written ({error}); make its folder \
                 writable, or a process that starts while the control plane is down has no limits"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(nonce: &'static str) -> Update {
        Update {
            stream: 1,
            version: "v".into(),
            nonce: nonce.into(),
            resources: Vec::new(),
        }
    }

    #[tokio::test]
    async fn the_newest_state_is_taken_and_not_before_its_time() {
        let inbox = Inbox::default();
        assert!(!inbox.put(update("1")));
        assert!(inbox.put(update("2")));
        let begin = Instant::now();
        let not_before = begin + Duration::from_millis(50);
        let idle = inbox.next(not_before, Duration::from_millis(10)).await;
        assert_eq!(idle, None);
        assert_eq!(
            inbox.next(not_before, Duration::from_secs(60)).await,
            Some(update("2"))
        );
        assert!(
            begin.elapsed() >= Duration::from_millis(50),
            "{:?}",
            begin.elapsed()
        );
        assert_eq!(inbox.next(begin, Duration::ZERO).await, None);
    }
}
