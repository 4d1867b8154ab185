//! Descriptors: compiles a list of maps to a level of the tree, and to its limits.

use core::net::IpAddr;

use super::build::Builder;
use super::domain::{Domain, PendingLimit};
use super::fields::{self, Fields, Section};
use super::matching::{self, Match};
use super::memory;
use super::options;
use super::overlay;
use super::partial::PartialLimit;
use super::problem::{Grade, Problems, quoted};
use super::siblings::Siblings;
use super::table;
use super::{Compiler, ProcessDefaults};
use crate::core::message::Message;
use crate::core::time::{Rate, Unit};
use crate::limits::rules::address;
use crate::limits::rules::limit::{
    Level, Limit, LimitId, MAX_METADATA_BYTES, Matching, Metadata, OnStoreFailure, encoded_bytes,
};
use crate::limits::rules::messages;
use crate::limits::rules::place::Place;
use crate::limits::rules::source::{Node, ValueType};
use crate::limits::rules::tree::Branch;

/// Maximum sum of the bytes of all limits' paths. Every limit holds the texts of its levels: long
/// keys above many limits multiply.
pub(crate) const LONGEST_PATHS: usize = 64 << 20;

/// Descriptors whose nodes are freed together. If each were freed alone, the next limits would take
/// single places between them, and keep all pages.
const FREED_TOGETHER: usize = 2_000;

/// Keys that have a meaning only next to a `rate_limit`.
const NEED_A_LIMIT: [&str; 4] = ["shadow_mode", "quota_mode", "detailed_metric", "metadata"];

/// Reads the descriptors of a domain.
pub(super) struct DescriptorReader<'r, 'o> {
    pub(super) compiler: &'r mut Compiler<'o>,
    pub(super) domain: &'r mut Domain,
    /// Set if all defaults and plans of the domain are read: its limits are then built at once,
    /// because a pending one takes twice as much memory.
    pub(super) complete: Option<&'r ProcessDefaults>,
    /// The levels from the root to the current descriptor.
    pub(super) path: Vec<Level>,
}

impl DescriptorReader<'_, '_> {
    /// Reads descriptors into a level: `items`, which were taken out of `list`.
    pub(super) fn list(&mut self, list: &Node, items: Vec<Node>, siblings: &mut Siblings) {
        let problems = self.compiler.problems;
        fields::items(problems, list, messages::descriptors_no_list);
        siblings.add_networks(problems, &items);
        let mut items = items.into_iter();
        while items.len() > 0 {
            let mut freed_together: Vec<Node> = items.by_ref().take(FREED_TOGETHER).collect();
            for item in &mut freed_together {
                if self.compiler.memory.is_over {
                    return;
                }
                let below = item.take_list("descriptors");
                if item.value_type() == ValueType::Nothing {
                    problems.error(&item.at, messages::descriptor_is_empty());
                } else if let Some(fields) = fields::read(problems, item, Section::Descriptor) {
                    self.descriptor(&fields, below, siblings);
                }
            }
        }
    }

    fn descriptor(&mut self, fields: &Fields<'_>, below: Vec<Node>, siblings: &mut Siblings) {
        let (mut level, matched) = read_level(self.compiler, fields).unzip();
        let matched = matched.flatten();
        let has_table = fields.get("table").is_some();
        let problems = self.compiler.problems;
        let at = &fields.node.at;
        if let Some(level) = level.as_mut().filter(|_| !has_table) {
            siblings.count_addresses(level, at);
        }
        if let Some(level) = &level {
            if !siblings.is_duplicate(problems, at, level) {
                siblings.warn_of_unreachable(problems, at, level, matched.as_ref());
            }
            let values = matched.as_ref().map_or(0, Match::len) * memory::VALUE;
            let bytes = memory::of_branch(level) + values;
            let _ = self.compiler.memory.take(problems, at, bytes);
        }
        let is_of_limit =
            |key| matches!(key, "rate_limit" | "table") || NEED_A_LIMIT.contains(&key);
        let has_key = fields.locations().any(|(key, _)| is_of_limit(key));
        self.domain.mentions_limit |= has_key || fields.meant("rate_limit") || fields.has_misplaced;
        let limit = self.limit(fields, level);
        let mut children = Siblings::default();
        if let Some(list) = fields.get("descriptors") {
            if let Some(limit) = limit {
                self.domain.note_keys_of_holds(limit, &below);
            }
            self.list(list, below, &mut children);
        }
        children.finish(self.compiler);
        self.compiler.overlay.leave();
        if let Some(level) = self.path.pop() {
            let branch = Branch::new(limit, children.tree);
            siblings.add(problems, at, &level, matched.as_ref(), branch);
        }
    }

