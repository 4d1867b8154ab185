//! Descriptors: compiles a list of maps to a level of the tree, and to its limits.

use super::fields::{self, Fields, Section};
use super::matching::{self, Match};
use super::overlay::{Added, Switches};
use super::partial::PartialLimit;
use super::problem::Problems;
use super::rate::{self, RateLimit};
use super::settle::PendingLimit;
use super::siblings::Siblings;
use super::table::{self, PendingTable};
use super::{Compiler, Domain, suspicion};
use crate::limits::rules::address;
use crate::limits::rules::limit::{
    Level, Limit, LimitId, MAX_METADATA_BYTES, Matching, Metadata, OnStoreFailure, encoded_bytes,
};
use crate::limits::rules::source::{Content, Node, ValueType};
use crate::limits::rules::tree::Branch;

/// The largest sum of the bytes of all limits' paths. Every limit holds the texts of its levels, so
/// that long keys above many limits multiply.
pub(crate) const LONGEST_PATHS: usize = 64 << 20;

/// Keys that have a meaning only beside a `rate_limit`.
const NEED_A_LIMIT: [&str; 4] = ["shadow_mode", "quota_mode", "detailed_metric", "metadata"];

/// Reads a list of descriptors into a level; `path` leads to it.
pub(super) fn read_list(
    compiler: &mut Compiler<'_>,
    domain: &mut Domain,
    list: &Node,
    siblings: &mut Siblings,
    path: &mut Vec<Level>,
) {
    let Content::Sequence(items) = &list.content else {
        let what = format!("'descriptors' is {}, not a list", list.value_type().name());
        return compiler.problems.error_at(
            list,
            what,
            "begin each descriptor below it with '- key: '",
        );
    };
    siblings.add_networks(&mut compiler.problems, items);
    for item in items {
        if item.value_type() == ValueType::Nothing {
            compiler.problems.error_at(
                item,
                "a descriptor is empty",
                "write 'key: ' behind the '-', or remove it",
            );
        } else if let Some(fields) = fields::read(&mut compiler.problems, item, Section::Descriptor)
        {
            read_descriptor(compiler, domain, &fields, siblings, path);
        }
    }
}

fn read_descriptor(
    compiler: &mut Compiler<'_>,
    domain: &mut Domain,
    fields: &Fields<'_>,
    siblings: &mut Siblings,
    path: &mut Vec<Level>,
) {
    let (mut level, matched) = read_level(compiler, fields).unzip();
    let matched = matched.flatten();
    let has_table = fields.get("table").is_some();
    let at = compiler.problems.here(fields.node().at);
    if let Some(level) = level
        .as_mut()
        .filter(|level| !has_table && siblings.is_beside_networks(level, at))
    {
        level.matching = Matching::Address;
        let address = level
            .value
            .as_ref()
            .and_then(|value| address::read(value.as_bytes()));
        level.value = address
            .map(|address| address.to_string().into())
            .or(level.value.take());
    }
    if let Some(level) = &level
        && !siblings.is_duplicate(&mut compiler.problems, fields, level)
    {
        siblings.warn_of_unreachable(&mut compiler.problems, fields, (level, matched.as_ref()));
    }
    let has_key = fields
        .locations()
        .any(|(key, _)| matches!(key, "rate_limit" | "table") || NEED_A_LIMIT.contains(&key));
    domain.mentions_limit |= has_key || fields.meant("rate_limit") || fields.has_misplaced();
    let rate_limit = fields
        .get("rate_limit")
        .map(|node| rate::read(&mut compiler.problems, node));
    if rate_limit.is_none()
        && !has_table
        && !fields.meant("rate_limit")
        && !compiler.from_control_plane
    {
        warn_without_limit(compiler, fields);
    }
    let (key, value) = level
        .as_ref()
        .map_or(("", None), |level| (&*level.key, level.value.as_deref()));
    let added = compiler.overlay.enter(key, value, rate_limit.is_some());
    if let Some(level) = &mut level {
        level.share_threshold |= added.switches.share_threshold;
        level.value_to_metric |= added.switches.value_to_metric;
    }
    // The content of an unusable descriptor is checked too; the rules are dropped then.
    path.push(level.unwrap_or_default());
    let rate_limit = match rate_limit {
        None if has_table => Some(RateLimit::of_rows(&compiler.problems, fields)),
        rate_limit => rate_limit.flatten(),
    };
    let table = table::read(compiler, fields, path);
    let written = Written {
        rate_limit,
        table,
        added,
    };
    let limit = add_limit(compiler, domain, fields, path, written);
    let mut children = Siblings::default();
    if let Some(list) = fields.get("descriptors") {
        read_list(compiler, domain, list, &mut children, path);
    }
    children.finish(compiler);
    compiler.overlay.leave();
    if let Some(level) = path.pop() {
        siblings.add(
            &mut compiler.problems,
            at,
            &level,
            matched.as_ref(),
            Branch {
                limit,
                children: children.tree,
            },
        );
    }
}

