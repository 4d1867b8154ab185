//! `weir envoy` against a real Envoy and a real Weir: what is printed is put into a gateway, and
//! each request must find the limits that the file says, no other one, and each once.
//!
//! Weir puts the paths of limits into its answers (`LIMIT_PATHS_AS_NAMES_ENABLED`), and Envoy shows
//! them in `x-ratelimit-limit`: so a response says which limits its request has found.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use serde_json::{Value, json};

use super::{at, documents_in, istio};
use crate::support::envoy::{Envoy, validate};
use crate::support::http_client::{Response, exchange, request_from};
use crate::support::{Weir, ports, tools, wait};

/// The output of `weir envoy` for these limits.
fn generate(limits: &str, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("limits.yaml");
    std::fs::write(&file, limits).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .arg("envoy")
        .args(arguments)
        .arg(&file)
        .env_clear()
        .output()
        .expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// A gateway without limits: its connection manager does what the notes of `weir envoy` ask for.
fn gateway(weir_port: u16) -> Value {
    let template = include_str!("gateway.yaml")
        .replace("APPLICATION_PORT", &ports::free().port().to_string())
        .replace("WEIR_PORT", &weir_port.to_string());
    let mut gateway = documents_in(&template).remove(0);
    let manager = manager(&mut gateway);
    manager["normalize_path"] = true.into();
    manager["merge_slashes"] = true.into();
    gateway
}

fn manager(gateway: &mut Value) -> &mut Value {
    gateway
        .pointer_mut("/static_resources/listeners/0/filter_chains/0/filters/0/typed_config")
        .expect("the gateway's listener")
}

fn list<'a>(value: &'a mut Value, pointer: &str) -> &'a mut Vec<Value> {
    value
        .pointer_mut(pointer)
        .and_then(Value::as_array_mut)
        .unwrap_or_else(|| panic!("no list {pointer}"))
}

/// Puts what is printed where its comments say.
fn insert(gateway: &mut Value, printed: &str) {
    let printed = documents_in(printed).remove(0);
    list(gateway, "/static_resources/clusters").extend(
        at(&printed, "/clusters")
            .as_array()
            .expect("clusters")
            .iter()
            .cloned(),
    );
    let filters = list(manager(gateway), "/http_filters");
    let router = filters.len() - 1;
    filters.insert(router, at(&printed, "/http_filters/0").clone());
    let host = manager(gateway)
        .pointer_mut("/route_config/virtual_hosts/0")
        .expect("a host");
    if let Some(limits) = printed.get("rate_limits") {
        host["rate_limits"] = limits.clone();
    }
    if let Some(config) = printed.get("typed_per_filter_config") {
        let mut route = host["routes"][0].clone();
        route["match"] = json!({ "prefix": "/api/" });
        route["typed_per_filter_config"] = config.clone();
        list(host, "/routes").insert(0, route);
    }
}

struct Site {
    weir: Weir,
    envoy: Envoy,
    front: SocketAddr,
}

/// A Weir with these limits, and an Envoy that asks it as `weir envoy` says. `change` may add to
/// the gateway.
fn site(limits: &str, arguments: &[&str], change: impl FnOnce(&mut Value)) -> Site {
    let weir = Weir::start(
        &[("limits.yaml", limits)],
        &[("LIMIT_PATHS_AS_NAMES_ENABLED", "true")],
    );
    let port = weir.grpc_addr().port();
    let service = format!("127.0.0.1:{port}");
    let mut gateway = gateway(port);
    insert(
        &mut gateway,
        &generate(
            limits,
            &[
                &[
                    "--service",
                    &service,
                    "--timeout-ms",
                    "10000",
                    "--failure-mode-deny",
                ],
                arguments,
            ]
            .concat(),
        ),
    );
    change(&mut gateway);
    let envoy = Envoy::start(&gateway.to_string());
    assert!(!envoy.log().contains("Deprecated field"), "{}", envoy.log());
    Site {
        front: envoy.listener("front"),
        weir,
        envoy,
    }
}

