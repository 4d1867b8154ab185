//! Descriptors: compiles a list of maps to a level of the tree, and to its limits.

use std::sync::Arc;

use super::algorithm_fields::{AlgorithmFields, USAGE};
use super::defaults::{Layer, OfLimit, PendingAmount, PendingTrial, Settled};
use super::fields::{self, Fields, Section};
use super::matching::{self, Match};
use super::numbers::Numbers;
use super::overlay::Added;
use super::problem::Problems;
use super::rate::{self, RateLimit};
use super::settle::PendingLimit;
use super::siblings::Siblings;
use super::table::{self, PendingRows, PendingTable};
use super::{Compiler, Domain, suspicion, trial};
use crate::core::algorithm::Algorithm;
use crate::core::algorithm::concurrency::Gauge;
use crate::core::time::{Rate, Span, Unit};
use crate::core::usage::{self, Tracking};
use crate::limits::rules::address;
use crate::limits::rules::limit::{
    Level, Limit, LimitId, MAX_METADATA_BYTES, Matching, Metadata, OnStoreFailure, Trial,
    encoded_bytes,
};
use crate::limits::rules::source::{Content, Node, Position, ValueType};
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
        None if has_table => Some(RateLimit::of_rows(fields)),
        rate_limit => rate_limit.flatten(),
    };
    let table = table::read(compiler, fields, path);
    let limit = add_limit(compiler, domain, fields, path, (rate_limit, table, added));
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

