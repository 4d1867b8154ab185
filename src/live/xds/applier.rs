//! The thread that puts limits of the control plane in force: it takes updates from the inbox,
//! compiles them, saves them, and gives back outcomes.
//!
//! It is a thread of its own, so that a large configuration stalls neither requests nor the
//! connection. At most one configuration a second is compiled; what arrives meanwhile becomes one
//! update.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::cache::Cache;
use super::configuration::{Applied, Configuration};
use super::inbox::{Inbox, Update};
use super::overlay::OverlayFile;
use super::protocol::Outcome;
use super::report::Report;
use super::resources::Digest;
use super::status::{Count, Status};
use super::{MIN_COMPILE_INTERVAL, Options};
use crate::limits::rules::Rules;
use crate::limits::rules::compile::Problem;
use crate::live::Live;
use crate::observe::metrics::Metrics;

/// How often the thread looks at the overlay file, frees old rules, and writes what the log still
/// lacks.
const IDLE: Duration = Duration::from_millis(250);

/// The result of an update, for the connection.
#[derive(Debug)]
pub(super) struct Answer {
    /// The stream of the update.
    pub(super) stream: u64,
    pub(super) version: Bytes,
    pub(super) nonce: Bytes,
    pub(super) outcome: Outcome,
}

/// Puts configurations in force.
pub(super) struct Applier {
    live: Arc<Live>,
    metrics: Arc<Metrics>,
    status: Status,
    configuration: Configuration,
    overlay: OverlayFile,
    cache: Option<Cache>,
    report: Report,
    /// Whether the last attempt to write the cache failed, which is logged once.
    save_failed: bool,
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
        let (overlay, problems) =
            OverlayFile::open(options.overlay_file.clone(), options.rules.clone());
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
            configuration: Configuration::new(overlay.options.clone(), max_bytes, max_memory),
            overlay,
            cache,
            report: Report::default(),
            save_failed: false,
        };
        applier.restore();
        (applier, problems)
    }

    /// Puts the saved configuration in force, if there is one.
    fn restore(&mut self) {
        let Some(cache) = &self.cache else { return };
        let path = cache.path.display().to_string();
        match cache.load() {
            Ok(None) => tracing::info!(path, "there are no saved limits yet"),
            Ok(Some(resources)) => {
                let count = resources.len();
                let Some(applied) = self.guarded(|configuration| configuration.restore(resources))
                else {
                    return;
                };
                tracing::info!(
                    path,
                    resources = count,
                    "limits restored from CONFIG_GRPC_XDS_CACHE_FILE until the control plane \
                     answers"
                );
                self.settle(applied, &[], Instant::now());
            }
            Err(error) => tracing::warn!(path, "CONFIG_GRPC_XDS_CACHE_FILE is not used: {error}"),
        }
    }

    /// Applies updates. Endless.
    pub(super) async fn run(mut self, inbox: Arc<Inbox>, answers: mpsc::Sender<Answer>) {
        let mut not_before = Instant::now();
        loop {
            let Some(update) = inbox.next(not_before, IDLE).await else {
                self.idle();
                continue;
            };
            let answer = self.apply(update);
            // Measured from the end, so that the thread rests between two large configurations.
            not_before = Instant::now() + MIN_COMPILE_INTERVAL;
            // Without a connection there is no control plane to answer.
            let _ = answers.try_send(answer);
            self.save();
        }
    }

    fn idle(&mut self) {
        self.live.free_old();
        let now = Instant::now();
        if let Some(options) = self.overlay.poll(self.live.take_reload()).cloned()
            && let Some(applied) =
                self.guarded(|configuration| configuration.apply_options(options))
        {
            self.settle(applied, &[], now);
            self.save();
        }
        self.report.idle(now);
    }

    fn apply(&mut self, update: Update) -> Answer {
        let applied = self.guarded(|configuration| configuration.apply(&update.resources));
        let outcome = match applied {
            Some(applied) => {
                let outcome = applied.outcome.clone();
                self.settle(applied, &update.version, Instant::now());
                outcome
            }
            None => Outcome::Refused {
                content: Digest::of([]),
                message: "weir panicked while it applied this".to_owned(),
            },
        };
        self.status.answered(&outcome, &update.version);
        Answer {
            stream: update.stream,
            version: update.version,
            nonce: update.nonce,
            outcome,
        }
    }

    /// Runs a step of the configuration. A panic, of which there should be none, costs this update
    /// only.
    fn guarded(&mut self, step: impl FnOnce(&mut Configuration) -> Applied) -> Option<Applied> {
        let configuration = &mut self.configuration;
        if let Ok(applied) = catch_unwind(AssertUnwindSafe(|| step(configuration))) {
            return Some(applied);
        }
        self.metrics.panicked();
        tracing::error!(
            "weir panicked while it loaded limits; the limits in force stay; this is a bug in weir"
        );
        None
    }

    fn settle(&mut self, applied: Applied, version: &[u8], now: Instant) {
        if applied.is_known {
            return;
        }
        self.status.set_refused(applied.kept, applied.absent);
        let old = self.live.load();
        let is_first = old.is_none();
        let rules = match applied.rules {
            // With no usable limit at all, requests get UNAVAILABLE: rules without domains would
            // let them pass.
            Some(rules)
                if is_first && rules.domains().next().is_none() && !applied.problems.is_empty() =>
            {
                None
            }
            None if is_first && applied.problems.is_empty() => Some(Rules::default()),
            rules => rules,
        };
        let snapshot = rules.map(|rules| self.live.replace(rules));
        if let Some(snapshot) = &snapshot {
            self.report.loaded(old.as_deref(), snapshot, version, now);
        }
        self.report.warnings(applied.warnings);
        if applied.problems.is_empty() {
            self.live.clear_rejection();
        } else {
            self.live.reject(applied.problems.clone());
        }
        self.report.refused(
            applied.problems,
            (applied.kept, applied.absent),
            is_first && snapshot.is_none(),
        );
    }

    /// Saves what is in force, if it has changed.
    fn save(&mut self) {
        let Some(cache) = &self.cache else { return };
        if !self.configuration.take_changed() {
            return;
        }
        let written = cache.save(&self.configuration.in_force);
        self.status.count(if written.is_ok() {
            Count::Saved
        } else {
            Count::SaveFailed
        });
        if let Err(error) = &written
            && !self.save_failed
        {
            let path = cache.path.display();
            tracing::warn!(
                "CONFIG_GRPC_XDS_CACHE_FILE: {path} cannot be written ({error}); make its folder \
                 writable, or a process that starts while the control plane is away has no limits"
            );
        }
        self.save_failed = written.is_err();
    }
}
