//! `weir envoy` against a real Envoy and a real Weir: its output is put into a gateway, and each
//! request must find the limits that the file has for it, no other one, and each once.
//!
//! Weir puts the paths of limits into its answers (`LIMIT_PATHS_AS_NAMES_ENABLED`), and Envoy shows
//! them in `x-ratelimit-limit`: so a response says which limits its request has found.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use serde_json::{Value, json};

use super::istio::{self, at_mut, insert_before, list};
use super::{at, documents_in, items, run};
use crate::support::envoy::{Envoy, validate};
use crate::support::http_client::{Response, exchange, request_from};
use crate::support::{Weir, tools, wait};

/// The output of `weir envoy` for these limits and arguments, in which `+` stands for a space.
fn generate(limits: &str, arguments: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("limits.yaml"), limits).expect("written");
    std::fs::write(folder.path().join("sources.yaml"), OWN_SOURCES).expect("written");
    let arguments = format!("envoy {arguments} --timeout-ms 10000 limits.yaml");
    let words: Vec<_> = arguments
        .split_whitespace()
        .map(|word| word.replace('+', " "))
        .collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    run(Path::new(env!("CARGO_BIN_EXE_weir")), &words, folder.path())
}

const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
const HOST: &str = "/route_config/virtual_hosts/0";

/// A gateway whose connection manager does what the notes of `weir envoy` ask for.
fn gateway(weir: &Weir) -> Value {
    let mut gateway = istio::gateway(weir);
    let manager = at_mut(&mut gateway, MANAGER);
    manager["normalize_path"] = true.into();
    manager["merge_slashes"] = true.into();
    manager["path_with_escaped_slashes_action"] = "UNESCAPE_AND_FORWARD".into();
    gateway
}

/// Adds a copy of the first route, for other paths.
fn add_route(manager: &mut Value, prefix: &str, field: &str, value: Value) {
    let routes = list(manager, &format!("{HOST}/routes"));
    let mut route = routes[0].clone();
    route["match"] = json!({ "prefix": prefix });
    route[field] = value;
    routes.insert(0, route);
}

/// Puts the output where its comments say.
fn insert(gateway: &mut Value, output: &str) {
    let output = documents_in(output).remove(0);
    let clusters = items(&output, "/clusters").iter().cloned();
    list(gateway, "/static_resources/clusters").extend(clusters);
    let manager = at_mut(gateway, MANAGER);
    for filter in items(&output, "/http_filters") {
        insert_before(list(manager, "/http_filters"), ROUTER, filter);
    }
    if let Some(limits) = output.get("rate_limits") {
        at_mut(manager, HOST)["rate_limits"] = limits.clone();
    }
    if let Some(config) = output.get("typed_per_filter_config") {
        add_route(manager, "/api/", "typed_per_filter_config", config.clone());
    }
}

const ROUTER: &str = "envoy.filters.http.router";

struct Site {
    weir: Weir,
    envoy: Envoy,
    front: SocketAddr,
}

/// A Weir with these limits, and an Envoy that asks it as `weir envoy` prints. `change` may add to
/// the gateway.
fn site(limits: &str, arguments: &str, change: impl FnOnce(&mut Value)) -> Site {
    let names = ("LIMIT_PATHS_AS_NAMES_ENABLED", "true");
    let weir = Weir::start(&[("limits.yaml", limits)], &[names]);
    let service = format!(
        "--service {} --failure-mode-deny {arguments}",
        weir.grpc_addr()
    );
    let mut gateway = gateway(&weir);
    insert(&mut gateway, &generate(limits, &service));
    change(&mut gateway);
    let envoy = Envoy::start(&gateway.to_string());
    assert!(!envoy.log().contains("Deprecated field"), "{}", envoy.log());
    Site {
        front: envoy.listener("front"),
        weir,
        envoy,
    }
}

