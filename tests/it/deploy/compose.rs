//! `deploy/compose.yaml`: what it names exists and agrees. The workflow `tests` starts all of it in
//! containers, asks as the README does, and asks Prometheus what it saw.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::{at, documents, image, items, text};
use crate::support::{envoy, tools};

const FILE: &str = "deploy/compose.yaml";

/// The address of another process that belongs to none of the services, by its form: a loopback
/// address, or all interfaces.
const NO_SERVICE: [&str; 4] = ["localhost", "127.0.0.1", "0.0.0.0", "::1"];

fn services(compose: &Value) -> BTreeMap<&str, &Value> {
    at(compose, "/services")
        .as_object()
        .expect("services")
        .iter()
        .map(|(name, service)| (name.as_str(), service))
        .collect()
}

/// A list that a service may lack.
fn list<'a>(service: &'a Value, name: &str) -> Vec<&'a str> {
    let items = service
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    items
        .iter()
        .map(|item| item.as_str().unwrap_or_else(|| panic!("{item} is no text")))
        .collect()
}

/// What a service mounts: the path on this machine, and the one in the container.
fn mounts(service: &Value) -> Vec<(PathBuf, &str)> {
    let volumes = list(service, "volumes").into_iter().map(|volume| {
        match volume.split(':').collect::<Vec<_>>()[..] {
            [source, target, "ro"] => (tools::repository().join("deploy").join(source), target),
            _ => panic!("{volume} is not SOURCE:TARGET:ro"),
        }
    });
    volumes.collect()
}

/// The services that must be healthy before this one starts.
fn dependencies(service: &Value) -> Vec<&str> {
    let named = service.get("depends_on").and_then(Value::as_object);
    named.map_or_else(Vec::new, |named| named.keys().map(String::as_str).collect())
}

/// All services, each after those that it depends on.
fn start_order<'a>(services: &BTreeMap<&'a str, &'a Value>) -> Vec<&'a str> {
    let mut order: Vec<&str> = Vec::new();
    while order.len() < services.len() {
        let is_next = |name: &&&str| {
            !order.contains(*name)
                && dependencies(services[**name])
                    .iter()
                    .all(|other| order.contains(other))
        };
        let next = services.keys().find(is_next).unwrap_or_else(|| {
            panic!("services wait for each other: after {order:?} none can start")
        });
        order.push(next);
    }
    order
}

/// The command of the health check.
fn check(service: &Value) -> Vec<String> {
    let test: Vec<_> = list(at(service, "/healthcheck"), "test")
        .into_iter()
        .map(str::to_owned)
        .collect();
    assert_eq!(
        test[0], "CMD",
        "a command that runs as it stands there, without a shell of the image"
    );
    test[1..].to_vec()
}

fn seconds(value: &Value) -> u64 {
    value
        .as_str()
        .and_then(|text| text.strip_suffix('s')?.parse().ok())
        .unwrap_or_else(|| panic!("{value} is not of the form 2s"))
}

/// Whether a tag names one version, such as `v3.13.3` or `7.4.11-bookworm`, and not the latest of
/// several.
fn is_exact(tag: &str) -> bool {
    let version = tag
        .trim_start_matches('v')
        .split('-')
        .next()
        .unwrap_or_default();
    version.split('.').count() == 3
        && version
            .split('.')
            .all(|number| number.parse::<u32>().is_ok())
}

#[test]
fn every_service_is_pinned_and_confined() {
    let compose = documents(FILE).remove(0);
    let services = services(&compose);
    assert_eq!(
        services.keys().copied().collect::<Vec<_>>(),
        [
            "application",
            "envoy",
            "grafana",
            "prometheus",
            "redis",
            "weir"
        ]
    );
    for (name, service) in &services {
        let image = text(service, "/image");
        let (_, tag) = image
            .split_once(':')
            .unwrap_or_else(|| panic!("{name}: {image} has no tag"));
        assert!(is_exact(tag), "{name}: {image} is not one version");
        assert_eq!(list(service, "cap_drop"), ["ALL"], "{name}");
        assert_eq!(
            list(service, "security_opt"),
            ["no-new-privileges:true"],
            "{name}"
        );
        for (source, target) in mounts(service) {
            assert!(
                source.exists(),
                "{name} mounts {}, which does not exist",
                source.display()
            );
            assert!(target.starts_with('/'), "{name}: {target}");
        }
    }
    for (tag, exact) in [
        ("v1.40.0", true),
        ("7.4.11-bookworm", true),
        ("7", false),
        ("latest", false),
        ("12.4", false),
    ] {
        assert_eq!(is_exact(tag), exact, "{tag}");
    }
}

#[test]
fn every_service_is_checked_and_waits_for_what_it_needs() {
    let compose = documents(FILE).remove(0);
    let services = services(&compose);
    for (name, service) in &services {
        let tries = at(service, "/healthcheck/retries")
            .as_u64()
            .expect("a number");
        assert!(
            tries * seconds(at(service, "/healthcheck/interval")) >= 30,
            "{name}: a slow machine needs more time"
        );
        assert!(
            seconds(at(service, "/healthcheck/timeout")) <= 2 && !check(service).is_empty(),
            "{name}"
        );
        for dependency in dependencies(service) {
            assert_eq!(
                text(service, &format!("/depends_on/{dependency}/condition")),
                "service_healthy",
                "{name}"
            );
            assert!(
                services.contains_key(dependency),
                "{name} depends on {dependency}, which is no service"
            );
        }
    }
    assert_eq!(start_order(&services).len(), services.len());
}

