use super::*;
use crate::ask::Entry as AskEntry;
use crate::rules::Commit;
use crate::rules::Lookup;
use crate::rules::compile::ProcessDefaults;
use crate::rules::resource::{Descriptor, Policy};

const MINUTE: i32 = 2;

fn per_minute(requests_per_unit: u32) -> Option<Policy> {
    Some(Policy { unit: MINUTE, requests_per_unit, ..Policy::default() })
}

fn node(key: &str, value: &str, rate_limit: Option<Policy>) -> Descriptor {
    Descriptor { key: key.into(), value: value.into(), rate_limit, ..Descriptor::default() }
}

fn resource(name: &str, domain: &str, descriptors: Vec<Descriptor>) -> Resource {
    Resource { name: name.into(), domain: domain.into(), descriptors }
}

/// A domain of the same name with one limit.
fn one(name: &str, requests: u32) -> Resource {
    resource(name, name, vec![node("user", "", per_minute(requests))])
}

fn broken(name: &str) -> Resource {
    resource(name, name, vec![node("user", "", Some(Policy::default()))])
}

/// What a descriptor finds: the hits of its limit.
fn found(rules: &Rules, domain: &str, entries: &[(&str, &str)]) -> Result<Option<u32>, &'static str> {
    let entries: Vec<_> = entries.iter().map(|(key, value)| AskEntry { key: key.as_bytes(), value: value.as_bytes() }).collect();
    match rules.find(domain.as_bytes(), &entries) {
        Lookup::UnknownDomain => Err("unknown domain"),
        Lookup::NoLimit => Ok(None),
        Lookup::Limit(limit) => {
            assert!(std::ptr::eq(rules.limit(limit.id), limit), "the id leads to the limit");
            Ok(limit.amount.map(|amount| amount.rate.requests_per_unit))
        }
    }
}

fn user(rules: &Rules, domain: &str) -> Result<Option<u32>, &'static str> {
    found(rules, domain, &[("user", "ann")])
}

