//! The digest of the limits in force: equal for replicas that decide equally.
//!
//! It covers domains, descriptors, and all fields and rows of their limits, after defaults, plans,
//! the overlay and the share of the region. It covers neither the names, order, comments and
//! spelling of files, nor the order of entries that do not compete, nor operators' overrides, which
//! change often and are shared by Redis.

use hashbrown::HashMap;

use super::diff::fields;
use super::limit::{Limit, LimitId, LimitTable, RowMeaning};
use super::tree::Precedence;
use super::{Domain, Rules};
use crate::core::digest::{mix, short};

impl Rules {
    /// The digest, in 16 hexadecimal digits. A domain computes its part once.
    pub fn digest(&self) -> String {
        let parts = self.by_name.values().map(|own| self.digest_of(own));
        format!("{:016x}", parts.fold(0, u64::wrapping_add))
    }

    /// The part of a domain.
    pub(super) fn digest_of(&self, domain: &Domain) -> u64 {
        *domain.digest.get_or_init(|| of_domain(self, domain))
    }
}

impl Domain {
    /// The paths that decide which limit a descriptor finds.
    pub(super) fn precedence(&self) -> Precedence {
        let mut all = Precedence::default();
        self.tree.precedence(0, &mut all);
        all
    }
}

fn of_domain(rules: &Rules, domain: &Domain) -> u64 {
    let content = |id: LimitId| {
        let limit = &domain.limits[id.limit as usize];
        let rows = limit.own_table().map(|table| of_rows(rules, limit, table));
        of_fields(rules, limit).wrapping_add(rows.unwrap_or_default())
    };
    let (commit, policy) = (domain.commit, domain.on_store_failure);
    let settings = format!("{commit:?} {policy:?} {}", domain.share);
    let above = short([domain.name.as_bytes(), settings.as_bytes()]);
    above.wrapping_add(domain.tree.digest(above, &content))
}

fn of_fields(rules: &Rules, limit: &Limit) -> u64 {
    // The name of a file, and names whose order has no meaning.
    let all = fields(rules, limit).into_iter();
    let all = all.filter(|(field, _)| !["table", "replaces"].contains(field));
    let mut parts: Vec<_> = all.map(|pair| format!("{pair:?}")).collect();
    parts.extend(limit.replaces.iter().map(|name| format!("replaces {name}")));
    // The text of a shared counter is part of its key.
    parts.extend(limit.levels.iter().map(|level| {
        let shared = level.value.as_ref().filter(|_| level.is_shared);
        format!("{:?} {shared:?}", level.matching)
    }));
    parts.sort_unstable();
    short(parts)
}

/// The sum of all rows. Rows share few meanings, and each is hashed once.
fn of_rows(rules: &Rules, limit: &Limit, table: &LimitTable) -> u64 {
    let mut known: HashMap<*const RowMeaning, u64> = HashMap::new();
    let mut sum = mix(u64::from(table.has_default), table.level as u64);
    let rows = table.rows.rows();
    for (row, meaning) in rows.filter_map(|row| Some((row, table.rows.meaning(row)?))) {
        let content = *known.entry(meaning).or_insert_with(|| {
            let of_row = rules.limit(LimitId::new(limit.id.domain, meaning.limit));
            let (mode, policy) = (meaning.shadow_mode, meaning.on_store_failure);
            let own = (meaning.amount, mode, policy);
            mix(of_fields(rules, of_row), short([format!("{own:?}")]))
        });
        let name = table.rows.name(row).unwrap_or_default();
        let own = short([table.rows.value(row), name.as_bytes()]);
        sum = sum.wrapping_add(mix(own, content));
    }
    sum
}

#[cfg(test)]
mod tests {
    use crate::limits::rules::Rules;
    use crate::limits::rules::compile::{Options, SourceText, compile, rules_of};
    use crate::limits::rules::diff::Difference;

