//! The table `tests/vectors/control_plane_usage.txt`: what gives limits of a control plane
//! `track_usage` and its options, and what is wrong there.

use super::*;

/// One case of the table.
#[derive(Default)]
struct Case {
    name: String,
    /// Sources of options of the limit, with their texts. Each occurs at most once.
    says: Vec<(String, String)>,
    /// As it is written.
    expected: Vec<String>,
}

fn cases() -> Vec<Case> {
    let text = include_str!("../../../../../tests/vectors/control_plane_usage.txt");
    let mut cases: Vec<Case> = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, cases.last_mut()) {
            ("case", _) => cases.push(Case {
                name: rest.to_owned(),
                ..Case::default()
            }),
            ("usage" | "problem", Some(case)) => case.expected.push(line.to_owned()),
            (_, Some(case)) => case.says.push((word.to_owned(), rest.to_owned())),
            (_, None) => panic!("no case yet: {line}"),
        }
    }
    assert!(cases.len() > 25, "the table was not read");
    cases
}

impl Case {
    fn get(&self, word: &str) -> Option<&str> {
        self.says
            .iter()
            .find(|(name, _)| name == word)
            .map(|(_, text)| text.as_str())
    }

    /// The overlay, if the case has anything of one.
    fn overlay(&self) -> Option<String> {
        let parts = [
            ("overlay", "defaults: {", "}\n"),
            ("", "domains:\n- domain: d\n", ""),
            ("domain", "  defaults: {", "}\n"),
            ("", "  descriptors:\n  - key: route\n", ""),
            ("above", "    defaults: {", "}\n"),
            ("", "    descriptors:\n    - key: user\n", ""),
            ("limit", "      rate_limit: {", "}\n"),
        ];
        let has_any = parts.iter().any(|(word, ..)| self.get(word).is_some());
        let part = |&(word, begin, end): &(&str, &str, &str)| match self.get(word) {
            Some(text) => format!("{begin}{text}{end}"),
            None if word.is_empty() => begin.to_owned(),
            None => String::new(),
        };
        has_any.then(|| parts.iter().map(part).collect())
    }

    /// The result, in the form of the table.
    fn outcome(&self) -> Vec<String> {
        let problem = |problem: &Problem| format!("problem {problem}");
        let overlay = match self.overlay() {
            None => None,
            Some(text) => match read_overlay(&text, false) {
                Ok(read) => Some(Arc::new(read.overlay)),
                Err(problems) => return problems.iter().map(problem).collect(),
            },
        };
        let defaults = match self.get("process").unwrap_or_default().parse() {
            Ok(defaults) => defaults,
            Err(error) => return vec![format!("problem {error}")],
        };
        let policy = match self.get("unlimited") {
            Some(_) => Some(RateLimitPolicy {
                unlimited: true,
                ..RateLimitPolicy::default()
            }),
            None => per_minute(10),
        };
        let route = RateLimitDescriptor {
            descriptors: vec![node("user", "", policy)],
            ..node("route", "", None)
        };
        let applied = Domains::default().apply(
            vec![resource("r", "d", vec![route])],
            &XdsOptions {
                defaults,
                overlay,
                ..XdsOptions::default()
            },
        );
        assert!(applied.refused.is_empty(), "{}: {applied:?}", self.name);
        let rules = applied.rules.expect("rules");
        let limit = rules.limits().next().expect("a limit");
        let usage = match &limit.usage {
            None => "usage none".to_owned(),
            Some(tracking) => {
                let levels: Vec<_> = tracking.levels.iter().map(|(key, _)| &**key).collect();
                assert_eq!(
                    (&*tracking.domain, &levels[..]),
                    ("d", &["route", "user"][..]),
                    "{}",
                    self.name
                );
                let usage = tracking.settings;
                format!(
                    "usage {} x {}, {}, {}",
                    usage.interval, usage.buckets, usage.expiry, usage.subjects
                )
            }
        };
        std::iter::once(usage)
            .chain(applied.warnings.iter().map(problem))
            .collect()
    }
}

#[test]
fn limits_of_a_control_plane_have_the_usage_of_the_table() {
    let wrong: Vec<String> = cases()
        .iter()
        .filter(|case| case.outcome() != case.expected)
        .map(|case| format!("case {}\n{}\n", case.name, case.outcome().join("\n")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A changed option of usage is a change of the limit, which the comparison of two configurations
/// shows.
#[test]
fn a_changed_overlay_changes_the_usage() {
    let mut domains = Domains::default();
    let one = || vec![one("d", 10)];
    let before = domains
        .apply(one(), &with_overlay("defaults: {track_usage: true}"))
        .rules
        .expect("rules");
    let applied = domains.apply(
        one(),
        &with_overlay("defaults: {track_usage: true, usage_buckets: 5}"),
    );
    let after = applied.rules.expect("rules");
    let difference = crate::limits::rules::diff::Difference::new(&before, &after);
    let texts: Vec<String> = difference.changed.iter().map(ToString::to_string).collect();
    assert!(
        texts.len() == 1 && texts[0].contains("usage_buckets"),
        "{texts:?}"
    );
    let applied = domains.apply(one(), &XdsOptions::default());
    assert!(
        applied
            .rules
            .expect("rules")
            .limits()
            .all(|limit| limit.usage.is_none()),
        "without the overlay"
    );
}