/// Sends a request: its path, its headers as NAME=VALUE, and the last number of the client's
/// address as @NUMBER.
fn send(front: SocketAddr, request: &str) -> Response {
    let mut words = request.split_whitespace();
    let path = words.next().expect("a path");
    let (mut headers, mut client) = (Vec::new(), 2);
    for word in words {
        match word.strip_prefix('@') {
            Some(number) => client = number.parse().expect("a number"),
            None => headers.extend(
                word.split_once('=')
                    .map(|(name, value)| (name, value.as_bytes())),
            ),
        }
    }
    request_from(Ipv4Addr::new(127, 0, 0, client), front, path, &headers)
}

fn statuses<const N: usize>(front: SocketAddr, requests: [&str; N]) -> [u16; N] {
    requests.map(|request| send(front, request).status)
}

/// The limits that a request has found, by their names.
fn found(response: &Response) -> Vec<&str> {
    let header = response.header("x-ratelimit-limit").unwrap_or("");
    let names = header.split("name=\"").skip(1);
    let mut names: Vec<_> = names
        .filter_map(|rest| Some(rest.split_once('"')?.0))
        .collect();
    names.sort_unstable();
    names
}

/// Every request finds the limits in its line, and no others; `all` are in each line that does not
/// begin with `=`.
fn assert_found(site: &Site, all: &str, table: &str) {
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (request, names) = line.split_once(" -> ").expect("a request and limits");
        let (request, all) = request
            .strip_prefix('=')
            .map_or((request, all), |rest| (rest, ""));
        let mut expected: Vec<_> = all.split(' ').chain(names.split(' ')).collect();
        expected.retain(|name| !["", "none"].contains(name));
        expected.sort_unstable();
        let response = send(site.front, request);
        assert_eq!(
            (response.status, found(&response)),
            (200, expected),
            "{request}"
        );
    }
    assert_eq!(site.envoy.stat("cluster.application.ratelimit.error"), 0);
    assert_eq!(
        site.weir.metric("weir_connections_rewritten_total"),
        Some(0.0)
    );
}

#[test]
fn the_examples_are_limited_as_their_files_say() {
    let basic = tools::file("config/basic.yaml");
    let from = "--from remote_address=remote-address --from generic_key=generic-key \
        --from user=header:x-user --from api_key=header:x-api-key+or+none --from path=";
    for path in ["path", "path-match"] {
        let site = site(&basic, &format!("{from}{path}"), |_| {});
        wait::away_from_the_end_of_a_minute();
        assert_found(
            &site,
            "per-client whole-site per-api-key",
            "
            / -> none
            /login -> login
            /login?x=/y -> login
            //login -> login
            /x/../login @3 -> login
            /logi%6e @3 -> login
            /loginx @3 -> none
            /login/ @3 -> none
            /?/login @3 -> none
            / x-user=ann @3 -> per-user-trial
            / x-user=bot-7 @3 -> all-bots
            / x-user=admin @3 -> none
            / x-api-key=k @3 -> none
            =/ x-api-key=internal @3 -> per-client whole-site
            ",
        );
        let logins = statuses(site.front, ["/login?y @9"; 6]);
        assert_eq!(logins, [200, 200, 200, 200, 200, 429], "five a minute");
        assert_eq!(
            statuses(site.front, ["/ @9", "/login @8"]),
            [200, 200],
            "neighbours"
        );
    }
}

#[test]
fn queries_addresses_and_streams_of_the_examples() {
    let algorithms = tools::file("config/algorithms.yaml");
    let keys = [
        "customer",
        "login",
        "tenant",
        "user",
        "model_tokens",
        "mailbox",
        "report",
        "token_budget",
    ];
    let from: String = keys
        .iter()
        .map(|key| format!("--from {key}=query:{key} "))
        .collect();
    let others = "--from remote_address=remote-address --from upstream=generic-key:legacy \
        --from request=header:x-stream-id";
    let site = site(&algorithms, &format!("{from}{others}"), |_| {});
    // Envoy shows no name of a limit without a window, as that of reports.
    assert_found(
        &site,
        "legacy-system per-client",
        "
        / -> none
        /?user=ann -> per-user
        /?a=b&login=x -> logins
        /?report=ann x-stream-id=1 -> none
        /?mailbox=ann -> mails
        /?customer=1&tenant=2&model_tokens=3 -> daily-quota per-tenant model-tokens
        /?token_budget=ann -> token-budget
        /?token_budget=ann x-estimate=9 -> token-budget token-budget
        ",
    );
}

