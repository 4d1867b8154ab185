//! The heaviest subjects of a stream in a fixed number of bytes.
//!
//! The algorithm is Filtered Space-Saving (Homem and Carvalho, "Finding top-k elements in data
//! streams", Information Sciences 180, 2010): subjects with counters of their own, and a filter of
//! sums for all others, one for each slot of a hash. A subject gets a counter when the sum of its
//! slot shows that it may be heavier than the lightest counters. So a light subject costs one
//! addition, and few subjects need a text. Where the paper drops one counter for a new one, half of
//! them are dropped at once, as in Anderson et al., "A High-Performance Algorithm for Identifying
//! Frequent Items in Data Streams" (IMC 2017), which needs no order of counters.
//!
//! For every stream, merged or not, and whatever the hash:
//!
//! - a counter has the hits since its creation; before that, the subject had at most
//!   [`Counter::missed`];
//! - a subject without a counter has at most the sum of its slot, and so at most [`Sketch::error`];
//!   no counter misses more;
//! - all of these are exact, and the error is 0, while there were no more subjects than counters.
//!
//! How large the error is depends on the stream. A stream of the weight `N` that is as even as can
//! be has `N` divided by the number of slots in each slot. The crate `datasketches` has the
//! algorithm of the second paper: it needs a counter and a text for each light subject, and its
//! table grows.
//!
//! If requests of thousands of subjects alternate, a plain table of counters needs an insertion and
//! a text for nearly each hit, which took 14 % of a decision. Hits and refusals have a sketch each,
//! because the error of all hits can be larger than every number of refusals.

/// Maximum number of counters: an index has 16 bits, and dropping half of them takes some
/// microseconds.
const MAX_COUNTERS: usize = 1_024;

/// Maximum number of sums.
const MAX_SUMS: usize = 4_096;

/// The part of all bytes that sums may take: a quarter.
const SUMS_PART: usize = 4;

/// The bytes of a text that its counter is expected to need: with usual ones, counters and texts
/// fill up together.
const USUAL_TEXT_BYTES: usize = 96;

/// Counters of the heaviest subjects, each with a text. Subjects differ by their fingerprints
/// alone.
#[derive(Debug)]
pub(super) struct Sketch {
    counters: Vec<Counter>,
    /// At each fingerprint's slot or after it, linearly probed: the position in `counters` plus
    /// one; 0 is empty. Its length is a power of two.
    index: Box<[u16]>,
    /// The texts of all counters, in their order.
    texts: Vec<u8>,
    /// The longest text that may be written.
    max_text: usize,
    /// Indexed by the upper bits of a fingerprint: an upper bound of the hits of each subject in
    /// the slot that has no counter. Its length is a power of two.
    sums: Box<[u64]>,
    /// The heaviest weight in the lighter half of the counters when they were full last; 0 while
    /// they never were.
    floor: u64,
    total: u64,
}

/// The hits of one subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    /// Names the subject.
    pub fingerprint: u64,
    /// Hits that were counted. The subject had at least these.
    pub count: u64,
    /// Hits of another kind that were counted with them.
    pub others: u64,
    /// Maximum number of hits that it had before it got this counter.
    pub missed: u64,
    text: TextRange,
}

impl Counter {
    /// Upper bound of the subject's hits.
    const fn weight(&self) -> u64 {
        self.count.saturating_add(self.missed)
    }
}

/// Where a text is in the bytes of a sketch: a head and a tail.
#[derive(Clone, Copy, Debug, Default)]
struct TextRange {
    start: u32,
    head: u16,
    tail: u16,
}

impl TextRange {
    const fn len(self) -> usize {
        self.head as usize + self.tail as usize
    }
}

/// The slot of a fingerprint. Its lower bits choose the begin in the index.
#[inline]
fn slot(sums: &[u64], fingerprint: u64) -> usize {
    (fingerprint >> 32) as usize & (sums.len() - 1)
}

/// Appends the text of a subject, a head and a tail, and returns their lengths.
pub(super) trait WriteText: FnOnce(&mut Vec<u8>) -> (usize, usize) {}
impl<F: FnOnce(&mut Vec<u8>) -> (usize, usize)> WriteText for F {}

impl Sketch {
    /// An empty sketch that never takes more than `bytes`. Each text has at most `max_text` bytes,
    /// which are less than 65,536 and at most a third of `bytes`.
    pub(super) fn new(bytes: usize, max_text: usize) -> Self {
        let sums = (bytes / SUMS_PART / size_of::<u64>()).clamp(1, MAX_SUMS);
        // Rounded down to a power of two.
        let sums = 1 << sums.ilog2();
        let bytes = bytes.saturating_sub(sums * size_of::<u64>());
        let of_counter = size_of::<Counter>() + size_of::<[u16; 8]>() + USUAL_TEXT_BYTES;
        let counters = (bytes / of_counter).clamp(1, MAX_COUNTERS);
        // At most a quarter full: even the look-up of a subject without a counter ends after one or
        // two slots.
        let slots = (4 * counters).next_power_of_two();
        let texts =
            bytes.saturating_sub(counters * size_of::<Counter>() + slots * size_of::<u16>());
        // More would be of no use.
        let texts = texts.min(counters * max_text);
        Self {
            counters: Vec::with_capacity(counters),
            index: vec![0; slots].into(),
            texts: Vec::with_capacity(texts),
            max_text,
            sums: vec![0; sums].into(),
            floor: 0,
            total: 0,
        }
    }

