//! One configuration in virtual time: the service's own plan, step and store, with the time of the
//! row instead of the clock.
//!
//! It is the memory store of one process that is fast enough: no deadline passes but the caller's,
//! no failure policy answers, and no denial cache is in front.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::core::algorithm::{self, Algorithm, AlgorithmKind, Arrival};
use crate::core::answer::Decisions;
use crate::core::request::DecodedRequest;
use crate::core::time::{Micros, Span};
use crate::limiter::longest_delay;
use crate::limits::overrides::Overrides;
use crate::limits::plan::{
    self, CheckIndex, CheckIndices, Checks, Disposition, Outcomes, Plan, Slot,
};
use crate::limits::rules::Rules;
use crate::limits::rules::limit::{Amount, Limit, LimitId};
use crate::store::{Memory, memory};

/// Rows between two sweeps of a shard, which remove recovered keys from the store.
const ROWS_PER_SWEEP: u64 = 256;

/// Bytes of requests in flight whose ends are known. A limit forgets those beyond after its
/// `max_duration`.
const MAX_IN_FLIGHT_BYTES: usize = 1 << 30;

/// Inputs of a run.
pub(super) struct Setup {
    pub(super) rules: Arc<Rules>,
    pub(super) plan: plan::Options,
    pub(super) overrides: Option<Arc<Overrides>>,
    /// The deadline of a request, less the service's margin: no shaper holds it for longer.
    pub(super) max_wait: Span,
    /// Only this limit is checked, with this algorithm instead of its own.
    pub(super) variant: Option<Variant>,
}

/// One limit by another algorithm.
pub(super) struct Variant {
    limit: LimitId,
    /// The replacement of each of its algorithms, of which a table has many.
    algorithms: HashMap<Algorithm, Algorithm>,
}

impl Variant {
    /// The limit by this algorithm, whose options have their defaults where the limit has another.
    ///
    /// # Errors
    /// The algorithm cannot have an amount of the limit.
    pub(super) fn new(limit: &Limit, kind: AlgorithmKind) -> Result<Self, String> {
        let variant = |amount: &Amount| {
            if amount.algorithm.kind() == kind {
                return Ok((amount.algorithm, amount.algorithm));
            }
            let options = algorithm::Options {
                kind,
                scale: amount.scale.hits(1).try_into().ok(),
                ..algorithm::Options::default()
            };
            let other = Algorithm::try_new(&amount.rate, &options);
            let other = other.map_err(|error| error.message.to_string())?;
            Ok((amount.algorithm, other))
        };
        let algorithms: Result<_, String> = limit.amounts().map(variant).collect();
        Ok(Self {
            limit: limit.id,
            algorithms: algorithms?,
        })
    }

    fn of(&self, own: Algorithm) -> Algorithm {
        self.algorithms.get(&own).copied().unwrap_or(own)
    }
}

/// A configuration and its counters.
pub(super) struct Engine {
    setup: Setup,
    store: Memory,
    /// Places of requests in flight, by their ends and rows: requests of one instant end in their
    /// order.
    ends: BTreeMap<(Micros, u64), Box<Checks>>,
    /// Their bytes.
    in_flight_bytes: usize,
    rows: u64,
    /// Descriptors of limits of requests in flight without a duration, which are left out.
    pub(super) left_out: HashMap<LimitId, u64>,
    /// Requests in flight whose ends were forgotten.
    pub(super) not_released: u64,
}

/// The bytes of one of [`Engine::ends`].
fn end_bytes(release: &Checks) -> usize {
    size_of::<((Micros, u64), Box<Checks>)>() + release.bytes()
}

/// Decisions on a row.
pub(super) struct Decided {
    pub(super) plan: Plan,
    /// On all checks of the plan, with its trials.
    pub(super) decisions: Decisions,
    /// How long shapers hold the request.
    pub(super) delay: Span,
}

impl Decided {
    /// Outcome of each descriptor.
    pub(super) fn outcomes(&self) -> Outcomes<'_> {
        self.plan.outcomes(&self.decisions)
    }
}

