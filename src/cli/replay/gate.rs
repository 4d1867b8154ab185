//! Reasons for which a comparison of two configurations is inconclusive: a gate that was not asked
//! about what differs must not be green. Everything that `weir check --diff` reports is a
//! difference here too.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{MAX_NAMED, Run};
use crate::limits::plan::{DecidedBy, Outcome, Outcomes};
use crate::limits::rules::Rules;
use crate::limits::rules::compile::OneLine;
use crate::limits::rules::diff::{Changed, DIGEST, Difference, differing_rows, name_of};
use crate::limits::rules::limit::{Limit, LimitId, LimitInForce, RowAmount};
use crate::limits::rules::table::RowNumber;

/// How the rows of a trace asked a limit, or a row of its table; the most conclusive last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Replaced,
    Overridden,
    Peeked,
    InShadow,
    Counted,
}

/// A limit, or with a row the limit that has the table.
type Found = (LimitId, Option<RowNumber>);

/// Everything that the rows of a trace asked two configurations. A side is the index of one.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    asked: HashMap<(usize, Found), Asked>,
    /// The limits that descriptors find in both.
    pairs: HashSet<[Option<LimitId>; 2]>,
    /// Limits, with the names of others that they replaced.
    replaced: HashSet<(usize, LimitId, Box<str>)>,
}