    /// Adds `hits` to a subject, and `others` to its second count. `text` is called if the subject
    /// gets a counter.
    #[inline]
    pub(super) fn add(&mut self, fingerprint: u64, hits: u64, others: u64, text: impl WriteText) {
        self.total = self.total.saturating_add(hits);
        if let Some(counter) = self.find(fingerprint) {
            counter.count = counter.count.saturating_add(hits);
            counter.others = counter.others.saturating_add(others);
        } else {
            let slot = slot(&self.sums, fingerprint);
            let missed = self.sums[slot];
            let weight = missed.saturating_add(hits);
            if weight > self.entry_weight() && self.makes_room_for(weight) {
                let text = self.write(text);
                self.insert(Counter {
                    fingerprint,
                    count: hits,
                    others,
                    missed,
                    text,
                });
            } else {
                self.sums[slot] = weight;
            }
        }
    }

    /// Adds all of another sketch.
    pub(super) fn merge(&mut self, other: &Self) {
        self.total = self.total.saturating_add(other.total);
        // A subject without a counter in the other sketch may have its slot's hits, also a subject
        // with a counter here.
        for counter in &mut self.counters {
            let of_slot = other.sums[slot(&other.sums, counter.fingerprint)];
            counter.missed = counter.missed.saturating_add(of_slot);
        }
        let (own, others) = (self.sums.len(), other.sums.len());
        for (index, sum) in self.sums.iter_mut().enumerate() {
            // The slots of the other that the subjects of this one are in: one, or several if it
            // has more.
            let slots = other.sums[index % others..].iter();
            let heaviest = slots.step_by(own.min(others)).max();
            *sum = sum.saturating_add(heaviest.copied().unwrap_or(0));
        }
        for counter in &other.counters {
            let of_slot = other.sums[slot(&other.sums, counter.fingerprint)];
            if let Some(known) = self.find(counter.fingerprint) {
                known.count = known.count.saturating_add(counter.count);
                known.others = known.others.saturating_add(counter.others);
                // It has a counter there, which is more precise than the slot.
                let missed = known.missed.saturating_sub(of_slot);
                known.missed = missed.saturating_add(counter.missed);
            } else {
                self.adopt(other, counter, of_slot);
            }
        }
    }

    /// Adds a subject that has a counter in the other sketch only. The sum of its slot already
    /// includes the other's.
    fn adopt(&mut self, other: &Self, counter: &Counter, of_slot: u64) {
        let slot = slot(&self.sums, counter.fingerprint);
        let missed = self.sums[slot]
            .saturating_sub(of_slot)
            .saturating_add(counter.missed);
        let weight = missed.saturating_add(counter.count);
        if weight > self.entry_weight() && self.makes_room_for(weight) {
            let (head, tail) = other.text(counter);
            let text = self.write(|texts: &mut Vec<u8>| {
                texts.extend_from_slice(head);
                texts.extend_from_slice(tail);
                (head.len(), tail.len())
            });
            self.insert(Counter {
                missed,
                text,
                ..*counter
            });
        } else {
            self.sums[slot] = self.sums[slot].max(weight);
        }
    }

    /// Adds hits of an unknown subject, which may be any.
    pub(super) fn add_unknown(&mut self, hits: u64) {
        if hits == 0 {
            return;
        }
        let missed = self.counters.iter_mut().map(|counter| &mut counter.missed);
        for sum in self.sums.iter_mut().chain(missed).chain([&mut self.total]) {
            *sum = sum.saturating_add(hits);
        }
    }

    /// Forgets everything, and keeps its memory.
    pub(super) fn clear(&mut self) {
        self.counters.clear();
        self.texts.clear();
        self.index.fill(0);
        self.sums.fill(0);
        (self.floor, self.total) = (0, 0);
    }

    /// Upper bound of the hits of a subject without a counter; a counter misses no more.
    pub(super) fn error(&self) -> u64 {
        let missed = self.counters.iter().map(|counter| counter.missed);
        missed.chain(self.sums.iter().copied()).max().unwrap_or(0)
    }

    /// Upper bound of the hits of a subject with this fingerprint, if it has no counter.
    pub(super) fn error_of(&self, fingerprint: u64) -> u64 {
        self.sums[slot(&self.sums, fingerprint)]
    }

    /// The hits of all subjects.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// All counters, in no particular order.
    pub(super) fn counters(&self) -> &[Counter] {
        &self.counters
    }

