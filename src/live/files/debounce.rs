//! Decides when changed files are loaded: when several polls in a row found the same files, and
//! not again until they change. Files of limits and of certificates are watched so.
//!
//! Files are written one after the other, and each of them piece by piece. Loading at the first
//! change would load half of it.

/// The result of the last polls. `T` identifies a set of files in one version.
#[derive(Debug)]
pub struct Debounce<T> {
    /// Loaded or rejected already.
    tried: Option<T>,
    /// Found by the last poll, if it differs; and how many polls before it found the same.
    pending: Option<(T, u32)>,
}

impl<T: PartialEq> Debounce<T> {
    /// `tried` was loaded or rejected already; `None` if nothing was.
    pub const fn new(tried: Option<T>) -> Self {
        Self {
            tried,
            pending: None,
        }
    }

    /// The files that were loaded or rejected last.
    pub const fn last(&self) -> Option<&T> {
        self.tried.as_ref()
    }

    /// A poll found `seen`. Returns true if so many polls before it found the same: the caller has
    /// to load it now, and then to call [`Debounce::tried`] with the version that it loaded.
    pub fn observe(&mut self, seen: T, polls: u32) -> bool {
        if self.tried.as_ref() == Some(&seen) {
            self.pending = None;
            return false;
        }
        let before = match self.pending.take() {
            Some((pending, before)) if pending == seen => before.saturating_add(1),
            _ => 0,
        };
        self.pending = Some((seen, before));
        before >= polls
    }

    /// `tried` was loaded or rejected; `None` if it could not be read and has to be tried again.
    pub fn tried(&mut self, tried: Option<T>) {
        *self = Self::new(tried);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_two_polls_find_alike_are_loaded_once() {
        let mut debounce = Debounce::new(Some(1));
        let polls = [(1, false), (2, false), (3, false), (3, true)];
        for (seen, load) in polls {
            assert_eq!(debounce.observe(seen, 1), load, "{seen}");
        }
        debounce.tried(Some(3));
        assert!(!debounce.observe(3, 1) && !debounce.observe(3, 1));
        // Five polls in a row, of which the first is the one that finds the change.
        for (seen, load) in [4, 4, 4, 5, 5, 5, 5, 5]
            .into_iter()
            .zip((0..8).map(|at| at == 7))
        {
            assert_eq!(debounce.observe(seen, 4), load, "{seen}");
        }
    }

    #[test]
    fn a_change_that_is_taken_back_loads_nothing() {
        let mut debounce = Debounce::new(Some(1));
        for seen in [2, 1, 2, 1] {
            assert!(!debounce.observe(seen, 1));
        }
    }

    #[test]
    fn files_that_could_not_be_read_are_tried_again() {
        let mut debounce = Debounce::new(None);
        assert!(!debounce.observe(1, 1) && debounce.observe(1, 1));
        debounce.tried(None);
        assert!(!debounce.observe(1, 1) && debounce.observe(1, 1));
    }

    #[test]
    fn files_that_changed_before_they_were_read_are_not_loaded_twice() {
        let mut debounce = Debounce::new(Some(1));
        assert!(!debounce.observe(2, 1) && debounce.observe(2, 1));
        debounce.tried(Some(3));
        assert!(!debounce.observe(3, 1));
    }
}
