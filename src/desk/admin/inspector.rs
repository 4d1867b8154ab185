//! Operators' view of the limits in force: plans that are not decided, looks at counters, and
//! resets. The request path does not use it. Looks count nothing, also not in metrics.

use std::sync::Arc;

use super::reply::Failure;
use crate::core::ask::Ask;
use crate::core::verdict::Decisions;
use crate::limiter::Limiter;
use crate::limits::plan::key::Subject;
use crate::limits::plan::{self, CheckIndex, Checks, NoPlan, Plan};
use crate::limits::rules::Rules;
use crate::live::{Live, Snapshot};
use crate::observe::traces::TraceSpan;

/// Limits that an answer names.
const MAX_NAMED: usize = 10;

/// Plans as the request path does.
#[derive(Debug)]
pub struct Inspector {
    /// The limits in force.
    pub live: Arc<Live>,
    /// That of the runtime that serves the API.
    pub limiter: Limiter,
    /// Those of the request path.
    pub options: plan::Options,
}

/// A counter that was reset: its key, and whether the store had it.
pub(super) type ResetKey = (Vec<u8>, bool);

impl Inspector {
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>, Failure> {
        let no_limits = || Failure::unavailable("no limits are in force yet");
        self.live.load().ok_or_else(no_limits)
    }

    /// The plan of an ask whose descriptors look, and what its limits and its trials have left.
    pub(super) async fn look(&self, ask: &Ask<'_>) -> Result<(Plan, Decisions), Failure> {
        let live = self.snapshot()?;
        let plan = Plan::with_overrides(&live.rules, live.overrides(), ask, &self.options);
        let decisions = self.look_at(&plan.checks).await;
        Ok((plan, decisions))
    }

    /// What the limits and the trials of these checks have left. The checks look.
    pub(super) async fn look_at(&self, checks: &Arc<Checks>) -> Decisions {
        let span = TraceSpan::default();
        self.limiter.decide(checks, None, &span).await
    }

    /// The hits that this process has drawn ahead for a check and still holds.
    pub(super) fn held(&self, plan: &Plan, check: CheckIndex) -> u64 {
        self.limiter.held(&plan.checks, check)
    }

    /// The plan of a subject. Of the overrides only raises apply: what is blocked or exempt has a
    /// counter too. `limit` is the path of its limit, where several may count it.
    pub(super) fn plan(&self, subject: &Subject, limit: Option<&str>) -> Result<Plan, Failure> {
        let live = self.snapshot()?;
        let Ok(ask) = subject.exact() else {
            return self.plan_of_files(&live.rules, subject, limit);
        };
        let raises = live.overrides().map(|overrides| overrides.for_hits(-1));
        Ok(Plan::with_overrides(
            &live.rules,
            raises,
            &ask,
            &self.options,
        ))
    }

    /// The plan of a subject without overrides.
    fn plan_of_files(
        &self,
        rules: &Arc<Rules>,
        subject: &Subject,
        limit: Option<&str>,
    ) -> Result<Plan, Failure> {
        Plan::of_subject(rules, subject, limit, &self.options).map_err(|error| match error {
            NoPlan::NoLimit => no_limit(),
            NoPlan::Unlimited => unlimited(),
            NoPlan::Several(paths) => Failure::bad_request(&format!(
                "limit: the value is known by its digest only, and these limits may count it: \
                 {}; write one of them as limit",
                some_of(&paths)
            )),
        })
    }

    /// Lets the counter of a subject start from zero, and that of its trial. Returns its plan
    /// without overrides, and the counters; none where nothing is counted.
    pub(super) async fn reset(
        &self,
        subject: &Subject,
        limit: Option<&str>,
    ) -> Result<(Plan, Vec<ResetKey>), Failure> {
        let live = self.snapshot()?;
        let plan = self.plan_of_files(&live.rules, subject, limit)?;
        let raised = subject.exact().ok().map(|ask| {
            Plan::with_overrides(&live.rules, live.overrides(), &ask, &self.options).checks
        });
        let raised = raised.as_ref().unwrap_or(&plan.checks);
        let mut counters = Vec::new();
        for index in plan.checks.all() {
            let existed = self.limiter.reset(&plan.checks, index, raised).await;
            let existed = existed.map_err(|error| {
                Failure::unavailable(&format!(
                    "the store did not reset the counter: {error}; try again"
                ))
            })?;
            counters.push((plan.checks.key(&plan.checks[index]).to_vec(), existed));
        }
        Ok((plan, counters))
    }
}

/// The first names of a list.
pub(super) fn some_of(names: &[String]) -> String {
    let more = match names.len() > MAX_NAMED {
        true => " and others",
        false => "",
    };
    format!("{}{more}", names[..names.len().min(MAX_NAMED)].join(", "))
}

pub(super) fn no_limit() -> Failure {
    Failure::not_found("no limit applies to these entries; weir explain says why")
}

pub(super) fn unlimited() -> Failure {
    Failure::not_found("the subject is unlimited: no store counts it, so that nothing is recorded")
}
