//! The open connections of the listener, by the time of their last call. When there are as many as
//! memory and file descriptors allow, Weir asks the one that was idle for longest to end, to make
//! room for a new one: clients that hold idle connections cannot keep out others.
//!
//! A call costs one store of its time in seconds; the last calls are read when a connection has to
//! end. A connection whose calls wait for the store or for a shaper is not idle, however long ago
//! they came.
//!
//! HTTP/2 never gives back the room for the calls that a connection had at a time. Therefore a
//! connection takes memory for them when it has more than ever, and holds it until it is closed. All
//! connections together have half of their memory for that, and calls whose messages have not arrived
//! take at most a half of this half: clients that send none leave the rest to others. When it is used
//! up, further calls that have to wait are refused, and the connection ends that has the most room
//! without need, which calls with whole messages are. A new connection gets its share of calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::Options;
use crate::core::lock;

/// If this many checked connections are not idle, the new one is refused: the search must not block
/// the control thread.
const MAX_LOOKS: usize = 512;

/// Calls that may wait on each connection, however many there are: RFC 9113, section 6.5.2,
/// recommends no less.
pub(crate) const MIN_STREAMS: u64 = 100;

/// Memory that HTTP/2 keeps for a call at a time, in bytes: the state of its stream, and a frame that
/// its client does not read. `cost_tests` measures it.
pub(crate) const KEPT_STREAM_BYTES: u64 = 768;

/// Room for calls from the first one that waits on. It grows by doubling, as that of HTTP/2.
const FIRST_STREAMS: usize = 16;

/// Memory that a connection keeps, in bytes, when several calls arrived at a time, or one has waited:
/// the buffers of HTTP/2 are used then, and it has the first room for calls. With the longest turns
/// it keeps more, which only few connections have.
pub(crate) const BUSY_BYTES: u64 = 32 << 10;

/// Frames that HTTP/2 reads of a connection before their calls are answered: it keeps room for all
/// of them. A turn writes its answers by itself. With 16 frames, 64 calls at a time on a connection
/// take 1.7 of the CPU that they take with 128; with 128, a connection that was busy keeps twice as
/// much memory. Therefore the frames of all connections are bounded, and few connections have the
/// most.
pub(crate) const MAX_FRAMES_OF_A_TURN: usize = 128;
const MIN_FRAMES_OF_A_TURN: usize = 16;
const FRAMES_OF_ALL_TURNS: usize = 8_192;

/// No connection with much room is asked to end while this many are leaving.
const MAX_LEAVING: usize = 4;

/// At most one connection more than this part of all is leaving.
const LEAVING_PART: usize = 32;

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct OpenConnections {
    max: usize,
    /// Memory of all connections, and of each without waiting calls.
    max_bytes: u64,
    bytes_of_each: u64,
    /// Memory for waiting calls, apart from the first room of each busy connection.
    stream_bytes: AtomicU64,
    busy: AtomicUsize,
    /// Including those that were asked to end.
    open: AtomicUsize,
    /// The clock of last calls, in seconds. A clock that is read for each call would cost the call
    /// more.
    now: AtomicU64,
    next_id: AtomicU64,
    connections: Mutex<Connections>,
    /// A call was refused since the last second, because there was no room for it.
    is_short: AtomicBool,
}

/// The open connections: each is in one of these maps.
#[derive(Debug, Default)]
struct Connections {
    /// Those that were not asked to end, by the recorded time of their last call, and by id. The
    /// record is updated when a connection has to end.
    by_last_call: BTreeMap<(u64, u64), Arc<Activity>>,
    /// Those that were asked to end, by id.
    asked_to_end: BTreeMap<u64, AskedToEnd>,
}

#[derive(Debug)]
struct AskedToEnd {
    activity: Arc<Activity>,
    /// Calls waited for the store or for a shaper when it was asked. A shaper may hold them for an
    /// hour.
    was_needed: bool,
}

