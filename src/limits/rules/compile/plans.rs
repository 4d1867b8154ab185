//! `plans` of a domain: layers with a name, which `rate_limit` and rows of tables refer to.

use hashbrown::HashMap;

use super::fields::{self, Fields, Section};
use super::partial::PartialLimit;
use super::problem::{Problems, quoted};
use super::rate;
use crate::limits::rules::place::Place;
use crate::limits::rules::source::{Content, Node};

/// Plans of a domain: each is a limit of each table that uses it.
pub(crate) const MOST_PLANS: usize = 1_000;

/// Bytes of a plan's name, which is a label of metrics.
pub(crate) const LONGEST_PLAN: usize = 128;

/// The plans of a domain.
#[derive(Default)]
pub(super) struct Plans {
    by_name: HashMap<Box<str>, NamedPlan>,
    /// Some are wrong, which is reported: what is said of others would be a guess.
    pub(super) is_invalid: bool,
}

/// One plan.
pub(super) struct NamedPlan {
    /// `None`: it is wrong, which is reported.
    pub(super) layer: Option<PartialLimit>,
    /// Where it is written.
    pub(super) at: Place,
}

impl Plans {
    /// The plan of that name; `None`, with what is wrong and how to correct it, if there is none.
    pub(super) fn find(&self, name: &str) -> Result<&NamedPlan, (String, String)> {
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
pub(super) fn read(problems: &Problems, fields: &Fields<'_>, plans: &mut Plans) {
    plans.is_invalid |= fields.meant("plans");
    let Some(node) = fields.get("plans") else {
        return;
    };
    let Content::Mapping(entries) = &node.content else {
        let what = format!("'plans' is {}, not a map", node.value_type().name());
        let remedy = "write the name of each plan below it, and below that 'unit: ' and \
            'requests_per_unit: '";
        problems.error(node, what, remedy);
        plans.is_invalid = true;
        return;
    };
    for (key, node) in entries {
        plans.is_invalid |= plans.add(problems, key, node).is_none();
        if plans.by_name.len() > MOST_PLANS {
            let what = format!("the domain has more than {MOST_PLANS} plans");
            let remedy = "write numbers of single values in the rows of a table";
            problems.error(key, what, remedy);
            plans.is_invalid = true;
            return;
        }
    }
}

impl Plans {
    /// Adds a plan; `None`, with an error, if it cannot have that name.
    fn add(&mut self, problems: &Problems, key: &Node, node: &Node) -> Option<()> {
        let name = fields::text(problems, key, "plans").unwrap_or_default();
        if name.is_empty() || name.len() > LONGEST_PLAN || name.chars().any(char::is_control) {
            let what = "this cannot be the name of a plan";
            let remedy = format!("write 1 to {LONGEST_PLAN} bytes without control characters");
            return problems.fail(key, what, remedy);
        }
        if let Some(first) = self.by_name.get(name) {
            let (name, first) = (quoted(name), &first.at);
            let what = format!("the plan {name} is already defined, in {first}");
            return problems.fail(key, what, "remove one of them");
        }
        let layer = fields::read(problems, node, Section::Plan).and_then(|fields| {
            PartialLimit::read(problems, &fields)
                .filter(|layer| rate::is_of_many(problems, &fields, layer))
        });
        let at = key.at.clone();
        self.by_name.insert(name.into(), NamedPlan { layer, at });
        Some(())
    }
}
