//! Descriptors: compiles a list of maps to a level of the tree, and to its limits.

use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::algorithm_fields::AlgorithmFields;
use super::defaults::{PendingAmount, PendingLimit};
use super::fields::{self, Fields, Section};
use super::matching::{self, Match};
use super::overlay::Added;
use super::problem::{Location, Problems, quoted};
use super::rate::{self, RateLimit};
use super::{Compiler, Domain, suspicion};
use crate::rules::address;
use crate::rules::limit::{Level, Limit, LimitId, Matching, OnStoreFailure};
use crate::rules::source::{Content, Node, Position, ValueType};
use crate::rules::tree::{Branch, LARGEST_REGEXES, Tree, is_for_all};
use crate::time::Rate;
use crate::usage::{self, Tracking};

/// The largest sum of the bytes of all limits' paths. Every limit holds the texts of its levels, so that long keys above many limits multiply.
pub(super) const LONGEST_PATHS: usize = 64 << 20;

/// Keys that have a meaning only beside a `rate_limit`.
const NEED_A_LIMIT: [&str; 4] = ["shadow_mode", "quota_mode", "detailed_metric", "metadata"];

/// Patterns of one level that are compared with those before them, so that thousands of them do not make loading slow.
const MOST_PATTERNS: usize = 1_000;

/// One level under construction.
#[derive(Default)]
pub(super) struct Siblings {
    pub(super) tree: Tree,
    /// Key and value as a pair: (`a_b`, `c`) is not (`a`, `b_c`).
    seen: HashMap<(Box<str>, Option<Box<str>>), Location>,
    /// Where each branch of the tree is written, in the order of the branches.
    written: Vec<Location>,
    /// The patterns so far.
    patterns: usize,
}

/// Reads a list of descriptors into a level; `path` leads to it.
pub(super) fn read_list(compiler: &mut Compiler<'_>, domain: &mut Domain, list: &Node, siblings: &mut Siblings, path: &mut Vec<Level>) {
    let Content::Sequence(items) = &list.content else {
        let what = format!("'descriptors' is {}, not a list", list.value_type().name());
        return compiler.problems.error_at(list, what, "begin each descriptor below it with '- key: '");
    };
    for item in items {
        if item.value_type() == ValueType::Nothing {
            compiler.problems.error_at(item, "a descriptor is empty", "write 'key: ' behind the '-', or remove it");
        } else if let Some(fields) = fields::read(&mut compiler.problems, item, Section::Descriptor) {
            read_descriptor(compiler, domain, &fields, siblings, path);
        }
    }
}

fn read_descriptor(compiler: &mut Compiler<'_>, domain: &mut Domain, fields: &Fields<'_>, siblings: &mut Siblings, path: &mut Vec<Level>) {
    let (mut level, matched) = read_level(compiler, fields).unzip();
    let matched = matched.flatten();
    if let Some(level) = &level
        && !is_duplicate(compiler, fields, level, siblings)
    {
        warn_of_unreachable(compiler, fields, (level, matched.as_ref()), siblings);
    }
    let has_key = fields.locations().any(|(key, _)| key == "rate_limit" || NEED_A_LIMIT.contains(&key));
    domain.mentions_limit |= has_key || fields.meant("rate_limit") || fields.has_misplaced();
    let rate_limit = fields.get("rate_limit").map(|node| rate::read(&mut compiler.problems, node));
    if rate_limit.is_none() && !fields.meant("rate_limit") && !compiler.from_control_plane {
        warn_without_limit(compiler, fields);
    }
    let (key, value) = level.as_ref().map_or(("", None), |level| (&*level.key, level.value.as_deref()));
    let added = compiler.overlay.enter(key, value, rate_limit.is_some());
    if let Some(level) = &mut level {
        level.share_threshold |= added.switches.share_threshold;
        level.value_to_metric |= added.switches.value_to_metric;
    }
    // The content of an unusable descriptor is checked too; the rules are dropped then.
    path.push(level.unwrap_or_else(|| Level {
        key: "".into(),
        value: None,
        matching: Matching::Text,
        share_threshold: false,
        value_to_metric: false,
    }));
    let limit = add_limit(compiler, domain, fields, path, (rate_limit.flatten(), added));
    let mut children = Siblings::default();
    if let Some(list) = fields.get("descriptors") {
        read_list(compiler, domain, list, &mut children, path);
    }
    children.finish(compiler);
    compiler.overlay.leave();
    if let Some(level) = path.pop() {
        siblings.written.push(compiler.problems.here(fields.node().at));
        let branch = Branch { limit, children: children.tree };
        match &matched {
            Some(matched) => siblings.add_matched(&mut compiler.problems, &level, matched, branch),
            None => siblings.tree.add(&level.key, level.value.as_deref(), branch),
        }
    }
}

