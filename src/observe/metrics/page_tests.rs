//! The tables of `deploy/metrics.md` are made of the declarations of the families.

use super::families::{self, ALL, Family};
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
    let position = |first: &Family| ALL.iter().position(|family| **family == *first);
    let starts = TABLES.map(|(_, first)| position(first).expect("a family"));
    assert!(starts[0] == 0 && starts.is_sorted(), "{starts:?}");
    let ends = starts.iter().skip(1).copied().chain([ALL.len()]);
    for ((name, _), (start, end)) in TABLES.iter().zip(starts.into_iter().zip(ends)) {
        let rows: String = ALL[start..end].iter().map(|family| row(family)).collect();
        assert_written(
            "deploy/metrics.md",
            Some(&format!("metrics-{name}")),
            &format!("| metric | type | meaning |\n|---|---|---|\n{rows}"),
            "--lib metrics::page_tests",
        );
    }
}
