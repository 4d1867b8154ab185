//! `deploy/monitoring`: the dashboards ask for metrics that real processes have, and the alerts
//! fire on recorded failures only.

mod live;
mod promql;
mod recorded;

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use super::{documents, items, printed, run, text};
use crate::support::tools;
use promql::Query;

const FOLDER: &str = "deploy/monitoring";

/// The page with a section for each alert.
const RUNBOOKS: &str = "deploy/runbooks.md";

/// Its sections that are not about one alert.
const OTHER_SECTIONS: [&str; 2] = ["Contents", "Symptoms without an alert"];

/// Every rule of alerts.yaml.
fn alerts() -> Vec<Value> {
    let file = documents(&format!("{FOLDER}/alerts.yaml")).remove(0);
    items(&file, "/groups")
        .iter()
        .flat_map(|group| items(group, "/rules").to_vec())
        .collect()
}

fn names_of_alerts() -> BTreeSet<String> {
    alerts()
        .iter()
        .map(|alert| text(alert, "/alert").to_owned())
        .collect()
}

/// Every dashboard, with its file name.
fn dashboards() -> Vec<(String, Value)> {
    let folder = tools::repository().join(FOLDER).join("dashboards");
    let files = std::fs::read_dir(folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = files
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 4, "{names:?}");
    let read = |name: String| {
        let json: Value =
            serde_json::from_str(&tools::file(&format!("{FOLDER}/dashboards/{name}")))
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, json)
    };
    names.into_iter().map(read).collect()
}

/// The panels that show something.
fn panels(dashboard: &Value) -> Vec<&Value> {
    items(dashboard, "/panels")
        .iter()
        .filter(|panel| panel["type"] != "row")
        .collect()
}

/// The queries of the panels, each with the place that a failure names.
fn panel_queries() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            for target in items(panel, "/targets") {
                found.push((
                    format!("{name}: {}", text(panel, "/title")),
                    text(target, "/expr").to_owned(),
                ));
            }
        }
    }
    assert!(found.len() > 80, "{}", found.len());
    found
}

#[test]
fn the_dashboards_are_what_their_script_writes() {
    let mut python = Command::new("python3");
    python.args(["dashboards.py", "--check"]);
    python.current_dir(tools::repository().join(FOLDER));
    let output = python.output().expect("python3 runs");
    assert!(output.status.success(), "{}", printed(&output));
}

/// Prometheus's own parser reads each query of a panel, as the expression of a recording rule, the
/// alerts, and the configuration that a page shows.
#[test]
fn every_query_and_every_rule_is_promql() {
    let folder = tempfile::tempdir().expect("a folder");
    let write =
        |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    let promtool = |arguments: &[&str]| run(&tools::promtool(), arguments, folder.path());
    let rules = panel_queries().into_iter().enumerate().map(|(index, (_, query))| {
        json!({"record": format!("query:{index}"), "expr": query.replace("$__rate_interval", "1m")})
    });
    let rules = json!({"groups": [{"name": "panels", "rules": rules.collect::<Vec<_>>()}]});
    write("queries.yaml", &rules.to_string());
    promtool(&["check", "rules", "queries.yaml"]);

    write("alerts.yaml", &tools::file("deploy/monitoring/alerts.yaml"));
    let page = tools::file("deploy/metrics.md");
    let mut blocks = page
        .split("```yaml\n")
        .filter(|block| block.starts_with("rule_files:"));
    let shown = blocks.next().and_then(|block| block.split("```").next());
    write("prometheus.yml", shown.expect("a configuration"));
    let output = promtool(&["check", "config", "prometheus.yml"]);
    let found = format!("{} rules found", alerts().len());
    assert!(output.contains(&found), "no {found} in {output}");
}

/// Text in front of the groups of alerts.yaml in the object of the Prometheus operator.
const RULE: &str = "\
# The alerts of alerts.yaml as an object of the Prometheus operator. This file is generated: after \
    a change of alerts.yaml,
# `WEIR_WRITE=1 cargo test --test it -- the_rule_of_the_operator` writes it anew.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: ratelimit
  labels: { app.kubernetes.io/name: weir, app.kubernetes.io/component: service }