impl Siblings {
    /// Adds a descriptor that matches by more than text, and warns of values and networks that others have before it.
    fn add_matched(&mut self, problems: &mut Problems, level: &Level, matched: &Match, branch: Branch) {
        let own = self.written.len().saturating_sub(1);
        let known = self.tree.add_matched(&level.key, level.value.as_deref().unwrap_or_default(), matched.matched(), branch);
        let Some(here) = self.written.get(own).copied() else { return };
        let taken = known.iter().flatten().filter(|&&branch| branch != own).count();
        if let (true, Some(first)) = (taken == known.len(), known.iter().flatten().next().and_then(|branch| self.written.get(*branch))) {
            let what = format!("this descriptor is never reached: what it matches is in {} already", problems.show(*first));
            return problems.warning_in(here, what, "remove it");
        }
        for ((text, at), branch) in matched.items().zip(known) {
            let Some(branch) = branch else { continue };
            let Some(first) = self.written.get(branch).filter(|_| branch != own) else {
                problems.warning_in(at, format!("{text} stands here twice"), "remove one");
                continue;
            };
            let what = format!("{text} is never matched here: the descriptor in {} has it already", problems.show(*first));
            problems.warning_in(at, what, "remove it from one of the two");
        }
    }

    /// Completes the level: compiles its regular expressions.
    pub(super) fn finish(&mut self, compiler: &mut Compiler<'_>) {
        let (what, branch) = match self.tree.compile_regexes() {
            Ok((0, _)) => return,
            Ok((sets, bytes)) => match compiler.matched.add_regexes(sets, bytes) {
                Ok(()) => return,
                Err(what) => (what, self.written.len().saturating_sub(1)),
            },
            Err(too_large) => {
                (format!("the regular expressions of this level and key need more than {LARGEST_REGEXES} bytes together"), too_large.branch)
            }
        };
        if let Some(at) = self.written.get(branch) {
            compiler.problems.error_in(*at, what, "write fewer or smaller ones, or a set of values");
        }
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
            problems.error_at(node, "the descriptor has no key", "write 'key: ' and the key that Envoy sends");
        }
        return None;
    };
    let key = fields::text(problems, node, "key")?;
    let matched = matched.ok()?;
    if matched.is_some() && key.contains('*') {
        problems.error_at(node, "a key with '*' has no 'match'", "write a descriptor for each key");
        return None;
    }
    let value = value?.filter(|value| !value.is_empty());
    if let (Some(value), Some(node)) = (value, fields.get("value")) {
        suspicion::warn(problems, node, key, value);
    }
    if share_threshold && let Some(Match { matching: Matching::Cidr { prefix: Some(_) }, .. }) = &matched {
        let what = "'share_threshold' stands beside 'prefix', which has a counter for each network";
        problems.error_at(fields.lack("share_threshold"), what, "write one of them");
    }
    if share_threshold && matched.is_none() && !key.contains('*') && !value.is_some_and(|value| value.contains('*')) {
        let what = "'share_threshold' needs a '*' in the key or the value, or 'match'";
        problems.error_at(fields.lack("share_threshold"), what, "write a pattern, such as value: \"*\", or remove 'share_threshold'");
    }
    let matching = match (&matched, value) {
        (Some(matched), _) => matched.matching,
        (None, Some(value)) if address::read(value.as_bytes()).is_some() => Matching::Address,
        (None, _) => Matching::Text,
    };
    let value = matched.as_ref().map(|matched| matched.text.clone()).or_else(|| value.map(Into::into));
    Some((Level { key: key.into(), value, matching, share_threshold, value_to_metric }, matched))
}