fn texts(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

#[test]
fn a_list_is_everything_and_an_equal_one_changes_nothing() {
    let (mut domains, settings) = (Domains::default(), XdsOptions::default());
    let rules = domains.apply(Vec::new(), &settings).rules.expect("the first list has rules, also without domains");
    assert_eq!(user(&rules, "a"), Err("unknown domain"));
    let applied = domains.apply(vec![one("b", 2), one("a", 1)], &settings);
    assert_eq!((applied.added, applied.compiled), (vec!["a".to_owned(), "b".to_owned()], 2));
    let rules = applied.rules.expect("rules");
    assert_eq!((user(&rules, "a"), user(&rules, "b")), (Ok(Some(1)), Ok(Some(2))));
    let applied = domains.apply(vec![one("a", 1), one("b", 2)], &settings);
    assert!(applied.rules.is_none() && applied.compiled == 0 && applied.refused.is_empty(), "{applied:?}");
    let applied = domains.apply(vec![one("c", 3), one("b", 5)], &settings);
    assert_eq!(
        (&*applied.added, &*applied.changed, &*applied.removed),
        (&["c".to_owned()][..], &["b".to_owned()][..], &["a".to_owned()][..])
    );
    let rules = applied.rules.expect("rules");
    assert_eq!((user(&rules, "a"), user(&rules, "b"), user(&rules, "c")), (Err("unknown domain"), Ok(Some(5)), Ok(Some(3))));
    let applied = domains.apply(Vec::new(), &settings);
    assert_eq!(applied.removed, ["b", "c"]);
    assert_eq!(applied.rules.expect("rules").limit_count(), 0);
    assert_eq!(domains.in_force().count(), 0);
}

#[test]
fn a_bad_domain_keeps_its_last_good_version_or_is_absent_and_the_others_apply() {
    let (mut domains, settings) = (Domains::default(), XdsOptions::default());
    domains.apply(vec![one("a", 1), one("b", 1)], &settings);
    let applied = domains.apply(vec![one("a", 2), broken("b"), broken("c")], &settings);
    let rules = applied.rules.expect("rules");
    assert_eq!((user(&rules, "a"), user(&rules, "b"), user(&rules, "c")), (Ok(Some(2)), Ok(Some(1)), Err("unknown domain")));
    let refused: Vec<_> = applied.refused.iter().map(|refused| (&*refused.domain, refused.keeps_old, refused.is_new)).collect();
    assert_eq!(refused, [("b", true, true), ("c", false, true)]);
    assert_eq!(
        texts(&applied.refused[0].problems),
        "resource b: user: error: the rate_limit has no unit; write one of second, minute, hour, day, week, month, year\n"
    );
    let names = |domains: &Domains| domains.in_force().map(|resource| resource.descriptors[0].rate_limit.clone()).collect::<Vec<_>>();
    assert_eq!(names(&domains), [per_minute(2), per_minute(1)], "the good version is what a cache keeps");
    // Again: the same refusals, which are not new, and nothing is compiled.
    let applied = domains.apply(vec![broken("c"), broken("b"), one("a", 2)], &settings);
    assert!(applied.rules.is_none() && applied.compiled == 0);
    assert!(applied.refused.iter().all(|refused| !refused.is_new && !refused.problems.is_empty()) && applied.refused.len() == 2);
    // Corrected, as it was before: its old version is in force already, and it counts as changed.
    let applied = domains.apply(vec![one("a", 2), one("b", 1), one("c", 3)], &settings);
    let rules = applied.rules.expect("rules");
    assert_eq!((user(&rules, "b"), user(&rules, "c"), applied.refused.len()), (Ok(Some(1)), Ok(Some(3)), 0));
    // A domain that is gone is forgotten, with its good version.
    domains.apply(vec![one("c", 3)], &settings);
    let applied = domains.apply(vec![broken("b"), one("c", 3)], &settings);
    assert!(!applied.refused[0].keeps_old && applied.rules.is_none());
}

#[test]
fn one_change_among_a_thousand_domains_compiles_one_and_shares_the_others() {
    let list = |requests: u32| -> Vec<_> {
        let nodes = |domain: u32| {
            (0..100).map(|index| node("user", &index.to_string(), per_minute(if domain == 500 { requests } else { 1 }))).collect()
        };
        (0..1_000).map(|domain| resource(&format!("d{domain}"), &format!("d{domain}"), nodes(domain))).collect()
    };
    let (mut domains, settings) = (Domains::default(), XdsOptions::default());
    let applied = domains.apply(list(1), &settings);
    let before = applied.rules.expect("rules");
    assert_eq!((applied.compiled, before.limit_count()), (1_000, 100_000));
    let applied = domains.apply(list(2), &settings);
    let after = applied.rules.expect("rules");
    assert_eq!((applied.compiled, applied.changed.as_slice()), (1, &["d500".to_owned()][..]));
    assert_eq!(after.by_number().iter().filter(|domain| before.shares(domain)).count(), 999);
    assert_eq!(found(&after, "d500", &[("user", "7")]), Ok(Some(2)));
    assert_eq!(found(&after, "d501", &[("user", "7")]), Ok(Some(1)));
    let difference = crate::rules::diff::Difference::new(&before, &after);
    assert_eq!((difference.added.len(), difference.removed.len(), difference.changed.len()), (0, 0, 100));
}

/// What the settings of the process say for all limits holds for those of a control plane too, and a change of it compiles all domains.
#[test]
fn defaults_of_the_process_apply_to_every_domain() {
    let (mut domains, mut settings) = (Domains::default(), XdsOptions::default());
    let rules = domains.apply(vec![one("a", 1)], &settings).rules.expect("rules");
    assert_eq!(rules.commit(b"a"), Some(Commit::Each));
    settings.process = ProcessDefaults { commit: Commit::AllOrNone, calendar_months: true };
    let applied = domains.apply(vec![one("a", 1)], &settings);
    assert_eq!((applied.compiled, applied.rules.expect("rules").commit(b"a")), (1, Some(Commit::AllOrNone)));
}