/// Key, value and switches of a descriptor; `None`, with an error, if it has no usable key.
fn read_level(compiler: &mut Compiler<'_>, fields: &Fields<'_>) -> Option<(Level, Option<Match>)> {
    let problems = &mut compiler.problems;
    let matched = matching::read(problems, &mut compiler.matched, &compiler.data, fields);
    let value = match fields.get("value") {
        _ if !matches!(matched, Ok(None)) => Some(None),
        Some(node) => fields::text(problems, node, "value").map(Some),
        None => Some(None),
    };
    let value_to_metric = fields::switch(problems, fields, "value_to_metric");
    let share_threshold = fields::switch(problems, fields, "share_threshold");
    let node = fields.get("key");
    let Some(node) = node.filter(|node| node.text().is_none_or(|text| !text.is_empty())) else {
        if !fields.meant("key") {
            let node = node.unwrap_or_else(|| fields.lack("key"));
            problems.error_at(
                node,
                "the descriptor has no key",
                "write 'key: ' and the key that Envoy sends",
            );
        }
        return None;
    };
    let key = fields::text(problems, node, "key")?;
    let matched = matched.ok()?;
    if matched.is_some() && key.contains('*') {
        problems.error_at(
            node,
            "a key with '*' has no 'match'",
            "write a descriptor for each key",
        );
        return None;
    }
    let value = value?.filter(|value| !value.is_empty());
    if let (Some(value), Some(node)) = (value, fields.get("value")) {
        suspicion::warn(problems, node, key, value);
    }
    if share_threshold
        && let Some(Match {
            matching: Matching::Cidr { prefix: Some(_) },
            ..
        }) = &matched
    {
        let what = "'share_threshold' stands beside 'prefix', which has a counter for each network";
        problems.error_at(fields.lack("share_threshold"), what, "write one of them");
    }
    if share_threshold
        && matched.is_none()
        && !key.contains('*')
        && !value.is_some_and(|value| value.contains('*'))
    {
        let what = "'share_threshold' needs a '*' in the key or the value, or 'match'";
        problems.error_at(
            fields.lack("share_threshold"),
            what,
            "write a pattern, such as value: \"*\", or remove 'share_threshold'",
        );
    }
    let matching = match (&matched, value) {
        (Some(matched), _) => matched.matching,
        (None, Some(value)) if address::read(value.as_bytes()).is_some() => Matching::Address,
        (None, _) => Matching::Text,
    };
    let value = matched
        .as_ref()
        .map(|matched| matched.text.clone())
        .or_else(|| value.map(Into::into));
    Some((
        Level {
            key: key.into(),
            value,
            matching,
            share_threshold,
            value_to_metric,
        },
        matched,
    ))
}

/// What makes a limit of a descriptor.
struct Written<'n, 'o> {
    rate_limit: Option<RateLimit<'n>>,
    table: Option<Result<PendingTable, ()>>,
    added: Added<'o>,
}

