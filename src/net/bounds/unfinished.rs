//! The memory of everything that waits for a client: parts of messages and of header blocks, unread
//! answers, handshakes, streams that stay open.
//!
//! All of it is charged to one budget. When it is used up, the oldest charge ends. Neither waiting
//! nor refusing the newest would suffice: a client that leaves messages unfinished would take the
//! memory from all others, while a well-behaved client finishes its own within milliseconds.
//!
//! What has ended keeps its memory until its task has a turn. While that is as much as the budget,
//! new charges end at once: a flood would take more than tasks can give back.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::core::lock;

/// A memory budget; clones share it.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Mutex<Ledger>>);

/// Memory of one unfinished operation of a client; released on drop.
#[derive(Debug)]
pub struct MemoryReservation {
    budget: MemoryBudget,
    id: u64,
    ended: Arc<Notify>,
}

/// Reason for which work was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Its time limit has passed.
    Late,
    /// It was the oldest when the budget was used up.
    Oldest,
}

#[derive(Debug, Default)]
struct Ledger {
    max_bytes: usize,
    bytes: usize,
    next_id: u64,
    /// The charges by age, the oldest first.
    charges: BTreeMap<u64, MemoryCharge>,
    /// Bytes of those that have ended and were not dropped yet, and of all of them.
    ended: HashMap<u64, usize>,
    ended_bytes: usize,
}

#[derive(Debug)]
struct MemoryCharge {
    bytes: usize,
    ended: Arc<Notify>,
}

impl MemoryBudget {
    /// A budget of `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Ledger {
            max_bytes,
            ..Ledger::default()
        })))
    }

    /// Charges the memory of a new operation.
    #[must_use]
    pub fn charge(&self, bytes: usize) -> MemoryReservation {
        let ended = Arc::new(Notify::new());
        let mut ledger = lock(&self.0);
        let id = ledger.next_id;
        ledger.next_id += 1;
        let entry = MemoryCharge {
            bytes: 0,
            ended: Arc::clone(&ended),
        };
        if ledger.ended_bytes > ledger.max_bytes {
            entry.ended.notify_one();
        } else {
            ledger.charges.insert(id, entry);
            ledger.add(id, bytes);
        }
        drop(ledger);
        MemoryReservation {
            budget: self.clone(),
            id,
            ended,
        }
    }

    /// Bytes that are free.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn unused_bytes(&self) -> usize {
        let ledger = lock(&self.0);
        ledger.max_bytes - ledger.bytes
    }
}

impl Ledger {
    /// Adds to a charge, and ends the oldest ones that have some until the budget suffices. Nothing
    /// is added to a charge that has ended.
    fn add(&mut self, id: u64, bytes: usize) {
        let Some(entry) = self.charges.get_mut(&id) else {
            return;
        };
        entry.bytes += bytes;
        self.bytes += bytes;
        while self.bytes > self.max_bytes
            && let Some((&id, _)) = self.charges.iter().find(|(_, charge)| charge.bytes > 0)
            && let Some(oldest) = self.charges.remove(&id)
        {
            self.bytes -= oldest.bytes;
            self.ended_bytes += oldest.bytes;
            self.ended.insert(id, oldest.bytes);
            oldest.ended.notify_one();
        }
    }
}

impl MemoryReservation {
    /// Charges more.
    pub fn add(&self, bytes: usize) {
        lock(&self.budget.0).add(self.id, bytes);
    }

    /// Sets the total of the charge, which may be more or less than before.
    pub fn set(&self, bytes: usize) {
        let mut ledger = lock(&self.budget.0);
        if let Some(entry) = ledger.charges.get_mut(&self.id) {
            let before = std::mem::take(&mut entry.bytes);
            ledger.bytes -= before;
            ledger.add(self.id, bytes);
        }
    }

