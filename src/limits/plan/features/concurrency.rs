//! The checks of limits of requests in flight: each has the id of its request, which holds places.

use smallvec::SmallVec;

use super::Extras;
use crate::core::algorithm::concurrency::TAKE_BACK;
use crate::core::algorithm::places::RequestId;
use crate::core::algorithm::{Algorithm, Arrival, State, Step};
use crate::core::answer::Effect;
use crate::core::request::Entry;
use crate::core::time::{Micros, Span};
use crate::limits::plan::{
    Check, CheckIndex, Checked, Checks, Disposition, Matcher, PlannedDescriptor,
};
use crate::limits::rules::Commit;

impl Matcher<'_, '_> {
    /// Like `disposition`, for a limit of requests in flight. The last entry of its descriptor is
    /// the id of the request, which is not a part of the subject: the entry keeps its key and gets
    /// an empty value, and everything after the plan sees that (keys, overrides, usage, metrics,
    /// subjects). A separate function, to keep it off the path of other limits.
    #[inline(never)]
    pub(super) fn disposition_in_flight(&mut self, planned: PlannedDescriptor<'_>) -> Disposition {
        let mut subject: SmallVec<[Entry<'_>; 4]> = SmallVec::from_slice(planned.entries);
        let last = subject.last_mut();
        let id = last.map_or(&[][..], |last| std::mem::take(&mut last.value));
        let disposition = self.disposition(PlannedDescriptor {
            entries: &subject,
            ..planned
        });
        // A limit that the request brings along takes the place of the configured one.
        if let Disposition::Checked(Checked { check, .. }) = disposition
            && self.checks[check].algorithm.counts_in_flight()
        {
            let extras = self.checks.extras_mut(check);
            extras.holder = Some(RequestId::of(id));
            extras.limit = planned.limit.map(|found| found.limit.id);
        }
        disposition
    }
}

impl Check {
    /// The id of the request, for a limit of requests in flight; else the default.
    pub fn holder(&self) -> RequestId {
        let holder = |extras: &Extras| extras.holder;
        self.extras.as_deref().and_then(holder).unwrap_or_default()
    }

    /// Decides `hits` hits of the check by another form of its algorithm.
    #[inline]
    pub(in crate::limits::plan) fn step_as(
        &self,
        algorithm: &Algorithm,
        hits: i64,
        state: Option<State>,
        at: Arrival,
    ) -> (Step, Effect) {
        let Algorithm::Concurrency(limit) = algorithm else {
            return (algorithm.step(state, at, hits), Effect::None);
        };
        let (step, change) = limit.step_by(self.holder(), state, at.now, hits);
        (step, Effect::of_places(hits, change))
    }

    /// The state in which the id of an acquire is marked whose request was refused as a whole, and
    /// how long to keep it; `None`: nothing has to be written.
    pub(in crate::limits::plan) fn note_refused(
        &self,
        state: Option<State>,
        now: Micros,
    ) -> Option<(State, Span)> {
        match &self.algorithm {
            Algorithm::Concurrency(limit) => limit.note_refused(self.holder(), state, now),
            _ => None,
        }
    }
}

impl Checks {
    /// Whether a check is of a limit of requests in flight.
    #[inline]
    pub fn moves_places(&self) -> bool {
        self.extras().any(|extras| extras.holder.is_some())
    }

    /// The checks that acquire places of limits of requests in flight.
    pub fn acquires(&self) -> impl Iterator<Item = CheckIndex> {
        let has_holder =
            |check: &Check| check.extras.as_ref().is_some_and(|it| it.holder.is_some());
        let all = self.indexed();
        let acquires = all.filter(move |(_, check)| check.hits > 0 && has_holder(check));
        acquires.map(|(index, _)| index)
    }

    /// The acquires at `picked`, each as the check that takes it back.
    #[must_use]
    pub fn taken_back(&self, picked: &[CheckIndex]) -> Self {
        let mut checks = self.subset(picked, |algorithm| algorithm, |_| true);
        checks.commit = Commit::Each;
        for check in &mut checks.list {
            check.hits = TAKE_BACK;
        }
        checks
    }

    /// The same checks, where the one at `index` is a check of a limit of requests in flight by the
    /// request with this id: for tests of stores.
    #[must_use]
    pub fn with_holder(mut self, index: CheckIndex, id: &[u8]) -> Self {
        self.extras_mut(index).holder = Some(RequestId::of(id));
        self
    }
}
