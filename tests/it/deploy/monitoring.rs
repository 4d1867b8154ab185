//! `deploy/monitoring`: the dashboards ask for metrics that real processes have, and the alerts
//! fire on recorded failures only.

mod live;
mod promql;
mod recorded;

use std::collections::BTreeSet;
use std::path::Path;
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

/// The script of the dashboards finds a file that was edited, one that is missing, and one that it
/// does not write.
#[test]
fn the_dashboards_are_what_their_script_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = tools::repository().join(FOLDER);
    let python = |folder: &Path, arguments: &[&str]| {
        let mut python = Command::new("python3");
        python.arg("dashboards.py").args(arguments);
        python.current_dir(folder).output().expect("python3 runs")
    };
    let output = python(&own, &["--check"]);
    assert!(output.status.success(), "{}", printed(&output));
    for file in ["dashboards.py", "grafana.py"] {
        std::fs::copy(own.join(file), folder.path().join(file)).expect("copied");
    }
    assert!(python(folder.path(), &[]).status.success());
    let file = |name: &str| folder.path().join("dashboards").join(name);
    std::fs::write(file("overview.json"), "{}").expect("written");
    std::fs::remove_file(file("redis.json")).expect("removed");
    std::fs::write(file("other.json"), "{}").expect("written");
    let output = python(folder.path(), &["--check"]);
    let named = printed(&output);
    let is_named = named
        .trim()
        .ends_with(": overview.json, redis.json, other.json");
    assert!(!output.status.success() && is_named, "{named}");
}

/// What a dashboard needs to work in a Grafana that knows nothing of it.
#[test]
fn dashboards_fit_any_grafana_and_explain_each_panel() {
    for (file, dashboard) in dashboards() {
        // Grafana 10.0 has this schema; newer ones convert it.
        assert_eq!(dashboard["schemaVersion"], 38, "{file}");
        assert!(
            dashboard.get("uid").is_none() && dashboard.get("id").is_none(),
            "{file}: Grafana chooses them"
        );
        let all = dashboard.to_string();
        assert_eq!(
            all.matches("\"uid\":").count(),
            all.matches("\"uid\":\"${datasource}\"").count(),
            "{file}: a fixed data source"
        );
        let variables: BTreeSet<_> = items(&dashboard, "/templating/list")
            .iter()
            .map(|variable| text(variable, "/name"))
            .collect();
        assert!(
            ["datasource", "job", "namespace", "pod"]
                .iter()
                .all(|name| variables.contains(name)),
            "{file}: {variables:?}"
        );

        let mut occupied = BTreeSet::new();
        let mut titles = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for panel in items(&dashboard, "/panels") {
            assert!(
                ids.insert(panel["id"].to_string()),
                "{file}: two panels have one id"
            );
            let [x, y, width, height] = ["x", "y", "w", "h"]
                .map(|field| panel["gridPos"][field].as_u64().expect("a number"));
            assert!(x + width <= 24, "{file}: {panel:#}");
            for cell in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
                assert!(
                    occupied.insert(cell),
                    "{file}: {} covers another panel",
                    panel["title"]
                );
            }
        }
        for panel in panels(&dashboard) {
            let title = text(panel, "/title");
            assert!(titles.insert(title), "{file}: two panels {title}");
            assert!(
                text(panel, "/description").contains("\n\nGood: "),
                "{file}: {title} does not say what good looks like"
            );
            assert!(
                panel.pointer("/fieldConfig/defaults/unit").is_some(),
                "{file}: {title} has no unit"
            );
            for target in items(panel, "/targets") {
                let query = text(target, "/expr");
                for variable in promql::variables(query) {
                    let known = variables.contains(&*variable) || variable == "__rate_interval";
                    assert!(known, "{file}: {title} asks for ${variable}");
                }
                let chosen = query.contains(r#"job=~"$job",namespace=~"$namespace",pod=~"$pod""#)
                    || query.contains("ALERTS{");
                assert!(chosen, "{file}: {title} ignores the variables: {query}");
            }
        }
    }
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

/// A severity that depends on the failure policy.
const OF_POLICY: &str = r#"{{ if eq $labels.policy "deny" }}critical{{ else }}warning{{ end }}"#;

#[test]
fn every_alert_says_what_it_means_and_has_its_runbook() {
    let runbooks = tools::file(RUNBOOKS);
    let sections: Vec<(&str, &str)> = runbooks
        .split("\n## ")
        .skip(1)
        .filter_map(|section| section.split_once('\n'))
        .filter(|(title, _)| !OTHER_SECTIONS.contains(title))
        .collect();
    let titles: BTreeSet<_> = sections
        .iter()
        .map(|(title, _)| (*title).to_owned())
        .collect();
    assert_eq!(titles, names_of_alerts(), "sections and alerts");
    for (title, section) in &sections {
        let mut rest = *section;
        for part in ["**Meaning.** ", "**Look at.** ", "**Do.**"] {
            (_, rest) = rest
                .split_once(part)
                .unwrap_or_else(|| panic!("{title} has no {part} in its place"));
            assert!(rest.trim_start().len() > 40, "{title}: {part} is empty");
        }
    }
    for alert in alerts() {
        let name = text(&alert, "/alert");
        let severity = match text(&alert, "/labels/severity") {
            fixed @ ("critical" | "warning") => fixed,
            OF_POLICY => "warning, critical with `deny`",
            other => panic!("{name} has the severity {other}"),
        };
        assert!(
            text(&alert, "/annotations/summary").len() < 80
                && text(&alert, "/annotations/description").len() > 40,
            "{name}"
        );
        assert_eq!(
            text(&alert, "/annotations/runbook_url"),
            format!("{RUNBOOKS}#{}", name.to_lowercase())
        );
        let row = format!("| [{name}](#{}) | {severity} |", name.to_lowercase());
        assert!(runbooks.contains(&row), "{RUNBOOKS} has no row {row}");
    }
}

/// A panel in quotation marks is one that a dashboard has.
#[test]
fn the_runbooks_name_real_panels() {
    let dashboards = dashboards();
    let titles: BTreeSet<_> = dashboards
        .iter()
        .flat_map(|(_, dashboard)| panels(dashboard))
        .map(|panel| text(panel, "/title"))
        .collect();
    let runbooks = tools::file(RUNBOOKS);
    let prose: String = runbooks.split('`').step_by(2).collect();
    let quoted: Vec<_> = prose
        .split('"')
        .skip(1)
        .step_by(2)
        .map(|title| title.replace('\n', " "))
        .collect();
    assert!(quoted.len() > 20, "{quoted:?}");
    for title in quoted {
        assert!(
            titles.contains(&*title),
            "no dashboard has a panel {title:?}"
        );
    }
}

/// The picture in the page is drawn by tests/monitoring/picture.py from the overview; its numbers
/// are those of one run.
#[test]
fn the_picture_of_the_overview_has_its_panels() {
    assert!(tools::file("deploy/metrics.md").contains("](monitoring/overview.svg)"));
    let picture = tools::file("deploy/monitoring/overview.svg");
    let (_, overview) = dashboards()
        .into_iter()
        .find(|(file, _)| file == "overview.json")
        .expect("an overview");
    for panel in items(&overview, "/panels") {
        let title = format!(">{}</text>", text(panel, "/title"));
        assert!(
            picture.contains(&title),
            "{title} is not in the picture: draw it again, tests/monitoring/picture.py says how"
        );
    }
    assert!(
        !picture.contains("no data") && picture.matches("<polyline").count() > 20,
        "the picture shows a real run"
    );
}