#[test]
fn ports_are_published_to_this_machine_only() {
    let compose = documents(FILE).remove(0);
    let mut published = BTreeSet::new();
    for (name, service) in services(&compose) {
        for port in list(service, "ports") {
            let parts: Vec<_> = port.split(':').collect();
            let ["127.0.0.1", host, container] = parts[..] else {
                panic!("{name}: {port} is not 127.0.0.1:PORT:PORT")
            };
            assert_eq!(host, container, "the pages name one port");
            assert!(
                published.insert(host.to_owned()),
                "{name}: port {host} is published twice"
            );
        }
    }
    assert_eq!(
        published,
        ["10000", "3000", "8080", "8081", "9090"]
            .map(str::to_owned)
            .into()
    );
    let weir = at(&compose, "/services/weir");
    for port in image::ports() {
        let mapping = format!("127.0.0.1:{port}:{port}");
        assert!(list(weir, "ports").contains(&&*mapping), "{port}");
    }
}

/// Envoy itself reads both of its files, and Prometheus's own program the one with what it scrapes.
#[test]
fn programs_accept_their_files() {
    for file in ["envoy", "application"] {
        envoy::validate(&tools::file(&format!("deploy/compose/{file}.yaml")));
    }
    let folder = tempfile::tempdir().expect("a folder");
    // The alerts are mounted beside it.
    for (source, name) in mounts(at(&documents(FILE)[0], "/services/prometheus")) {
        let name = name.strip_prefix("/etc/prometheus/").expect("a file there");
        std::fs::copy(source, folder.path().join(name)).expect("copied");
    }
    let output = Command::new(tools::promtool())
        .args(["check", "config"])
        .arg(folder.path().join("prometheus.yaml"))
        .output()
        .expect("promtool runs");
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(
        output.status.success() && printed.contains("1 rule file"),
        "{printed}"
    );
}

#[test]
fn weir_is_built_from_the_dockerfile() {
    let compose = documents(FILE).remove(0);
    let weir = at(&compose, "/services/weir");
    assert_eq!(
        text(weir, "/image"),
        concat!("weir:", env!("CARGO_PKG_VERSION"))
    );
    let context = tools::repository()
        .join("deploy")
        .join(text(weir, "/build/context"));
    assert_eq!(
        context.canonicalize().expect("a folder"),
        tools::repository().canonicalize().expect("a folder")
    );
    assert!(context.join(text(weir, "/build/dockerfile")).is_file());
    assert_eq!(weir["read_only"], true);
    assert_eq!(check(weir), image::health_check(), "as the image has it");
}

/// The hosts and ports that a value names in Envoy's form of an address.
fn sockets(value: &Value) -> Vec<(String, u64)> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("socket_address").map(|socket| {
                (
                    text(socket, "/address").to_owned(),
                    at(socket, "/port_value").as_u64().expect("a port"),
                )
            });
            own.into_iter()
                .chain(fields.values().flat_map(sockets))
                .collect()
        }
        Value::Array(items) => items.iter().flat_map(sockets).collect(),
        _ => Vec::new(),
    }
}

/// In a network of containers a loopback address is the container itself, so that every file must
/// name services.
#[test]
fn files_name_services_by_their_names() {
    let compose = documents(FILE).remove(0);
    let services = services(&compose);
    let is_service = |host: &str| services.contains_key(host) && !NO_SERVICE.contains(&host);
    let envoy = documents("deploy/compose/envoy.yaml").remove(0);
    let application = documents("deploy/compose/application.yaml").remove(0);
    let upstreams = sockets(at(&envoy, "/static_resources/clusters"));
    assert_eq!(
        upstreams,
        [("weir".to_owned(), 8081), ("application".to_owned(), 10001)]
    );
    for listener in items(&envoy, "/static_resources/listeners")
        .iter()
        .chain(items(&application, "/static_resources/listeners"))
    {
        assert_eq!(
            text(listener, "/address/socket_address/address"),
            "0.0.0.0",
            "other containers connect to it"
        );
    }
    let prometheus = documents("deploy/compose/prometheus.yaml").remove(0);
    let targets: Vec<&str> = items(&prometheus, "/scrape_configs")
        .iter()
        .flat_map(|job| list(at(job, "/static_configs/0"), "targets"))
        .collect();
    assert_eq!(targets, ["weir:8080", "envoy:9901"]);
    let grafana = documents("deploy/compose/grafana-datasources.yaml").remove(0);
    let url = text(&grafana, "/datasources/0/url");
    assert_eq!(url, "http://prometheus:9090");
    let redis = text(&compose, "/services/weir/environment/REDIS_URL");
    for address in targets
        .into_iter()
        .chain([url.trim_start_matches("http://"), redis])
    {
        assert!(
            is_service(address.split(':').next().unwrap_or_default()),
            "{address} is no service"
        );
    }
}