spec:
  groups:
";

#[test]
#[expect(clippy::disallowed_methods, reason = "tells whether to write the file")]
fn the_rule_of_the_operator_has_the_alerts_of_the_file() {
    let alerts = tools::file("deploy/monitoring/alerts.yaml");
    let (_, groups) = alerts.split_once("\ngroups:\n").expect("groups");
    let lines = groups.lines().map(|line| {
        if line.is_empty() {
            "\n".to_owned()
        } else {
            format!("  {line}\n")
        }
    });
    let generated = format!("{RULE}{}", lines.collect::<String>());
    let path = "deploy/monitoring/prometheusrule.yaml";
    if std::env::var_os("WEIR_WRITE").is_some() {
        std::fs::write(tools::repository().join(path), &generated).expect("written");
    }
    assert!(
        generated == tools::file(path),
        "{path} is not made of alerts.yaml; its first lines say how to write it"
    );
}

/// Names, labels, label values and legends, against processes of both stores to which everything
/// has happened.
#[test]
fn every_panel_asks_for_what_real_processes_have() {
    let scrape = live::eventful();
    for (place, query) in panel_queries() {
        promql::check(&Query::parse(&query), &scrape)
            .unwrap_or_else(|problem| panic!("{place}: {problem}\n{query}"));
    }
    for (file, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            for target in items(panel, "/targets") {
                let query = Query::parse(text(target, "/expr"));
                for label in promql::legend_labels(text(target, "/legendFormat")) {
                    assert!(
                        query.groups_by(&label),
                        "{file}: the legend of {} has {label}, its query has not",
                        panel["title"]
                    );
                }
            }
        }
        for variable in items(&dashboard, "/templating/list")
            .iter()
            .filter(|variable| variable["type"] == "query")
        {
            let definition = text(variable, "/definition");
            let (selector, label) = definition
                .strip_prefix("label_values(")
                .and_then(|rest| rest.strip_suffix(')')?.rsplit_once(", "))
                .expect("a query");
            let query = Query::parse(selector);
            promql::check(&query, &scrape)
                .unwrap_or_else(|problem| panic!("{file}: {definition}: {problem}"));
            let is_known = promql::is_of_the_target(label)
                || scrape.has_label(&query.selectors[0].metric, label);
            assert!(is_known, "{file}: {definition}");
        }
    }
    for (query, problem) in [
        (
            "rate(weir_nothing_total[1m])",
            "no metric weir_nothing_total",
        ),
        (
            "sum(weir_connections{worker=\"0\"})",
            "weir_connections has no label worker",
        ),
        (
            "sum by (worker) (weir_connections)",
            "no metric of the query has the label worker",
        ),
        (
            "weir_outage_answers_total{policy=~\"allow|admit\"}",
            "weir_outage_answers_total has never had policy=admit",
        ),
    ] {
        assert_eq!(
            promql::check(&Query::parse(query), &scrape),
            Err(problem.to_owned())
        );
    }
}

/// An alert must not wait for the first failure to have its series: a counter that begins with 1
/// has no increase.
#[test]
fn every_alert_has_its_series_from_the_first_scrape() {
    let scrape = live::fresh();
    for alert in alerts() {
        let query = Query::parse(text(&alert, "/expr"));
        promql::check(&query, &scrape)
            .unwrap_or_else(|problem| panic!("{}: {problem}", alert["alert"]));
        assert!(!query.selectors.is_empty(), "{}", alert["alert"]);
    }
}

#[test]
fn every_alert_has_its_runbook() {
    let runbooks = tools::file(RUNBOOKS);
    let titles: BTreeSet<_> = runbooks
        .split("\n## ")
        .skip(1)
        .filter_map(|section| section.lines().next())
        .filter(|title| !OTHER_SECTIONS.contains(title))
        .map(str::to_owned)
        .collect();
    assert_eq!(titles, names_of_alerts(), "sections and alerts");
    for alert in alerts() {
        let name = text(&alert, "/alert");
        assert_eq!(
            text(&alert, "/annotations/runbook_url"),
            format!("{RUNBOOKS}#{}", name.to_lowercase())
        );
    }
}