/// A request: path, headers, and the last number of the client's address.
type Request<'a> = (&'a str, &'a [(&'a str, &'a str)], u8);

fn send(front: SocketAddr, (path, headers, client): Request<'_>) -> Response {
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()))
        .collect();
    request_from(Ipv4Addr::new(127, 0, 0, client), front, path, &headers)
}

/// The limits that a request has found, by their names.
fn found(response: &Response) -> Vec<String> {
    let header = response.header("x-ratelimit-limit").unwrap_or("");
    let mut names: Vec<_> = header
        .split("name=\"")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        .collect();
    names.sort();
    names
}

/// Every request finds these limits, and no others.
fn assert_found(site: &Site, table: &[(Request<'_>, &[&str])]) {
    for (request, expected) in table {
        let response = send(site.front, *request);
        let mut expected: Vec<_> = expected.iter().map(ToString::to_string).collect();
        expected.sort();
        assert_eq!(
            (response.status, found(&response)),
            (200, expected),
            "{request:?}"
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
    let from = [
        "remote_address=remote-address",
        "generic_key=generic-key",
        "user=header:x-user",
        "api_key=header:x-api-key or none",
    ];
    let mut arguments: Vec<_> = from.iter().flat_map(|from| ["--from", from]).collect();
    arguments.push("--from");
    for path in ["path=path", "path=path-match"] {
        arguments.push(path);
        let site = site(&basic, &arguments, |_| {});
        arguments.pop();
        let all = ["per-client", "whole-site", "per-api-key"];
        let and = |more: &'static str| [all[0], all[1], all[2], more];
        wait::away_from_the_end_of_a_minute();
        assert_found(
            &site,
            &[
                (("/", &[], 2), &all),
                (("/login", &[], 2), &and("login")),
                (("/login?x=/y", &[], 2), &and("login")),
                (("//login", &[], 2), &and("login")),
                (("/x/../login", &[], 3), &and("login")),
                (("/logi%6e", &[], 3), &and("login")),
                (("/loginx", &[], 3), &all),
                (("/login/", &[], 3), &all),
                (("/?/login", &[], 3), &all),
                (("/", &[("x-user", "ann")], 3), &and("per-user-trial")),
                (("/", &[("x-user", "bot-7")], 3), &and("all-bots")),
                (("/", &[("x-user", "admin")], 3), &all),
                (("/", &[("x-api-key", "k")], 3), &all),
                (("/", &[("x-api-key", "internal")], 3), &all[..2]),
            ],
        );
        let logins = (0..6)
            .map(|_| send(site.front, ("/login?y", &[], 9)).status)
            .collect::<Vec<_>>();
        assert_eq!(logins, [200, 200, 200, 200, 200, 429], "five a minute");
        assert_eq!(
            [
                send(site.front, ("/", &[], 9)).status,
                send(site.front, ("/login", &[], 8)).status
            ],
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
    ];
    let mut from: Vec<_> = keys
        .iter()
        .map(|key| format!("--from={key}=query:{key}"))
        .collect();
    from.extend([
        "--from=remote_address=remote-address".to_owned(),
        "--from=upstream=generic-key:legacy".to_owned(),
    ]);
    from.push("--from=request=header:x-stream-id".to_owned());
    let site = site(
        &algorithms,
        &from.iter().map(String::as_str).collect::<Vec<_>>(),
        |_| {},
    );
    let always = ["legacy-system", "per-client"];
    assert_found(
        &site,
        &[
            (("/", &[], 2), &always),
            (
                ("/?user=ann", &[], 2),
                &["legacy-system", "per-client", "per-user"],
            ),
            (
                ("/?a=b&login=x", &[], 2),
                &["legacy-system", "per-client", "logins"],
            ),
            // Envoy shows no name of a limit without a window.
            (("/?report=ann", &[("x-stream-id", "1")], 2), &always),
            (
                ("/?mailbox=ann", &[], 2),
                &["legacy-system", "per-client", "mails"],
            ),
            (
                ("/?customer=1&tenant=2&model_tokens=3", &[], 2),
                &[
                    "legacy-system",
                    "per-client",
                    "daily-quota",
                    "per-tenant",
                    "model-tokens",
                ],
            ),
        ],
    );
}

#[test]
fn several_descriptors_quotas_and_delays_of_the_examples() {
    let tenants = tools::file("config/tenants.yaml");
    for contract in [
        "contract=header:x-contract",
        "contract=header-match:x-contract",
    ] {
        let from = [
            "--from",
            "tenant=header:x-tenant",
            "--from",
            "quota=generic-key",
            "--from",
            "route=path-match",
            "--from",
            contract,
        ];
        let site = site(&tenants, &from, |_| {});
        let quotas = ["daily-quota", "reserve"];
        assert_found(
            &site,
            &[
                (("/", &[], 2), &quotas),
                (
                    ("/", &[("x-tenant", "a")], 2),
                    &["daily-quota", "reserve", "every-tenant"],
                ),
                (
                    ("/", &[("x-tenant", "a"), ("x-contract", "gold")], 2),
                    &["daily-quota", "reserve", "gold"],
                ),
                (
                    ("/", &[("x-tenant", "a"), ("x-contract", "silver")], 2),
                    &["daily-quota", "reserve", "every-tenant"],
                ),
                (("/", &[("x-contract", "gold")], 2), &quotas),
                (
                    ("/reports/a?b", &[], 2),
                    &["daily-quota", "reserve", "reports"],
                ),
                (("/reports", &[], 2), &quotas),
            ],
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
        String::from_utf8_lossy(
            &exchange(Ipv4Addr::LOCALHOST, site.front, message.as_bytes()).expect("an answer"),
        )
        .into_owned()
    };
    let first = post("shop.example");
    assert!(
        first.starts_with("HTTP/1.1 200")
            && first.contains("name=\"writes\"")
            && first.contains("name=\"hosts\""),
        "{first}"
    );
    assert!(
        post("a").starts_with("HTTP/1.1 200") && post("a").starts_with("HTTP/1.1 429"),
        "two writes"
    );
}

/// A client of the network is limited with it, and one of another is not.
fn assert_addresses_are_sources(site: &Site) {
    let masked = request_from(Ipv4Addr::new(127, 0, 1, 9), site.front, "/", &[]);
    assert!(found(&masked).contains(&"network".to_owned()), "{masked:?}");
    let outside = request_from(Ipv4Addr::new(127, 1, 0, 9), site.front, "/", &[]);
    assert!(
        !found(&outside).contains(&"block".to_owned())
            && found(&outside).contains(&"plain".to_owned()),
        "{outside:?}"
    );
}

#[test]
fn every_source_sends_what_the_file_limits() {
    let sources = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(sources.path(), OWN_SOURCES).expect("written");
    let path = sources.path().to_string_lossy().into_owned();
    let site = site(OWN, &["--sources", &path], |gateway| {
        let payload = json!({ "payload": { "sub": "ann" } });
        let metadata =
            json!({ "metadata_namespace": "envoy.filters.http.jwt_authn", "value": payload });
        let config = json!({ "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config", "metadata": [metadata] });
        list(manager(gateway), "/http_filters").insert(
            0,
            json!({ "name": "envoy.filters.http.set_metadata", "typed_config": config }),
        );
        let host = manager(gateway)
            .pointer_mut("/route_config/virtual_hosts/0")
            .expect("a host");
        let mut route = host["routes"][0].clone();
        route["match"] = json!({ "prefix": "/team" });
        route["metadata"] = json!({ "filter_metadata": { "own": { "team": "blue" } } });
        list(host, "/routes").insert(0, route);
    });
    let all = ["plain", "destination", "subject", "block"];
    let and = |more: &[&'static str]| [&all[..], more].concat();
    let batch = |tenant: &'static str| [("x-kind", "batch"), ("x-tenant", tenant)];
    assert_found(
        &site,
        &[
            (("/", &[], 2), &all),
            (("/q?a=1", &[], 2), &and(&["whole"])),
            (("/q?a=2", &[], 2), &all),
            (("/team/x", &[], 2), &and(&["team"])),
            (("/?plan=gold", &[], 2), &and(&["plan"])),
            (("/?plan=golden", &[], 2), &all),
            // An exact value, then the first pattern, then the next one: never two of them.
            (("/", &[("x-kind", "batch")], 2), &all),
            (("/", &[("x-kind", "batches")], 2), &and(&["kind-b"])),
            (("/", &[("x-kind", "single")], 2), &and(&["kind-other"])),
            // Below it, the tenant is looked up as the request sends it.
            (("/", &batch("b"), 2), &and(&["batch", "batch-of-user"])),
            (
                (
                    "/",
                    &[("x-kind", "batch"), ("x-tenant", "b"), ("x-user", "ann")],
                    2,
                ),
                &and(&["batch", "batch-of-user"]),
            ),
            (("/", &batch("a1"), 2), &and(&["batch-of-a"])),
            (("/", &batch("a2"), 2), &and(&["batch-of-a"])),
        ],
    );
    let status = |request| send(site.front, request).status;
    assert_eq!(
        [
            status(("/", &batch("a3"), 2)),
            status(("/", &batch("b"), 2)),
            status(("/", &batch("c"), 2))
        ],
        [429, 429, 200]
    );
    assert_eq!(
        send(site.front, ("/", &[], 3))
            .header("x-ratelimit-limit")
            .map(|limit| limit.contains("network")),
        Some(false)
    );
    assert_addresses_are_sources(&site);
    assert_methods_and_hosts_are_sources(&site);
}

/// Descriptors that a virtual host or a route has are sent for its requests only.
#[test]
fn a_virtual_host_or_a_route_gets_the_descriptors() {
    let limits = "domain: d\ndescriptors:\n  - { key: remote_address, rate_limit: { unit: year, \
        requests_per_unit: 900, name: client } }\n";
    let from = ["--from", "remote_address=remote-address", "--attach"];
    let host = site(limits, &[&from[..], &["virtual-host"]].concat(), |_| {});
    assert_found(
        &host,
        &[
            (("/api/a", &[], 2), &["client"]),
            (("/", &[], 2), &["client"]),
        ],
    );
    let route = site(limits, &[&from[..], &["route"]].concat(), |_| {});
    assert_found(
        &route,
        &[(("/api/a", &[], 2), &["client"]), (("/", &[], 2), &[])],
    );
}

#[test]
fn istio_gets_a_filter_that_sends_the_same() {
    let limits = "domain: d/e\ndescriptors:\n  - { key: path, value: /login, rate_limit: { unit: \
        year, requests_per_unit: 2, name: login } }\n";
    for attach in ["filter", "virtual-host", "route"] {
        let weir = Weir::start(&[("limits.yaml", limits)], &[]);
        let printed = generate(
            limits,
            &[
                "--for",
                "istio",
                "--timeout-ms",
                "10000",
                "--from",
                "path=path",
                "--attach",
                attach,
            ],
        );
        let envoy = Envoy::start(&istio::patched(weir.grpc_addr().port(), &printed));
        let status = |path| send(envoy.listener("front"), (path, &[], 2)).status;
        assert_eq!(
            [
                status("/login"),
                status("/login?x"),
                status("/login"),
                status("/")
            ],
            [200, 200, 429, 200],
            "{attach}"
        );
        assert_eq!(
            weir.metric("weir_connections_rewritten_total"),
            Some(0.0),
            "it has an authority"
        );
    }
}

#[test]
fn connections_are_limited_by_their_address() {
    let limits = "domain: tcp\ndescriptors:\n  - key: listener\n    value: 50%\n    \
        descriptors:\n      - { key: client, rate_limit: { unit: year, requests_per_unit: 2 } }\n";
    let weir = Weir::start(&[("limits.yaml", limits)], &[]);
    let service = weir.grpc_addr().to_string();
    let from = [
        "--from",
        "listener=generic-key",
        "--from",
        "client=remote-address",
    ];
    let printed = generate(
        limits,
        &[
            &[
                "--attach",
                "tcp",
                "--service",
                &service,
                "--timeout-ms",
                "10000",
            ],
            &from[..],
        ]
        .concat(),
    );
    let printed = documents_in(&printed).remove(0);
    let response = json!({ "@type": "type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config", "response": { "inline_string": "hello\n" } });
    let answer =
        json!({ "name": "envoy.filters.network.direct_response", "typed_config": response });
    let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": 0 } });
    let configuration = json!({
        "static_resources": {
            "listeners": [{ "name": "front", "address": address, "filter_chains": [{ "filters": [at(&printed, "/filters/0"), answer] }] }],
            "clusters": at(&printed, "/clusters"),
        },
        "admin": { "address": address },
    });
    validate(&configuration.to_string());
    let envoy = Envoy::start(&configuration.to_string());
    let connect = |client| {
        exchange(
            Ipv4Addr::new(127, 0, 0, client),
            envoy.listener("front"),
            b"",
        )
        .expect("a connection")
    };
    assert_eq!(
        [connect(2), connect(2), connect(2), connect(3)],
        [&b"hello\n"[..], b"hello\n", b"", b"hello\n"]
    );
    assert_eq!(envoy.stat("ratelimit.tcp.error"), 0);
}

/// The patches, applied to a gateway as Envoy Gateway applies them: `add` puts an item of a list
/// before the one that the path names.
#[test]
fn envoy_gateway_gets_a_policy_that_sends_the_same() {
    let limits = "domain: d\ndescriptors:\n  - { key: path, value: /login, rate_limit: { unit: \
        year, requests_per_unit: 2, name: login } }\n";
    let weir = Weir::start(&[("limits.yaml", limits)], &[]);
    let service = weir.grpc_addr().to_string();
    let more = [
        "--for",
        "envoy-gateway",
        "--listener",
        "shop/public/https",
        "--service",
        &service,
    ];
    let printed = generate(
        limits,
        &[&more[..], &["--timeout-ms", "10000", "--from", "path=path"]].concat(),
    );
    let policy = documents_in(&printed).remove(0);
    assert_eq!(
        (&policy["kind"], &policy["metadata"]["namespace"]),
        (&json!("EnvoyPatchPolicy"), &json!("shop"))
    );
    assert_eq!(
        policy["spec"]["targetRef"],
        json!({ "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "public" })
    );
    let patches = at(&policy, "/spec/jsonPatches");
    let mut gateway = gateway(weir.grpc_addr().port());
    let (listener, cluster) = (&patches[0], &patches[1]);
    assert_eq!(
        (&listener["type"], &listener["name"]),
        (
            &json!("type.googleapis.com/envoy.config.listener.v3.Listener"),
            &json!("shop/public/https")
        )
    );
    assert_eq!(
        listener["operation"]["jsonPath"],
        "..http_filters[?(@.name=='envoy.filters.http.router')]"
    );
    let filters = list(manager(&mut gateway), "/http_filters");
    let router = filters
        .iter()
        .position(|filter| filter["name"] == "envoy.filters.http.router")
        .expect("a router");
    filters.insert(router, listener["operation"]["value"].clone());
    assert_eq!(
        (&cluster["type"], &cluster["operation"]["path"]),
        (
            &json!("type.googleapis.com/envoy.config.cluster.v3.Cluster"),
            &json!("")
        )
    );
    assert_eq!(cluster["name"], cluster["operation"]["value"]["name"]);
    list(&mut gateway, "/static_resources/clusters").push(cluster["operation"]["value"].clone());
    let envoy = Envoy::start(&gateway.to_string());
    let status = |path| send(envoy.listener("front"), (path, &[], 2)).status;
    assert_eq!(
        [
            status("/login"),
            status("/login?x"),
            status("/login"),
            status("/")
        ],
        [200, 200, 429, 200]
    );
}