/// Whether the level of a descriptor already has one with the same key and value, which is reported.
fn is_duplicate(compiler: &mut Compiler<'_>, fields: &Fields<'_>, level: &Level, siblings: &mut Siblings) -> bool {
    let at = fields.node().at;
    let first = match siblings.seen.entry((level.key.clone(), level.value.clone())) {
        Entry::Vacant(entry) => {
            entry.insert(compiler.problems.here(at));
            return false;
        }
        Entry::Occupied(entry) => compiler.problems.show(*entry.get()),
    };
    let value = level.value.as_ref().map_or_else(|| "no value".to_owned(), |value| format!("value {}", quoted(value)));
    let what = format!("this level already has a descriptor with key {} and {value}, in {first}", quoted(&level.key));
    compiler.problems.error(at, what, "merge the two descriptors, or change the key or the value of one");
    true
}

/// Warns of a descriptor that no entry reaches, because an earlier pattern of its level matches all that it matches; and of an earlier
/// descriptor with the key alone if this is a pattern for all values of the key.
fn warn_of_unreachable(
    compiler: &mut Compiler<'_>,
    fields: &Fields<'_>,
    (level, matched): (&Level, Option<&Match>),
    siblings: &mut Siblings,
) {
    let regex = matched.map(Match::regex);
    let (key, value) = (&*level.key, level.value.as_deref().filter(|_| regex.is_none()));
    // Sets and networks are found before all patterns.
    if regex == Some(None) {
        return;
    }
    let is_pattern = regex.is_some() || key.contains('*') || value.is_some_and(|value| value.contains('*'));
    // A value without a '*' is found before all patterns.
    if (!is_pattern && value.is_some()) || siblings.patterns >= MOST_PATTERNS {
        return;
    }
    let problems = &mut compiler.problems;
    siblings.patterns += usize::from(is_pattern);
    if let Some(first) = siblings.tree.pattern_before(key, value).and_then(|branch| siblings.written.get(branch)) {
        let first = problems.show(*first);
        let what = format!("this descriptor is never reached: the pattern in {first} matches everything that it matches");
        let remedy = if is_pattern { "move it before that pattern, or remove it" } else { "remove it, or remove that pattern" };
        problems.warning(fields.node().at, what, remedy);
    }
    let is_for_all = regex.flatten().is_some_and(is_for_all) || value.is_some_and(|value| value.bytes().all(|byte| byte == b'*'));
    if is_pattern
        && is_for_all
        && let Some(first) = siblings.seen.get(&(level.key.clone(), None))
    {
        let here = problems.show(problems.here(fields.node().at));
        let what = format!("this descriptor is never reached: the pattern in {here} matches every value of the key");
        problems.warning_in(*first, what, "remove it, or remove that pattern");
    }
}

/// Reads the keys beside a `rate_limit`, and adds the limit if there is one.
fn add_limit(
    compiler: &mut Compiler<'_>,
    domain: &mut Domain,
    fields: &Fields<'_>,
    path: &[Level],
    (rate_limit, added): (Option<RateLimit<'_>>, Added<'_>),
) -> Option<LimitId> {
    let problems = &mut compiler.problems;
    let shadow_mode = fields::switch(problems, fields, "shadow_mode") | added.switches.shadow_mode;
    let quota_mode = fields::switch(problems, fields, "quota_mode") | added.switches.quota_mode;
    let detailed_metric = fields::switch(problems, fields, "detailed_metric") | added.switches.detailed_metric;
    let metadata = fields.get("metadata").and_then(|node| match node.metadata() {
        Ok(metadata) => Some(metadata),
        Err(note) => {
            problems.error(note.at, note.what, note.remedy);
            None
        }
    });
    let RateLimit { amount, at, keys, name, replaces } = rate_limit?;
    let name = name.or(added.name);
    if let Some(name) = name {
        domain.names.insert(name.into());
    }
    domain.replaced.extend(replaces.iter().map(|&(at, name)| (problems.here(at), name.into())));
    // The name counts even if the amount is wrong, so that one mistake is not reported as two.
    let amount = amount.ok()?;
    let path_bytes = path.iter().map(|level| level.key.len() + level.value.as_ref().map_or(0, |value| value.len())).sum::<usize>();
    compiler.path_bytes = compiler.path_bytes.saturating_add(path_bytes + domain.name.len());
    if compiler.path_bytes > LONGEST_PATHS {
        let what = format!("the keys and values above all limits have more than {LONGEST_PATHS} bytes in total");
        problems.error_at(fields.node(), what, "write shorter keys and values, or fewer limits");
        return None;
    }
    let id = LimitId::new(domain.number, domain.next_limit);
    domain.next_limit = domain.next_limit.checked_add(1)?;
    let replaces = replaces.into_iter().map(|(_, name)| name.into()).collect();
    if amount.is_none() {
        warn_of_unlimited(problems, at, &added);
    }
    let amount = amount.map(|(rate, fields)| {
        if shadow_mode {
            warn_of_shadow(compiler, fields.on_store_failure, &keys);
        }
        let problems = &mut compiler.problems;
        let rate =
            if keys.iter().any(|(key, _)| *key == "unit_multiplier") { rate } else { multiplied(problems, at, (rate, &fields), &added) };
        let layers = added.layers.into_iter().cloned().collect();
        let keys = keys.into_iter().map(|(key, at)| (key, problems.here(at))).collect();
        PendingAmount { rate, fields, at: problems.here(at), keys, layers }
    });
    let (domain_name, levels, name) = (domain.name.clone(), Box::<[Level]>::from(path), name.map(Into::into));
    let origin = compiler.problems.origin(fields.node().at);
    domain.pending.push(PendingLimit {
        amount,
        make: Box::new(move |amount, on_store_failure, usage| Limit {
            id,
            usage: usage.map(|settings| tracking(settings, &domain_name, &levels)),
            domain: domain_name,
            levels,
            name,
            amount,
            shadow_mode,
            quota_mode,
            on_store_failure,
            detailed_metric,
            replaces,
            metadata,
            origin,
        }),
    });
    Some(id)
}

