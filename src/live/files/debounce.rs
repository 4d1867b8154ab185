//! When a change is worth loading: once it has stood still.
//!
//! Whoever writes files writes one after the other, and a file bit by bit. A set of files is loaded when two looks in a row found the same
//! one, and not again until it changes.

/// What was seen and what was tried. `T` tells one set of files from another.
#[derive(Debug)]
pub(super) struct Debounce<T> {
    tried: Option<T>,
    pending: Option<T>,
}

impl<T: PartialEq> Debounce<T> {
    /// `tried` was loaded or refused already; `None`: nothing was.
    pub(super) const fn new(tried: Option<T>) -> Self {
        Self { tried, pending: None }
    }

    /// One look found `seen`. True: load it now, and say with [`Debounce::tried`] what was found then.
    pub(super) fn look(&mut self, seen: T) -> bool {
        if self.tried.as_ref() == Some(&seen) {
            self.pending = None;
            return false;
        }
        if self.pending.as_ref() == Some(&seen) {
            return true;
        }
        self.pending = Some(seen);
        false
    }

    /// `tried` was loaded or refused; `None`: it could not be read, and has to be tried again.
    pub(super) fn tried(&mut self, tried: Option<T>) {
        *self = Self::new(tried);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_still_is_loaded_once() {
        let mut debounce = Debounce::new(Some(1));
        let looks = [(1, false), (2, false), (3, false), (3, true)];
        for (seen, load) in looks {
            assert_eq!(debounce.look(seen), load, "{seen}");
        }
        debounce.tried(Some(3));
        assert!(!debounce.look(3) && !debounce.look(3));
    }

    #[test]
    fn a_change_that_is_taken_back_loads_nothing() {
        let mut debounce = Debounce::new(Some(1));
        for seen in [2, 1, 2, 1] {
            assert!(!debounce.look(seen));
        }
    }

    #[test]
    fn what_could_not_be_read_is_tried_again() {
        let mut debounce = Debounce::new(None);
        assert!(!debounce.look(1) && debounce.look(1));
        debounce.tried(None);
        assert!(!debounce.look(1) && debounce.look(1));
    }

    #[test]
    fn what_changed_while_it_was_read_is_loaded_as_it_was_found() {
        let mut debounce = Debounce::new(Some(1));
        assert!(!debounce.look(2) && debounce.look(2));
        debounce.tried(Some(3));
        assert!(!debounce.look(3));
    }
}
