//! Compiles one domain of a control plane: its resources become the same nodes as a file, which are
//! compiled in the same way.
//!
//! A control plane generates its messages: duplicates are merged with a warning instead of an
//! error, and unusual structures are not reported.

use std::sync::Arc;

use hashbrown::HashMap;
use indexmap::IndexMap;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use super::overlay::{Cursor, EntryNumber, Overlay, XdsDefaults};
use super::problem::{Problem, Problems};
use super::{Compiler, Domain, ProcessDefaults, Siblings, build, check_replaced, descriptor};
use crate::core::proto::xds::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
use crate::core::time::Unit;
use crate::limits::rules::messages;
use crate::limits::rules::place::{Document, LONGEST_PATH, Place, cut};
use crate::limits::rules::source::{Node, excerpt};

/// Maximum levels of descriptors, and of values in metadata. Weir accepts at most 64 entries in a
/// descriptor of Envoy.
pub(crate) const DEEPEST: usize = 64;

/// The field of the metadata that Weir once read options from. The overlay has them.
const WEIR: &str = "weir";

/// Options for limits of a control plane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct XdsOptions {
    /// `MERGE_DOMAIN_CONFIG`: several resources may define one domain. Otherwise the first one by
    /// name does.
    pub merge_domains: bool,
    /// Settings of the process for all limits.
    pub process: ProcessDefaults,
    /// For limits that nothing else gives them to.
    pub defaults: XdsDefaults,
    /// Options for which the messages have no field, by domain and path of keys. They are stronger
    /// than the defaults, and weaker than the fields of a message.
    pub overlay: Option<Arc<Overlay>>,
}

/// A domain after compiling.
#[derive(Debug)]
pub(in crate::limits::rules) struct CompiledDomain {
    /// `None` if there is an error.
    pub(in crate::limits::rules) domain: Option<crate::limits::rules::Domain>,
    /// All of them, with an error if there is no domain.
    pub(in crate::limits::rules) problems: Vec<Problem>,
    pub(in crate::limits::rules) path_bytes: usize,
    /// The entries of the overlay that match something in it.
    pub(in crate::limits::rules) used: Vec<EntryNumber>,
    /// Whether the paths of all domains together are too long, which is among the problems.
    pub(in crate::limits::rules) is_too_large: bool,
}

/// Compiles the resources of one domain, in that order. `number` is the number of the domain in the
/// rules; the paths of all other domains have `path_bytes`.
pub(in crate::limits::rules) fn compile_domain(
    resources: &[Arc<RateLimitConfig>],
    number: u32,
    settings: &XdsOptions,
    path_bytes: usize,
) -> CompiledDomain {
    let name = resources.first().map_or("", |resource| &resource.domain);
    let (overlay, defaults) = (settings.overlay.as_deref(), settings.defaults.0.as_ref());
    let overlay = Cursor::new(overlay, defaults, name);
    let problems = Problems::default();
    let name_of = |own: &Arc<RateLimitConfig>| cut(&own.name, LONGEST_PATH);
    let place = |own| Place::named(format!("resource {}", name_of(own)));
    let named: Vec<Place> = resources.iter().map(place).collect();
    let whole = problems.open_domain(named.first().map_or("", |first| &first.document.name));
    let mut compiler = Compiler {
        path_bytes,
        from_control_plane: true,
        overlay,
        ..Compiler::new(&problems)
    };
    let mut domain = Domain::new(name, number, whole.clone());
    if name.is_empty() {
        problems.error(&whole, messages::resource_without_domain());
    }
    let resources = resources.iter().enumerate();
    let all =
        resources.flat_map(|(index, own)| own.descriptors.iter().map(move |one| (index, one)));
    let mut list = Converter {
        problems: &problems,
        resources: &named,
        descriptors: 0,
        keys: HashMap::new(),
        has_options: false,
    }
    .list(all, &whole, 1);
    let mut siblings = Siblings::default();
    let mut reader = descriptor::DescriptorReader {
        compiler: &mut compiler,
        domain: &mut domain,
        complete: None,
        path: Vec::new(),
    };
    let items = list.take_items();
    reader.list(&list, items, &mut siblings);
    siblings.finish(&mut compiler);
    let of_overlay = compiler.overlay.commit;
    domain.commit = of_overlay.map(|commit| (commit, whole));
    let mut built = build(&mut compiler, &mut domain, &settings.process);
    built.tree = siblings.tree;
    built.memory = compiler.memory.used;
    check_replaced(&problems, &domain);
    let (domain, problems) = match problems.finish(false, false) {
        Ok(warnings) => (Some(built), warnings),
        Err(problems) => (None, problems),
    };
    CompiledDomain {
        domain,
        problems,
        path_bytes: compiler.path_bytes.saturating_sub(path_bytes),
        used: compiler.overlay.used.into_iter().collect(),
        is_too_large: compiler.path_bytes > descriptor::LONGEST_PATHS,
    }
}

