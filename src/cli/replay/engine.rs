//! One configuration in virtual time: the service's own plan, step and store, with the time of the
//! row in the place of the clock.
//!
//! It is the memory store of one process that is fast enough: no deadline passes but the caller's,
//! no failure policy answers, and no denial cache is in front.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::core::algorithm::{self, Algorithm, AlgorithmKind, Arrival};
use crate::core::ask::{Ask, Descriptor, Entry};
use crate::core::time::{Micros, Span};
use crate::core::verdict::{Decision, Decisions};
use crate::limiter::longest_delay;
use crate::limits::overrides::Overrides;
use crate::limits::plan::{self, Checks, Outcomes, Plan};
use crate::limits::rules::Rules;
use crate::limits::rules::limit::{Amount, Limit, LimitId};
use crate::service::rls::decode::decode;
use crate::store::{Memory, memory};

/// Rows between two sweeps of a shard, so that keys which have recovered leave the store.
const ROWS_PER_SWEEP: u64 = 256;

/// Requests in flight at most whose ends are known. A limit forgets those beyond after its
/// `max_duration`.
const MAX_IN_FLIGHT: usize = 1_000_000;

/// Bytes of their messages.
const MAX_IN_FLIGHT_BYTES: usize = 256 << 20;

/// What a configuration is run with.
pub(super) struct Setup {
    pub(super) rules: Arc<Rules>,
    pub(super) plan: plan::Options,
    pub(super) overrides: Option<Arc<Overrides>>,
    /// The deadline of a request, less the service's reserve: no shaper holds it for longer.
    pub(super) max_hold: Span,
    /// Only this limit is asked, by this algorithm in the place of its own.
    pub(super) variant: Option<Variant>,
}

/// One limit by another algorithm.
pub(super) struct Variant {
    limit: LimitId,
    /// What stands for each of its algorithms, of which a table has many.
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
            let other = other.map_err(|error| format!("{}; {}", error.what, error.remedy))?;
            Ok((amount.algorithm, other))
        };
        Ok(Self {
            limit: limit.id,
            algorithms: limit
                .amounts()
                .map(variant)
                .collect::<Result<_, String>>()?,
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
    /// Some limits count requests in flight.
    counts_in_flight: bool,
    /// Requests in flight, in the order of their ends.
    ends: BinaryHeap<Reverse<End>>,
    /// The bytes of their messages.
    in_flight_bytes: usize,
    rows: u64,
    /// Descriptors of limits of requests in flight without a duration, which are left out.
    pub(super) left_out: u64,
    /// Requests in flight whose ends were forgotten.
    pub(super) not_released: u64,
}

/// The end of a request in flight.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct End {
    at: Micros,
    /// Its row, so that requests end in their order.
    row: u64,
    message: Box<[u8]>,
}

/// What was decided on a row.
pub(super) struct Decided {
    pub(super) plan: Plan,
    pub(super) decisions: Decisions,
    /// What the trials would decide.
    pub(super) tried: Decisions,
    /// How long shapers hold the request.
    pub(super) delay: Span,
}

impl Decided {
    /// What becomes of each descriptor.
    pub(super) fn outcomes(&self) -> Outcomes<'_> {
        self.plan.outcomes(&self.decisions)
    }
}

impl Engine {
    /// An empty store as that of a service with default settings, but without usage records, which
    /// decide nothing.
    pub(super) fn new(setup: Setup) -> Self {
        let counts_in_flight = setup.rules.limits().any(Limit::counts_in_flight);
        Self {
            counts_in_flight,
            store: Memory::new(memory::Options {
                usage_bytes: 0,
                ..memory::Options::default()
            }),
            setup,
            ends: BinaryHeap::new(),
            in_flight_bytes: 0,
            rows: 0,
            left_out: 0,
            not_released: 0,
        }
    }

    /// The limits.
    pub(super) fn rules(&self) -> &Arc<Rules> {
        &self.setup.rules
    }

    /// Whether one limit only is asked.
    pub(super) const fn is_variant(&self) -> bool {
        self.setup.variant.is_some()
    }

    /// Keys that left the store because it was full.
    pub(super) fn evicted(&self) -> u64 {
        self.store.size().evicted
    }

