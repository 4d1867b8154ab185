//! The open connections of the listener, by the time of their last call. When there are as many as
//! memory and file descriptors allow, Weir asks the one that was idle for longest to end, to make
//! room for a new one: clients that hold idle connections cannot keep out others.
//!
//! A call costs one store of its time in seconds; the last calls are read when a connection has to
//! end.
//!
//! HTTP/2 never gives back the room for the calls that a connection had at a time. Therefore a
//! connection takes memory for them when it has more than ever, and holds it until it is closed. All
//! connections together have half of their memory for that. When it is used up, further calls that
//! have to wait are refused, and the connection with the most room is asked to end: a reconnect costs
//! a client less than the calls of others are worth. A new connection is told its share of calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::Options;
use crate::core::lock;

/// If this many checked connections are not idle, the new one is refused: the search must not block
/// the control thread.
const MAX_LOOKS: usize = 512;

/// Calls that may wait on a connection of any size: RFC 9113, section 6.5.2, recommends no less.
pub(crate) const MIN_STREAMS: u64 = 100;

/// Memory that HTTP/2 keeps for a call at a time, in bytes: the state of its stream, and a frame that
/// its client does not read. `cost_tests` measures it.
pub(crate) const KEPT_STREAM_BYTES: u64 = 768;

/// Room for calls grows from this number on, by doubling, as that of HTTP/2.
const FIRST_STREAMS: usize = 16;

/// Connections with much room that were asked to end, and have not ended yet.
const MAX_LEAVING: usize = 4;

/// At most one connection, and this part of all, were asked to end and have not ended yet.
const LEAVING_PART: usize = 32;

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct OpenConnections {
    max: usize,
    /// Memory of all connections, and of each without waiting calls.
    max_bytes: u64,
    bytes_of_each: u64,
    /// Memory for waiting calls.
    stream_bytes: AtomicU64,
    /// Including those that were asked to end.
    open: AtomicUsize,
    /// The clock of last calls, in seconds. A clock that is read for each call would cost the call
    /// more.
    now: AtomicU64,
    next_id: AtomicU64,
    /// Connections that were not asked to end, by the recorded time of their last call. The record
    /// is updated when a connection has to end.
    by_last_call: Mutex<ByLastCall>,
    /// The second until which no connection is looked for that has more room than another.
    found_none: AtomicU64,
}

type ByLastCall = BTreeMap<(u64, u64), Arc<Activity>>;

/// Time of a connection's last call.
#[derive(Debug, Default)]
struct Activity {
    last_call: AtomicU64,
    /// Its key in the map. Changes only under the map's lock.
    recorded: AtomicU64,
    /// Calls for which it has room, apart from those of a turn, and those that wait.
    streams: AtomicUsize,
    waiting: AtomicUsize,
    must_end: Arc<Notify>,
}

/// The entry of an open connection; dropped when it is closed.
#[derive(Debug)]
pub(super) struct OpenConnection {
    all: Arc<OpenConnections>,
    id: u64,
    activity: Arc<Activity>,
}

/// A call that waits; dropped when it has ended.
#[derive(Debug)]
pub(super) struct OpenStream(Arc<OpenConnection>);

impl OpenConnections {
    /// At most as many connections as these options allow.
    pub(super) fn new(options: &Options) -> Arc<Self> {
        Arc::new(Self {
            max: options.max_connections,
            max_bytes: options.connections_bytes,
            bytes_of_each: options.connection_bytes,
            ..Self::default()
        })
    }

    /// Memory of all connections, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.count() as u64 * self.bytes_of_each + self.stream_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// A second has passed.
    pub(super) fn tick(&self) {
        self.now.fetch_add(1, Ordering::Relaxed);
    }

    /// Opens one more, and returns whether another had to be asked to end. `None`: no connection is
    /// idle, or too many that were asked have not ended yet.
    pub(super) fn open(self: &Arc<Self>) -> Option<(OpenConnection, bool)> {
        let now = self.now.load(Ordering::Relaxed);
        let mut by_last_call = lock(&self.by_last_call);
        let is_full =
            self.count() >= self.max || self.bytes() + self.bytes_of_each > self.max_bytes;
        if is_full
            && (self.leaving(&by_last_call) > self.max / LEAVING_PART
                || !Self::end_idle(&mut by_last_call, now))
        {
            return None;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity {
            last_call: now.into(),
            recorded: now.into(),
            ..Activity::default()
        });
        by_last_call.insert((now, id), Arc::clone(&activity));
        let all = Arc::clone(self);
        Some((OpenConnection { all, id, activity }, is_full))
    }

    /// Asks the connection to end that was idle for longest; false if no connection was idle for a
    /// second. A recorded last call is never later than the actual one, so the first connection
    /// whose record is up to date was idle for longest.
    fn end_idle(by_last_call: &mut ByLastCall, now: u64) -> bool {
        for _ in 0..MAX_LOOKS {
            let Some(((recorded, id), activity)) = by_last_call.pop_first() else {
                return false;
            };
            let last_call = activity.last_call.load(Ordering::Relaxed);
            if last_call == recorded && recorded < now {
                activity.must_end.notify_one();
                return true;
            }
            activity.recorded.store(last_call, Ordering::Relaxed);
            by_last_call.insert((last_call, id), activity);
            if recorded >= now {
                return false;
            }
        }
        false
    }

    /// Connections that were asked to end and have not ended yet.
    fn leaving(&self, by_last_call: &ByLastCall) -> usize {
        self.count().saturating_sub(by_last_call.len())
    }