    const LIMITS: &str = "
domain: d
descriptors:
- key: user
  value: a*
  rate_limit: { unit: day, requests_per_unit: 1 }
- key: user
  value: b*
  rate_limit: { unit: day, requests_per_unit: 2 }
- key: user
  value: '*c'
  rate_limit: { unit: day, requests_per_unit: 3, name: x, replaces: [{ name: y }, { name: z }] }
- key: address
  match: cidr
  values: [10.0.0.0/8, 10.1.0.0/16]
  descriptors:
  - key: path
    rate_limit: { unit: day, requests_per_unit: 4, name: y }
- key: set
  match: set
  values: [one, two]
  rate_limit: { unit: day, requests_per_unit: 5, name: z, algorithm: token_bucket, burst: 9 }
- key: host
  match: regex
  value: 'a.*'
  rate_limit: { unit: day, requests_per_unit: 6 }
- key: host
  value: none
";

    fn rules(texts: &[(&str, &str)]) -> Rules {
        let file = |(name, text): &(&str, &str)| SourceText {
            name: (*name).to_owned(),
            text: (*text).into(),
        };
        let files: Vec<_> = texts.iter().map(file).collect();
        let options = Options {
            merge_domains: true,
            ..Options::default()
        };
        let compiled = compile(&files, &options).expect("limits without an error");
        compiled.rules
    }

    fn files(texts: &[(&str, &str)]) -> String {
        rules(texts).digest()
    }

    #[test]
    fn spelling_and_order_without_a_meaning_change_nothing() {
        let digest = files(&[("a.yaml", LIMITS)]);
        assert!(digest.len() == 16 && digest != files(&[("a.yaml", "domain: e\n")]));
        let (head, _) = LIMITS.split_once("- key").expect("descriptors");
        let branches: Vec<_> = LIMITS[head.len()..]
            .split("\n- key")
            .map(|branch| format!("- key{}\n", branch.trim_start_matches("- key")))
            .collect();
        let of = |order: &[usize]| {
            let all = order.iter().map(|branch| branches[*branch].as_str());
            format!("{head}{}", all.collect::<String>())
        };
        for same in [
            LIMITS.replace(
                "unit: day, requests_per_unit: 1",
                "requests_per_unit: 1, unit: day",
            ),
            LIMITS.replace("- key: set", "# A comment.\n- key: \"set\""),
            LIMITS.replace("[one, two]", "[two, one]"),
            LIMITS.replace("[10.0.0.0/8, 10.1.0.0/16]", "[10.1.0.0/16, 10.0.0.0/8]"),
            LIMITS.replace("[{ name: y }, { name: z }]", "[{ name: z }, { name: y }]"),
            LIMITS.replace(
                "requests_per_unit: 6",
                "requests_per_unit: 6, count_denied: true",
            ),
            // No value begins with a and with b.
            of(&[1, 0, 2, 3, 4, 5, 6]),
            of(&[4, 5, 0, 3, 6, 1, 2]),
        ] {
            assert_eq!(files(&[("b.yaml", &same)]), digest, "{same}");
        }
        let (one, two) = (of(&[0, 1, 2]), of(&[3, 4, 5, 6]));
        for order in [[("a", &one), ("b", &two)], [("a", &two), ("b", &one)]] {
            let order = order.map(|(name, text)| (name, text.as_str()));
            assert_eq!(files(&order), digest);
        }
    }