/// Time of a connection's last call.
#[derive(Debug, Default)]
struct Activity {
    last_call: AtomicU64,
    /// Its key in the map. Changes only under the map's lock.
    recorded: AtomicU64,
    /// Calls for which it has room, those that wait, and among them those with whole messages.
    streams: AtomicUsize,
    waiting: AtomicUsize,
    whole: AtomicUsize,
    must_end: Arc<Notify>,
}

/// The entry of an open connection; dropped when it is closed.
#[derive(Debug)]
pub(super) struct OpenConnection {
    all: Arc<OpenConnections>,
    id: u64,
    activity: Arc<Activity>,
}

/// The reason why a call takes memory, and the part of all memory that such calls may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// The store or a shaper; its message is whole.
    Decision = 2,
    /// The rest of its message, or that its answer is read.
    Client = 4,
}

/// A call that waits; dropped when it has ended.
#[derive(Debug)]
pub(super) struct OpenStream {
    connection: Arc<OpenConnection>,
    is_whole: bool,
}

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
        self.count() as u64 * self.bytes_of_each
            + self.busy.load(Ordering::Relaxed) as u64 * BUSY_BYTES
            + self.stream_bytes.load(Ordering::Relaxed)
    }

    /// Memory of this connection among them.
    fn bytes_of_one(&self, activity: &Activity) -> u64 {
        let streams = activity.streams.load(Ordering::Relaxed);
        let busy_bytes = if streams > 0 { BUSY_BYTES } else { 0 };
        self.bytes_of_each + busy_bytes + bytes_of(streams)
    }

    pub(super) fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// The calls that may wait on each connection when all have as many, in this part of the memory.
    fn streams_of_each(&self, part: u64) -> u64 {
        self.max_bytes / part / KEPT_STREAM_BYTES / self.count().max(1) as u64
    }

    /// A second has passed. If calls were refused, connections end that have more room than they need.
    /// If connections take more memory than they have, those end whose last call is longest ago: they
    /// may have become busy together.
    pub(super) fn tick(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let mut connections = lock(&self.connections);
        if self.is_short.swap(false, Ordering::Relaxed) {
            self.end_largest(&mut connections);
        }
        let freed = |all: &Connections| -> u64 {
            let asked = all.asked_to_end.values();
            asked.map(|asked| self.bytes_of_one(&asked.activity)).sum()
        };
        while self.bytes().saturating_sub(freed(&connections)) > self.max_bytes
            && self.may_end(connections.asked_to_end.len())
            && connections.end_idle(now, now + 1)
        {}
    }

    /// Opens one more, and returns whether another had to be asked to end. `None`: no connection is
    /// idle, or too many are leaving.
    pub(super) fn open(self: &Arc<Self>) -> Option<(OpenConnection, bool)> {
        let now = self.now.load(Ordering::Relaxed);
        let mut connections = lock(&self.connections);
        let is_full =
            self.count() >= self.max || self.bytes() + self.bytes_of_each > self.max_bytes;
        if is_full && !(self.may_end(connections.leaving()) && connections.end_idle(now, now)) {
            return None;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity {
            last_call: now.into(),
            recorded: now.into(),
            ..Activity::default()
        });
        let recorded = Arc::clone(&activity);
        connections.by_last_call.insert((now, id), recorded);
        let all = Arc::clone(self);
        Some((OpenConnection { all, id, activity }, is_full))
    }

    /// Whether a further connection may be asked to end while so many are.
    fn may_end(&self, leaving: usize) -> bool {
        leaving <= self.max / LEAVING_PART
    }

    /// Makes room for more calls at a time on a connection.
    fn grow(&self, own: &Activity, streams: usize, waits: WaitsFor) -> bool {
        let streams = streams.next_power_of_two().max(FIRST_STREAMS);
        // One connection at a time.
        let _connections = lock(&self.connections);
        let before = own.streams.load(Ordering::Relaxed);
        let more = bytes_of(streams).saturating_sub(bytes_of(before));
        let max = self.max_bytes / waits as u64;
        let is_free = more == 0 || self.stream_bytes.load(Ordering::Relaxed) + more <= max;
        if is_free {
            self.stream_bytes.fetch_add(more, Ordering::Relaxed);
            let is_first = usize::from(before == 0);
            self.busy.fetch_add(is_first, Ordering::Relaxed);
            own.streams.fetch_max(streams, Ordering::Relaxed);
        } else {
            self.is_short.store(true, Ordering::Relaxed);
        }
        is_free
    }

    /// Asks the connections to end that have the most room without need, if they have more than
    /// their share of what calls without messages may take. Looks at all connections: records of
    /// last calls are old, and do not show which ones are busy.
    fn end_largest(&self, connections: &mut Connections) {
        let share = self.streams_of_each(4).max(FIRST_STREAMS as u64) as usize;
        let with_spare = connections.by_last_call.iter();
        let with_spare = with_spare.map(|(&key, activity)| (activity.spare(), key));
        let mut largest: Vec<_> = with_spare.filter(|&(spare, _)| spare > share).collect();
        largest.sort_unstable_by(|one, other| other.cmp(one));
        largest.truncate(MAX_LEAVING.saturating_sub(connections.leaving()));
        for (_, key) in largest {
            if let Some(activity) = connections.by_last_call.remove(&key) {
                connections.ask_to_end(key.1, activity);
            }
        }
    }
}

