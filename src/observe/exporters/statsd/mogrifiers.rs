//! Mogrifiers: rules of DogStatsD that make a shorter name and tags of a long name, as
//! `DOG_STATSD_MOGRIFIER_*` of envoyproxy/ratelimit.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// The rules, in their order. The first whose pattern a name matches applies.
#[derive(Clone, Debug, Default)]
pub struct Mogrifiers(Vec<Mogrifier>);

#[derive(Clone, Debug)]
struct Mogrifier {
    pattern: Regex,
    name: String,
    tags: BTreeMap<String, String>,
}

impl Mogrifiers {
    /// Adds a rule. `$1` in `name`, and in the values of `tags`, is the match of the first group of
    /// `pattern`.
    ///
    /// # Errors
    /// The pattern is not a regular expression.
    pub fn add(
        &mut self,
        pattern: &str,
        name: String,
        tags: BTreeMap<String, String>,
    ) -> Result<(), regex::Error> {
        self.0.push(Mogrifier {
            pattern: Regex::new(pattern)?,
            name,
            tags,
        });
        Ok(())
    }

    /// The name and the tags of a metric.
    pub fn apply(&self, name: &str) -> (String, Vec<(String, String)>) {
        let mut all = self.0.iter();
        let found = all.find_map(|mogrifier| Some((mogrifier, mogrifier.pattern.captures(name)?)));
        let Some((mogrifier, groups)) = found else {
            return (name.to_owned(), Vec::new());
        };
        let tags = mogrifier.tags.iter();
        let tags = tags.map(|(tag, value)| (tag.clone(), filled(value, &groups)));
        (filled(&mogrifier.name, &groups), tags.collect())
    }
}

/// The template with the groups in it. A `$` and a number of no group stay as they are.
fn filled(template: &str, groups: &Captures<'_>) -> String {
    static GROUP: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\$([0-9]+)").expect("a regular expression"));
    let group = |found: &Captures<'_>| {
        let number = found[1].parse().unwrap_or(usize::MAX);
        let group = groups.get(number).map_or("", |group| group.as_str());
        let text = if number < groups.len() {
            group
        } else {
            &found[0]
        };
        text.to_owned()
    };
    GROUP.replace_all(template, group).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pattern_that_matches_makes_name_and_tags() {
        let mut mogrifiers = Mogrifiers::default();
        let tags = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|&(tag, value)| (tag.to_owned(), value.to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        // The example of envoyproxy/ratelimit's README.
        let hits = r"^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$";
        mogrifiers
            .add(
                hits,
                "ratelimit.service.rate_limit.$3".to_owned(),
                tags(&[("domain", "$1"), ("descriptor", "$2")]),
            )
            .unwrap();
        mogrifiers
            .add(
                "^ratelimit",
                "rest.$0.$1.$x.$".to_owned(),
                tags(&[("all", "$0$9")]),
            )
            .unwrap();
        let applied = |name| {
            let (name, tags) = mogrifiers.apply(name);
            (
                name,
                tags.into_iter()
                    .map(|(tag, value)| format!("{tag}:{value}"))
                    .collect::<Vec<_>>()
                    .join(","),
            )
        };
        for (name, expected, tags) in [
            (
                "ratelimit.service.rate_limit.shop.user.path_x.over_limit",
                "ratelimit.service.rate_limit.over_limit",
                "descriptor:user.path_x,domain:shop",
            ),
            (
                "ratelimit.redis_pool.cx_active",
                "rest.ratelimit.$1.$x.$",
                "all:ratelimit$9",
            ),
            ("other", "other", ""),
        ] {
            assert_eq!(applied(name), (expected.to_owned(), tags.to_owned()));
        }
        assert!(mogrifiers.add("(", String::new(), BTreeMap::new()).is_err());
    }
}
