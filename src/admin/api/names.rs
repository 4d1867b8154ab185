//! Checks of the names in calls: an answer about a misspelled domain would look as if all was well.

use std::sync::Arc;

use super::Parts;
use super::reply::Failure;
use crate::limits::rules::Rules;
use crate::limits::rules::compile::{OneLine, nearest};
use crate::limits::rules::limit::Limit;

/// The rules in force; none before there are any.
pub(super) fn rules(parts: &Parts) -> Arc<Rules> {
    let rules = parts.live.load().map(|live| Arc::clone(&live.rules));
    rules.unwrap_or_default()
}

/// The name that was probably meant, in parentheses.
pub(crate) fn did_you_mean<'k>(wrong: &str, known: impl Iterator<Item = &'k str>) -> String {
    let near = nearest(wrong, known).map(OneLine);
    near.map_or_else(String::new, |near| format!(" (did you mean {near}?)"))
}

/// Checks that a domain has limits in force, if one is given.
///
/// # Errors
/// 404: it has none.
pub(super) fn domain(rules: &Rules, name: Option<&str>) -> Result<(), Failure> {
    let Some(name) = name.filter(|name| rules.commit(name.as_bytes()).is_none()) else {
        return Ok(());
    };
    let (near, name) = (near_domain(rules, name), OneLine(name));
    let why = format!("no limit in force has the domain {name}{near}");
    Err(Failure::not_found(&why))
}

/// See [`did_you_mean`].
pub(super) fn near_domain(rules: &Rules, wrong: &str) -> String {
    let domains = rules.domains().map(str::from_utf8);
    did_you_mean(wrong, domains.filter_map(Result::ok))
}

/// Whether a limit is meant by this text: its path, with or without the domain, or its name.
pub(super) fn is_named(limit: &Limit, text: &str) -> bool {
    limit.path() == text || limit.path_in_domain() == text || limit.name.as_deref() == Some(text)
}

/// The limits of all domains, or of one.
pub(super) fn limits<'r>(
    rules: &'r Rules,
    domain: Option<&str>,
) -> impl Iterator<Item = &'r Limit> {
    let is_of = move |limit: &&Limit| domain.is_none_or(|domain| *limit.domain == *domain);
    rules.limits().filter(is_of)
}

/// There is no limit with this name, of all domains or of one.
pub(super) fn no_limit_named(rules: &Rules, domain: Option<&str>, name: &str) -> Failure {
    let limits = || limits(rules, domain);
    let paths = limits().flat_map(|limit| [limit.path(), limit.path_in_domain()]);
    let paths: Vec<String> = paths.collect();
    let names = limits().filter_map(|limit| limit.name.as_deref());
    let near = did_you_mean(name, paths.iter().map(String::as_str).chain(names));
    let name = OneLine(name);
    Failure::not_found(&format!("no limit in force is named {name}{near}"))
}

/// Checks that limits of the domain have these keys, and that no value has the next entry in it, as
/// in `tenant=acme,path=/search`.
///
/// # Errors
/// 404: a name is unknown. 400: a value has the next entry in it.
pub(super) fn entries<'e>(
    rules: &Rules,
    name: &str,
    mut entries: impl Iterator<Item = (&'e str, &'e str)> + Clone,
) -> Result<(), Failure> {
    domain(rules, Some(name))?;
    let levels = || limits(rules, Some(name)).flat_map(|limit| &limit.levels);
    let keys = || levels().map(|level| &*level.key);
    let is_key =
        |key: &str| keys().any(|known| crate::limits::rules::tree::matches(known, key.as_bytes()));
    for (key, value) in entries.clone() {
        let parts = value.split(',').skip(1);
        let mut parts = parts.filter_map(|part| part.split_once('='));
        if let Some((next, _)) = parts.find(|(next, _)| is_key(next)) {
            let (key, value, next) = (OneLine(key), OneLine(value), OneLine(next));
            return Err(Failure::bad_request(&format!(
                "the value of {key} is {value}: if {next} is the next entry, write it \
                 separately (key=value key=value, without a comma)"
            )));
        }
    }
    let Some((key, _)) = entries.find(|(key, _)| !key.contains('*') && !is_key(key)) else {
        return Ok(());
    };
    let (near, name, key) = (did_you_mean(key, keys()), OneLine(name), OneLine(key));
    let why = format!("no limit of the domain {name} has the key {key}{near}");
    Err(Failure::not_found(&why))
}