impl Connections {
    /// Connections that were asked to end and end within a second. Those whose calls waited for
    /// the store or for a shaper may stay for long; no other was opened in their place.
    fn leaving(&self) -> usize {
        let asked = self.asked_to_end.values();
        asked.filter(|connection| !connection.was_needed).count()
    }

    /// Asks the connection to end that was idle for longest; false if none was idle since before
    /// this second. The current one is `now`. A recorded last call is never later than the actual
    /// one, so the first connection whose record is up to date was idle for longest. A call that
    /// waits for the store or for a shaper counts as one that has just come.
    fn end_idle(&mut self, now: u64, before: u64) -> bool {
        for _ in 0..MAX_LOOKS {
            let Some(((recorded, id), activity)) = self.by_last_call.pop_first() else {
                return false;
            };
            if activity.is_needed() {
                activity.last_call.store(now, Ordering::Relaxed);
            }
            let last_call = activity.last_call.load(Ordering::Relaxed);
            if last_call == recorded && recorded < before {
                self.ask_to_end(id, activity);
                return true;
            }
            activity.recorded.store(last_call, Ordering::Relaxed);
            self.by_last_call.insert((last_call, id), activity);
            if recorded >= before {
                return false;
            }
        }
        false
    }

    /// Asks a connection to end that is no longer among the others.
    fn ask_to_end(&mut self, id: u64, activity: Arc<Activity>) {
        activity.must_end.notify_one();
        let was_needed = activity.is_needed();
        let asked = AskedToEnd {
            activity,
            was_needed,
        };
        self.asked_to_end.insert(id, asked);
    }
}

/// Memory of room for calls, apart from the first room.
fn bytes_of(streams: usize) -> u64 {
    streams.saturating_sub(FIRST_STREAMS) as u64 * KEPT_STREAM_BYTES
}

impl Activity {
    /// Whether calls wait for the store or for a shaper.
    fn is_needed(&self) -> bool {
        self.whole.load(Ordering::Relaxed) > 0
    }

    /// Room that no call with a whole message needs.
    fn spare(&self) -> usize {
        let whole = self.whole.load(Ordering::Relaxed);
        self.streams.load(Ordering::Relaxed).saturating_sub(whole)
    }
}

impl OpenConnection {
    /// The calls that may wait at a time, of at most `max`, when all connections have as many.
    pub(super) fn share(&self, max: u32) -> u32 {
        let share = self.all.streams_of_each(2);
        share.max(MIN_STREAMS).min(max.into()) as u32
    }

    /// The frames that it may read before their calls are answered.
    pub(super) fn frames_of_a_turn(&self) -> usize {
        let share = FRAMES_OF_ALL_TURNS / self.all.count().max(1);
        share.clamp(MIN_FRAMES_OF_A_TURN, MAX_FRAMES_OF_A_TURN)
    }

