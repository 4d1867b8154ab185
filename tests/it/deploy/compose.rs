//! `deploy/compose.yaml`: what it names exists and agrees, and its processes, all but Grafana, work
//! together without containers: the same files, commands, variables, users, health checks and order
//! of start, with the programs that other tests use.

mod containers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use super::{at, documents, image, items, text};
use crate::docs::{assert_shows, console, timeless};
use crate::support::tools;
use crate::support::wait::{self, eventually};
use containers::{Container, Image, Network};

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

/// The environment of a service.
fn environment(service: &Value) -> Vec<(String, String)> {
    let variables = service.get("environment").and_then(Value::as_object);
    let variable =
        |(name, value): (&String, &Value)| (name.clone(), value.as_str().expect("text").to_owned());
    variables.map_or_else(Vec::new, |variables| {
        variables.iter().map(variable).collect()
    })
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
fn every_service_is_pinned_confined_and_checked() {
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
    let mut published = BTreeSet::new();
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
    assert_eq!(start_order(&services).len(), services.len());
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

/// What an image would bring.
fn image_of(name: &str, service: &Value) -> Image {
    let program = |program: &str| {
        Image::with_program(
            program.rsplit('/').next().unwrap_or(program),
            &tools::on_the_path(program),
        )
    };
    let mut image = match name {
        "weir" => {
            let (folder, root) = image::image();
            Image::of(folder, root)
        }
        "redis" => program("redis-server"),
        "envoy" | "application" => Image::with_program("envoy", &tools::envoy()),
        "prometheus" => {
            let mut image = Image::with_program("prometheus", &tools::prometheus());
            image
                .mount(tools::promtool(), "/programs/promtool".to_owned())
                .expect("a mount");
            image
        }
        _ => panic!("no test runs {name}"),
    };
    for (source, target) in mounts(service) {
        image.mount(source, target.to_owned()).expect("a mount");
    }
    for folder in list(service, "tmpfs") {
        image.writable(folder).expect("a folder");
    }
    image
}

/// The entry point of the image, where it has one that is not part of the command, and the command.
fn command(name: &str, service: &Value) -> Vec<String> {
    let entry_point = match name {
        "weir" => image::entry_point(),
        "prometheus" => vec!["prometheus".to_owned()],
        _ => Vec::new(),
    };
    let command = list(service, "command").into_iter().map(str::to_owned);
    entry_point.into_iter().chain(command).collect()
}

/// Starts every service when those that it depends on are healthy.
fn start(network: &Network, services: &BTreeMap<&str, &Value>) -> BTreeMap<String, Container> {
    let mut running: BTreeMap<String, Container> = BTreeMap::new();
    for name in start_order(services)
        .into_iter()
        .filter(|name| *name != "grafana")
    {
        let service = services[name];
        let user = service
            .get("user")
            .and_then(Value::as_str)
            .map_or_else(image::user, str::to_owned);
        let mut container = Container::start(
            network,
            name,
            image_of(name, service),
            &user,
            environment(service),
            &command(name, service),
        );
        let healthy = eventually(|| {
            container.assert_runs();
            container
                .execute(&check(service))
                .status
                .success()
                .then_some(())
        });
        assert!(
            healthy.is_some(),
            "{name} is not healthy: {:?}\n{}",
            container.execute(&check(service)),
            container.log()
        );
        running.insert(name.to_owned(), container);
    }
    running
}

/// What a shell line prints in the network.
fn printed(network: &Network, line: &str) -> String {
    let output = network.shell(line);
    String::from_utf8_lossy(&output.stdout).replace('\r', "")
}

/// The value of a query, once Prometheus has one.
fn answer(network: &Network, query: &str, is_right: impl Fn(f64) -> bool) {
    let line =
        format!("curl -s --get --data-urlencode 'query={query}' localhost:9090/api/v1/query");
    let ask = || {
        let answer: Value = serde_json::from_str(&printed(network, &line)).ok()?;
        let value = answer
            .pointer("/data/result/0/value/1")?
            .as_str()?
            .parse()
            .ok()?;
        is_right(value).then_some(())
    };
    assert!(
        eventually(ask).is_some(),
        "{query}: {}",
        printed(network, &line)
    );
}

#[test]
fn its_processes_answer_the_readme_and_prometheus_sees_the_requests() {
    let compose = documents(FILE).remove(0);
    let services = services(&compose);
    let network = Network::new(&services.keys().copied().collect::<Vec<_>>());
    let running = start(&network, &services);

    wait::away_from_the_end_of_a_minute();
    let readme = console(&tools::file("README.md"));
    let asked: Vec<_> = readme
        .iter()
        .filter(|shown| shown.command.starts_with("curl "))
        .collect();
    assert_eq!(asked.len(), 3, "requests of the README");
    for shown in asked {
        let real = printed(&network, &shown.command);
        if shown.command.contains("| grep ") {
            // The counts depend on the commands before.
            let name = |line: &str| line.rsplit_once(' ').map(|(name, _)| name.to_owned());
            assert_eq!(
                shown
                    .output
                    .iter()
                    .map(|line| name(line))
                    .collect::<Vec<_>>(),
                real.lines().map(name).collect::<Vec<_>>()
            );
        } else {
            assert_shows(shown, &real);
        }
    }
    let through_envoy = printed(&network, "curl -s localhost:10000/");
    assert_eq!(
        timeless(&through_envoy),
        "hello",
        "the application behind Envoy"
    );
    let keys = running["redis"].execute(&["redis-cli", "dbsize"].map(str::to_owned));
    assert_ne!(
        String::from_utf8_lossy(&keys.stdout).trim(),
        "0",
        "Weir counts in Redis"
    );

    // Two requests through Envoy and one by /json, which is no call of gRPC.
    answer(
        &network,
        "sum(weir_requests_total{namespace=\"compose\",pod=\"weir\",code=\"OK\"})",
        |value| value == 2.0,
    );
    let hits = "sum(ratelimit_service_rate_limit_total_hits{pod=\"weir\",domain=\"demo\",key1=\"remote_address\"})";
    answer(&network, hits, |value| value == 3.0);
    answer(
        &network,
        "sum(envoy_cluster_ratelimit_ok{namespace=\"compose\",pod=\"envoy\"})",
        |value| value >= 2.0,
    );
    answer(&network, "count(up == 1)", |value| value == 2.0);
    let overview: Value =
        serde_json::from_str(&tools::file("deploy/monitoring/dashboards/overview.json"))
            .expect("JSON");
    let panel = items(&overview, "/panels")
        .iter()
        .find(|panel| panel["title"] == "Replicas")
        .expect("a panel");
    let query = text(panel, "/targets/0/expr")
        .replace("$job", "ratelimit")
        .replace("$namespace", "compose")
        .replace("$pod", "weir");
    answer(&network, &query, |value| value == 1.0);
    let rules = printed(&network, "curl -s localhost:9090/api/v1/rules");
    assert!(
        rules.contains("WeirAbsent") && !rules.contains("\"health\":\"err\""),
        "{rules}"
    );
}

/// With the second file, the port of the support desk is open to this machine, and asks for tokens.
#[test]
fn the_support_desk_is_open_to_those_who_have_a_token() {
    const TOKEN: &str = "0123456789abcdef0123";
    let (compose, desk) = (
        documents(FILE).remove(0),
        documents("deploy/compose/support-desk.yaml").remove(0),
    );
    let (weir, added) = (at(&compose, "/services/weir"), at(&desk, "/services/weir"));
    assert_eq!(list(added, "ports"), ["127.0.0.1:6070:6070"]);
    let [volume] = list(added, "volumes")[..] else {
        panic!("one volume")
    };
    let parts: Vec<_> = volume.rsplitn(3, ':').collect();
    let ["ro", target, source] = parts[..] else {
        panic!("{volume}")
    };
    assert!(
        source.starts_with("${WEIR_TOKENS:?"),
        "Compose says what is missing: {source}"
    );

    let tokens = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(tokens.path(), format!("ann:{TOKEN}\n")).expect("written");
    std::fs::set_permissions(
        tokens.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o644),
    )
    .expect("permitted");
    let network = Network::new(&["weir"]);
    let mut image = image_of("weir", weir);
    image
        .mount(tokens.path().to_owned(), target.to_owned())
        .expect("a mount");
    // Its counters are in memory, because there is no Redis here.
    let container = Container::start(
        &network,
        "weir",
        image,
        &image::user(),
        environment(added),
        &command("weir", weir),
    );
    assert!(
        eventually(|| container
            .execute(&check(weir))
            .status
            .success()
            .then_some(()))
        .is_some(),
        "{}",
        container.log()
    );
    let status = |options: &str| {
        printed(
            &network,
            &format!(
                "curl -s -o /dev/null -w '%{{http_code}}' {options} localhost:6070/api/v1/overrides"
            ),
        )
    };
    assert_eq!(status(""), "401");
    assert_eq!(
        status(&format!("-H 'Authorization: Bearer {TOKEN}'")),
        "200",
        "{}",
        container.log()
    );
}

/// Without it, questions go through the container.
#[test]
fn commands_in_the_container_ask_its_weir() {
    let compose = documents(FILE).remove(0);
    let weir = at(&compose, "/services/weir");
    let network = Network::new(&["weir"]);
    let container = Container::start(
        &network,
        "weir",
        image_of("weir", weir),
        &image::user(),
        Vec::new(),
        &command("weir", weir),
    );
    assert!(
        eventually(|| container
            .execute(&check(weir))
            .status
            .success()
            .then_some(()))
        .is_some(),
        "{}",
        container.log()
    );
    let page = tools::file("deploy/support-desk.md");
    let (_, line) = page
        .split_once("docker compose -f deploy/compose.yaml exec weir ")
        .expect("the command of the page");
    let words: Vec<_> = line
        .lines()
        .next()
        .expect("a line")
        .split(' ')
        .map(str::to_owned)
        .collect();
    let output = container.execute(&words);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && shown.contains("0 hits"),
        "{shown}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
