//! The last minute and the last hour as rings of panes. A pane has the counts of a stretch of time,
//! merged from all threads.
//!
//! The time is an argument: the uptime of the process. A pane is closed at the end of its time.
//! When the ring has its number of closed panes, the oldest becomes the next open one: no memory is
//! allocated after the start. The minute's open pane takes the counts of all threads. When it is
//! closed, it is added to the open pane of the hour.

use std::collections::VecDeque;
use std::time::Duration;

use super::sketch::Sketch;
use super::{Ranking, Recent, text};

/// The length of a pane of the last minute. A pane takes some milliseconds of a background thread
/// when it is closed.
pub(super) const MINUTE_PANE: Duration = Duration::from_secs(10);

/// The length of a pane of the last hour.
const HOUR_PANE: Duration = Duration::from_secs(600);

/// Closed panes of a window. Together with the open pane, a window is a minute or an hour long, and
/// at most one pane longer.
const CLOSED: usize = 6;

/// The panes of all windows.
const PANES: usize = 2 * (CLOSED + 1);

/// Counts of a stretch of time: all hits by subject, and the refused hits by subject.
///
/// One sketch by hits would not suffice. If few of very many hits are refused, the error of all
/// hits is larger than every number of refusals.
#[derive(Debug)]
pub(super) struct Pane {
    /// All hits, with the refused ones as the second count.
    pub hits: Sketch,
    /// Refused hits.
    pub refusals: Sketch,
}

impl Pane {
    /// An empty pane of at most `bytes`.
    pub(super) fn new(bytes: usize) -> Self {
        let sketch = || Sketch::new(bytes / 2, text::MAX_BYTES);
        Self {
            hits: sketch(),
            refusals: sketch(),
        }
    }

    /// Adds all of another pane.
    pub(super) fn merge(&mut self, other: &Self) {
        self.hits.merge(&other.hits);
        self.refusals.merge(&other.refusals);
    }

    /// Adds hits of unknown subjects.
    pub(super) fn add_unknown(&mut self, hits: u64, refused: u64) {
        self.hits.add_unknown(hits);
        self.refusals.add_unknown(refused);
    }

    /// Forgets everything, and keeps its memory.
    pub(super) fn clear(&mut self) {
        self.hits.clear();
        self.refusals.clear();
    }

    pub(super) const fn sketch(&self, by: Ranking) -> &Sketch {
        match by {
            Ranking::Hits => &self.hits,
            Ranking::Refusals => &self.refusals,
        }
    }
}

/// The panes of the last minute and the last hour.
#[derive(Debug)]
pub(super) struct Windows {
    minute: SketchRing,
    hour: SketchRing,
}

#[derive(Debug)]
struct SketchRing {
    length: Duration,
    /// The oldest first, each with its begin.
    closed: VecDeque<(Duration, Pane)>,
    open: Pane,
    begin: Duration,
    /// When the open pane is over: a multiple of the length.
    end: Duration,
}

/// The panes that a window consists of now.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// At most the panes of one window, and the open pane of the other.
    pub panes: Vec<&'a Pane>,
    /// The time that they cover.
    pub covers: Duration,
}

impl Windows {
    /// Empty windows of at most `bytes` together.
    pub(super) fn new(bytes: usize) -> Self {
        let pane_bytes = (bytes / PANES).saturating_sub(size_of::<(Duration, Pane)>());
        Self {
            minute: SketchRing::new(MINUTE_PANE, pane_bytes),
            hour: SketchRing::new(HOUR_PANE, pane_bytes),
        }
    }

    /// Closes the panes that are over at `now`.
    pub(super) fn advance(&mut self, now: Duration) {
        let Self { minute, hour } = self;
        minute.advance(now, |closed| hour.open.merge(closed));
        hour.advance(now, |_| {});
    }

    /// Whether a pane of the minute is over.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        now >= self.minute.end
    }

    /// The pane that takes the counts of all threads.
    pub(super) const fn open(&mut self) -> &mut Pane {
        &mut self.minute.open
    }

    /// The panes of this time.
    pub(super) fn view(&self, window: Recent, now: Duration) -> View<'_> {
        let (ring, newest) = match window {
            Recent::Minute => (&self.minute, None),
            Recent::Hour => (&self.hour, Some(&self.minute.open)),
        };
        View {
            covers: ring.covers(now),
            panes: ring.panes().chain(newest).collect(),
        }
    }
}

impl SketchRing {
    fn new(length: Duration, pane_bytes: usize) -> Self {
        let pane = |_| (Duration::ZERO, Pane::new(pane_bytes));
        Self {
            length,
            closed: (0..CLOSED).map(pane).collect(),
            open: Pane::new(pane_bytes),
            begin: Duration::ZERO,
            end: length,
        }
    }

    fn advance(&mut self, now: Duration, mut on_close: impl FnMut(&Pane)) {
        // After a long sleep, one turn of the whole ring forgets all.
        for _ in 0..=CLOSED {
            if now < self.end {
                return;
            }
            on_close(&self.open);
            let Some((_, mut oldest)) = self.closed.pop_front() else {
                return;
            };
            oldest.clear();
            let closed = std::mem::replace(&mut self.open, oldest);
            self.closed.push_back((self.begin, closed));
            // A pane that is closed late includes everything until now. The next one begins now.
            self.begin = now;
            self.end = self.end.saturating_add(self.length);
        }
        let behind = Duration::from_nanos((now.as_nanos() % self.length.as_nanos()) as u64);
        let next = now.saturating_sub(behind).saturating_add(self.length);
        self.end = self.end.max(next);
    }

    fn panes(&self) -> impl Iterator<Item = &Pane> {
        self.closed.iter().map(|(_, pane)| pane).chain([&self.open])
    }

    fn covers(&self, now: Duration) -> Duration {
        // A pane that was never open begins at zero, as the process does.
        let begin = self.closed.front().map_or(self.begin, |(begin, _)| *begin);
        now.saturating_sub(begin)
    }
}

#[cfg(test)]
mod tests;