    /// Enters a descriptor, and reads its limit.
    fn limit(&mut self, fields: &Fields<'_>, level: Option<Level>) -> Option<LimitId> {
        let problems = self.compiler.problems;
        let node = fields.get("rate_limit");
        let has_table = fields.get("table").is_some();
        let partial = match node {
            Some(node) => read_rate_limit(problems, node, self.domain),
            None => has_table.then(|| PartialLimit::without_keys(fields.node)),
        };
        let has_limit = node.is_some() || has_table || fields.meant("rate_limit");
        if !has_limit && !self.compiler.from_control_plane {
            warn_without_limit(problems, fields);
        }
        // The content of an unusable descriptor is checked too; the rules are dropped then.
        let mut level = level.unwrap_or_default();
        let (key, value) = (&level.key, level.value.as_deref());
        let added = self.compiler.overlay.enter(key, value, node.is_some());
        level.is_shared |= added.switches.contains(&"share_threshold");
        level.value_to_metric |= added.switches.contains(&"value_to_metric");
        self.path.push(level);
        let table = table::read(self.compiler, fields, &self.path);
        let mut switches = overlay::switches(fields);
        switches.extend(added.switches);
        let metadata = fields.get("metadata");
        let metadata = metadata.and_then(|node| read_metadata(problems, node));
        let (partial, table) = (partial?, table.ok()?);
        if partial.name.is_none() {
            // A limit may replace another by a name of the overlay.
            let name = added.layers.iter().find_map(|layer| layer.name.clone());
            self.domain.names.extend(name);
        }
        if switches.contains(&"shadow_mode") && partial.plan.is_none() {
            warn_of_shadow(problems, &partial);
        }
        let path_bytes = self.count_path(fields)?;
        let domain = &mut *self.domain;
        let id = LimitId::new(domain.number, domain.next_limit);
        domain.next_limit = domain.next_limit.checked_add(1)?;
        let limit = Limit {
            id,
            domain: domain.name.clone(),
            levels: self.path.as_slice().into(),
            shadow_mode: switches.contains(&"shadow_mode"),
            quota_mode: switches.contains(&"quota_mode"),
            detailed_metric: switches.contains(&"detailed_metric"),
            plan: partial.plan.clone(),
            replaces: partial.replaces.clone(),
            metadata,
            origin: fields.node.at.clone().without_path(),
            ..Limit::default()
        };
        let pending = PendingLimit {
            limit,
            partial,
            table,
            added: added.layers.into_iter().cloned().collect(),
        };
        let bytes = memory::of_limit(&pending.limit, path_bytes);
        let memory = &mut self.compiler.memory;
        memory.take(problems, &fields.node.at, bytes)?;
        // The limits of a table's plans come after all others.
        match self.complete {
            Some(process) if pending.table.is_none() => {
                let built = Builder::new(self.compiler, domain, process).limits(pending);
                domain.limits.extend(built.map(|(limit, _)| limit));
            }
            _ => domain.pending.push(Box::new(pending)),
        }
        Some(id)
    }

    /// Counts the bytes of a path, and returns them; `None`, with an error, if all together have too
    /// many.
    fn count_path(&mut self, fields: &Fields<'_>) -> Option<usize> {
        let of_level =
            |level: &Level| level.key.len() + level.value.as_ref().map_or(0, |value| value.len());
        let bytes = self.path.iter().map(of_level).sum::<usize>() + self.domain.name.len();
        let total = &mut self.compiler.path_bytes;
        *total = total.saturating_add(bytes);
        if *total <= LONGEST_PATHS {
            return Some(bytes);
        }
        let problems = self.compiler.problems;
        problems.fail(&fields.node.at, messages::paths_too_long(LONGEST_PATHS))
    }
}

