//! Overload of a worker: calls that it refuses, and connections that it reads last.
//!
//! Each socket measures a lower bound of the time that the bytes read from it have waited (see
//! `socket`). A call whose own deadline passed meanwhile is refused: its client has given up. All
//! others are served.
//!
//! Reading and refusing a call costs half as much as answering it. If three times as many calls
//! arrive as a worker can answer, and it reads everything, it answers nothing in time. Therefore a
//! connection becomes *behind* when all calls of a turn waited for more than a quarter of their
//! timeouts and its socket is not empty, and stays so until the socket is empty. The worker reads
//! it only when it has nothing else to do. So the other connections are answered in time.
//! Connections that are behind catch up one after the other, the one that joined last first: most
//! often it has the shortest backlog.
//!
//! Each thread of each Envoy has its own connection: a choice among connections is nearly as good
//! as one among calls, and needs no knowledge of HTTP/2. A turn reads 8 KiB (64 while a connection
//! catches up), because h2 reads all that is there before it passes on the first call.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use crate::core::lock;

/// An iteration of the worker's loop that takes less than this has served nothing.
const IDLE_ITERATION: Duration = Duration::from_micros(20);

/// Bytes that a connection reads at most before its calls are served and the worker's other
/// connections have their turn.
const TURN_BYTES: usize = 8 << 10;
/// Bytes that a connection reads at most at a time while it is behind. HTTP/2 skips calls that the
/// client has reset in the same turn at little cost.
const CATCH_UP_BYTES: usize = 64 << 10;

/// A call is late if it waited for more than this part of its timeout before it was read.
const LATE_DIVISOR: u32 = 4;

/// One waiting connection, the last one, is read after this time even if the worker is busy.
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// Interval at which the next [`MAX_NOTING`] connections note how many bytes have arrived.
const NOTE_INTERVAL: Duration = Duration::from_millis(5);
const MAX_NOTING: usize = 64;

/// A worker is no longer overloaded when no connection had to wait for this long.
const CALM: Duration = Duration::from_secs(1);

/// State that the connections of a worker share. Only metrics use it outside the worker's thread.
#[derive(Debug, Default)]
pub(super) struct Overload {
    /// Connections that wait to be read, each at most once. The last one is read first.
    waiting: Mutex<Vec<Weak<QueueDelay>>>,
    joined: Notify,
    behind: AtomicUsize,
}

impl Overload {
    pub(super) fn connections_behind(&self) -> usize {
        self.behind.load(Ordering::Relaxed)
    }

    /// Admits waiting connections one by one, whenever the worker has nothing else to do. Never
    /// returns.
    pub(super) async fn serve_waiting(&self) {
        loop {
            self.joined.notified().await;
            tracing::warn!(
                "worker overloaded: reading late connections last, rejecting expired calls"
            );
            self.serve_until_empty().await;
            while timeout(CALM, self.joined.notified()).await.is_ok() {
                self.serve_until_empty().await;
            }
            tracing::info!("worker no longer overloaded");
        }
    }

    async fn serve_until_empty(&self) {
        let (mut admitted, mut noted) = (Instant::now(), Instant::now());
        while !lock(&self.waiting).is_empty() {
            let begin = Instant::now();
            // All other tasks that are ready run first, and the sockets are polled.
            yield_now().await;
            if begin.elapsed() < IDLE_ITERATION || admitted.elapsed() >= MAX_PAUSE {
                self.admit_next();
                admitted = Instant::now();
            }
            if noted.elapsed() >= NOTE_INTERVAL {
                self.wake_next();
                yield_now().await;
                noted = Instant::now();
            }
        }
    }

    /// Admits the next connection that is not closed.
    fn admit_next(&self) {
        let mut waiting = lock(&self.waiting);
        let mut newest_first = std::iter::from_fn(|| waiting.pop());
        if let Some(connection) = newest_first.find_map(|connection| connection.upgrade()) {
            connection.admit();
        }
    }

    /// Wakes the connections that are read next, to note the arrived bytes, and removes closed
    /// ones.
    fn wake_next(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.retain(|connection| connection.strong_count() > 0);
        let newest = waiting.iter().rev().take(MAX_NOTING);
        for connection in newest.filter_map(Weak::upgrade) {
            connection.wake();
        }
    }
}

/// No time of arrival.
const UNKNOWN: u64 = u64::MAX;

