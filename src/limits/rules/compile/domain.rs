//! A domain under construction: the settings that its files share, such as `commit`, `plans` and
//! `defaults`.
//!
//! `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT` is a default of `commit`, an option of compiling, and
//! applies to limits of all sources. envoyproxy/ratelimit reads all counters first and then counts,
//! which races; the atomic step exists here already.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::fields::{self, Fields, Section};
use super::partial::{LayerSource, PartialLimit};
use super::problem::{Problems, quoted};
use crate::core::message::Message;
use crate::limits::rules::limit::{Limit, LimitId};
use crate::limits::rules::place::Place;
use crate::limits::rules::source::{Content, Node};
use crate::limits::rules::{Commit, messages};

/// A domain under construction.
#[derive(Default)]
pub(super) struct Domain {
    pub(super) name: Arc<str>,
    /// Its number in the rules.
    pub(super) number: u32,
    /// The number of its next limit.
    pub(super) next_limit: u32,
    /// Where its first file defines it.
    pub(super) first: Place,
    /// The names of its limits.
    pub(super) names: HashSet<Box<str>>,
    /// The names in `replaces`, which a later file may define.
    pub(super) replaced: Vec<(Place, Box<str>)>,
    /// The `commit` of the first file that has one, and its place.
    pub(super) commit: Option<(Commit, Place)>,
    pub(super) defaults: Option<Arc<PartialLimit>>,
    /// Whether the defaults have errors, which are reported.
    pub(super) has_wrong_defaults: bool,
    pub(super) plans: Plans,
    /// Whether a file contains a limit, or the attempt of one.
    pub(super) mentions_limit: bool,
    /// The memory of its limits so far.
    pub(super) memory: u64,
    /// Its limits so far, except those that are pending.
    pub(super) limits: Vec<Limit>,
    /// Limits that depend on the defaults that a later file may hold, or have a table. Boxes,
    /// because each is dropped when it is built.
    #[expect(clippy::vec_box, reason = "each is dropped when it is built")]
    pub(super) pending: Vec<Box<PendingLimit>>,
    /// Descriptors with keys of holds, each with the limit above it.
    pub(super) keys_of_holds: Vec<(LimitId, Place)>,
}

impl Domain {
    pub(super) fn new(name: &str, number: u32, first: Place) -> Self {
        Self {
            name: name.into(),
            number,
            first,
            ..Self::default()
        }
    }
}

/// A limit that waits for the defaults and the plans of its domain.
pub(super) struct PendingLimit {
    /// The limit without the fields of its layers.
    pub(super) limit: Limit,
    /// Its `rate_limit`.
    pub(super) partial: PartialLimit,
    pub(super) table: Option<PendingTable>,
    /// Layers from the overlay and the defaults of the process, the strongest first.
    pub(super) added: Vec<Arc<PartialLimit>>,
}

/// The table that a descriptor names.
pub(super) struct PendingTable {
    /// Its name in the file that names it.
    pub(super) name: Box<str>,
    /// The index of the entry whose value picks the row.
    pub(super) level: usize,
    /// There is a `rate_limit` too, for values without a row.
    pub(super) has_default: bool,
    /// Where it is named.
    pub(super) at: Place,
}

/// Reads the keys of a file that concern its whole domain.
pub(super) fn read(problems: &Problems, fields: &Fields<'_>, domain: &mut Domain) {
    if let Some(node) = fields.get("commit")
        && let Some(value) = fields.read("commit")
    {
        match &domain.commit {
            None => domain.commit = Some((value, node.at.clone())),
            Some((known, _)) if *known == value => {}
            Some((_, known)) => differs(problems, "commit", known, &node.at),
        }
    }
    read_plans(problems, fields, &mut domain.plans);
    domain.has_wrong_defaults |= fields.meant("defaults");
    let Some(node) = fields.get("defaults") else {
        return;
    };
    let read = fields::read(problems, node, Section::Defaults).and_then(|fields| {
        Some(PartialLimit {
            source: LayerSource::Defaults(None),
            ..PartialLimit::read_of_many(problems, &fields)?
        })
    });
    match (read, &domain.defaults) {
        (None, _) => domain.has_wrong_defaults = true,
        (Some(layer), None) => domain.defaults = Some(Arc::new(layer)),
        (Some(layer), Some(known)) if layer == **known => {}
        (Some(layer), Some(known)) => {
            differs(problems, "defaults", &known.places.at, &layer.places.at);
            domain.has_wrong_defaults = true;
        }
    }
}

fn differs(problems: &Problems, key: &str, first: &Place, second: &Place) {
    problems.error(second, messages::differs_in_domain(key, first));
}

/// Maximum number of plans of a domain. Each becomes a limit of each table that uses it.
pub(crate) const MOST_PLANS: usize = 1_000;

/// Maximum bytes of a plan's name, which is a label of metrics.
pub(crate) const LONGEST_PLAN: usize = 128;

/// The plans of a domain.
#[derive(Default)]
pub(super) struct Plans {
    by_name: HashMap<Box<str>, NamedPlan>,
    /// Some are wrong, which is reported: reports about others would be guesses.
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
    /// The plan with this name.
    pub(super) fn find(&self, name: &str) -> Result<&NamedPlan, Message> {
        self.by_name.get(name).ok_or_else(|| {
            let message = match self.by_name.is_empty() {
                true => messages::plan_without_plans(quoted(name)),
                false => messages::unknown_plan(quoted(name)),
            };
            message.or_near(fields::nearest(
                name,
                self.by_name.keys().map(AsRef::as_ref),
            ))
        })
    }
}

fn read_plans(problems: &Problems, fields: &Fields<'_>, plans: &mut Plans) {
    plans.is_invalid |= fields.meant("plans");
    let Some(node) = fields.get("plans") else {
        return;
    };
    let Content::Mapping(entries) = &node.content else {
        problems.error(
            &node.at,
            messages::plans_not_a_map(node.value_type().name()),
        );
        plans.is_invalid = true;
        return;
    };
    for (key, node) in entries.iter() {
        plans.is_invalid |= plans.add(problems, key, node).is_none();
        if plans.by_name.len() > MOST_PLANS {
            problems.error(&key.at, messages::too_many_plans(MOST_PLANS));
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
            return problems.fail(&key.at, messages::wrong_plan_name(LONGEST_PLAN));
        }
        if let Some(first) = self.by_name.get(name) {
            return problems.fail(&key.at, messages::repeated_plan(quoted(name), &first.at));
        }
        let layer = fields::read(problems, node, Section::Plan)
            .and_then(|fields| PartialLimit::read_of_many(problems, &fields));
        let at = key.at.clone();
        self.by_name.insert(name.into(), NamedPlan { layer, at });
        Some(())
    }
}
