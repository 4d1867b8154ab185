//! `deploy/envoy`: a real Envoy accepts each file, and limits requests with Weir and the limits of
//! `config/` as the file says.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use crate::support::certificates::Files;
use crate::support::envoy::{Envoy, validate, with};
use crate::support::http_client::{connect_from, get, request};
use crate::support::{Weir, ports, tools, wait};

/// A file with the ports of a test, and a timeout that is long enough for a busy machine.
pub fn configuration(file: &str, weir: SocketAddr) -> String {
    let text = tools::file(&format!("deploy/envoy/{file}.yaml"));
    let text = with(
        &text,
        "address: 0.0.0.0, port_value: 10000",
        "address: 127.0.0.1, port_value: 0",
    );
    let text = with(&text, "port_value: 9901", "port_value: 0");
    let text = with(
        &text,
        "port_value: 8081",
        &format!("port_value: {}", weir.port()),
    );
    let text = with(&text, "timeout: 0.1s", "timeout: 10s");
    text.replace(
        "port_value: 10001",
        &format!("port_value: {}", ports::free().port()),
    )
}

/// A Weir with one of the examples of `config/`.
fn weir(limits: &str, environment: &[(&str, &str)]) -> Weir {
    Weir::start(
        &[(
            "limits.yaml",
            &tools::file(&format!("config/{limits}.yaml")),
        )],
        environment,
    )
}

/// Counts as many requests of an address as if an Envoy had asked about them.
pub fn count(weir: &Weir, domain: &str, address: &str, requests: u32) {
    let entry = format!("remote_address={address}");
    let mut hit = Command::new(env!("CARGO_BIN_EXE_weir"));
    hit.args([
        "hit",
        "--address",
        &weir.grpc_addr().to_string(),
        "--domain",
        domain,
        "--count",
        &requests.to_string(),
        &entry,
    ]);
    let output = hit.output().expect("the binary runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn start(file: &str, weir: &Weir) -> Envoy {
    let configuration = configuration(file, weir.grpc_addr());
    validate(&configuration);
    Envoy::start(&configuration)
}

/// The limits of config/basic.yaml with another number of requests of a client.
fn limits_of_clients(requests: u32) -> String {
    let limits = tools::file("config/basic.yaml");
    let amount = format!("requests_per_unit: {requests}");
    limits.replacen("requests_per_unit: 20", &amount, 1)
}

/// How many refusals of a filter Envoy has seen, also of those that it did not carry out. The page
/// names the series of Prometheus.
fn refusals(envoy: &Envoy, filter: &str) -> u64 {
    let series = format!("envoy_cluster_ratelimit_{filter}_over_limit");
    let page = tools::file("deploy/envoy/README.md");
    assert!(page.contains(&series), "{series}");
    let stats = envoy.text("/stats/prometheus");
    let values = stats
        .lines()
        .filter_map(|line| line.strip_prefix(&series)?.split_once("} "));
    values
        .map(|(_, value)| value.parse::<u64>().expect("a number"))
        .sum()
}

/// Two services with different limits, in which a second Weir is envoyproxy/ratelimit: 2 and 4
/// requests of a client.
#[test]
fn a_canary_is_compared_before_its_refusals_count() {
    let start = |requests, headers| {
        let headers = [("LIMIT_RESPONSE_HEADERS_ENABLED", headers)];
        Weir::start(&[("limits.yaml", &limits_of_clients(requests))], &headers)
    };
    let (weir, other) = (start(2, "false"), start(4, "true"));
    let text = tools::file("deploy/envoy/canary.yaml").replace("timeout: 0.1s", "timeout: 10s");
    let text = [
        (
            "address: 0.0.0.0, port_value: 10000",
            "address: 127.0.0.1, port_value: 0".to_owned(),
        ),
        ("port_value: 9901", "port_value: 0".to_owned()),
        (
            "port_value: 8081",
            format!("port_value: {}", weir.grpc_addr().port()),
        ),
        (
            "port_value: 8091",
            format!("port_value: {}", other.grpc_addr().port()),
        ),
    ]
    .iter()
    .fold(text, |text, (old, new)| with(&text, old, new));
    let application = format!("port_value: {}", ports::free().port());
    let text = text.replace("port_value: 10001", &application);
    validate(&text);
    let envoy = Envoy::start(&text);
    let front = envoy.listener("front");
    wait::away_from_the_end_of_a_minute();
    let answers: [_; 5] = std::array::from_fn(|_| get(front, "/"));
    let statuses = answers.each_ref().map(|answer| answer.status);
    assert_eq!(statuses, [200, 200, 200, 200, 429], "the other one decides");
    for answer in &answers {
        let headers = answer.headers.iter();
        let count = headers
            .filter(|(name, _)| name == "ratelimit-remaining")
            .count();
        assert_eq!(count, 1, "of the other one only: {:?}", answer.headers);
    }
    assert_eq!(
        [refusals(&envoy, "weir"), refusals(&envoy, "ratelimit")],
        [3, 1]
    );
    // A route with limits of its own has those of both filters, with those of the site.
    assert_eq!(get(front, "/login").status, 429);
    assert_eq!(
        [refusals(&envoy, "weir"), refusals(&envoy, "ratelimit")],
        [4, 2]
    );
    envoy.post("/runtime_modify?ratelimit.enforced=0");
    assert_eq!(get(front, "/").status, 200, "none decides");
    envoy.post("/runtime_modify?weir.enforced=100");
    assert_eq!(get(front, "/").status, 429, "Weir decides");
    assert_eq!(
        [refusals(&envoy, "weir"), refusals(&envoy, "ratelimit")],
        [6, 3],
        "of what Weir refuses the other one is not asked"
    );
}

/// Whether a connection from 127.0.0.CLIENT reaches the application, whose answer ends in `hello`.
/// Envoy closes an answered connection a second later, and a refused one at once.
pub fn connects(front: SocketAddr, client: u8) -> bool {
    let connection = connect_from(Ipv4Addr::new(127, 0, 0, client), front);
    let mut stream = connection.expect("a connection");
    let (mut received, mut part) = (Vec::new(), [0; 4096]);
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    while !received.ends_with(b"hello\n") {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return false,
            Ok(length) => received.extend_from_slice(&part[..length]),
        }
    }
    true
}