/// Lateness of one connection's calls.
#[derive(Debug)]
pub(super) struct QueueDelay {
    /// `None`: load shedding is off.
    worker: Option<Arc<Overload>>,
    opened: Instant,
    /// Latest possible arrival of the last bytes that were read, in microseconds since `opened`;
    /// `UNKNOWN` if it was not measured.
    arrived: AtomicU64,
    is_behind: AtomicBool,
    /// The last read left nothing in the socket.
    is_drained: AtomicBool,
    /// Bytes that it may still read in this turn. Before the first turn it reads only the preface,
    /// which has bounds of its own.
    left: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

impl QueueDelay {
    pub(super) fn new(worker: Option<Arc<Overload>>) -> Arc<Self> {
        Arc::new(Self {
            worker,
            opened: Instant::now(),
            arrived: AtomicU64::new(UNKNOWN),
            is_behind: AtomicBool::new(false),
            is_drained: AtomicBool::new(false),
            left: AtomicUsize::new(usize::MAX),
            waker: Mutex::new(None),
        })
    }

    /// Whether the wait of bytes is measured: load shedding is on.
    pub(super) fn is_measured(&self) -> bool {
        self.worker.is_some()
    }

    /// Whether the worker reads the connection only when it has nothing else to do.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// For tests: one that is late.
    #[cfg(test)]
    pub(super) fn behind() -> Arc<Self> {
        let behind = Self::new(Some(Arc::default()));
        behind.set_behind(true);
        behind
    }

    /// A turn of the connection begins.
    pub(super) fn begin(&self) {
        if !self.is_behind() {
            self.left.store(TURN_BYTES, Ordering::Relaxed);
        }
    }

    /// Records a read of bytes that had arrived by this time; `None` if it was not measured.
    pub(super) fn read(&self, bytes: usize, arrived: Option<Instant>) {
        let left = self.left.load(Ordering::Relaxed).saturating_sub(bytes);
        self.left.store(left, Ordering::Relaxed);
        let micros = arrived.map_or(UNKNOWN, |arrived| {
            (arrived - self.opened).as_micros() as u64
        });
        self.arrived.store(micros, Ordering::Relaxed);
        self.is_drained.store(false, Ordering::Relaxed);
    }

    /// Nothing is left in the socket.
    pub(super) fn caught_up(&self) {
        self.is_drained.store(true, Ordering::Relaxed);
        self.set_behind(false);
    }

    /// The calls of this turn, which HTTP/2 has accepted.
    pub(super) fn turn_calls(&self) -> TurnCalls {
        let micros = self.arrived.load(Ordering::Relaxed);
        let is_known = self.worker.is_some() && micros != UNKNOWN;
        TurnCalls {
            arrived: is_known.then(|| self.opened + Duration::from_micros(micros)),
            calls: 0,
            late: 0,
        }
    }

    /// The turn is over.
    pub(super) fn end(&self, turn: &TurnCalls) {
        if turn.calls > 0 && turn.late == turn.calls && !self.is_drained.load(Ordering::Relaxed) {
            self.set_behind(true);
        }
    }

    fn set_behind(&self, is_behind: bool) {
        let Some(worker) = &self.worker else { return };
        if self.is_behind.swap(is_behind, Ordering::Relaxed) != is_behind {
            if is_behind {
                worker.behind.fetch_add(1, Ordering::Relaxed)
            } else {
                worker.behind.fetch_sub(1, Ordering::Relaxed)
            };
        }
    }

    /// Whether the connection may be read now. If not, its task is woken when it may.
    pub(super) fn may_read(self: &Arc<Self>, context: &mut Context<'_>) -> bool {
        if self.left.load(Ordering::Relaxed) > 0 {
            return true;
        }
        let Some(worker) = self.worker.as_ref().filter(|_| self.is_behind()) else {
            // Woken after the worker has polled its sockets; an immediate wake-up would delay that.
            return pin!(yield_now()).poll(context).is_ready();
        };
        let waits = lock(&self.waker).replace(context.waker().clone()).is_some();
        if !waits {
            lock(&worker.waiting).push(Arc::downgrade(self));
            worker.joined.notify_one();
        }
        false
    }

    fn wake(&self) {
        if let Some(waker) = &*lock(&self.waker) {
            waker.wake_by_ref();
        }
    }

