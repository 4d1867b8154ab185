//! Whether calls are read while those who made them still wait.
//!
//! Nobody says when a byte arrived, but it came after all that its connection had sent was last taken up, and after the worker last had
//! nothing to do. Calls do say for how long they are waited for. A connection is behind when all that is read from it may be older than a
//! quarter of that, for a while without a break; then what waited is refused where it is read (see `gate`), and what comes in time is served
//! as ever. So the queue before a worker stays short, and its work goes into answers that somebody still waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// All has to be late for so long before anything is refused: a pause of the machine is no overload.
const PERSISTS_MICROS: u64 = 100_000;

/// For so long nothing has to be late before it is believed that the worker keeps up again.
const CALMS_MICROS: u64 = 500_000;

/// Late is what waited for more than one such part of its caller's patience: a call waits elsewhere too, and work comes in several times as
/// fast as it can be done, and all has to be done within the rest.
const PARTS: u64 = 8;

/// It begins when all waited for more than one of these, so that nobody is refused who is served well.
const PARTS_TO_BEGIN: u64 = 4;

/// Callers may have more patience than the last one had: what is known of it shrinks by this part of the difference with each call.
const FORGETS: u64 = 256;

/// Less patience than this nobody means: the network and the kernel take as much at times. Who says nothing has more than matters.
const LEAST_PATIENCE_MICROS: u64 = 1_000;
const MOST_PATIENCE_MICROS: u64 = 3_600_000_000;

/// A worker that was idle for less may have been only between two readings of its sockets.
const IDLE_MICROS: u64 = 50;

/// No point in time.
const NEVER: u64 = u64::MAX;

/// What a worker's connections have in common. Used by one thread alone, as they are; times are in microseconds since the start.
#[derive(Debug)]
pub(super) struct Backlog {
    sheds_load: bool,
    start: Instant,
    /// When the worker began to wait for something to do, and when it last had waited for a while.
    parked: AtomicU64,
    idle: AtomicU64,
    /// Connections that are behind.
    behind: AtomicU64,
}

impl Backlog {
    pub(super) fn new(sheds_load: bool) -> Self {
        let (parked, idle, behind) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { sheds_load, start: Instant::now(), parked, idle, behind }
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
}

/// What one connection sends to a worker.
#[derive(Debug)]
pub(super) struct Intake {
    backlog: Arc<Backlog>,
    /// When all that had come was taken up.
    empty: AtomicU64,
    /// How long its callers wait; 0 before there are any.
    patience: AtomicU64,
    /// Since when all was late; `NEVER` when not.
    late_since: AtomicU64,
    /// When something was late last.
    late: AtomicU64,
    is_behind: AtomicBool,
}

impl Intake {
    pub(super) fn new(backlog: &Arc<Backlog>) -> Arc<Self> {
        Arc::new(Self {
            backlog: Arc::clone(backlog),
            empty: AtomicU64::new(backlog.now()),
            patience: AtomicU64::new(0),
            late_since: AtomicU64::new(NEVER),
            late: AtomicU64::new(0),
            is_behind: AtomicBool::new(false),
        })
    }

    /// A call says how long it is waited for, if it does. It is the most patient ones that count.
    pub(super) fn waits(&self, timeout: Option<Duration>) {
        let micros = timeout.and_then(|timeout| u64::try_from(timeout.as_micros()).ok()).unwrap_or(MOST_PATIENCE_MICROS);
        let micros = micros.clamp(LEAST_PATIENCE_MICROS, MOST_PATIENCE_MICROS);
        let known = self.patience.load(Ordering::Relaxed);
        let forgotten = known.saturating_sub(micros).div_ceil(FORGETS);
        self.patience.store(micros.max(known - forgotten), Ordering::Relaxed);
    }

    /// All that has come is taken up.
    pub(super) fn emptied(&self) {
        self.empty.store(self.backlog.now(), Ordering::Relaxed);
    }

    /// Whether calls may have to be refused.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Something was read, to be served whenever it came.
    pub(super) fn came(&self) {
        if !self.backlog.sheds_load {
            return;
        }
        let (now, waited, patience) = self.waited();
        if patience == 0 || waited <= patience / PARTS_TO_BEGIN {
            return self.late_since.store(NEVER, Ordering::Relaxed);
        }
        let since = self.late_since.load(Ordering::Relaxed);
        if since == NEVER {
            self.late_since.store(now, Ordering::Relaxed);
        } else if now - since >= PERSISTS_MICROS {
            self.late.store(now, Ordering::Relaxed);
            let was_behind = self.is_behind.swap(true, Ordering::Relaxed);
            if !was_behind && self.backlog.behind.fetch_add(1, Ordering::Relaxed) == 0 {
                let (waited_ms, patience_ms) = (waited / 1_000, patience / 1_000);
                tracing::warn!(waited_ms, patience_ms, "a worker cannot keep up; calls that waited too long are refused");
            }
        }
    }