    /// The head and the tail of a counter's text.
    pub(super) fn text(&self, counter: &Counter) -> (&[u8], &[u8]) {
        let text = counter.text;
        let bytes = self.texts.get(text.start as usize..).unwrap_or_default();
        bytes
            .get(..text.len())
            .unwrap_or_default()
            .split_at_checked(text.head.into())
            .unwrap_or_default()
    }

    /// The counter of a subject, if it has one.
    pub(super) fn get(&self, fingerprint: u64) -> Option<&Counter> {
        self.counters.get(self.position(fingerprint)?)
    }

    #[inline]
    fn find(&mut self, fingerprint: u64) -> Option<&mut Counter> {
        let position = self.position(fingerprint)?;
        self.counters.get_mut(position)
    }

    #[inline]
    fn position(&self, fingerprint: u64) -> Option<usize> {
        let mask = self.index.len() - 1;
        let mut slot = fingerprint as usize;
        loop {
            let position = usize::from(self.index[slot & mask]).checked_sub(1)?;
            if self.counters[position].fingerprint == fingerprint {
                return Some(position);
            }
            slot = slot.wrapping_add(1);
        }
    }

    /// A subject gets a counter if it may have more. Once there are too many, it has to be clearly
    /// heavier than the lighter half of those with counters: otherwise many subjects of nearly
    /// equal weight would take turns.
    const fn entry_weight(&self) -> u64 {
        if self.floor == 0 {
            0
        } else {
            self.floor.saturating_add(self.floor / 2 + 2)
        }
    }

    /// Makes room for a counter and its text, unless a subject of this weight is not clearly
    /// heavier than the lighter half is by now.
    #[cold]
    fn makes_room_for(&mut self, weight: u64) -> bool {
        if self.has_room() {
            return true;
        }
        self.floor = self.floor.max(self.median());
        if weight <= self.entry_weight() {
            return false;
        }
        while !self.has_room() && !self.counters.is_empty() {
            self.drop_half();
        }
        true
    }

    fn has_room(&self) -> bool {
        self.counters.len() < self.counters.capacity()
            && self.texts.capacity() - self.texts.len() >= self.max_text
    }

    /// The heaviest weight in the lighter half of the counters.
    fn median(&self) -> u64 {
        let mut weights = [0; MAX_COUNTERS];
        let weights = &mut weights[..self.counters.len()];
        for (weight, counter) in weights.iter_mut().zip(&self.counters) {
            *weight = counter.weight();
        }
        let middle = weights.len() / 2;
        if weights.is_empty() {
            0
        } else {
            *weights.select_nth_unstable(middle).1
        }
    }

    /// Writes a text, for which there is room.
    #[cold]
    fn write(&mut self, text: impl WriteText) -> TextRange {
        let start = self.texts.len();
        let (head, tail) = text(&mut self.texts);
        debug_assert!(head + tail == self.texts.len() - start && head + tail <= self.max_text);
        TextRange {
            start: start as u32,
            head: head as u16,
            tail: tail as u16,
        }
    }

    /// Adds a counter, whose text was written last.
    fn insert(&mut self, counter: Counter) {
        self.counters.push(counter);
        self.point_to(self.counters.len() - 1);
    }

    /// Enters the counter at `position` into the index.
    fn point_to(&mut self, position: usize) {
        let mask = self.index.len() - 1;
        let mut slot = self.counters[position].fingerprint as usize;
        while self.index[slot & mask] != 0 {
            slot = slot.wrapping_add(1);
        }
        self.index[slot & mask] = position as u16 + 1;
    }

    /// Drops the lighter half of the counters, at least one. Texts are in the order of counters:
    /// the remaining ones move to the front one by one.
    #[cold]
    fn drop_half(&mut self) {
        let median = self.median();
        let weights = self.counters.iter().map(Counter::weight);
        let lighter = weights.filter(|&weight| weight < median).count();
        // Of those that weigh the same, as many as are needed.
        let mut equal = (self.counters.len() / 2 + 1).saturating_sub(lighter);
        let (mut end, texts, sums) = (0, &mut self.texts, &mut self.sums);
        self.counters.retain_mut(|counter| {
            let weight = counter.weight();
            let is_dropped = weight < median || (weight == median && equal > 0);
            if is_dropped {
                equal -= usize::from(weight == median);
                let slot = slot(sums, counter.fingerprint);
                sums[slot] = sums[slot].max(weight);
            } else {
                let start = counter.text.start as usize;
                texts.copy_within(start..start + counter.text.len(), end);
                counter.text.start = end as u32;
                end += counter.text.len();
            }
            !is_dropped
        });
        self.texts.truncate(end);
        self.floor = self.floor.max(median);
        self.index.fill(0);
        for position in 0..self.counters.len() {
            self.point_to(position);
        }
    }
}

#[cfg(test)]
mod tests;