/// Adds the limit of a descriptor.
fn add_limit(
    compiler: &mut Compiler<'_>,
    domain: &mut Domain,
    fields: &Fields<'_>,
    path: &[Level],
    written: Written<'_, '_>,
) -> Option<LimitId> {
    let Written {
        rate_limit,
        table,
        added,
    } = written;
    let problems = &mut compiler.problems;
    let switches = Switches::read(problems, fields).or(added.switches);
    let metadata = fields
        .get("metadata")
        .and_then(|node| read_metadata(problems, node));
    let rate_limit = rate_limit?;
    let name = rate_limit.name.or_else(|| added.name());
    domain.names.extend(name.map(Into::into));
    let replaces = rate_limit.replaces;
    domain.replaced.extend(
        replaces
            .iter()
            .map(|&(at, name)| (problems.here(at), name.into())),
    );
    let layer = rate_limit.layer?;
    let table = table.transpose().ok()?;
    if switches.shadow_mode && rate_limit.plan.is_none() {
        warn_of_shadow(problems, &layer);
    }
    count_path(compiler, domain, fields, path)?;
    let id = LimitId::new(domain.number, domain.next_limit);
    domain.next_limit = domain.next_limit.checked_add(1)?;
    let limit = Limit {
        id,
        domain: domain.name.clone(),
        levels: path.into(),
        shadow_mode: switches.shadow_mode,
        quota_mode: switches.quota_mode,
        detailed_metric: switches.detailed_metric,
        replaces: replaces.into_iter().map(|(_, name)| name.into()).collect(),
        metadata,
        origin: compiler.problems.origin(fields.node().at),
        ..Limit::default()
    };
    domain.pending.push(PendingLimit {
        limit,
        written: layer,
        plan: rate_limit.plan,
        table,
        added: added.layers.into_iter().cloned().collect(),
    });
    Some(id)
}

/// Counts the bytes of a path; `None`, with an error, if all together are too many.
fn count_path(
    compiler: &mut Compiler<'_>,
    domain: &Domain,
    fields: &Fields<'_>,
    path: &[Level],
) -> Option<()> {
    let of_level =
        |level: &Level| level.key.len() + level.value.as_ref().map_or(0, |value| value.len());
    let bytes = path.iter().map(of_level).sum::<usize>() + domain.name.len();
    compiler.path_bytes = compiler.path_bytes.saturating_add(bytes);
    if compiler.path_bytes > LONGEST_PATHS {
        let what = format!(
            "the keys and values above all limits have more than {LONGEST_PATHS} bytes in total"
        );
        let remedy = "write shorter keys and values, or fewer limits";
        compiler.problems.error_at(fields.node(), what, remedy);
    }
    (compiler.path_bytes <= LONGEST_PATHS).then_some(())
}

/// The metadata of a limit, unless it cannot be returned or is too large.
fn read_metadata(problems: &mut Problems, node: &Node) -> Option<Metadata> {
    match node.metadata() {
        Ok(metadata) if encoded_bytes(&metadata) <= MAX_METADATA_BYTES => return Some(metadata),
        Ok(metadata) => {
            let what = format!(
                "the metadata has {} bytes as answers carry it",
                encoded_bytes(&metadata)
            );
            problems.error_at(
                node,
                what,
                format!("write at most {MAX_METADATA_BYTES} bytes"),
            );
        }
        Err(note) => problems.error(note.at, note.what, note.remedy),
    }
    None
}

/// A limit in shadow mode never refuses, whether its store answers or not.
fn warn_of_shadow(problems: &mut Problems, layer: &PartialLimit) {
    if let (Some(OnStoreFailure::Error | OnStoreFailure::Deny), Some(at)) =
        (layer.on_store_failure, layer.place("on_store_failure"))
    {
        let what =
            "'on_store_failure' has no effect on a limit in shadow mode, which never refuses";
        let remedy = "remove 'on_store_failure', or remove 'shadow_mode'";
        problems.warning_in(at, what, remedy);
    }
}

/// Warns of what the Go service ignores: keys of a limit where there is none, and an empty
/// `rate_limit`.
fn warn_without_limit(compiler: &mut Compiler<'_>, fields: &Fields<'_>) {
    if let Some((_, at)) = fields.locations().find(|(key, _)| *key == "rate_limit") {
        let remedy = "indent 'unit' and 'requests_per_unit' below it, or remove it";
        compiler.problems.warning(
            at,
            "'rate_limit' is empty: this descriptor has no limit",
            remedy,
        );
    }
    for key in NEED_A_LIMIT {
        let Some(node) = fields
            .get(key)
            .filter(|node| node.read::<bool>() != Some(false))
        else {
            continue;
        };
        let what = format!("'{key}' has no effect in a descriptor without 'rate_limit'");
        compiler.problems.warning(
            node.at,
            what,
            "move it to the descriptor with the 'rate_limit'",
        );
    }
}
