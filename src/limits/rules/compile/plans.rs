//! `plans` of a domain: layers with a name, which `rate_limit` and rows of tables refer to.

use hashbrown::HashMap;

use super::fields::{self, Fields, Section};
use super::partial::PartialLimit;
use super::problem::{Location, Problems, quoted};
use super::rate;
use crate::limits::rules::source::Content;

/// Plans of a domain: each is a limit of each table that uses it.
pub(crate) const MOST_PLANS: usize = 1_000;

/// Bytes of a plan's name, which is a label of metrics.
pub(crate) const LONGEST_PLAN: usize = 128;

/// The plans of a domain.
#[derive(Default)]
pub(super) struct Plans {
    by_name: HashMap<Box<str>, Plan>,
    /// Some are wrong, which is reported: what is said of others would be a guess.
    pub(super) is_invalid: bool,
}

/// One plan.
pub(super) struct Plan {
    /// `None`: it is wrong, which is reported.
    pub(super) layer: Option<PartialLimit>,
    /// Where it is written.
    pub(super) at: Location,
}

impl Plans {
    /// The plan of that name; `None`, with what is wrong and how to correct it, if there is none.
    pub(super) fn find(&self, name: &str) -> Result<&Plan, (String, String)> {
        self.by_name.get(name).ok_or_else(|| {
            let remedy = match fields::nearest(name, self.by_name.keys().map(AsRef::as_ref)) {
                Some(near) => format!("write '{near}'"),
                None if self.by_name.is_empty() => {
                    "write it below 'plans:' at the root of the file".to_owned()
                }
                None => "write it below 'plans:', or the name of a plan that is there".to_owned(),
            };
            (
                format!("there is no plan {} in this domain", quoted(name)),
                remedy,
            )
        })
    }
}

/// Reads the plans of a file.
pub(super) fn read(problems: &mut Problems, fields: &Fields<'_>, plans: &mut Plans) {
    plans.is_invalid |= fields.meant("plans");
    let Some(node) = fields.get("plans") else {
        return;
    };
    let Content::Mapping(entries) = &node.content else {
        let what = format!("'plans' is {}, not a map", node.value_type().name());
        problems.error_at(
            node,
            what,
            "write the name of each plan below it, and below that 'unit: ' and 'requests_per_unit: \
             '",
        );
        plans.is_invalid = true;
        return;
    };
    for (key, node) in entries {
        let name = fields::text(problems, key, "plans").filter(|name| !name.is_empty());
        let Some(name) =
            name.filter(|name| name.len() <= LONGEST_PLAN && !name.chars().any(char::is_control))
        else {
            problems.error_at(
                key,
                "this cannot be the name of a plan",
                format!("write 1 to {LONGEST_PLAN} bytes without control characters"),
            );
            plans.is_invalid = true;
            continue;
        };
        let at = problems.here(key.at);
        if let Some(first) = plans.by_name.get(name) {
            let what = format!(
                "the plan {} is already defined, in {}",
                quoted(name),
                problems.show(first.at)
            );
            problems.error_at(key, what, "remove one of them");
            plans.is_invalid = true;
            continue;
        }
        if plans.by_name.len() >= MOST_PLANS {
            problems.error_at(
                key,
                format!("the domain has more than {MOST_PLANS} plans"),
                "write numbers of single values in the rows of a table",
            );
            plans.is_invalid = true;
            return;
        }
        let read = fields::read(problems, node, Section::Plan);
        let layer = read.and_then(|fields| {
            PartialLimit::read(problems, &fields)
                .filter(|layer| rate::is_of_many(problems, &fields, layer))
        });
        let plan = Plan { layer, at };
        plans.by_name.insert(name.into(), plan);
    }
}