/// Reads the keys beside a `rate_limit`, and adds the limit if there is one.
fn add_limit(
    compiler: &mut Compiler<'_>,
    domain: &mut Domain,
    fields: &Fields<'_>,
    path: &[Level],
    (rate_limit, table, added): (
        Option<RateLimit<'_>>,
        Option<Result<PendingTable, ()>>,
        Added<'_>,
    ),
) -> Option<LimitId> {
    let problems = &mut compiler.problems;
    let shadow_mode = fields::switch(problems, fields, "shadow_mode") | added.switches.shadow_mode;
    let quota_mode = fields::switch(problems, fields, "quota_mode") | added.switches.quota_mode;
    let detailed_metric =
        fields::switch(problems, fields, "detailed_metric") | added.switches.detailed_metric;
    let metadata = fields
        .get("metadata")
        .and_then(|node| read_metadata(problems, node));
    let RateLimit {
        amount,
        at,
        keys,
        name,
        replaces,
        trial,
        usage,
        of_plan,
        is_written,
    } = rate_limit?;
    let name = name.or(added.name);
    if let Some(name) = name {
        domain.names.insert(name.into());
    }
    domain.replaced.extend(
        replaces
            .iter()
            .map(|&(at, name)| (problems.here(at), name.into())),
    );
    let is_unlimited = matches!(amount, Ok(None)) && of_plan.is_none();
    let trial = trial.map(|node| trial::read(problems, node, is_unlimited));
    // The name counts even if the amount is wrong, so that one mistake is not reported as two.
    let (amount, trial) = (
        amount.ok()?,
        trial.map_or(Some(None), |read| read.map(Some))?,
    );
    let table = table.transpose().ok()?;
    let rows = pending_rows(
        problems,
        (amount.as_ref(), name),
        (&keys, at),
        (of_plan, is_written),
        table,
    );
    let path_bytes = path
        .iter()
        .map(|level| level.key.len() + level.value.as_ref().map_or(0, |value| value.len()))
        .sum::<usize>();
    compiler.path_bytes = compiler
        .path_bytes
        .saturating_add(path_bytes + domain.name.len());
    if compiler.path_bytes > LONGEST_PATHS {
        let what = format!(
            "the keys and values above all limits have more than {LONGEST_PATHS} bytes in total"
        );
        problems.error_at(
            fields.node(),
            what,
            "write shorter keys and values, or fewer limits",
        );
        return None;
    }
    let id = LimitId::new(domain.number, domain.next_limit);
    domain.next_limit = domain.next_limit.checked_add(1)?;
    let replaces = replaces.into_iter().map(|(_, name)| name.into()).collect();
    if amount.is_none() && trial.is_none() && rows.is_none() {
        warn_of_unlimited(problems, at, &added);
    }
    let layers: Vec<Layer> = added.layers.iter().copied().cloned().collect();
    let trial = trial.map(|written| {
        // An unlimited limit has no usage, so that what it says of usage is its trial's.
        let of_usage = keys
            .iter()
            .filter(|(key, _)| amount.is_none() && rows.is_none() && USAGE.contains(key));
        let keys = of_usage
            .chain(&written.keys)
            .map(|&(key, at)| (key, compiler.problems.here(at)))
            .collect();
        let (at, layers) = (
            compiler.problems.here(written.at),
            if amount.is_none() {
                layers.clone()
            } else {
                Vec::new()
            },
        );
        PendingTrial {
            written: written.with_usage(usage),
            at,
            keys,
            layers,
        }
    });
    let amount = amount.map(|(rate, fields)| {
        if shadow_mode {
            warn_of_shadow(compiler, fields.on_store_failure, &keys);
        }
        let problems = &mut compiler.problems;
        let rate = if keys.iter().any(|(key, _)| *key == "unit_multiplier") {
            rate
        } else {
            multiplied(problems, at, (rate, &fields), &added)
        };
        let keys = keys
            .into_iter()
            .map(|(key, at)| (key, problems.here(at)))
            .collect();
        let is_one = |level: &Level| {
            level
                .value
                .as_deref()
                .is_some_and(|value| level.matching.is_by_more_than_text() || !value.contains('*'))
        };
        let has_last_value = path.last().is_some_and(is_one);
        PendingAmount {
            rate,
            fields,
            below: Vec::new(),
            at: problems.here(at),
            keys,
            layers,
            has_last_value,
        }
    });
    let (domain_name, levels, name) = (
        domain.name.clone(),
        Box::<[Level]>::from(path),
        name.map(Box::<str>::from),
    );
    let origin = compiler.problems.origin(fields.node().at);
    domain.pending.push(PendingLimit {
        amount,
        trial,
        rows,
        make: Box::new(
            move |OfLimit {
                      amount,
                      usage,
                      trial,
                      on_store_failure,
                  }| Limit {
                id,
                gauge: amount.as_ref().and_then(|amount| gauge(&amount.algorithm)),
                usage: usage
                    .map(|settings| tracking(settings, &domain_name, &levels, IsTrial(false))),
                trial: trial.map(|Settled { amount, usage, .. }| {
                    Box::new(Trial {
                        amount,
                        usage: usage.map(|settings| {
                            tracking(settings, &domain_name, &levels, IsTrial(true))
                        }),
                    })
                }),
                domain: domain_name,
                shown: Limit::shown(name.as_deref(), &levels),
                levels,
                name,
                amount,
                is_by_rows: false,
                plan: None,
                table: None,
                shadow_mode,
                quota_mode,
                on_store_failure,
                detailed_metric,
                replaces,
                metadata,
                origin,
            },
        ),
    });
    Some(id)
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

/// The gauge of a limit of requests in flight.
fn gauge(algorithm: &Algorithm) -> Option<Arc<Gauge>> {
    match algorithm {
        Algorithm::Concurrency(concurrency) => Some(Arc::new(Gauge::new(Span::from_micros(
            concurrency.max_duration,
        )))),
        _ => None,
    }
}

/// What plans and tables add to a limit; `None` if it has neither.
fn pending_rows(
    problems: &Problems,
    (amount, name): (Option<&(Rate, AlgorithmFields)>, Option<&str>),
    (keys, at): (&[(&'static str, Position)], Position),
    (of_plan, has_default): (Option<(Position, &str, Numbers)>, bool),
    table: Option<PendingTable>,
) -> Option<PendingRows> {
    let here = |at| problems.here(at);
    let (plan, numbers) = match of_plan {
        Some((at, name, numbers)) => (Some((here(at), name.into())), numbers),
        None if table.is_none() => return None,
        None if !has_default => (None, Numbers::default()),
        None => {
            let keys = keys.iter().map(|&(key, at)| (key, here(at))).collect();
            let fields = amount.map(|(_, fields)| *fields).unwrap_or_default();
            (
                None,
                Numbers::complete(amount.map(|(rate, _)| *rate), fields, keys).named(name),
            )
        }
    };
    Some(PendingRows {
        plan,
        numbers,
        has_default,
        table,
        at: here(at),
    })
}

/// A limit with `track_usage`, or its trial.
fn tracking(
    settings: usage::Settings,
    domain: &str,
    levels: &[Level],
    IsTrial(is_trial): IsTrial,
) -> Arc<Tracking> {
    let levels = levels
        .iter()
        .map(|level| (level.key.clone(), level.value.clone()))
        .collect();
    Arc::new(Tracking {
        settings,
        domain: domain.into(),
        levels,
        is_trial,
    })
}

/// Whether it is a trial's.
struct IsTrial(bool);

/// The rate with the `unit_multiplier` that the overlay adds, unless it makes no window.
fn multiplied(
    problems: &mut Problems,
    at: Position,
    (rate, fields): (Rate, &AlgorithmFields),
    added: &Added<'_>,
) -> Rate {
    let Some((unit_multiplier, layer)) = added.unit_multiplier.filter(|_| rate.unit != Unit::None)
    else {
        return rate;
    };
    if fields.has_calendar() {
        let what = format!(
            "the limit has 'period: calendar': the 'unit_multiplier' of {} is not used for this \
             limit",
            layer.source
        );
        problems.warning(at, what, "remove it, or remove 'period'");
        return rate;
    }
    let multiplied = Rate {
        unit_multiplier,
        ..rate
    };
    if multiplied.window().is_some() {
        return multiplied;
    }
    let what = format!(
        "a window of {unit_multiplier} {}s is longer than 100 years: {} is not used for this limit",
        rate.unit.name(),
        layer.source
    );
    problems.warning(at, what, "write a smaller 'unit_multiplier'");
    rate
}

/// Nothing asks a store about an unlimited limit, so that it has no options.
fn warn_of_unlimited(problems: &mut Problems, at: Position, added: &Added<'_>) {
    for layer in added
        .layers
        .iter()
        .filter(|layer| layer.of_limit && layer.fields != AlgorithmFields::default())
    {
        let what = format!(
            "an unlimited limit has no options: {} is not used for this limit",
            layer.source
        );
        problems.warning(at, what, "remove them, or set an amount");
    }
}

/// A limit in shadow mode never refuses, whether its store answers or not.
fn warn_of_shadow(
    compiler: &mut Compiler<'_>,
    on_store_failure: Option<OnStoreFailure>,
    keys: &[(&'static str, Position)],
) {
    let at = keys
        .iter()
        .find(|(key, _)| *key == "on_store_failure")
        .map(|&(_, at)| at);
    if let (Some(OnStoreFailure::Error | OnStoreFailure::Deny), Some(at)) = (on_store_failure, at) {
        let what =
            "'on_store_failure' has no effect on a limit in shadow mode, which never refuses";
        compiler.problems.warning(
            at,
            what,
            "remove 'on_store_failure', or remove 'shadow_mode'",
        );
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