/// What Envoy asks, limits and answers is what the page about `deploy/envoy/envoy.yaml` says.
#[test]
fn its_envoy_limits_as_the_example_does() {
    let [example, here] = ["deploy/envoy/envoy.yaml", "deploy/compose/envoy.yaml"]
        .map(|file| documents(file).remove(0));
    let front = "/static_resources/listeners/0";
    assert_eq!(at(&here, front), at(&example, front), "change both");
    for cluster in [0, 1] {
        let cluster = format!("/static_resources/clusters/{cluster}");
        let without_addresses = |envoy: &Value| {
            let mut cluster = at(envoy, &cluster).clone();
            for field in ["type", "load_assignment"] {
                cluster.as_object_mut().expect("a cluster").remove(field);
            }
            cluster
        };
        assert_eq!(
            without_addresses(&here),
            without_addresses(&example),
            "change both"
        );
    }
    let application = documents("deploy/compose/application.yaml").remove(0);
    let chains = |envoy: &Value, listener: usize| {
        at(
            envoy,
            &format!("/static_resources/listeners/{listener}/filter_chains"),
        )
        .clone()
    };
    assert_eq!(chains(&application, 0), chains(&example, 1), "change both");
}

#[test]
fn grafana_finds_prometheus_and_the_dashboards() {
    let compose = documents(FILE).remove(0);
    let grafana = at(&compose, "/services/grafana");
    let mounts = mounts(grafana);
    let mounted = |file: &str| {
        mounts
            .iter()
            .find(|(source, _)| source.ends_with(file))
            .unwrap_or_else(|| panic!("{file} is not mounted"))
            .1
    };
    // The folders are Grafana's: "Provision Grafana" in its documentation.
    assert!(
        mounted("grafana-datasources.yaml").starts_with("/etc/grafana/provisioning/datasources/")
    );
    assert!(
        mounted("grafana-dashboards.yaml").starts_with("/etc/grafana/provisioning/dashboards/")
    );
    let folder = mounted("monitoring/dashboards");
    let provider = documents("deploy/compose/grafana-dashboards.yaml").remove(0);
    assert_eq!(text(&provider, "/providers/0/options/path"), folder);
    let home = text(
        grafana,
        "/environment/GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH",
    )
    .strip_prefix(folder)
    .expect("a dashboard of that folder");
    assert!(
        tools::repository()
            .join("deploy/monitoring/dashboards")
            .join(home.trim_start_matches('/'))
            .is_file(),
        "{home}"
    );
    let source = documents("deploy/compose/grafana-datasources.yaml").remove(0);
    let source = at(&source, "/datasources/0");
    assert_eq!(
        (text(source, "/type"), &source["isDefault"]),
        ("prometheus", &Value::Bool(true)),
        "what ${{datasource}} chooses"
    );
    let prometheus = documents("deploy/compose/prometheus.yaml").remove(0);
    assert_eq!(
        at(source, "/jsonData/timeInterval"),
        at(&prometheus, "/global/scrape_interval")
    );
}

/// With the second file, the port of the support desk is open to this machine, and asks for tokens.
#[test]
fn the_support_desk_is_open_to_those_who_have_a_token() {
    let desk = documents("deploy/compose/support-desk.yaml").remove(0);
    let added = at(&desk, "/services/weir");
    assert_eq!(list(added, "ports"), ["127.0.0.1:6070:6070"]);
    assert_eq!(text(added, "/environment/DEBUG_HOST"), "0.0.0.0");
    let [volume] = list(added, "volumes")[..] else {
        panic!("one volume")
    };
    let parts: Vec<_> = volume.rsplitn(3, ':').collect();
    let ["ro", target, source] = parts[..] else {
        panic!("{volume}")
    };
    assert_eq!(text(added, "/environment/ADMIN_TOKEN_FILE"), target);
    assert!(
        source.starts_with("${WEIR_TOKENS:?"),
        "Compose says what is missing: {source}"
    );
}

/// What the workflow does with containers is what pages say.
#[test]
fn the_workflow_starts_it_and_runs_the_commands_of_pages() {
    let workflow = documents(".github/workflows/tests.yaml").remove(0);
    let steps: String = items(&workflow, "/jobs/containers/steps")
        .iter()
        .filter_map(|step| step.get("run").and_then(Value::as_str))
        .map(|run| format!("{run}\n"))
        .collect();
    let page = tools::file("deploy/support-desk.md");
    let (_, command) = page
        .split_once("docker compose -f deploy/compose.yaml exec weir ")
        .expect("the command of the page");
    let in_container = command.lines().next().expect("a line");
    for part in [
        "deploy/build-image.sh",
        "docker compose -f deploy/compose.yaml up ",
        &format!("exec -T weir {in_container}"),
        "-f deploy/compose/support-desk.yaml up ",
        "localhost:9090/api/v1/query",
        "localhost:9090/api/v1/rules",
        "localhost:6070/api/v1/overrides",
    ] {
        assert!(steps.contains(part), "no step has {part}: {steps}");
    }
}