/// Key, value and switches of a descriptor; `None`, with an error, if it has no usable key.
pub(super) fn read_level(
    compiler: &mut Compiler<'_>,
    fields: &Fields<'_>,
) -> Option<(Level, Option<Match>)> {
    let problems = compiler.problems;
    let matched = matching::read(problems, &mut compiler.matched, &compiler.data, fields);
    let value = match fields.get("value") {
        Some(_) if matches!(matched, Ok(None)) => fields.text("value").map(Some),
        _ => Some(None),
    };
    let value_to_metric = fields.switch("value_to_metric");
    let is_shared = fields.switch("share_threshold");
    let key = fields.required("key", messages::no_key)?;
    let matched = matched.ok()?;
    if matched.is_some() && key.contains('*') {
        return problems.fail(fields.lack("key"), messages::match_of_key_pattern());
    }
    let value = value?.filter(|value| !value.is_empty());
    if let (Some(value), Some(node)) = (value, fields.get("value")) {
        warn_of_suspicious(problems, node, key, value);
    }
    let matching = match (&matched, value) {
        (Some(matched), _) => matched.matching,
        (None, Some(value)) if address::read(value.as_bytes()).is_some() => Matching::Address,
        (None, _) => Matching::Text,
    };
    let text = matched.as_ref().map(|matched| matched.text.clone());
    let level = Level {
        key: compiler.key(key),
        value: text.or_else(|| value.map(Into::into)),
        matching,
        is_shared,
        value_to_metric,
    };
    problems.accept(fields.lack("share_threshold"), checked_share(&level));
    Some((level, matched))
}

/// Checks that the values can share a counter if `share_threshold` is on.
fn checked_share(level: &Level) -> Result<(), Message> {
    let has_star = |text: &str| text.contains('*');
    match level.matching {
        _ if !level.is_shared => Ok(()),
        Matching::Cidr { prefix: Some(_) } => Err(messages::share_threshold_with_prefix()),
        matching if matching.is_by_more_than_text() => Ok(()),
        _ if has_star(&level.key) || level.value.as_deref().is_some_and(has_star) => Ok(()),
        _ => Err(messages::share_threshold_of_one_value()),
    }
}

/// The metadata of a limit, unless it cannot be returned or is too large.
fn read_metadata(problems: &Problems, node: &Node) -> Option<Metadata> {
    let metadata = match node.metadata() {
        Ok(metadata) => metadata,
        Err(note) => return problems.fail(&note.at, note.message),
    };
    let bytes = encoded_bytes(&metadata);
    if bytes > MAX_METADATA_BYTES {
        return problems.fail(
            &node.at,
            messages::metadata_too_large(bytes, MAX_METADATA_BYTES),
        );
    }
    Some(metadata)
}

/// A limit in shadow mode never refuses, whether its store answers or not.
fn warn_of_shadow(problems: &Problems, layer: &PartialLimit) {
    if let (Some(OnStoreFailure::Error | OnStoreFailure::Deny), Some(at)) =
        (layer.on_store_failure, layer.place("on_store_failure"))
    {
        problems.warning(at, messages::store_failure_in_shadow_mode());
    }
}

/// Warns of keys that the Go service ignores: keys of a limit where no limit exists, and an empty
/// `rate_limit`, unless the limits are below.
fn warn_without_limit(problems: &Problems, fields: &Fields<'_>) {
    if fields.get("descriptors").is_none()
        && let Some((_, at)) = fields.locations().find(|(key, _)| *key == "rate_limit")
    {
        problems.warning(at, messages::rate_limit_is_empty());
    }
    let is_off = |node: &Node| node.read::<bool>() == Some(false);
    let present = fields.present(NEED_A_LIMIT);
    for (key, node) in present.filter(|(_, node)| !is_off(node)) {
        problems.warning(&node.at, messages::key_without_limit(key));
    }
}

/// Reads a `rate_limit`, and adds its names to the names of the domain, also if the rest is wrong:
/// one mistake should not be reported as two. `None` if it has an error, which is reported.
fn read_rate_limit(problems: &Problems, node: &Node, domain: &mut Domain) -> Option<PartialLimit> {
    let fields = fields::read(problems, node, Section::RateLimit)?;
    let name = fields.name();
    domain.names.extend(name.map(Into::into));
    let replaces = replaces(problems, &fields, name);
    let layer = if fields.get("plan").is_some() {
        PartialLimit::read_of_many(problems, &fields)
    } else {
        let layer = PartialLimit::read(problems, &fields);
        match fields.get("unlimited").and_then(Node::read) {
            Some(true) => layer,
            _ => complete(problems, &fields, layer),
        }
    };
    let names = replaces.iter().map(|(_, name)| name.clone()).collect();
    domain.replaced.extend(replaces);
    Some(PartialLimit {
        replaces: names,
        ..layer?
    })
}