    #[test]
    fn everything_that_decides_changes_it() {
        let digest = files(&[("a.yaml", LIMITS)]);
        let mut seen = std::collections::HashSet::from([digest]);
        let before = rules(&[("a.yaml", LIMITS)]);
        for (old, new) in [
            ("domain: d", "domain: e"),
            ("domain: d", "domain: d\ncommit: all_or_none"),
            (
                "domain: d",
                "domain: d\ndefaults: { on_store_failure: deny }",
            ),
            ("requests_per_unit: 4", "requests_per_unit: 40"),
            ("burst: 9", "burst: 8"),
            ("value: a*", "value: aa*"),
            ("value: a*", "value: a"),
            ("value: a*", "value: a*\n  share_threshold: true"),
            ("value: a*", "value: a*\n  shadow_mode: true"),
            // A value that begins with b and ends in c finds another limit.
            ("value: b*", "value: '*b'"),
            ("[one, two]", "[one, three]"),
            ("/16]", "/17]"),
            ("'a.*'", "'b.*'"),
            ("value: none", "value: any"),
            ("- key: path", "- key: route"),
            (", { name: z }", ""),
        ] {
            let text = LIMITS.replacen(old, new, 1);
            let changed = rules(&[("a.yaml", &text)]);
            assert!(seen.insert(changed.digest()), "{old} -> {new}");
            let difference = Difference::new(&before, &changed);
            assert!(!difference.is_empty(), "{old} -> {new}");
        }
        let patterns = |first: &str, second: &str| {
            let limit = "rate_limit: { unit: day, requests_per_unit: ";
            rules_of(&format!(
                "domain: d\ndescriptors:\n- {{ key: k, value: {first}, {limit}1 }} }}\n\
                 - {{ key: k, value: {second}, {limit}1 }} }}\n"
            ))
        };
        for (one, other) in [("a*", "'*b'"), ("ab*", "a*b*"), ("'*a*'", "'*b*'")] {
            let [before, after] = [patterns(one, other), patterns(other, one)];
            assert_ne!(before.digest(), after.digest(), "{one} {other}");
            let difference = Difference::new(&before, &after);
            assert_eq!(difference.changed.len(), 1, "{difference:?}");
            assert_eq!(difference.limits().count(), 0, "no limit differs");
        }
        for (one, other) in [("ab*", "ac*"), ("'*.a'", "'*.b'")] {
            let [before, after] = [patterns(one, other), patterns(other, one)];
            assert_eq!(before.digest(), after.digest());
            assert!(Difference::new(&before, &after).is_empty());
        }
    }

    #[test]
    fn an_added_limit_hides_neither_an_order_nor_a_path_without_a_limit() {
        let rule = |key: &str| {
            format!("- {{ {key}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n")
        };
        let [a, b, added] = ["key: k, value: a*", "key: k, value: '*b'", "key: new"].map(rule);
        let free = "- { key: k, value: ab }\n".to_owned();
        let of = |parts: &[&String]| {
            let parts: String = parts.iter().map(|part| part.as_str()).collect();
            rules_of(&format!("domain: d\ndescriptors:\n{parts}"))
        };
        for (parts, changed) in [
            (&[&a, &b, &added][..], 0),
            (&[&added, &a, &b], 0),
            (&[&b, &a, &added], 1),
            (&[&a, &b, &free, &added], 1),
            // A limit at the end of the path.
            (
                &[
                    &a,
                    &b,
                    &free.replace(" }", ", rate_limit: { unlimited: true } }"),
                ],
                0,
            ),
        ] {
            let difference = Difference::new(&of(&[&a, &b]), &of(parts));
            assert_eq!(difference.added.len(), 1, "{difference:?}");
            assert_eq!(difference.changed.len(), changed, "{difference:?}");
        }
    }

    #[test]
    fn rows_count_and_their_order_does_not() {
        let limits = "domain: d\nplans: { gold: { unit: day, requests_per_unit: 9 } }\n\
                      descriptors: [{ key: k, table: rows.csv }]\n";
        let digest = |name: &str, rows: &str| {
            let limits = limits.replace("rows.csv", name);
            files(&[
                ("a.yaml", &limits),
                (name, &format!("value,plan,requests_per_unit\n{rows}")),
            ])
        };
        let first = digest("rows.csv", "a,gold,\nb,gold,5\n");
        assert_eq!(first, digest("other.csv", "b,gold,5\na,gold,\n"));
        for other in [
            "a,gold,\n",
            "a,gold,\nb,gold,6\n",
            "a,gold,5\nb,gold,\n",
            "a,gold,\nc,gold,5\n",
        ] {
            assert_ne!(first, digest("rows.csv", other), "{other}");
        }
    }
}
