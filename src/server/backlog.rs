//! Whether a worker keeps up with what is sent to it.
//!
//! Nobody says when a byte arrived, but it came after all that its connection had sent was last taken up, and after the worker last had
//! nothing to do. A worker is behind when all that it reads may have waited too long, for a while without a break; then what waited is
//! refused where it is read (see `gate`), and what comes in time is served as ever. So the queue before a worker stays short, and its work
//! goes into answers that somebody still waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// All has to be late for so long before anything is refused: a pause of the machine is no overload.
const PERSISTS: Duration = Duration::from_millis(100);

/// For so long nothing has to be late before the worker is believed to keep up again.
const CALMS: Duration = Duration::from_millis(500);

/// What was late is refused from this share of the lag on, so that what is served in a bad time is served well within it.
const STRICTER: u32 = 2;

/// A worker that was idle for less may have been only between two readings of its sockets.
const IDLE_MICROS: u64 = 50;

/// The backlog of one worker. Used by one thread alone.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Zero: nothing is ever refused.
    max_lag: Duration,
    start: Instant,
    /// In microseconds since the start: when the worker began to wait for something to do, and when it last had waited for a while.
    parked: AtomicU64,
    idle: AtomicU64,
    /// Since when all was late; `NEVER` when not.
    late_since: AtomicU64,
    /// When something was late last.
    late: AtomicU64,
    is_behind: AtomicBool,
}

const NEVER: u64 = u64::MAX;

impl Backlog {
    pub(super) fn new(max_lag: Duration) -> Self {
        Self {
            max_lag,
            start: Instant::now(),
            parked: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            late_since: AtomicU64::new(NEVER),
            late: AtomicU64::new(0),
            is_behind: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(NEVER)
    }

    /// The worker has nothing to do.
    pub(super) fn parks(&self) {
        self.parked.store(self.now(), Ordering::Relaxed);
    }

    /// The worker has something to do again.
    pub(super) fn unparks(&self) {
        let now = self.now();
        if now - self.parked.load(Ordering::Relaxed) >= IDLE_MICROS {
            self.idle.store(now, Ordering::Relaxed);
        }
    }

    /// Takes in that something was read that came after `empty`.
    fn came(&self, empty: u64) {
        let (now, waited) = self.waited(empty);
        if self.max_lag.is_zero() || waited <= self.max_lag {
            return self.late_since.store(NEVER, Ordering::Relaxed);
        }
        let since = self.late_since.load(Ordering::Relaxed);
        if since == NEVER {
            self.late_since.store(now, Ordering::Relaxed);
        } else if Duration::from_micros(now - since) >= PERSISTS {
            self.late.store(now, Ordering::Relaxed);
            self.is_behind.store(true, Ordering::Relaxed);
            tracing::warn!(lag_ms = waited.as_millis() as u64, "a worker cannot keep up; calls that waited too long are refused");
        }
    }

    /// Of a worker that is behind: whether what came after `empty` may have waited too long.
    fn is_late(&self, empty: u64) -> bool {
        let (now, waited) = self.waited(empty);
        if waited > self.max_lag / STRICTER {
            self.late.store(now, Ordering::Relaxed);
            return true;
        }
        if Duration::from_micros(now - self.late.load(Ordering::Relaxed)) >= CALMS {
            self.late_since.store(NEVER, Ordering::Relaxed);
            self.is_behind.store(false, Ordering::Relaxed);
            tracing::info!("the worker keeps up again");
        }
        false
    }

    /// The time, and the longest that anything may have waited that came after `empty`.
    fn waited(&self, empty: u64) -> (u64, Duration) {
        let now = self.now();
        (now, Duration::from_micros(now.saturating_sub(empty.max(self.idle.load(Ordering::Relaxed)))))
    }
}

/// What one connection sends to a worker.
#[derive(Debug)]
pub(super) struct Intake {
    backlog: Arc<Backlog>,
    /// When all that had come was taken up, in microseconds since the start.
    empty: AtomicU64,
}

impl Intake {
    pub(super) fn new(backlog: &Arc<Backlog>) -> Arc<Self> {
        Arc::new(Self { backlog: Arc::clone(backlog), empty: AtomicU64::new(backlog.now()) })
    }

    /// All that has come is taken up.
    pub(super) fn emptied(&self) {
        self.empty.store(self.backlog.now(), Ordering::Relaxed);
    }

    /// Something was read, to be served whenever it came.
    pub(super) fn came(&self) {
        self.backlog.came(self.empty.load(Ordering::Relaxed));
    }

    /// Whether the worker is behind.
    pub(super) fn is_behind(&self) -> bool {
        self.backlog.is_behind.load(Ordering::Relaxed)
    }

    /// Whether the worker is behind, and what is read now may have waited too long.
    pub(super) fn is_late(&self) -> bool {
        self.is_behind() && self.backlog.is_late(self.empty.load(Ordering::Relaxed))
    }
}