/// Makes nodes of descriptors.
struct Converter<'p> {
    problems: &'p Problems,
    resources: &'p [Place],
    /// The number of descriptors so far.
    descriptors: u32,
    /// The nodes of keys, which all descriptors share.
    keys: HashMap<&'static str, Node>,
    /// Some metadata has options, which is reported once.
    has_options: bool,
}

/// A descriptor, and the number of its resource.
type SentDescriptor<'r> = (usize, &'r RateLimitDescriptor);

impl Converter<'_> {
    /// Converts one level: descriptors with the same key and value are merged, in the order of the
    /// first of each.
    fn list<'r>(
        &mut self,
        all: impl Iterator<Item = SentDescriptor<'r>>,
        parent: &Place,
        depth: usize,
    ) -> Node {
        let mut groups: IndexMap<(&str, &str), Vec<SentDescriptor<'_>>> = IndexMap::new();
        for (resource, one) in all {
            let group = groups.entry((&one.key, &one.value)).or_default();
            group.push((resource, one));
        }
        let node = |group: &Vec<_>| self.descriptor(group, parent, depth);
        Node::of_list(parent, groups.values().map(node).collect())
    }

    /// The descriptors of one key and value. The first with a limit counts, or else the first.
    fn descriptor(&mut self, group: &[SentDescriptor<'_>], parent: &Place, depth: usize) -> Node {
        let with_limit = group.iter().find(|(_, one)| one.rate_limit.is_some());
        let (resource, descriptor) = *with_limit.unwrap_or(&group[0]);
        let at = &self.place(resource, descriptor, parent);
        self.warn_of_ignored(at, group);
        let policy = descriptor.rate_limit.as_ref();
        let policy = policy.map(|policy| self.policy(at, policy));
        let metadata = self.metadata(at, group, descriptor);
        let entries = [
            ("key", Some(Node::of_text(at, &descriptor.key))),
            ("value", text(at, &descriptor.value)),
            ("shadow_mode", switch(at, descriptor.shadow_mode)),
            ("quota_mode", switch(at, descriptor.quota_mode)),
            ("detailed_metric", switch(at, descriptor.detailed_metric)),
            ("rate_limit", policy),
            ("metadata", metadata),
            ("descriptors", self.below(at, group, depth)),
        ];
        self.map(at, entries)
    }

    /// The metadata of a descriptor, or else the first in its group.
    fn metadata(
        &mut self,
        at: &Place,
        group: &[SentDescriptor<'_>],
        descriptor: &RateLimitDescriptor,
    ) -> Option<Node> {
        let mut all = group.iter().filter_map(|(_, one)| one.metadata.as_ref());
        let own = descriptor.metadata.as_ref();
        let Struct { fields } = own.or_else(|| all.next())?;
        if fields.contains_key(WEIR) && !std::mem::replace(&mut self.has_options, true) {
            self.problems.warning(at, messages::options_in_metadata());
        }
        let mut others = fields.iter().filter(|(name, _)| *name != WEIR).peekable();
        others.peek()?;
        Some(self.object(at, others, 0))
    }

    /// The descriptors below a group of one level.
    fn below(&mut self, at: &Place, group: &[SentDescriptor<'_>], depth: usize) -> Option<Node> {
        let below = group.iter().flat_map(|&(resource, one)| {
            let below = one.descriptors.iter();
            below.map(move |below| (resource, below))
        });
        let mut below = below.peekable();
        below.peek()?;
        if depth < DEEPEST {
            return Some(self.list(below, at, depth + 1));
        }
        self.problems.fail(at, messages::too_many_levels(DEEPEST))
    }

    /// A map of the keys that have a value.
    fn map<const N: usize>(
        &mut self,
        at: &Place,
        entries: [(&'static str, Option<Node>); N],
    ) -> Node {
        let entries = entries.into_iter();
        let entries = entries.filter_map(|(key, value)| Some((self.key(key), value?)));
        Node::of_map(at, entries.collect())
    }

    /// The place of the next descriptor, which is below the one at `parent`.
    fn place(
        &mut self,
        resource: usize,
        RateLimitDescriptor { key, value, .. }: &RateLimitDescriptor,
        parent: &Place,
    ) -> Place {
        let key = excerpt(key);
        let level = match &**value {
            "" => key,
            value => format!("{key}={}", excerpt(value)),
        };
        let resource = &self.resources[resource];
        let path = match parent.document.resource {
            Some(_) => format!("{} > {level}", parent.document.path),
            None => level,
        };
        self.descriptors = self.descriptors.saturating_add(1);
        Place::whole(Document {
            name: Arc::clone(&resource.document.name),
            path: cut(&path, LONGEST_PATH).into(),
            resource: Some(Arc::clone(&resource.document)),
            file: 0,
            number: self.descriptors,
        })
    }

    fn warn_of_ignored(&self, at: &Place, group: &[SentDescriptor<'_>]) {
        let mut limits = group.iter().filter_map(|(resource, one)| {
            let other = &self.resources[*resource];
            Some((one.rate_limit.as_ref()?, other))
        });
        let Some((counts, _)) = limits.next() else {
            return;
        };
        for (other, resource) in limits {
            let (counts, other) = (amount(counts), amount(other));
            self.problems
                .warning(at, messages::second_limit(counts, other, resource));
        }
    }

    /// A limit.
    fn policy(&mut self, at: &Place, policy: &RateLimitPolicy) -> Node {
        let is_limited = !policy.unlimited;
        let unit = || match unit_of(policy) {
            Some(unit) => Node::of_text(at, unit.name()),
            None => Node::of_text(at, &policy.unit.to_string()),
        };
        let requests = || Node::of_plain(at, &policy.requests_per_unit.to_string());
        let others = policy.replaces.iter().map(|other| &other.name);
        let others = others.map(|name| self.map(at, [("name", Some(Node::of_text(at, name)))]));
        let replaces: Vec<_> = others.collect();
        let replaces = (!replaces.is_empty()).then(|| Node::of_list(at, replaces));
        let entries = [
            ("unlimited", switch(at, policy.unlimited)),
            ("unit", (is_limited && policy.unit != 0).then(unit)),
            ("requests_per_unit", is_limited.then(requests)),
            ("name", text(at, &policy.name)),
            ("replaces", replaces),
        ];
        self.map(at, entries)
    }

    /// Metadata, or a map in it.
    fn object<'v>(
        &mut self,
        at: &Place,
        fields: impl Iterator<Item = (&'v String, &'v Value)>,
        depth: usize,
    ) -> Node {
        let name = |name| Node::of_text(at, name);
        let fields = fields.map(|(key, value)| (name(key), self.value(at, value, depth + 1)));
        Node::of_map(at, fields.collect())
    }

    fn value(&mut self, at: &Place, Value { kind }: &Value, depth: usize) -> Node {
        if depth > DEEPEST {
            self.problems
                .error(at, messages::metadata_too_deep(DEEPEST));
            return Node::of_plain(at, "null");
        }
        match kind {
            None | Some(Kind::NullValue(_)) => Node::of_plain(at, "null"),
            Some(Kind::BoolValue(bool)) => Node::of_plain(at, &bool.to_string()),
            Some(Kind::NumberValue(number)) => Node::of_plain(at, &json_number(*number)),
            Some(Kind::StringValue(text)) => Node::of_text(at, text),
            Some(Kind::ListValue(list)) => {
                let items = list.values.iter();
                let items = items.map(|item| self.value(at, item, depth + 1));
                Node::of_list(at, items.collect())
            }
            Some(Kind::StructValue(Struct { fields })) => self.object(at, fields.iter(), depth),
        }
    }

    fn key(&mut self, name: &'static str) -> Node {
        let key = || Node::of_text(&Place::default(), name);
        self.keys.entry(name).or_insert_with(key).clone()
    }
}

/// A text that is not empty.
fn text(at: &Place, text: &str) -> Option<Node> {
    (!text.is_empty()).then(|| Node::of_text(at, text))
}

fn switch(at: &Place, is_on: bool) -> Option<Node> {
    is_on.then(|| Node::of_plain(at, "true"))
}

fn unit_of(policy: &RateLimitPolicy) -> Option<Unit> {
    Unit::from_number(u64::try_from(policy.unit).ok()?)
}

fn amount(policy: &RateLimitPolicy) -> String {
    let unit = unit_of(policy).map_or("unknown unit", Unit::name);
    match policy.unlimited {
        true => "unlimited".to_owned(),
        false => format!("{} per {unit}", policy.requests_per_unit),
    }
}

/// The text of a number, without a fraction if it is whole, as in a file: the message has only
/// doubles. JSON has no infinity.
fn json_number(number: f64) -> String {
    const EXACT: f64 = (1_i64 << 53) as f64;
    if number.fract() == 0.0 && number.abs() <= EXACT {
        (number as i64).to_string()
    } else {
        serde_json::Value::from(number).to_string()
    }
}