#[test]
fn several_descriptors_quotas_and_delays_of_the_examples() {
    let tenants = tools::file("config/tenants.yaml");
    for contract in ["header", "header-match"] {
        let from = "--from tenant=header:x-tenant --from quota=generic-key --from route=path-match";
        let site = site(
            &tenants,
            &format!("{from} --from contract={contract}:x-contract"),
            |_| {},
        );
        assert_found(
            &site,
            "daily-quota reserve",
            "
            / -> none
            / x-tenant=a -> every-tenant
            / x-tenant=a x-contract=gold -> gold
            / x-tenant=a x-contract=silver -> every-tenant
            / x-contract=gold -> none
            /reports/a?b -> reports
            /reports -> none
            ",
        );
    }
}

/// Nested levels, patterns, and every source that Envoy has.
const OWN: &str = r#"
domain: own
descriptors:
  - { key: method, value: POST, rate_limit: { unit: year, requests_per_unit: 2, name: writes } }
  - { key: host, value: "*.example", rate_limit: { unit: year, requests_per_unit: 900, name: hosts } }
  - { key: scheme, value: http, rate_limit: { unit: year, requests_per_unit: 900, name: plain } }
  - { key: whole, value: "/q?a=1", rate_limit: { unit: year, requests_per_unit: 900, name: whole } }
  - { key: masked_remote_address, value: 127.0.1.0/24, rate_limit: { unit: year, requests_per_unit: 900, name: network } }
  - { key: destination_cluster, value: application, rate_limit: { unit: year, requests_per_unit: 900, name: destination } }
  - { key: team, rate_limit: { unit: year, requests_per_unit: 900, name: team } }
  - { key: subject, rate_limit: { unit: year, requests_per_unit: 900, name: subject } }
  - { key: plan, value: gold, rate_limit: { unit: year, requests_per_unit: 900, name: plan } }
  - { key: block, value: 127.0.0.0/16, rate_limit: { unit: year, requests_per_unit: 900, name: block } }
  - key: kind
    value: batch
    descriptors:
      - key: tenant
        value: "a*"
        share_threshold: true
        rate_limit: { unit: year, requests_per_unit: 2, name: batch-of-a }
      - key: tenant
        rate_limit: { unit: year, requests_per_unit: 2, name: batch }
        descriptors:
          - { key: user, rate_limit: { unit: year, requests_per_unit: 1, name: batch-of-user } }
  - key: kind
    value: "b*"
    share_threshold: true
    rate_limit: { unit: year, requests_per_unit: 900, name: kind-b }
  - { key: kind, value: "*", share_threshold: true, rate_limit: { unit: year, requests_per_unit: 900, name: kind-other } }
"#;

const OWN_SOURCES: &str = "
method: method
host: authority
scheme: scheme
whole: path-and-query
masked_remote_address: masked-remote-address:24,64
destination_cluster: destination-cluster
team: route-metadata:own/team
subject: jwt:sub
plan: query-match:plan
block: address-match
kind: header-match:x-kind
tenant: header:x-tenant
user: 'header:x-user or anonymous'
";