    /// Makes room for more calls at a time on a connection.
    fn grow(&self, own: &Activity, streams: usize) -> bool {
        let streams = streams.next_power_of_two().max(FIRST_STREAMS);
        let mut by_last_call = lock(&self.by_last_call);
        let more = streams.saturating_sub(own.streams.load(Ordering::Relaxed));
        let more = more as u64 * KEPT_STREAM_BYTES;
        let is_free = self.stream_bytes.load(Ordering::Relaxed) + more <= self.max_bytes / 2
            && self.bytes() + more <= self.max_bytes;
        if is_free {
            self.stream_bytes.fetch_add(more, Ordering::Relaxed);
            own.streams.fetch_max(streams, Ordering::Relaxed);
        } else if self.leaving(&by_last_call) < MAX_LEAVING {
            self.end_larger(&mut by_last_call, streams);
        }
        is_free
    }

    /// Asks the connection to end that has the most room, if that is as much as `streams`.
    fn end_larger(&self, by_last_call: &mut ByLastCall, streams: usize) {
        let now = self.now.load(Ordering::Relaxed);
        if self.found_none.load(Ordering::Relaxed) > now {
            return;
        }
        let room = |activity: &Activity| activity.streams.load(Ordering::Relaxed);
        let looked_at = by_last_call.iter().take(MAX_LOOKS);
        let largest = looked_at.max_by_key(|(_, activity)| room(activity));
        match largest.filter(|(_, largest)| room(largest) >= streams) {
            Some((&key, activity)) => {
                activity.must_end.notify_one();
                by_last_call.remove(&key);
            }
            None => self.found_none.store(now + 1, Ordering::Relaxed),
        }
    }
}

impl OpenConnection {
    /// The calls that may wait at a time, of at most `max`, when all connections have as many.
    pub(super) fn share(&self, max: u32) -> u32 {
        let all = self.all.max_bytes / 2 / KEPT_STREAM_BYTES;
        let share = all / self.all.count().max(1) as u64;
        share.max(MIN_STREAMS).min(max.into()) as u32
    }

    /// Takes the memory of a call that has to wait. `None`: all is used up.
    pub(super) fn stream(self: &Arc<Self>) -> Option<OpenStream> {
        let waiting = self.activity.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        let stream = OpenStream(Arc::clone(self));
        let has_room = waiting <= self.activity.streams.load(Ordering::Relaxed)
            || self.all.grow(&self.activity, waiting);
        has_room.then_some(stream)
    }

    /// Records a call.
    pub(super) fn called(&self) {
        self.activity
            .last_call
            .store(self.all.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Waits until a new connection needs its place.
    pub(super) fn must_end(&self) -> impl Future<Output = ()> + Send + 'static {
        let must_end = Arc::clone(&self.activity.must_end);
        async move { must_end.notified().await }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut by_last_call = lock(&self.all.by_last_call);
        by_last_call.remove(&(self.activity.recorded.load(Ordering::Relaxed), self.id));
        let streams = self.activity.streams.load(Ordering::Relaxed) as u64;
        let bytes = streams * KEPT_STREAM_BYTES;
        self.all.stream_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.all.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl OpenStream {
    pub(super) fn connection(&self) -> &Arc<OpenConnection> {
        &self.0
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let Self(connection) = self;
        connection.activity.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn of_at_most(max_connections: usize) -> Options {
        Options {
            max_connections,
            ..Options::default()
        }
    }

    fn must_end(connection: &OpenConnection) -> bool {
        connection.must_end().now_or_never().is_some()
    }

    #[test]
    fn the_connection_that_was_idle_for_longest_ends() {
        let all = OpenConnections::new(&of_at_most(3));
        let [first, second, third] = [(); 3].map(|()| {
            all.tick();
            all.open().expect("there is space").0
        });
        assert!(all.count() == 3 && ![&first, &second, &third].into_iter().any(must_end));
        all.tick();
        first.called();
        all.tick();
        let (fourth, has_ended_another) = all.open().expect("one is idle");
        assert!(has_ended_another && must_end(&second) && !must_end(&first) && !must_end(&third));
        assert!(all.open().is_none(), "the second has not ended yet");
        drop(second);
        let _fifth = all.open().expect("one is idle");
        assert!(must_end(&third));
        drop((first, third, fourth));
        assert_eq!(all.count(), 1);
    }

    #[test]
    fn calls_that_wait_take_half_of_the_memory_and_the_connection_with_the_most_ends() {
        let all = OpenConnections::new(&Options {
            connections_bytes: 200 * KEPT_STREAM_BYTES,
            connection_bytes: KEPT_STREAM_BYTES,
            ..Options::default()
        });
        let [first, second] = [(); 2].map(|()| Arc::new(all.open().expect("there is space").0));
        let take = |connection: &Arc<OpenConnection>, count| -> Vec<_> {
            (0..count).map_while(|_| connection.stream()).collect()
        };
        let (of_first, of_second) = (take(&first, 64), take(&second, 40));
        assert_eq!((of_first.len(), of_second.len()), (64, 32), "of 100");
        assert!(must_end(&first) && !must_end(&second));
        drop((of_first, first));
        assert_eq!(take(&second, 40).len(), 32, "with those that wait already");
        drop((of_second, second));
        assert_eq!(all.bytes(), 0);
    }

    #[test]
    fn a_new_connection_is_refused_while_none_is_idle() {
        let all = OpenConnections::new(&of_at_most(600));
        let open: Vec<_> = (0..600)
            .map(|_| all.open().expect("there is space").0)
            .collect();
        all.tick();
        open.iter().for_each(OpenConnection::called);
        assert!(all.open().is_none() && all.open().is_none());
        all.tick();
        assert!(
            all.open().is_some()
                && open
                    .iter()
                    .filter(|connection| must_end(connection))
                    .count()
                    == 1
        );
        drop(open);
        assert!(lock(&all.by_last_call).is_empty() && all.count() == 0);
    }
}