/// Requires the fields of a limit without a plan; `None`, with an error, if one is missing. It
/// checks all of them after an error too, to find all problems at once.
fn complete(
    problems: &Problems,
    fields: &Fields<'_>,
    layer: Option<PartialLimit>,
) -> Option<PartialLimit> {
    let is_in_flight = fields.counts_in_flight();
    let is_valid = match fields.get("unit") {
        _ if is_in_flight => fields.has_no_window(),
        Some(_) => true,
        None => {
            if !fields.meant("unit") {
                problems.error(fields.lack("unit"), options::no_unit());
            }
            false
        }
    };
    let hits = "requests_per_unit";
    if fields.get(hits).is_none() && !fields.meant(hits) {
        problems.add(fields.lack(hits), Grade::Mistake, messages::no_requests());
    }
    let layer = layer.filter(|_| is_valid)?;
    let unit = layer.unit.or(is_in_flight.then_some(Unit::None))?;
    let rate = Rate {
        requests_per_unit: layer.requests_per_unit.unwrap_or(0),
        unit,
        unit_multiplier: layer.unit_multiplier.unwrap_or(1),
    };
    let at = fields.lack("unit_multiplier");
    problems.accept(at, options::checked_window(&rate))?;
    Some(PartialLimit {
        requests_per_unit: Some(rate.requests_per_unit),
        unit: Some(unit),
        ..layer
    })
}

fn replaces(
    problems: &Problems,
    fields: &Fields<'_>,
    own_name: Option<&str>,
) -> Vec<(Place, Box<str>)> {
    let replaced = |item: &Node| {
        if item.value_type() == ValueType::Nothing {
            return problems.fail(&item.at, messages::replaced_is_empty());
        }
        let entry = fields::read(problems, item, Section::Replaced)?;
        entry.required("name", messages::replaced_without_name)?;
        let (name, at) = (entry.name()?, entry.lack("name"));
        if own_name == Some(name) {
            return problems.fail(at, messages::limit_replaces_itself(quoted(name)));
        }
        Some((at.clone(), name.into()))
    };
    let items = fields.items("replaces", messages::replaces_no_list).iter();
    items.filter_map(replaced).collect()
}

/// The key under which Envoy sends blocks of addresses as text, which match as they are written.
const SENDS_BLOCKS: &str = "masked_remote_address";

/// Warns of a value that is valid but probably a mistake, because Weir compares text, in which only
/// `*` is special: a value like a block of addresses or a regular expression, or an address in
/// another form than Envoy's.
fn warn_of_suspicious(problems: &Problems, node: &Node, key: &str, value: &str) {
    let address = address::read(value.as_bytes());
    let is_other = |address: &IpAddr| is_meant(value) && address.to_string() != value;
    let message = if key != SENDS_BLOCKS && is_block(value) {
        messages::block_as_text(quoted(value))
    } else if let Some(address) = address.filter(is_other) {
        messages::address_as_text(quoted(value), address)
    } else if is_regular_expression(value) {
        messages::regex_as_text(quoted(value))
    } else {
        return;
    };
    problems.warning(&node.at, message);
}

/// `10.0.0.0/8`
fn is_block(value: &str) -> bool {
    value.contains('/') && address::parse_network(value.as_bytes()).is_some()
}

/// Whether a text that can be read as an address is meant as one: `Face::Add` is a name.
fn is_meant(address: &str) -> bool {
    address.bytes().any(|byte| byte.is_ascii_digit())
}

/// Detects only syntax that is rare in other values: `10.*` and `/search?q=*` are patterns of Weir.
fn is_regular_expression(value: &str) -> bool {
    let anchored = value.starts_with('^') || (value.len() > 1 && value.ends_with('$'));
    let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let from = |bracket| value.find(bracket).map_or("", |open| &value[open..]);
    let class = has(from('['), &["]+", "]*", "]{", "]?"]);
    let any = has(value, &["/.*", ").*", ".+"]) || value.starts_with(".*");
    let escape = has(value, &["\\d", "\\w", "\\s", "\\.", "\\/", "(?"]);
    let choice = from('(').contains('|') && from('(').contains(')');
    anchored || class || any || escape || choice
}
