//! Reasons for which a comparison of two configurations is inconclusive: a gate that was not asked
//! about what differs must not be green.

use std::collections::BTreeMap;

use super::{MAX_NAMED, Run};
use crate::limits::rules::diff::{Difference, name_of};

/// How a limit was asked, in both configurations together.
#[derive(Default)]
struct LimitUse {
    hits: u64,
    is_left_out: bool,
    /// In the second configuration.
    is_shadow: bool,
}

/// The reasons of two runs over the same rows, whose templates have left these unused.
pub(super) fn inconclusive([before, after]: [&Run; 2], unused_templates: &[String]) -> Vec<String> {
    let difference = Difference::new(before.engine.rules(), after.engine.rules());
    let unused = |template| format!("no record makes a descriptor of {template}");
    let mut reasons: Vec<String> = unused_templates.iter().map(unused).collect();
    let all = difference.limits().map(|name| (name, None));
    let mut all: BTreeMap<&str, Option<LimitUse>> = all.collect();
    if difference.is_empty() {
        reasons.push("the two configurations do not differ".to_owned());
    }
    for run in [before, after] {
        let rules = run.engine.rules();
        for limit in rules.limits() {
            let Some(asked) = all.get_mut(&*name_of(limit)) else {
                continue;
            };
            let tally = run.tally.limits.get(&Some(limit.id));
            let is_free = run.tally.unlimited.contains(&limit.id);
            let is_left_out = run.engine.left_out.contains_key(&limit.id);
            if tally.is_some() || is_free || is_left_out {
                let asked = asked.get_or_insert_default();
                let hits = tally.map_or(u64::from(is_free), |tally| tally.hits_asked);
                asked.hits = asked.hits.saturating_add(hits);
                asked.is_left_out |= is_left_out;
                asked.is_shadow = limit.shadow_mode;
            }
        }
    }
    let why = |(name, asked): (&str, Option<LimitUse>)| {
        let what = match asked {
            None => return Some(format!("no row asks {name}, which differs")),
            Some(asked) if asked.is_left_out => {
                "is left out: durations are unknown; write --duration"
            }
            Some(LimitUse { hits: 0, .. }) => "is only asked with 0 hits",
            Some(asked) if asked.is_shadow => "is in shadow mode and refuses nothing",
            Some(_) => return None,
        };
        Some(format!("{name}, which differs, {what}"))
    };
    let of_limits: Vec<_> = all.into_iter().filter_map(why).collect();
    let more = of_limits.len().saturating_sub(MAX_NAMED);
    reasons.extend(of_limits.into_iter().take(MAX_NAMED));
    if more > 0 {
        reasons.push(format!("{more} more limits that differ are as these"));
    }
    reasons
}
