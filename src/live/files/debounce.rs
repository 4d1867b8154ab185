//! Decides when a change of a file is loaded: when it has been at rest for a while, or when it is
//! old; and not again until the file changes. Files of limits and of certificates are watched so.
//!
//! Files are written one after the other, and each of them piece by piece. Loading at the first
//! change would load half of it. A file that never rests must not wait forever.

use std::time::{Duration, Instant};

/// The result of the last polls. `T` identifies a file, or a set of files, in one version.
#[derive(Debug, Default)]
pub struct Debounce<T> {
    /// Loaded or rejected already.
    tried: T,
    /// Found by the last poll, if it differs.
    pending: Option<Pending<T>>,
}

#[derive(Debug)]
struct Pending<T> {
    seen: T,
    /// The time of the poll that found a difference first, and of the one that found `seen` first.
    since: Instant,
    at_rest_since: Instant,
}

impl<T: PartialEq> Debounce<T> {
    /// `tried` was loaded or rejected already.
    pub const fn new(tried: T) -> Self {
        Self {
            tried,
            pending: None,
        }
    }

    /// The version that was loaded or rejected last.
    pub const fn last(&self) -> &T {
        &self.tried
    }

    /// The version that the last poll found.
    pub fn seen(&self) -> &T {
        let pending = self.pending.as_ref();
        pending.map_or(&self.tried, |pending| &pending.seen)
    }

    /// A poll found `seen`.
    pub fn observe(&mut self, seen: T, now: Instant) {
        match &mut self.pending {
            _ if seen == self.tried => self.pending = None,
            Some(pending) if pending.seen == seen => {}
            Some(pending) => (pending.seen, pending.at_rest_since) = (seen, now),
            None => {
                self.pending = Some(Pending {
                    seen,
                    since: now,
                    at_rest_since: now,
                });
            }
        }
    }

    /// The time of the poll that found the change first; `None` without one.
    pub fn since(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.since)
    }

    /// Whether there is a change that has been at rest for `rest`, or is as old as `most`. The
    /// caller has to load it, and then to call [`Debounce::tried`] with the version that it loaded.
    pub fn is_due(&self, now: Instant, rest: Duration, most: Duration) -> bool {
        let pending = self.pending.as_ref();
        pending.is_some_and(|it| now - it.at_rest_since >= rest || now - it.since >= most)
    }

    /// A change that could not be loaded is as if it were found now.
    pub fn restart(&mut self, now: Instant) {
        if let Some(pending) = &mut self.pending {
            (pending.since, pending.at_rest_since) = (now, now);
        }
    }

    /// `tried` was loaded or rejected.
    pub fn tried(&mut self, tried: T) {
        *self = Self::new(tried);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_secs(1);
    const MOST: Duration = Duration::from_secs(5);

    /// Seconds at which a debounce is due that finds these versions, one each quarter of a second.
    fn due(versions: impl IntoIterator<Item = u32>) -> Vec<f64> {
        let (begin, mut debounce) = (Instant::now(), Debounce::new(0));
        let mut due = Vec::new();
        for (poll, seen) in versions.into_iter().enumerate() {
            let age = Duration::from_millis(250) * poll as u32;
            debounce.observe(seen, begin + age);
            if debounce.is_due(begin + age, REST, MOST) {
                debounce.tried(seen);
                due.push(age.as_secs_f64());
            }
        }
        due
    }

    #[test]
    fn a_change_is_loaded_once_when_it_rests() {
        assert_eq!(due([0, 1, 1, 1, 1, 1, 1, 1]), [1.25]);
        assert_eq!(due([0, 1, 1, 2, 2, 2, 2, 2, 2]), [1.75]);
    }

    #[test]
    fn a_change_that_never_rests_is_loaded_when_it_is_old() {
        assert_eq!(due(0..60), [5.25, 10.5]);
    }

    #[test]
    fn a_change_that_is_taken_back_loads_nothing() {
        assert!(due([0, 1, 0, 0, 0, 0, 0, 0]).is_empty());
        assert!(due((0..60).map(|poll| poll % 2)).is_empty());
    }

    #[test]
    fn a_change_that_could_not_be_read_is_tried_again() {
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        let mut debounce = Debounce::new(0);
        debounce.observe(1, begin);
        assert!(debounce.is_due(at(1), REST, MOST));
        debounce.restart(at(1));
        assert!(!debounce.is_due(at(1), REST, MOST) && debounce.is_due(at(2), REST, MOST));
        assert_eq!((*debounce.last(), *debounce.seen()), (0, 1));
    }

    #[test]
    fn files_that_changed_before_they_were_read_are_not_loaded_twice() {
        let now = Instant::now();
        let mut debounce = Debounce::new(1);
        debounce.observe(2, now);
        debounce.tried(3);
        debounce.observe(3, now + MOST);
        assert!(!debounce.is_due(now + MOST, REST, MOST));
    }
}