impl Engine {
    /// An empty store, as a service with default settings has it, but without usage records, which
    /// decide nothing.
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            store: Memory::new(memory::Options {
                usage_bytes: 0,
                ..memory::Options::default()
            }),
            setup,
            ends: BTreeMap::new(),
            in_flight_bytes: 0,
            rows: 0,
            left_out: HashMap::new(),
            not_released: 0,
        }
    }

    /// The limits.
    pub(super) fn rules(&self) -> &Arc<Rules> {
        &self.setup.rules
    }

    /// The only limit that is asked, if it is one.
    pub(super) fn only(&self) -> Option<&Limit> {
        let variant = self.setup.variant.as_ref()?;
        Some(self.setup.rules.limit(variant.limit))
    }

    /// Keys that left the store because it was full.
    pub(super) fn evicted(&self) -> u64 {
        self.store.size().evicted
    }

    /// Decides a request that is sent `at`. Without its `duration`, limits of requests in flight
    /// are left out.
    pub(super) fn decide(
        &mut self,
        at: Micros,
        duration: Option<Span>,
        request: &DecodedRequest<'_>,
    ) -> Decided {
        self.end_before(at);
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_PER_SWEEP) {
            let _ = self.store.sweep(at);
            self.store.maintain();
        }
        let setup = &self.setup;
        let overrides = setup.overrides.as_ref().map(|all| all.at(at));
        let mut plan = Plan::with_overrides(&setup.rules, overrides, request, &setup.plan);
        if let Some(variant) = &setup.variant {
            plan.slots.retain(|slot| slot.limit == Some(variant.limit));
            pick(&mut plan, |_| true, |own| variant.of(own), false);
        } else if duration.is_none() && plan.checks.moves_places() {
            let held = |slot: &Slot| {
                let is_held = |id: &LimitId| setup.rules.limit(*id).counts_in_flight();
                slot.limit.filter(is_held)
            };
            for slot in &plan.slots {
                if let (Disposition::Checked(_), Some(id)) = (&slot.disposition, held(slot)) {
                    *self.left_out.entry(id).or_default() += 1;
                }
            }
            pick(&mut plan, |slot| held(slot).is_none(), |own| own, true);
        }
        let decisions = self.decide_checks(at, &plan.checks);
        Decided {
            delay: longest_delay(&plan.checks, &decisions),
            decisions,
            plan,
        }
    }

    /// Releases the places of a request that was decided `at` after its duration; at once if it is
    /// refused, because its stream ends.
    pub(super) fn end_later(
        &mut self,
        at: Micros,
        duration: Option<Span>,
        decided: &Decided,
        is_refused: bool,
    ) {
        let checks = &decided.plan.checks;
        let acquires: CheckIndices = checks.acquires().collect();
        if acquires.is_empty() {
            return;
        }
        let lasts = duration.filter(|_| !is_refused).unwrap_or(Span::ZERO);
        let release = Box::new(checks.taken_back(&acquires));
        let bytes = self.in_flight_bytes + end_bytes(&release);
        if bytes > MAX_IN_FLIGHT_BYTES {
            self.not_released += 1;
            return;
        }
        self.in_flight_bytes = bytes;
        let end = at + decided.delay + lasts;
        self.ends.insert((end, self.rows), release);
    }

    fn decide_checks(&self, now: Micros, checks: &Checks) -> Decisions {
        let max_wait = self.setup.max_wait;
        let at = Arrival { now, max_wait };
        // It answers all checks.
        Decisions::of_store(&self.store.decide_all(checks, at))
    }

    /// Releases what requests hold that end until this instant.
    fn end_before(&mut self, now: Micros) {
        while let Some(end) = self.ends.first_entry()
            && end.key().0 <= now
        {
            let ((at, _), release) = end.remove_entry();
            self.in_flight_bytes -= end_bytes(&release);
            let _ = self.decide_checks(at, &release);
        }
    }
}

/// Leaves the checks of other slots out of a plan, with another algorithm for those that stay, and
/// those that decide about no slot unless it `is_tried`.
fn pick(
    plan: &mut Plan,
    stays: impl Fn(&Slot) -> bool,
    change: impl Fn(Algorithm) -> Algorithm,
    is_tried: bool,
) {
    let mut picked = CheckIndices::new();
    for slot in &mut plan.slots {
        let stays = stays(slot);
        match &mut slot.disposition {
            Disposition::Checked(checked) if stays => {
                let own = std::mem::replace(&mut checked.check, CheckIndex(picked.len()));
                picked.push(own);
            }
            Disposition::Checked(_) => slot.disposition = Disposition::Free,
            _ => {}
        }
    }
    if is_tried {
        picked.extend(plan.checks.apart());
    }
    plan.checks = Arc::new(plan.checks.subset(&picked, change, |_| false));
}