    /// Whether the connection is behind, and what is read now may have waited too long.
    pub(super) fn is_late(&self) -> bool {
        if !self.is_behind() {
            return false;
        }
        let (now, waited, patience) = self.waited();
        if waited > patience / PARTS {
            self.late.store(now, Ordering::Relaxed);
            return true;
        }
        if now - self.late.load(Ordering::Relaxed) >= CALMS_MICROS {
            self.keeps_up();
        }
        false
    }

    fn keeps_up(&self) {
        self.late_since.store(NEVER, Ordering::Relaxed);
        self.is_behind.store(false, Ordering::Relaxed);
        if self.backlog.behind.fetch_sub(1, Ordering::Relaxed) == 1 {
            tracing::info!("the worker keeps up again");
        }
    }

    /// The time, the longest that what is read now may have waited, and how long its callers wait.
    fn waited(&self) -> (u64, u64, u64) {
        let now = self.backlog.now();
        let empty = self.empty.load(Ordering::Relaxed).max(self.backlog.idle.load(Ordering::Relaxed));
        (now, now.saturating_sub(empty), self.patience.load(Ordering::Relaxed))
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        if self.is_behind() {
            self.keeps_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A worker with two connections, whose callers wait for 80 ms: 20 are too many, and then 10.
    fn worker() -> (Arc<Backlog>, [Arc<Intake>; 2]) {
        let backlog = Arc::new(Backlog::new(true));
        let connections = [Intake::new(&backlog), Intake::new(&backlog)];
        for connection in &connections {
            connection.waits(Some(ms(80)));
        }
        (backlog, connections)
    }

    /// Each connection in turn is read and emptied, and what it sent takes `work`.
    async fn busy(connections: &[Arc<Intake>], work: Duration, turns: u32) {
        for connection in (0..turns).flat_map(|_| connections) {
            connection.came();
            connection.emptied();
            advance(work).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_late_without_a_break_is_behind() {
        let (_, connections) = worker();
        busy(&connections, ms(10), 20).await;
        assert!(!connections[0].is_behind(), "each call waits for 20 ms at most");
        busy(&connections, ms(11), 5).await;
        assert!(!connections[0].is_behind(), "not for long enough");
        busy(&connections, ms(11), 3).await;
        assert!(connections.iter().all(|connection| connection.is_behind()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_break_begins_anew() {
        let (backlog, connections) = worker();
        for _ in 0..10 {
            busy(&connections, ms(15), 3).await;
            backlog.parks();
            advance(ms(1)).await;
            backlog.unparks();
        }
        assert!(!connections[0].is_behind(), "it had nothing to do now and then");
        // Between two readings it parks as well, and has something to do at once.
        for _ in 0..10 {
            busy(&connections, ms(15), 1).await;
            backlog.parks();
            backlog.unparks();
        }
        assert!(connections[0].is_behind());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_of_the_machine_is_no_overload() {
        let (_, connections) = worker();
        busy(&connections, ms(1), 10).await;
        advance(ms(5_000)).await;
        busy(&connections, ms(1), 10).await;
        assert!(!connections[0].is_behind());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waited_for_an_eighth_is_late_until_nothing_was_for_a_while() {
        let (_, connections) = worker();
        busy(&connections, ms(30), 5).await;
        let [connection, _] = &connections;
        assert!(connection.is_behind());
        connection.emptied();
        advance(ms(10)).await;
        assert!(!connection.is_late());
        advance(ms(1)).await;
        assert!(connection.is_late());
        for _ in 0..49 {
            connection.emptied();
            advance(ms(10)).await;
            assert!(!connection.is_late() && connection.is_behind());
        }
        connection.emptied();
        advance(ms(10)).await;
        assert!(!connection.is_late() && !connection.is_behind());
        busy(&connections, ms(11), 5).await;
        assert!(!connection.is_behind(), "and then all has to be late for a while again");
    }

    /// Each connection has callers of its own.
    #[tokio::test(start_paused = true)]
    async fn who_is_patient_is_not_refused() {
        let (backlog, connections) = worker();
        connections[1].waits(None);
        busy(&connections, ms(1_000), 10).await;
        assert_eq!(connections.each_ref().map(|connection| connection.is_behind()), [true, false], "one says nothing of a deadline");
        // A few who are patient are enough, and for a while.
        connections[0].waits(Some(ms(200_000)));
        (0..100).for_each(|_| connections[0].waits(Some(ms(20))));
        busy(&connections, ms(1_000), 10).await;
        assert!(!connections[0].is_late());
        (0..5_000).for_each(|_| connections[0].waits(Some(ms(20))));
        busy(&connections, ms(1_000), 10).await;
        assert!(connections[0].is_late());
        drop(connections);
        assert_eq!(backlog.behind.load(Ordering::Relaxed), 0, "who leaves is not behind any more");
    }

    #[tokio::test(start_paused = true)]
    async fn where_it_is_off_nobody_is_refused() {
        let backlog = Arc::new(Backlog::new(false));
        let connections = [Intake::new(&backlog)];
        connections[0].waits(Some(ms(20)));
        busy(&connections, ms(1_000), 10).await;
        assert!(!connections[0].is_behind());
    }
}
