//! The tables of `deploy/metrics.md` are made of the declarations of the families.

use std::collections::BTreeSet;

use super::all_families;
use super::families::{self, Family, MetricType};
use crate::testing::assert_written;

/// Tables of the page, by name and first family, in the order of the declarations.
const TABLES: [(&str, &Family); 8] = [
    ("requests", &families::TOTAL_REQUESTS),
    ("limits", &families::TOTAL_HITS),
    ("overrides", &families::OVERRIDE_DECISIONS),
    ("stores", &families::STORE_ERRORS),
    ("redis", &families::REDIS_CONNECTIONS_OPEN),
    ("configuration", &families::CONFIG_LOAD_SUCCESS),
    ("control-plane", &families::XDS_CONNECTED),
    ("process", &families::BUILD_INFO),
];

/// A row of a table: name with labels, type, and help text.
fn row(family: &Family) -> String {
    let labels = match family.labels {
        [] => String::new(),
        labels => format!("{{{}}}", labels.join(",")),
    };
    let help = family.help.replace('|', "\\|");
    format!(
        "| `{}{labels}` | {} | {help} |\n",
        family.name,
        family.metric_type.name()
    )
}

#[test]
fn the_page_of_metrics_has_every_family() {
    let all: Vec<_> = all_families().collect();
    let position = |first: &Family| all.iter().position(|family| **family == *first);
    let starts = TABLES.map(|(_, first)| position(first).expect("a family"));
    assert!(starts[0] == 0 && starts.is_sorted(), "{starts:?}");
    let ends = starts.iter().skip(1).copied().chain([all.len()]);
    for ((name, _), (start, end)) in TABLES.iter().zip(starts.into_iter().zip(ends)) {
        let rows: String = all[start..end].iter().map(|family| row(family)).collect();
        assert_written(
            "deploy/metrics.md",
            Some(&format!("metrics-{name}")),
            &format!("| metric | type | meaning |\n|---|---|---|\n{rows}"),
            "--lib metrics::page_tests",
        );
    }
}

#[test]
fn names_are_unique_and_well_formed() {
    let names: BTreeSet<_> = all_families().map(|family| family.name).collect();
    assert_eq!(names.len(), all_families().count());
    for Family {
        name,
        metric_type,
        labels,
        help,
    } in all_families()
    {
        assert!(
            ["weir_", "ratelimit_", "process_"]
                .iter()
                .any(|prefix| name.starts_with(prefix)),
            "{name}"
        );
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
            "{name}"
        );
        let is_total = name.ends_with("_total");
        assert!(
            !name.starts_with("weir_") || is_total == (*metric_type == MetricType::Counter),
            "{name}: a counter ends in _total"
        );
        assert!(
            help.ends_with('.') && !help.contains("  "),
            "{name}: {help}"
        );
        assert_eq!(
            labels.iter().collect::<BTreeSet<_>>().len(),
            labels.len(),
            "{name}"
        );
    }
}