#[test]
fn tcp_connections_are_limited() {
    let weir = weir("basic", &[]);
    let envoy = start("tcp", &weir);
    let front = envoy.listener("front");
    wait::away_from_the_end_of_a_minute();
    assert!(connects(front, 2));
    count(&weir, "demo", "127.0.0.2", 18);
    let answered = [2, 2, 2, 3].map(|client| connects(front, client));
    assert_eq!(
        answered,
        [true, false, false, true],
        "the 20th, two more, another client"
    );
    let [over_limit, error] =
        ["over_limit", "error"].map(|stat| envoy.stat(&format!("ratelimit.front.{stat}")));
    assert_eq!((over_limit, error), (2, 0));
}

#[test]
fn envoy_and_weir_present_certificates() {
    let files = Files::new();
    let own = |name: &str| files.text(name);
    let made = |expected| {
        let script = tools::repository().join("deploy/envoy/certificates.sh");
        let folder = own("ca.crt").replace("/ca.crt", "");
        let output = Command::new(script).arg(folder).output().expect("a script");
        assert_eq!(output.status.success(), expected, "{output:?}");
    };
    made(true);
    // A second run does not write over the first.
    made(false);
    let (ca, certificate, key) = (own("ca.crt"), own("weir.crt"), own("weir.key"));
    let environment = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &*certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_CLIENT_TLS_CACERT", &ca),
        ("GRPC_CLIENT_TLS_SAN", "envoy"),
    ];
    let folder = ca.trim_end_matches("/ca.crt");
    for name in ["certificate", "authority"] {
        let text = tools::file(&format!("deploy/envoy/sds/{name}.yaml"));
        assert!(text.contains("/certs/"), "{text}");
        files.write(&format!("{name}.yaml"), &text.replace("/certs", folder));
    }
    let weir = weir("basic", &environment);
    let configuration = configuration("mtls", weir.grpc_addr());
    assert_eq!(configuration.matches("/etc/envoy/sds/").count(), 2);
    let configuration = configuration.replace("/etc/envoy/sds", folder);
    validate(&configuration);
    let envoy = Envoy::start(&configuration);
    let front = envoy.listener("front");
    let asked = || {
        get(front, "/")
            .header("x-ratelimit-limit")
            .map(ToOwned::to_owned)
    };
    let limit = wait::eventually(asked).expect("Weir answers");
    assert!(limit.contains("per-client"), "{limit}");
    // Of the call, and of the health check.
    let handshakes = weir.metric("weir_tls_handshakes_total{outcome=\"completed\"}");
    assert_eq!(handshakes, Some(2.0));
    // A certificate of the same authority for another name is not Weir's.
    let other = with(
        &tools::file("deploy/envoy/sds/authority.yaml"),
        "exact: ratelimit",
        "exact: another",
    );
    files.write("authority.yaml", &other.replace("/certs", folder));
    let wrong = Envoy::start(&configuration);
    let response = get(wrong.listener("front"), "/");
    assert_eq!(
        (response.status, response.header("x-ratelimit-limit")),
        (200, None),
        "not asked"
    );
    assert!(wrong.stat("cluster.weir.ssl.fail_verify_san") >= 1);
}