    fn admit(&self) {
        self.left.store(CATCH_UP_BYTES, Ordering::Relaxed);
        if let Some(waker) = lock(&self.waker).take() {
            waker.wake();
        }
    }
}

impl Drop for QueueDelay {
    fn drop(&mut self) {
        self.set_behind(false);
    }
}

/// The deadline of a call has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expired;

/// The calls of one turn of a connection.
#[derive(Debug)]
pub(super) struct TurnCalls {
    /// Latest time at which its last call can have arrived in the socket; `None` if it was not
    /// measured.
    arrived: Option<Instant>,
    /// Its calls, and how many of them were late.
    calls: usize,
    late: usize,
}

impl TurnCalls {
    /// The time that a call has left of its timeout; `None` stays `None`: it has no deadline.
    ///
    /// # Errors
    /// [`Expired`]: the deadline passed while the call waited.
    pub(super) fn time_left(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<Duration>, Expired> {
        self.calls += 1;
        let (Some(arrived), Some(timeout)) = (self.arrived, timeout) else {
            return Ok(timeout);
        };
        let waited = arrived.elapsed();
        self.late += usize::from(waited > timeout / LATE_DIVISOR);
        timeout.checked_sub(waited).map(Some).ok_or(Expired)
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;
    use tokio::time::advance;

    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A connection that has read all it may of bytes that arrived so many milliseconds ago.
    async fn connection(worker: &Arc<Overload>, age: u64) -> Arc<QueueDelay> {
        let queue_delay = QueueDelay::new(Some(Arc::clone(worker)));
        queue_delay.begin();
        queue_delay.read(TURN_BYTES, Some(Instant::now()));
        advance(Duration::from_millis(age)).await;
        queue_delay
    }

    /// Serves calls with these timeouts in one turn; returns the time that each has left.
    fn serve<const N: usize>(
        connection: &QueueDelay,
        timeouts: [Option<Duration>; N],
    ) -> Vec<Result<Option<Duration>, Expired>> {
        let mut turn = connection.turn_calls();
        let left = timeouts.map(|timeout| turn.time_left(timeout)).to_vec();
        connection.end(&turn);
        left
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_over_after_its_own_deadline() {
        let worker = Arc::default();
        let late = connection(&worker, 21).await;
        assert_eq!(
            serve(&late, [Some(ms(20)), Some(ms(22)), None]),
            [Err(Expired), Ok(Some(ms(1))), Ok(None)]
        );
        late.read(1, None);
        assert_eq!(
            serve(&late, [Some(ms(20)), Some(ms(0))]),
            [Ok(Some(ms(20))), Ok(Some(ms(0)))],
            "it is not known how long they waited"
        );
        let without = QueueDelay::new(None);
        without.read(1, Some(Instant::now()));
        advance(Duration::from_secs(1)).await;
        assert_eq!(
            serve(&without, [Some(ms(20))]),
            [Ok(Some(ms(20)))],
            "load shedding is off"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_behind_while_its_calls_are_late_and_something_is_left() {
        let worker = Arc::default();
        let connection = connection(&worker, 6).await;
        serve(&connection, [Some(ms(20)), None]);
        serve(&connection, [Some(ms(20)), Some(ms(24))]);
        assert_eq!(worker.connections_behind(), 0, "some calls were in time");
        serve(&connection, [Some(ms(20)), Some(ms(20))]);
        serve(&connection, []);
        serve(&connection, [None]);
        assert_eq!(worker.connections_behind(), 1);
        connection.caught_up();
        assert_eq!(worker.connections_behind(), 0);
        serve(&connection, [Some(ms(5))]);
        assert_eq!(worker.connections_behind(), 0, "nothing is left");
        connection.read(1, Some(Instant::now() - ms(6)));
        serve(&connection, [Some(ms(20))]);
        assert_eq!(worker.connections_behind(), 1);
        drop(connection);
        assert_eq!(worker.connections_behind(), 0, "it was closed");
    }

    /// Other tasks are busy for three turns of the loop.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_behind_is_read_when_the_worker_has_nothing_else_to_do() {
        let worker = Arc::<Overload>::default();
        let connections = [connection(&worker, 1).await, connection(&worker, 6).await];
        let may_read = |connection: &Arc<QueueDelay>| {
            connection.begin();
            connection.may_read(&mut Context::from_waker(Waker::noop()))
        };
        advance(Duration::from_millis(10)).await;
        for connection in &connections {
            assert!(may_read(connection));
            connection.read(TURN_BYTES, Some(Instant::now() - Duration::from_millis(10)));
            serve(connection, [Some(ms(20))]);
            assert!(!may_read(connection) && !may_read(connection));
        }
        let mut tasks = JoinSet::new();
        let serving = Arc::clone(&worker);
        tasks.spawn(async move { serving.serve_waiting().await });
        let mut admitted = Vec::new();
        for turn in 0..8 {
            if turn < 3 {
                // Also lets other tasks run.
                advance(2 * IDLE_ITERATION).await;
            } else {
                yield_now().await;
            }
            admitted.push(connections.each_ref().map(may_read));
        }
        let first = |index: usize| admitted.iter().position(|admitted| admitted[index]);
        assert!(
            first(1) > Some(2),
            "not while others are busy: {admitted:?}"
        );
        assert!(
            first(0) > first(1),
            "the one that waits for the shortest time first: {admitted:?}"
        );
    }
}