    /// Waits until the budget needs the memory.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        Arc::clone(&self.ended).notified_owned()
    }

    /// The output of `work`.
    ///
    /// # Errors
    /// [`Cut::Late`] after `limit`; [`Cut::Oldest`] when the budget needs the memory. `work` is
    /// dropped.
    pub async fn within<W: Future>(&self, limit: Duration, work: W) -> Result<W::Output, Cut> {
        let done = timeout(limit, self.unless_oldest(work)).await;
        done.map_err(|_| Cut::Late)?.ok_or(Cut::Oldest)
    }

    /// As [`MemoryReservation::within`], for work that may take any time. `None` if the budget
    /// needs the memory: work that has not begun then takes none.
    pub async fn unless_oldest<W: Future>(&self, work: W) -> Option<W::Output> {
        tokio::select! {
            biased;
            () = self.ended.notified() => None,
            done = work => Some(done),
        }
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        let mut ledger = lock(&self.budget.0);
        if let Some(entry) = ledger.charges.remove(&self.id) {
            ledger.bytes -= entry.bytes;
        } else if let Some(bytes) = ledger.ended.remove(&self.id) {
            ledger.ended_bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt;
    use tokio::time::sleep;

    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    fn has_ended(charge: &MemoryReservation) -> bool {
        charge
            .unless_oldest(pending::<()>())
            .now_or_never()
            .is_some()
    }

    #[test]
    fn the_oldest_end_when_the_budget_is_used_up() {
        let budget = MemoryBudget::new(100);
        let [first, second, third] = [40, 40, 20].map(|bytes| budget.charge(bytes));
        assert!(
            ![&first, &second, &third].map(has_ended).contains(&true),
            "exactly the budget"
        );
        third.add(1);
        assert_eq!(
            [&first, &second, &third].map(has_ended),
            [true, false, false]
        );
        first.add(1_000);
        assert!(!has_ended(&second), "what has ended takes nothing");
        drop((first, second));
        let fourth = budget.charge(79);
        assert!(!has_ended(&third), "what was dropped is free again");
        fourth.add(1);
        assert_eq!([&third, &fourth].map(has_ended), [true, false]);
        drop(third);
        assert_eq!(lock(&budget.0).bytes, 80);
        drop(fourth);
        let ledger = lock(&budget.0);
        assert_eq!((ledger.bytes, ledger.charges.len()), (0, 0));
    }

    #[test]
    fn what_is_larger_than_the_budget_ends() {
        let budget = MemoryBudget::new(100);
        let (small, large) = (budget.charge(1), budget.charge(101));
        assert!(has_ended(&small) && has_ended(&large));
        drop((small, large));
        assert!(!has_ended(&budget.charge(100)));
    }

    /// What had ended was free at once, and a flood took many times the budget.
    #[test]
    fn new_ones_end_while_others_keep_their_memory() {
        let budget = MemoryBudget::new(100);
        let mut flood: Vec<_> = (0..20).map(|_| budget.charge(20)).collect();
        let ended: Vec<_> = flood.iter().map(has_ended).collect();
        let expected = [[true; 6].as_slice(), &[false; 5], &[true; 9]].concat();
        assert_eq!(ended, expected);
        flood.drain(..6);
        assert!(!has_ended(&budget.charge(20)), "their memory is back");
        drop(flood);
        let ledger = lock(&budget.0);
        assert_eq!(
            (ledger.bytes, ledger.ended_bytes, ledger.ended.len()),
            (0, 0, 0)
        );
    }

    /// Of a flood of calls, thousands began that had ended already: 0.2 GiB of their buffers.
    #[test]
    fn work_that_has_ended_does_not_begin() {
        let budget = MemoryBudget::new(100);
        let [first, _second] = [60; 2].map(|bytes| budget.charge(bytes));
        let work = async { panic!("it has begun") };
        assert_eq!(first.unless_oldest(work).now_or_never(), Some(None));
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_cut_off_by_its_time_or_by_the_budget() {
        let budget = MemoryBudget::new(100);
        let charge = budget.charge(100);
        assert_eq!(charge.within(LONG, async { 5 }).await, Ok(5));
        assert_eq!(charge.within(LONG, pending::<()>()).await, Err(Cut::Late));
        let newer = async {
            sleep(Duration::from_secs(1)).await;
            budget.charge(1)
        };
        let (cut, _newer) = tokio::join!(charge.within(LONG, pending::<()>()), newer);
        assert_eq!(cut, Err(Cut::Oldest));
    }
}