/// Forms of a path that upstreams may take for one.
#[test]
fn each_form_of_an_export_takes_ten_hits() {
    let weir = weir("basic", &[]);
    let envoy = start("hits", &weir);
    let front = envoy.listener("front");
    wait::away_from_the_end_of_a_minute();
    let forms = "/export /export? /export?x=1 /export/ /export// //export ///export /./export \
        /export/. /a/../export /export/../export /%65xport /%65%78%70%6f%72%74 /%2e/export \
        /a/%2e%2e/export /%2fexport /export%2f /a/..%2fexport /%5cexport /EXPORT /Export/ \
        /export;x=1 /export/;x /export/all";
    let cost = |path: &str| {
        let response = request(front, path, &[("x-api-key", path.as_bytes())]);
        let left = response.header("x-ratelimit-remaining").unwrap_or_default();
        assert_eq!(response.status, 200, "{path}");
        100 - left.parse::<u32>().expect("a number")
    };
    for path in forms.split_ascii_whitespace() {
        assert_eq!(cost(path), 10, "{path}");
    }
    for path in ["/", "/exports", "/my/export", "/?export", "/export.html"] {
        assert_eq!(cost(path), 1, "{path}");
    }
}

/// More calls wait than Envoy sends by default: none passes undecided.
#[test]
fn the_circuit_breakers_are_above_the_calls_that_wait() {
    let files = std::fs::read_dir(tools::repository().join("deploy/envoy")).expect("a folder");
    let mut clusters = 0;
    for file in files {
        let path = file.expect("a file").path();
        if path.is_dir() || path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        let services = ["weir", "ratelimit"].map(|name| format!("        cluster_name: {name}\n"));
        let asked: usize = services.iter().map(|name| text.matches(name).count()).sum();
        let breakers = "thresholds: [{ max_requests: 100000, max_pending_requests: 100000 }]";
        assert_eq!(text.matches(breakers).count(), asked, "{}", path.display());
        let paths = text.matches("(?i)/").count().min(1);
        assert!(!text.contains("match: { path"), "{}", path.display());
        for setting in [
            "normalize_path: true",
            "merge_slashes: true",
            "path_with_escaped_slashes_action: UNESCAPE_AND_FORWARD",
        ] {
            assert_eq!(
                text.matches(setting).count(),
                paths,
                "{}: {setting}",
                path.display()
            );
        }
        clusters += asked;
    }
    assert!(clusters >= 9, "{clusters}");
    let weir = weir("basic", &[]);
    let shown = start("concurrency", &weir).text("/clusters");
    for bound in ["max_requests", "max_pending_requests"] {
        let line = format!("weir::default_priority::{bound}::100000\n");
        assert!(shown.contains(&line), "{shown}");
    }
}

/// The cluster of the page on Envoy, for answers without a cost.
#[test]
fn an_answer_without_a_cost_has_a_fixed_one() {
    let limits = "domain: algorithms\ndescriptors:\n  - { key: model_tokens, rate_limit: { unit: \
        year, requests_per_unit: 10000 } }\n";
    let weir = Weir::start(&[("limits.yaml", limits)], &[]);
    let configuration = configuration("stream-done", weir.grpc_addr());
    let configuration = with(&configuration, "\"15000\"", "\"%REQ(x-answer)%\"");
    let page = tools::file("deploy/envoy/README.md");
    let options = page
        .split("```")
        .find_map(|block| block.strip_prefix("yaml\ntyped_extension_protocol_options:"))
        .expect("the options of a cluster");
    let cluster = "    - name: application\n      type: STATIC\n";
    let options = options.trim_end().replace('\n', "\n      ");
    let own = format!("{cluster}      typed_extension_protocol_options:{options}\n");
    let configuration = with(&configuration, cluster, &own);
    validate(&configuration);
    let envoy = Envoy::start(&configuration);
    let front = envoy.listener("front");
    let hits =
        "ratelimit_service_rate_limit_total_hits{domain=\"algorithms\",key1=\"model_tokens\"}";
    let mut charged = 0;
    // The third one is refused, and charged nothing.
    for (user, cost, status, charge) in [
        ("ann", Some("10500"), 200, 10_500),
        ("bob", None, 200, 500),
        ("ann", None, 429, 0),
        ("bob", Some("700"), 200, 700),
    ] {
        let mut headers = vec![("x-user", user.as_bytes())];
        headers.extend(cost.map(|cost| ("x-answer", cost.as_bytes())));
        assert_eq!(request(front, "/", &headers).status, status, "{user}");
        charged += charge;
        let is_charged = || weir.metric(hits).filter(|hits| *hits == f64::from(charged));
        let found = wait::eventually(is_charged);
        assert!(found.is_some(), "{:?} of {charged}", weir.metric(hits));
    }
}