    /// The descriptors of a request that are decided, where not all are: without those of limits of
    /// requests in flight, if its `duration` is not known, or only those of the one limit.
    pub(super) fn pick<'a>(&mut self, ask: &Ask<'a>, duration: Option<Span>) -> Option<Ask<'a>> {
        let leaves_out = self.counts_in_flight && duration.is_none();
        if self.setup.variant.is_none() && !leaves_out {
            return None;
        }
        let picked = some(ask, |descriptor, entries| {
            let found = self.setup.rules.find(ask.domain, entries).limit();
            let found = found.filter(|_| descriptor.limit.is_none());
            let is_in = match &self.setup.variant {
                Some(variant) => found.is_some_and(|found| found.limit.id == variant.limit),
                None => !found.is_some_and(|found| found.limit.counts_in_flight()),
            };
            is_in.then_some(*descriptor)
        });
        self.left_out += (ask.len() - picked.len()) as u64;
        Some(picked)
    }

    /// Decides a request that is sent `at` and takes `duration`, if that is known. `message` is it.
    pub(super) fn decide(
        &mut self,
        at: Micros,
        duration: Option<Span>,
        ask: &Ask<'_>,
        message: &[u8],
    ) -> Decided {
        self.end_before(at);
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_PER_SWEEP) {
            let _ = self.store.sweep(at);
            self.store.maintain();
        }
        let decided = self.decide_all(at, ask);
        if let Some(duration) = duration
            && decided.plan.checks.has_holders()
        {
            // The stream of a refused request is done at once.
            let is_refused = decided.outcomes().is_over_limit;
            let lasts = if is_refused { Span::ZERO } else { duration };
            self.end_at(at + decided.delay + lasts, message);
        }
        decided
    }

    fn decide_all(&self, at: Micros, ask: &Ask<'_>) -> Decided {
        let setup = &self.setup;
        let overrides = setup.overrides.as_ref().map(|all| all.at(at));
        let mut plan = Plan::with_overrides(&setup.rules, overrides, ask, &setup.plan);
        if let Some(variant) = &setup.variant {
            let all = plan.checks.indices();
            let checks = plan.checks.subset(&all, |own| variant.of(own), |_| true);
            plan.checks = Arc::new(checks);
            plan.trials = None;
        }
        let decisions = self.ask(at, &plan.checks);
        let trials = plan.trials.as_ref();
        Decided {
            tried: trials.map_or_else(Decisions::new, |trials| self.ask(at, &trials.checks)),
            delay: longest_delay(&plan.checks, &decisions),
            decisions,
            plan,
        }
    }

    fn ask(&self, now: Micros, checks: &Checks) -> Decisions {
        if checks.is_empty() {
            return Decisions::new();
        }
        let at = Arrival {
            now,
            max_hold: self.setup.max_hold,
        };
        let answers = self.store.decide_at(checks, &checks.indices(), at);
        // It answers all checks.
        let answers = answers.checks.into_iter();
        answers
            .map(|answer| answer.map_or_else(Decision::Fails, Decision::Store))
            .collect()
    }

    /// Has a request end at this instant.
    fn end_at(&mut self, at: Micros, message: &[u8]) {
        let bytes = self.in_flight_bytes + message.len();
        if self.ends.len() < MAX_IN_FLIGHT && bytes <= MAX_IN_FLIGHT_BYTES {
            self.in_flight_bytes = bytes;
            let (row, message) = (self.rows, message.into());
            self.ends.push(Reverse(End { at, row, message }));
        } else {
            self.not_released += 1;
        }
    }

    /// Releases what requests hold that end until this instant, as Envoy does when their streams
    /// are done: negative hits of the same descriptors.
    fn end_before(&mut self, now: Micros) {
        while let Some(Reverse(end)) = self.ends.peek()
            && end.at <= now
            && let Some(Reverse(End { at, message, .. })) = self.ends.pop()
        {
            self.in_flight_bytes -= message.len();
            // It was decoded before.
            let Ok(ask) = decode(&message) else { continue };
            let releases = some(&ask, |descriptor, entries| {
                let found = self.setup.rules.find(ask.domain, entries).limit()?;
                let mut release = *descriptor;
                release.is_negative_hits = true;
                let is_held = found.limit.counts_in_flight() && ask.hits(descriptor) > 0;
                is_held.then_some(release)
            });
            let _ = self.decide_all(at, &releases);
        }
    }
}

/// The same request with these descriptors only.
fn some<'a>(
    ask: &Ask<'a>,
    pick: impl Fn(&Descriptor, &[Entry<'_>]) -> Option<Descriptor>,
) -> Ask<'a> {
    let mut some = Ask::default();
    (some.domain, some.hits_addend) = (ask.domain, ask.hits_addend);
    for (descriptor, entries) in ask.descriptors() {
        if let Some(descriptor) = pick(descriptor, entries) {
            for &entry in entries {
                some.push(entry);
            }
            some.close(descriptor);
        }
    }
    some
}
