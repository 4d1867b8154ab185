//! The open connections of the listener, by the time of their last call. When there are as many as
//! memory and file descriptors allow, Weir asks the one that was idle for longest to end, to make
//! room for a new one: clients that hold idle connections cannot keep out others.
//!
//! A call costs one store of its time in seconds; the last calls are read when a connection has to
//! end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::core::lock;

/// If this many checked connections are not idle, the new one is refused: the search must not block
/// the control thread.
const MAX_LOOKS: usize = 512;

/// At most one connection, and this part of all, were asked to end and have not ended yet.
const LEAVING_PART: usize = 32;

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct OpenConnections {
    max: usize,
    /// Including those that were asked to end.
    open: AtomicUsize,
    /// The clock of last calls, in seconds. A clock that is read for each call would cost the call
    /// more.
    now: AtomicU64,
    next_id: AtomicU64,
    /// Connections that were not asked to end, by the recorded time of their last call. The record
    /// is updated when a connection has to end.
    by_last_call: Mutex<BTreeMap<(u64, u64), Arc<Activity>>>,
}

/// Time of a connection's last call.
#[derive(Debug, Default)]
struct Activity {
    last_call: AtomicU64,
    /// Its key in the map. Changes only under the map's lock.
    recorded: AtomicU64,
    must_end: Arc<Notify>,
}

/// The entry of an open connection; dropped when it is closed.
#[derive(Debug)]
pub(super) struct OpenConnection {
    all: Arc<OpenConnections>,
    id: u64,
    activity: Arc<Activity>,
}

impl OpenConnections {
    /// At most `max` connections.
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            ..Self::default()
        })
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
        let is_full = self.count() >= self.max;
        if is_full
            && (self.count() > self.max + self.max / LEAVING_PART
                || !Self::end_idle(&mut by_last_call, now))
        {
            return None;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity {
            last_call: now.into(),
            recorded: now.into(),
            must_end: Arc::default(),
        });
        by_last_call.insert((now, id), Arc::clone(&activity));
        let all = Arc::clone(self);
        Some((OpenConnection { all, id, activity }, is_full))
    }

    /// Asks the connection to end that was idle for longest; false if no connection was idle for a
    /// second. A recorded last call is never later than the actual one, so the first connection
    /// whose record is up to date was idle for longest.
    fn end_idle(by_last_call: &mut BTreeMap<(u64, u64), Arc<Activity>>, now: u64) -> bool {
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
}

impl OpenConnection {
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
        self.all.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn must_end(connection: &OpenConnection) -> bool {
        connection.must_end().now_or_never().is_some()
    }

    #[test]
    fn the_connection_that_was_idle_for_longest_ends() {
        let all = OpenConnections::new(3);
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
    fn a_new_connection_is_refused_while_none_is_idle() {
        let all = OpenConnections::new(600);
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