impl Evidence {
    /// Adds a request, with its outcomes by both.
    pub(super) fn observe(&mut self, outcomes: [&Outcomes<'_>; 2]) {
        for (before, after) in outcomes[0].each.iter().zip(&outcomes[1].each) {
            let Some(mut asked) = asked(before).max(asked(after)) else {
                continue;
            };
            let last = after.limit.or(before.limit);
            if last.is_some_and(LimitInForce::shadow_mode) {
                asked = asked.min(Asked::InShadow);
            }
            let pair = [before, after].map(|outcome| outcome.limit);
            if asked == Asked::Counted {
                let ids = pair.map(|found| found.map(|found| found.limit.id));
                self.pairs.insert(ids);
            }
            for (side, found) in pair.into_iter().enumerate() {
                for found in found.into_iter().flat_map(parts) {
                    let most = self.asked.entry((side, found)).or_insert(asked);
                    *most = asked.max(*most);
                }
            }
        }
        for (side, all) in outcomes.into_iter().enumerate() {
            let is_replaced = |one: &&Outcome<'_>| asked(one) == Some(Asked::Replaced);
            let replaced = all.each.iter().filter(is_replaced);
            for replaced in replaced.filter_map(|outcome| outcome.limit) {
                self.add_replaced(side, all, replaced);
            }
        }
    }

    #[cold]
    fn add_replaced(&mut self, side: usize, all: &Outcomes<'_>, replaced: LimitInForce<'_>) {
        let Some(name) = replaced.name() else { return };
        for by in all.each.iter().filter_map(|outcome| outcome.limit) {
            if by.limit.replaces.iter().any(|own| **own == *name) {
                self.replaced.insert((side, by.limit.id, name.into()));
            }
        }
    }
}

/// How the limit of a descriptor is asked; `None` without one.
fn asked(outcome: &Outcome<'_>) -> Option<Asked> {
    let asked = match outcome.by {
        DecidedBy::Check { planned, .. } if planned.is_raised => Asked::Overridden,
        DecidedBy::Check { check, .. } if check.hits > 0 => Asked::Counted,
        DecidedBy::Check { .. } => Asked::Peeked,
        DecidedBy::Unlimited => Asked::Counted,
        DecidedBy::Block(_) | DecidedBy::Exempt => Asked::Overridden,
        DecidedBy::NoLimit => Asked::Replaced,
    };
    outcome.limit.map(|_| asked)
}

/// The limit and the row that decide. A row with numbers of its own shows nothing of its limit's.
fn parts(found: LimitInForce<'_>) -> impl Iterator<Item = Found> {
    let LimitInForce { limit, row } = found;
    let (id, table) = (limit.id, limit.table.as_ref());
    let of_row = table.zip(row);
    let owner = of_row.map(|(table, row)| (LimitId::new(id.domain, table.owner), Some(row)));
    let meaning = of_row.and_then(|(table, row)| table.rows.meaning(row));
    let is_own = meaning.is_some_and(|meaning| meaning.amount != RowAmount::OfLimit);
    let limit = Some((id, None)).filter(|_| !is_own || limit.is_by_rows);
    limit.into_iter().chain(owner)
}

/// The reasons of two runs over the same rows, after the reasons of their trace.
pub(super) fn inconclusive(
    runs: [&Run; 2],
    evidence: &Evidence,
    of_trace: Vec<String>,
) -> Vec<String> {
    let rules = runs.map(|run| &**run.engine.rules());
    let difference = Difference::new(rules[0], rules[1]);
    let mut reasons = of_trace;
    if difference.is_empty() {
        reasons.push("the two configurations do not differ".to_owned());
    }
    let named = |limit| (name_of(limit), limit);
    let by_name = rules.map(|rules| rules.limits().map(named).collect());
    let gate = Gate {
        runs,
        rules,
        by_name,
        evidence,
    };
    let of_limits = gate.reasons(&difference);
    let more = of_limits.len().saturating_sub(MAX_NAMED);
    reasons.extend(of_limits.into_iter().take(MAX_NAMED));
    if more > 0 {
        reasons.push(format!("{more} more differences are as these"));
    }
    reasons
}

/// Both configurations, and what was asked.
struct Gate<'r> {
    runs: [&'r Run; 2],
    rules: [&'r Rules; 2],
    by_name: [HashMap<String, &'r Limit>; 2],
    evidence: &'r Evidence,
}

impl Gate<'_> {
    fn reasons(&self, difference: &Difference) -> BTreeSet<String> {
        let mut reasons = BTreeSet::new();
        for one in difference.added.iter().chain(&difference.removed) {
            reasons.extend(self.limit(&one.limit));
            reasons.extend(self.replaces(&one.limit));
        }
        for changed in &difference.changed {
            reasons.extend(self.changed(changed));
            reasons.extend(self.replaces(&changed.limit));
        }
        for rows in &difference.rows {
            reasons.extend(self.rows(&rows.limit));
        }
        reasons
    }

    /// The limits of a name on both sides.
    fn named(&self, name: &str) -> [Option<&Limit>; 2] {
        self.by_name.each_ref().map(|all| all.get(name).copied())
    }

    fn limit(&self, name: &str) -> Option<String> {
        let limits = self.named(name);
        let asked = limits.map(|limit| Some((limit?.id, None)));
        let has_default = |limit: &Limit| limit.own_table().is_some() && !limit.is_by_rows;
        match limits.into_iter().flatten().any(has_default) {
            true => self.why(&format!("{name} for values without a row"), asked),
            false => self.why(name, asked),
        }
    }

    fn changed(&self, changed: &Changed) -> Option<String> {
        let (name, limits) = (&changed.limit, self.named(&changed.limit));
        let are_only = |names: &[&str]| changed.fields.iter().all(|one| names.contains(&one.field));
        if are_only(&[DIGEST]) {
            return self.domain(name);
        }
        if are_only(&["on_store_failure"]) {
            let why = "differs in on_store_failure, and no row has an outage";
            return Some(format!("{name} {why}"));
        }
        if are_only(&["table", "rows"]) {
            let is_row = |&(side, (id, row)): &(usize, Found)| {
                row.is_some() && limits[side].is_some_and(|limit| limit.id == id)
            };
            let is_asked = self.evidence.asked.keys().any(is_row);
            let reason = format!("no row asks a row of the table of {name}, which differs");
            return (!is_asked).then_some(reason);
        }
        if changed.fields.iter().any(|one| one.field == "name") && self.is_name_unseen(limits) {
            return Some(format!("{name}, whose name differs, is replaced in no row"));
        }
        self.limit(name)
    }

    /// Whether other limits replace these by their names, and none did.
    fn is_name_unseen(&self, limits: [Option<&Limit>; 2]) -> bool {
        let mut is_replaced = false;
        for (side, limit) in limits.into_iter().enumerate() {
            let Some(name) = limit.and_then(|limit| limit.name.as_ref()) else {
                continue;
            };
            let is_it = |(of, _, replaced): &(usize, _, _)| *of == side && replaced == name;
            if self.evidence.replaced.iter().any(is_it) {
                return false;
            }
            let mut others = self.rules[side].limits();
            is_replaced |= others.any(|other| other.replaces.contains(name));
        }
        is_replaced
    }

    /// A domain in which descriptors may find other ones of the limits that both have.
    fn domain(&self, domain: &str) -> Option<String> {
        let is_common = |limit: &Limit| self.named(&name_of(limit)).iter().all(Option::is_some);
        let differs = |pair: &&[Option<LimitId>; 2]| {
            let limit = |side: usize| pair[side].map(|id| self.rules[side].limit(id));
            let [before, after] = [0, 1].map(limit);
            let found = before.or(after);
            found.is_some_and(|limit| OneLine(&limit.domain).to_string() == domain)
                && before.map(name_of) != after.map(name_of)
                && before.into_iter().chain(after).all(is_common)
        };
        let seen = self.evidence.pairs.iter().find(differs);
        let reason = || format!("no row finds another limit of {domain}, which differs");
        seen.is_none().then(reason)
    }

    fn rows(&self, name: &str) -> Vec<String> {
        let [Some(before), Some(after)] = self.named(name) else {
            return Vec::new();
        };
        let limits = [before, after];
        let rows = differing_rows((self.rules[0], before), (self.rules[1], after));
        let why = |rows: [Option<RowNumber>; 2]| {
            let found = [0, 1].map(|side| Some((limits[side].id, Some(rows[side]?))));
            let side = usize::from(rows[1].is_some());
            let value = limits[side].own_table()?.rows.value(rows[side]?);
            let value = String::from_utf8_lossy(value);
            self.why(&format!("{name} for {}", OneLine(&value)), found)
        };
        rows.filter_map(why).collect()
    }

    /// Names that only one side replaces.
    fn replaces(&self, name: &str) -> Vec<String> {
        let limits = self.named(name);
        let mut reasons = Vec::new();
        for (side, limit) in limits.into_iter().enumerate() {
            let other = limits[1 - side].map(|limit| &limit.replaces[..]);
            let own = limit.map(|limit| limit.replaces.iter().map(|name| (limit.id, name)));
            for (id, replaced) in own.into_iter().flatten() {
                let seen = &self.evidence.replaced;
                let is_seen = seen.contains(&(side, id, replaced.clone()));
                if !other.unwrap_or_default().contains(replaced) && !is_seen {
                    let replaced = OneLine(replaced);
                    reasons.push(format!(
                        "{name}, which differs, replaces `{replaced}` in no row"
                    ));
                }
            }
        }
        reasons
    }

    /// The reason for which the rows show nothing of a difference, if it is one.
    fn why(&self, name: &str, sides: [Option<Found>; 2]) -> Option<String> {
        let sides = || sides.into_iter().enumerate();
        let sides = || sides().filter_map(|(side, found)| Some((side, found?)));
        let is_left_out =
            |(side, found): (usize, Found)| self.runs[side].engine.left_out.contains_key(&found.0);
        let most = sides()
            .filter_map(|found| self.evidence.asked.get(&found))
            .max();
        let what = match most {
            _ if sides().any(is_left_out) => "is left out: durations are unknown; write --duration",
            None => return Some(format!("no row asks {name}, which differs")),
            Some(Asked::Replaced) => "is replaced in all rows",
            Some(Asked::Overridden) => "is only asked by subjects with an override",
            Some(Asked::Peeked) => "is only asked with 0 hits",
            Some(Asked::InShadow) => "is in shadow mode and refuses nothing",
            Some(Asked::Counted) => return None,
        };
        Some(format!("{name}, which differs, {what}"))
    }
}