/// A POST has a descriptor of its method and one of its host; two of them are allowed.
fn assert_methods_and_hosts_are_sources(site: &Site) {
    let post = |host: &str| {
        let message = format!(
            "POST / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        );
        let answer = exchange(Ipv4Addr::LOCALHOST, site.front, message.as_bytes());
        String::from_utf8(answer.expect("an answer")).expect("text")
    };
    let first = post("shop.example");
    for part in ["HTTP/1.1 200", "name=\"writes\"", "name=\"hosts\""] {
        assert!(first.contains(part), "{first}");
    }
    let is_allowed = [post("a"), post("a")].map(|answer| answer.starts_with("HTTP/1.1 200"));
    assert_eq!(is_allowed, [true, false], "two writes");
}

/// A client of the network is limited with it, and one of another is not.
fn assert_addresses_are_sources(site: &Site) {
    for (address, limits) in [
        ([127, 0, 1, 9], [true, true]),
        ([127, 0, 0, 3], [false, true]),
        ([127, 1, 0, 9], [false, false]),
    ] {
        let response = request_from(Ipv4Addr::from(address), site.front, "/", &[]);
        let is_found = ["network", "block"].map(|limit| found(&response).contains(&limit));
        assert!(found(&response).contains(&"plain"), "{response:?}");
        assert_eq!(is_found, limits, "{response:?}");
    }
}

#[test]
fn every_source_sends_what_the_file_limits() {
    let site = site(OWN, "--sources sources.yaml", |gateway| {
        let manager = at_mut(gateway, MANAGER);
        let payload = json!({ "payload": { "sub": "ann" } });
        let metadata =
            json!({ "metadata_namespace": "envoy.filters.http.jwt_authn", "value": payload });
        let kind = "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config";
        let config = json!({ "@type": kind, "metadata": [metadata] });
        let filter = json!({ "name": "envoy.filters.http.set_metadata", "typed_config": config });
        list(manager, "/http_filters").insert(0, filter);
        let team = json!({ "filter_metadata": { "own": { "team": "blue" } } });
        add_route(manager, "/team", "metadata", team);
    });
    // An exact value, then the first pattern, then the next one: never two of them. Below it, the
    // tenant is looked up as the request sends it.
    assert_found(
        &site,
        "plain destination subject block",
        "
        / -> none
        /q?a=1 -> whole
        /q?a=2 -> none
        /team/x -> team
        /?plan=gold -> plan
        /?plan=golden -> none
        / x-kind=batch -> none
        / x-kind=batches -> kind-b
        / x-kind=single -> kind-other
        / x-kind=batch x-tenant=b -> batch batch-of-user
        / x-kind=batch x-tenant=b x-user=ann -> batch batch-of-user
        / x-kind=batch x-tenant=a1 -> batch-of-a
        / x-kind=batch x-tenant=a2 -> batch-of-a
        ",
    );
    let batches = ["a3", "b", "c"]
        .map(|tenant| send(site.front, &format!("/ x-kind=batch x-tenant={tenant}")).status);
    assert_eq!(batches, [429, 429, 200]);
    assert_addresses_are_sources(&site);
    assert_methods_and_hosts_are_sources(&site);
}

/// Descriptors that a virtual host or a route has are sent for its requests only.
#[test]
fn a_virtual_host_or_a_route_gets_the_descriptors() {
    let limits = "domain: d\ndescriptors:\n  - { key: remote_address, rate_limit: { unit: year, \
        requests_per_unit: 900, name: client } }\n";
    for (attach, others) in [("virtual-host", "client"), ("route", "none")] {
        let arguments = format!("--from remote_address=remote-address --attach {attach}");
        let site = site(limits, &arguments, |_| {});
        assert_found(&site, "", &format!("/api/a -> client\n/ -> {others}"));
    }
}

const LOGIN: &str = "domain: d/e\ndescriptors:\n  - { key: path, value: /login, rate_limit: { \
    unit: year, requests_per_unit: 2, name: login } }\n";

/// The third request to /login is refused.
fn assert_logins_are_limited(gateway: &Value) {
    let front = Envoy::start(&gateway.to_string());
    let found = statuses(
        front.listener("front"),
        ["/login", "/login?x", "/login", "/"],
    );
    assert_eq!(found, [200, 200, 429, 200]);
}

/// As the page and the help say. `remote_address` needs no `--from`.
#[test]
fn what_a_route_answers_itself_is_not_limited() {
    let limits = "domain: d
descriptors:
- { key: remote_address, rate_limit: { unit: day, requests_per_unit: 1 } }
";
    let site = site(limits, "", |gateway| {
        let manager = at_mut(gateway, MANAGER);
        let routes = list(manager, &format!("{HOST}/routes"));
        let redirect = json!({ "path_redirect": "/" });
        routes.insert(
            0,
            json!({ "match": { "prefix": "/old" }, "redirect": redirect }),
        );
        let answer = json!({ "status": 200 });
        routes.insert(
            0,
            json!({ "match": { "prefix": "/direct" }, "direct_response": answer }),
        );
    });
    let paths = ["/old", "/old", "/direct", "/direct", "/", "/"];
    let statuses = paths.map(|path| send(site.front, path).status);
    assert_eq!(statuses, [301, 301, 200, 200, 200, 429]);
}

#[test]
fn istio_gets_a_filter_that_sends_the_same() {
    for attach in ["filter", "virtual-host", "route"] {
        let weir = Weir::start(&[("limits.yaml", LOGIN)], &[]);
        let output = generate(
            LOGIN,
            &format!("--for istio --from path=path --attach {attach}"),
        );
        let mut gateway = istio::gateway(&weir);
        istio::patch(&mut gateway, "GATEWAY", &output);
        assert_logins_are_limited(&gateway);
        let rewritten = weir.metric("weir_connections_rewritten_total");
        assert_eq!(rewritten, Some(0.0), "{attach}: it has an authority");
    }
}

#[test]
fn connections_are_limited_by_their_address() {
    let limits = "domain: tcp\ndescriptors:\n  - key: listener\n    value: 50%\n    \
        descriptors:\n      - { key: client, rate_limit: { unit: year, requests_per_unit: 2 } }\n";
    let weir = Weir::start(&[("limits.yaml", limits)], &[]);
    let from = "--attach tcp --from listener=generic-key --from client=remote-address --service";
    let output = generate(limits, &format!("{from} {}", weir.grpc_addr()));
    let output = documents_in(&output).remove(0);
    let kind = "type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config";
    let response = json!({ "@type": kind, "response": { "inline_string": "hello\n" } });
    let answer =
        json!({ "name": "envoy.filters.network.direct_response", "typed_config": response });
    let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": 0 } });
    let chain = json!({ "filters": [at(&output, "/filters/0"), answer] });
    let listener = json!({ "name": "front", "address": address, "filter_chains": [chain] });
    let configuration = json!({
        "static_resources": { "listeners": [listener], "clusters": at(&output, "/clusters") },
        "admin": { "address": address },
    });
    validate(&configuration.to_string());
    let envoy = Envoy::start(&configuration.to_string());
    let front = envoy.listener("front");
    let connect =
        |client| exchange(Ipv4Addr::new(127, 0, 0, client), front, b"").expect("a connection");
    let answers = [connect(2), connect(2), connect(2), connect(3)];
    assert_eq!(answers, [&b"hello\n"[..], b"hello\n", b"", b"hello\n"]);
    assert_eq!(envoy.stat("ratelimit.tcp.error"), 0);
}

/// The patches, applied to a gateway as Envoy Gateway applies them: `add` puts an item of a list
/// before the one that the path names.
#[test]
fn envoy_gateway_gets_a_policy_that_sends_the_same() {
    let weir = Weir::start(&[("limits.yaml", LOGIN)], &[]);
    let arguments = "--for envoy-gateway --listener shop/public/https --from path=path --service";
    let output = generate(LOGIN, &format!("{arguments} {}", weir.grpc_addr()));
    let policy = documents_in(&output).remove(0);
    let [listener, cluster] = items(&policy, "/spec/jsonPatches") else {
        panic!("two patches: {policy:#}")
    };
    let (added, cluster_value) = (
        at(listener, "/operation/value"),
        at(cluster, "/operation/value"),
    );
    let target =
        json!({ "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "public" });
    for (found, expected) in [
        (&policy["kind"], json!("EnvoyPatchPolicy")),
        (&policy["metadata"]["namespace"], json!("shop")),
        (&policy["spec"]["targetRef"], target),
        (
            &listener["type"],
            json!("type.googleapis.com/envoy.config.listener.v3.Listener"),
        ),
        (&listener["name"], json!("shop/public/https")),
        (
            &listener["operation"]["jsonPath"],
            json!(format!("..http_filters[?(@.name=='{ROUTER}')]")),
        ),
        (
            &cluster["type"],
            json!("type.googleapis.com/envoy.config.cluster.v3.Cluster"),
        ),
        (&cluster["operation"]["path"], json!("")),
        (&cluster["name"], cluster_value["name"].clone()),
    ] {
        assert_eq!(*found, expected);
    }
    let mut gateway = gateway(&weir);
    insert_before(
        list(at_mut(&mut gateway, MANAGER), "/http_filters"),
        ROUTER,
        added,
    );
    list(&mut gateway, "/static_resources/clusters").push(cluster_value.clone());
    assert_logins_are_limited(&gateway);
}

const RESERVED: &str = "domain: d
defaults: { reservations: { ttl: 60s } }
descriptors:
- { key: user, rate_limit: { unit: year, requests_per_unit: 1000 } }
";

/// A user's request reserves its estimate, and is charged its cost when it has ended. The client
/// sends one id with all of them.
fn assert_reserved(front: SocketAddr, path: &str) {
    let left = |headers: &str| {
        let request = format!("{path} x-user=ann x-stream-id=mine {headers}");
        let response = send(front, &request);
        let left = response.header("x-ratelimit-remaining").unwrap_or("");
        (response.status, left.to_owned())
    };
    for expected in [600, 500, 400] {
        let answer = left("x-estimate=400 x-cost=100");
        assert_eq!(answer, (200, expected.to_string()), "{path}");
        let rest = (200, (expected + 300).to_string());
        let is_settled = || (left("x-estimate=0") == rest).then_some(());
        assert!(
            wait::eventually(is_settled).is_some(),
            "{path}: {:?} instead of {rest:?}",
            left("x-estimate=0")
        );
    }
    // Without a cost all is refunded.
    assert_eq!(left("x-estimate=400"), (200, "300".to_owned()), "{path}");
    let is_refunded = || (left("") == (200, "700".to_owned())).then_some(());
    assert!(wait::eventually(is_refunded).is_some(), "{:?}", left(""));
}

#[test]
fn hits_are_reserved_and_settled() {
    let from = "--from user=header:x-user --cost %REQ(x-cost)%";
    for (attach, path) in [("filter", "/"), ("route", "/api/a")] {
        let site = site(RESERVED, &format!("{from} --attach {attach}"), |_| {});
        assert_reserved(site.front, path);
    }
    let start = || Weir::start(&[("limits.yaml", RESERVED)], &[]);

    let weir = start();
    let mut gateway = istio::gateway(&weir);
    let output = generate(RESERVED, &format!("--for istio {from}"));
    istio::patch(&mut gateway, "GATEWAY", &output);
    let envoy = Envoy::start(&gateway.to_string());
    assert_reserved(envoy.listener("front"), "/");

    let weir = start();
    let mut gateway = self::gateway(&weir);
    let service = weir.grpc_addr();
    let arguments = format!("--for envoy-gateway {from} --service {service}");
    let policy = documents_in(&generate(RESERVED, &arguments)).remove(0);
    for patch in items(&policy, "/spec/jsonPatches") {
        let value = at(patch, "/operation/value");
        match patch["type"].as_str().expect("a type") {
            "type.googleapis.com/envoy.config.listener.v3.Listener" => {
                let manager = at_mut(&mut gateway, MANAGER);
                insert_before(list(manager, "/http_filters"), ROUTER, value);
            }
            _ => list(&mut gateway, "/static_resources/clusters").push(value.clone()),
        }
    }
    let envoy = Envoy::start(&gateway.to_string());
    assert_reserved(envoy.listener("front"), "/");
}