/// A limit with `track_usage`.
fn tracking(settings: usage::Settings, domain: &str, levels: &[Level]) -> Arc<Tracking> {
    let levels = levels.iter().map(|level| (level.key.clone(), level.value.clone())).collect();
    Arc::new(Tracking { settings, domain: domain.into(), levels })
}

/// The rate with the `unit_multiplier` that the overlay adds, unless it makes no window.
fn multiplied(problems: &mut Problems, at: Position, (rate, fields): (Rate, &AlgorithmFields), added: &Added<'_>) -> Rate {
    let Some((unit_multiplier, layer)) = added.unit_multiplier else { return rate };
    if fields.has_calendar() {
        let what = format!("the limit has 'period: calendar': the 'unit_multiplier' of {} is not used for this limit", layer.source);
        problems.warning(at, what, "remove it, or remove 'period'");
        return rate;
    }
    let multiplied = Rate { unit_multiplier, ..rate };
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
    for layer in added.layers.iter().filter(|layer| layer.of_limit && layer.fields != AlgorithmFields::default()) {
        let what = format!("an unlimited limit has no options: {} is not used for this limit", layer.source);
        problems.warning(at, what, "remove them, or set an amount");
    }
}

/// A limit in shadow mode never refuses, whether its store answers or not.
fn warn_of_shadow(compiler: &mut Compiler<'_>, on_store_failure: Option<OnStoreFailure>, keys: &[(&'static str, Position)]) {
    let at = keys.iter().find(|(key, _)| *key == "on_store_failure").map(|&(_, at)| at);
    if let (Some(OnStoreFailure::Error | OnStoreFailure::Deny), Some(at)) = (on_store_failure, at) {
        let what = "'on_store_failure' has no effect on a limit in shadow mode, which never refuses";
        compiler.problems.warning(at, what, "remove 'on_store_failure', or remove 'shadow_mode'");
    }
}

/// Warns of what the Go service ignores: keys of a limit where there is none, and an empty `rate_limit`.
fn warn_without_limit(compiler: &mut Compiler<'_>, fields: &Fields<'_>) {
    if let Some((_, at)) = fields.locations().find(|(key, _)| *key == "rate_limit") {
        let remedy = "indent 'unit' and 'requests_per_unit' below it, or remove it";
        compiler.problems.warning(at, "'rate_limit' is empty: this descriptor has no limit", remedy);
    }
    for key in NEED_A_LIMIT {
        let Some(node) = fields.get(key).filter(|node| node.read::<bool>() != Some(false)) else { continue };
        let what = format!("'{key}' has no effect in a descriptor without 'rate_limit'");
        compiler.problems.warning(node.at, what, "move it to the descriptor with the 'rate_limit'");
    }
}