    /// Takes the memory of a call that has to wait. `None`: all is used up.
    pub(super) fn stream(self: &Arc<Self>, waits: WaitsFor) -> Option<OpenStream> {
        let waiting = self.activity.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        let mut stream = OpenStream {
            connection: Arc::clone(self),
            is_whole: false,
        };
        if waits == WaitsFor::Decision {
            stream.message_arrived();
        }
        let has_room = waiting <= self.activity.streams.load(Ordering::Relaxed)
            || self.all.grow(&self.activity, waiting, waits);
        has_room.then_some(stream)
    }

    /// Whether calls wait for the store or for a shaper.
    pub(super) fn is_needed(&self) -> bool {
        self.activity.is_needed()
    }

    /// Records calls that arrived at a time.
    pub(super) fn called(&self, calls: usize) {
        self.activity
            .last_call
            .store(self.all.now.load(Ordering::Relaxed), Ordering::Relaxed);
        if calls > 1 && self.activity.streams.load(Ordering::Relaxed) == 0 {
            self.all
                .grow(&self.activity, FIRST_STREAMS, WaitsFor::Decision);
        }
    }

    /// Waits until another connection needs its place; returns at once if one does already.
    pub(super) fn must_end(&self) -> impl Future<Output = ()> + Send + 'static {
        let must_end = Arc::clone(&self.activity.must_end);
        async move {
            must_end.notified().await;
            // For all that wait for it later.
            must_end.notify_one();
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut connections = lock(&self.all.connections);
        let key = (self.activity.recorded.load(Ordering::Relaxed), self.id);
        connections.by_last_call.remove(&key);
        connections.asked_to_end.remove(&self.id);
        let streams = self.activity.streams.load(Ordering::Relaxed);
        let bytes = bytes_of(streams);
        self.all.stream_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let busy = usize::from(streams > 0);
        self.all.busy.fetch_sub(busy, Ordering::Relaxed);
        self.all.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl OpenStream {
    /// From now on, the call waits for the store or for a shaper.
    pub(super) fn message_arrived(&mut self) {
        self.is_whole = true;
        let whole = &self.connection.activity.whole;
        whole.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let activity = &self.connection.activity;
        activity.waiting.fetch_sub(1, Ordering::Relaxed);
        let whole = usize::from(self.is_whole);
        activity.whole.fetch_sub(whole, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::WaitsFor::{Client, Decision};
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
        first.called(1);
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

    fn with_room_for(streams: u64) -> Arc<OpenConnections> {
        OpenConnections::new(&Options {
            connections_bytes: 2 * streams * KEPT_STREAM_BYTES,
            connection_bytes: KEPT_STREAM_BYTES,
            ..Options::default()
        })
    }

    fn opened(all: &Arc<OpenConnections>) -> Arc<OpenConnection> {
        Arc::new(all.open().expect("there is space").0)
    }

    fn take(connection: &Arc<OpenConnection>, count: usize, waits: WaitsFor) -> Vec<OpenStream> {
        (0..count).map_while(|_| connection.stream(waits)).collect()
    }

    #[test]
    fn calls_without_messages_take_half_of_the_room_and_their_connection_ends() {
        let all = with_room_for(512);
        let [store, attacker, other] = [(); 3].map(|()| opened(&all));
        let of_store = take(&store, 128, Decision);
        let of_attacker = take(&attacker, 1_024, Client);
        assert_eq!((of_store.len(), of_attacker.len()), (128, 128), "of 256");
        all.tick();
        assert!(must_end(&attacker) && !must_end(&store) && !must_end(&other));
        assert_eq!(take(&other, 64, Client).len(), 32);
        assert_eq!(take(&other, 64, Decision).len(), 64, "with whole messages");
        drop((of_attacker, attacker));
        assert!(!must_end(&other), "it has no more than its share");
        assert_eq!(take(&other, 64, Client).len(), 64);
        drop((of_store, store, other));
        assert_eq!(all.bytes(), 0);
    }

    #[test]
    fn a_connection_whose_calls_wait_for_the_store_does_not_end_for_others() {
        let all = with_room_for(256);
        let [store, idle, other] = [(); 3].map(|()| opened(&all));
        let of_store = take(&store, 128, Decision);
        drop(take(&idle, 64, Decision));
        let of_other = take(&other, 128, Decision);
        assert_eq!(of_other.len(), 64);
        all.tick();
        assert!(must_end(&idle) && !must_end(&store) && !must_end(&other));
        assert!(store.is_needed() && !idle.is_needed());
        drop(of_store);
        assert!(!store.is_needed());
    }

    #[test]
    fn connections_that_become_busy_together_end_by_their_last_calls() {
        let all = OpenConnections::new(&Options {
            connections_bytes: 64 * BUSY_BYTES,
            connection_bytes: BUSY_BYTES,
            ..Options::default()
        });
        let open: Vec<_> = (0..64).map(|_| opened(&all)).collect();
        assert_eq!(all.bytes(), all.max_bytes);
        open[32..]
            .iter()
            .for_each(|connection| connection.called(2));
        all.tick();
        let ended: Vec<_> = open.iter().map(|connection| must_end(connection)).collect();
        assert_eq!(ended, [[true; 32], [false; 32]].concat());
        drop(open);
        assert_eq!(all.bytes(), 0);
    }

    #[test]
    fn no_more_busy_connections_end_than_take_the_memory_that_is_missing() {
        let all = OpenConnections::new(&Options {
            connections_bytes: 64 * BUSY_BYTES,
            connection_bytes: BUSY_BYTES,
            ..Options::default()
        });
        let open: Vec<_> = (0..40).map(|_| opened(&all)).collect();
        for connection in &open {
            connection.called(2);
        }
        all.tick();
        let ended = open.iter().filter(|connection| must_end(connection));
        assert_eq!(ended.count(), 8, "each takes twice what an idle one takes");
    }

    #[test]
    fn a_new_connection_is_refused_while_none_is_idle() {
        let all = OpenConnections::new(&of_at_most(600));
        let open: Vec<_> = (0..600)
            .map(|_| all.open().expect("there is space").0)
            .collect();
        all.tick();
        for connection in &open {
            connection.called(1);
        }
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
        let connections = lock(&all.connections);
        assert!(connections.by_last_call.is_empty() && connections.asked_to_end.is_empty());
        assert_eq!(all.count(), 0);
    }

    #[test]
    fn a_connection_with_much_room_ends_among_many_older_ones() {
        let all = with_room_for(64 * MAX_LOOKS as u64);
        let older: Vec<_> = (0..MAX_LOOKS).map(|_| opened(&all)).collect();
        let largest = opened(&all);
        assert!(!take(&largest, usize::MAX, Client).is_empty());
        all.tick();
        assert!(must_end(&largest) && !older.iter().any(|older| must_end(older)));
    }

    #[test]
    fn a_connection_whose_calls_wait_is_not_idle() {
        let all = OpenConnections::new(&of_at_most(2));
        let [holding, other] = [(); 2].map(|()| opened(&all));
        let held = take(&holding, 1, Decision);
        all.tick();
        all.tick();
        let third = opened(&all);
        assert!(must_end(&other) && !must_end(&holding));
        drop(other);
        third.called(1);
        assert!(all.open().is_none(), "calls wait, or have just come");
        drop(held);
        all.tick();
        let _fourth = opened(&all);
        assert!(must_end(&holding) && !must_end(&third));
    }

    #[test]
    fn connections_whose_calls_are_held_do_not_keep_others_from_ending() {
        let all = with_room_for(512);
        let open: Vec<_> = (0..8).map(|_| opened(&all)).collect();
        for connection in &open {
            drop(take(connection, 64, Decision));
        }
        let held: Vec<_> = open
            .iter()
            .flat_map(|connection| take(connection, 1, Decision))
            .collect();
        let ended = || open.iter().filter(|open| must_end(open)).count();
        for expected in [MAX_LEAVING, 2 * MAX_LEAVING] {
            assert!(take(&open[0], 1_024, Client).len() < 1_024, "no room");
            all.tick();
            assert_eq!(ended(), expected);
        }
        assert_eq!((held.len(), lock(&all.connections).leaving()), (8, 0));
    }
}
