//! `fixed_window`: so many hits in each window, windows aligned to the clock.
//!
//! As in envoyproxy/ratelimit, hits are counted ahead of the answer: refused hits count too, unless `count_denied` is false. The twin is `lua/fixed_window.lua`, and for
//! plain hits the `INCRBY` transaction.

use super::{State, Step};
use crate::time::{Micros, Span};
use crate::verdict::{Verdict, Wait};

/// A limit per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    /// Hits per window.
    pub limit: u32,
    /// The window's length; never zero.
    pub window: Span,
    /// Refused hits count too.
    pub count_denied: bool,
}

impl FixedWindow {
    /// The number of the window that `now` lies in.
    #[must_use]
    pub const fn number(&self, now: Micros) -> u64 {
        now.0 / self.window.micros()
    }

    /// When window `number` ends.
    #[must_use]
    pub const fn end(&self, number: u64) -> Micros {
        Micros(number.saturating_add(1).saturating_mul(self.window.micros()))
    }

    /// Hits as they are counted: no more than what is refused anyway, so that no single request can fill a counter up to its last bit.
    #[must_use]
    pub fn clamp(&self, hits: i64) -> i64 {
        hits.min(i64::from(self.limit) + 1)
    }

    /// One check; see [`super::Algorithm::step`].
    #[must_use]
    pub fn step(&self, state: Option<State>, now: Micros, hits: i64) -> Step {
        let current = self.number(now);
        // A clock that went back by less than a window goes on in the window that it knows; a larger jump starts afresh.
        let (window, before) = match state {
            Some(State::FixedWindow { window, count }) if window == current || window == current + 1 => (window, count),
            _ => (current, 0),
        };
        let asked = match u64::try_from(self.clamp(hits)) {
            Ok(taken) => before.saturating_add(taken),
            Err(_) => before.saturating_sub(hits.unsigned_abs()),
        };
        let allowed = hits < 0 || asked <= u64::from(self.limit);
        let after = if allowed || self.count_denied { asked } else { before };
        let keep_for = self.end(window).since(now);
        let verdict = Verdict { allowed, ..self.judge(window, after, now, hits) };
        if after == before {
            return Step { verdict, state, keep_for: None };
        }
        Step { verdict, state: Some(State::FixedWindow { window, count: after }), keep_for: Some(keep_for) }
    }

    /// The verdict on counted `hits` that brought window `number` to `after`. Giving back is always allowed.
    #[must_use]
    pub fn judge(&self, number: u64, after: u64, now: Micros, hits: i64) -> Verdict {
        let limit = u64::from(self.limit);
        // The clock may have left the window already; a caller is still told to wait for something.
        let reset_after = self.end(number).since(now).max(Span::from_micros(1));
        Verdict {
            allowed: hits < 0 || after <= limit,
            remaining: u32::try_from(limit.saturating_sub(after)).unwrap_or(u32::MAX),
            used: after,
            reset_after,
            retry_after: if hits > i64::from(self.limit) { Wait::Never } else { Wait::For(reset_after) },
            delay: Span::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: FixedWindow = FixedWindow { limit: 3, window: Span::from_secs(60), count_denied: true };

    fn run(limit: FixedWindow, state: &mut Option<State>, at_secs: u64, hits: i64) -> Verdict {
        let step = limit.step(state.take(), Micros(at_secs * 1_000_000), hits);
        *state = step.state;
        step.verdict
    }

    #[test]
    fn the_limit_is_exact_and_the_next_window_is_fresh() {
        let mut state = None;
        for left in [2, 1, 0] {
            let verdict = run(MINUTE, &mut state, 70, 1);
            assert!(verdict.allowed);
            assert_eq!(verdict.remaining, left);
            assert_eq!(verdict.until_reset(), Span::from_secs(50));
        }
        let refused = run(MINUTE, &mut state, 119, 1);
        assert!(!refused.allowed);
        assert_eq!(refused.retry_after, Wait::For(Span::from_secs(1)));
        assert!(run(MINUTE, &mut state, 120, 1).allowed);
    }

    #[test]
    fn looks_write_nothing_and_are_refused_only_in_debt() {
        let mut state = None;
        assert_eq!(MINUTE.step(None, Micros(0), 0).keep_for, None);
        run(MINUTE, &mut state, 0, 3);
        assert!(run(MINUTE, &mut state, 0, 0).allowed, "count == limit is no debt");
        run(MINUTE, &mut state, 0, 1);
        assert!(!run(MINUTE, &mut state, 0, 0).allowed);
    }

    #[test]
    fn give_backs_stop_at_zero_and_are_always_allowed() {
        let mut state = None;
        run(MINUTE, &mut state, 0, 4);
        assert_eq!(run(MINUTE, &mut state, 0, -2).remaining, 1);
        let verdict = run(MINUTE, &mut state, 0, i64::MIN);
        assert!(verdict.allowed);
        assert_eq!(verdict.remaining, 3);
    }

    #[test]
    fn more_than_the_limit_is_never() {
        assert_eq!(run(MINUTE, &mut None, 0, 4).retry_after, Wait::Never);
        assert_eq!(run(FixedWindow { limit: 0, ..MINUTE }, &mut None, 0, 1).retry_after, Wait::Never);
        assert_eq!(run(MINUTE, &mut None, 0, i64::MAX).used, 4, "huge hits are clamped");
    }

    #[test]
    fn a_clock_that_goes_back_neither_locks_nor_opens() {
        let mut state = None;
        run(MINUTE, &mut state, 120, 3);
        assert!(!run(MINUTE, &mut state, 119, 1).allowed, "one second back: still the same count");
        assert!(run(MINUTE, &mut state, 10, 1).allowed, "far back: afresh");
    }
}
