//! A real Envoy that asks a real Weir: the responses that a client of Envoy gets.
//!
//! Limits are per year, so that no window ends while a test runs; only the first example of the
//! README uses limits per minute, from `config/`.

mod authority;
mod responses;
mod upstream;

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};

use crate::support::envoy::{Envoy, with};
use crate::support::http_client::{self, get, request, request_from};
use crate::support::wait::{self, eventually};
use crate::support::{Weir, ports, tools};

const LIMITS: &[(&str, &str)] = &[(
    "limits.yaml",
    "
domain: test
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 3, name: per-user }
  - key: remote_address
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: generic_key
    value: special
    rate_limit: { unit: year, requests_per_unit: 2, name: special }
  - key: header_match
    value: bulk
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: generic_key
    value: half-minute
    rate_limit: { unit: second, unit_multiplier: 30, requests_per_unit: 1000 }
  - key: generic_key
    value: tokens
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: generic_key
    value: budget
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket, count_denied: true }
  - key: generic_key
    value: paced
    rate_limit: { unit: second, requests_per_unit: 5, algorithm: leaky_bucket, max_delay: 1s }
  - key: generic_key
    value: burst
    rate_limit: { unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 50 }
  - key: generic_key
    value: burst-per-minute
    rate_limit: { unit: minute, requests_per_unit: 10, algorithm: token_bucket, burst: 15 }
  - key: generic_key
    value: open
    rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: allow }
  - key: generic_key
    value: several
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: generic_key
    value: at-a-time
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: port
    value: front
    rate_limit: { unit: year, requests_per_unit: 3 }
",
)];

/// For tests that stop Weir: it stops without a drain delay, and its port is not in the range that
/// the kernel assigns to other sockets.
fn without_drain_delay(port: &str) -> [(&'static str, &str); 2] {
    [("DRAIN_DELAY", "0s"), ("GRPC_PORT", port)]
}

/// The longest year, in seconds.
const YEAR_AT_MOST: u64 = 366 * 86_400;

struct Site {
    weir: Weir,
    envoy: Envoy,
    front: SocketAddr,
}

/// An Envoy configured by `template` that asks a Weir with [`LIMITS`].
fn site(template: &str) -> Site {
    site_with(template, &[])
}

/// As [`site`], with more settings of Weir.
fn site_with(template: &str, environment: &[(&str, &str)]) -> Site {
    let weir = Weir::start(
        LIMITS,
        &[
            &without_drain_delay(&ports::free().port().to_string()),
            environment,
        ]
        .concat(),
    );
    let configuration = template
        .replace("APPLICATION_PORT", &ports::free().port().to_string())
        .replace("WEIR_PORT", &weir.grpc_addr().port().to_string());
    let envoy = Envoy::start(&configuration);
    Site {
        front: envoy.listener("front"),
        weir,
        envoy,
    }
}

/// The template whose path `/generic` has this descriptor.
fn generic(value: &str) -> String {
    with(
        include_str!("envoy/descriptors.yaml"),
        "descriptor_value: special",
        &format!("descriptor_value: {value}"),
    )
}

fn descriptors() -> Site {
    site(include_str!("envoy/descriptors.yaml"))
}

/// `deploy/envoy/envoy.yaml` with other ports, and a timeout that is long enough for a busy
/// machine.
pub fn example_configuration(weir: SocketAddr) -> String {
    crate::deploy::examples::configuration("envoy", weir)
}

fn statuses<const N: usize>(call: impl Fn() -> http_client::Response) -> [u16; N] {
    std::array::from_fn(|_| call().status)
}

fn header(response: &http_client::Response, name: &str) -> String {
    response
        .header(name)
        .unwrap_or_else(|| panic!("no {name} in {response:?}"))
        .to_owned()
}

#[test]
fn the_example_configuration_limits_clients() {
    let example = tools::file("config/basic.yaml");
    let weir = Weir::start(&[("basic.yaml", &example)], &[]);
    let envoy = Envoy::start(&example_configuration(weir.grpc_addr()));
    let front = envoy.listener("front");
    let [ana, bob, eve] = [
        Ipv4Addr::new(127, 0, 0, 2),
        Ipv4Addr::new(127, 0, 0, 3),
        Ipv4Addr::new(127, 0, 0, 4),
    ];
    wait::away_from_the_end_of_a_minute();

    for left in (0..20).rev() {
        let response = request_from(ana, front, "/", &[]);
        assert_eq!((response.status, response.body.as_str()), (200, "hello\n"));
        assert_eq!(header(&response, "x-ratelimit-remaining"), left.to_string());
        let limit = header(&response, "x-ratelimit-limit");
        assert!(
            limit.starts_with("20, 20;w=60;name=\"per-client\""),
            "{limit}"
        );
    }
    let refused = request_from(ana, front, "/", &[]);
    assert_eq!(refused.status, 429, "the 21st request of a minute");
    assert_eq!(header(&refused, "x-ratelimit-remaining"), "0");
    let reset: u64 = header(&refused, "x-ratelimit-reset")
        .parse()
        .expect("seconds");
    assert!((1..=60).contains(&reset), "{reset}");
    assert_eq!(
        request_from(bob, front, "/", &[]).status,
        200,
        "another client"
    );

    let claimed = Cell::new(0);
    let lying = |path| {
        claimed.set(claimed.get() + 1);
        request_from(
            eve,
            front,
            path,
            &[(
                "x-forwarded-for",
                format!("10.9.8.{}", claimed.get()).as_bytes(),
            )],
        )
    };
    let limits = header(&lying("/login"), "x-ratelimit-limit");
    for name in ["\"login\"", "\"per-client\"", "\"whole-site\""] {
        assert!(limits.contains(name), "{limits} without {name}");
    }
    assert_eq!(
        ["/login?x=1", "//login", "/x/../login", "/login"].map(|path| lying(path).status),
        [200; 4]
    );
    assert_eq!(
        ["/login", "/login?x=2", "//login", "/x/../login"].map(|path| lying(path).status),
        [429; 4],
        "one limit, however it is written"
    );
    assert_eq!(lying("/").status, 200, "only the login is refused");
    assert!(!envoy.log().contains("Deprecated field"), "{}", envoy.log());
}

#[test]
fn a_header_is_limited_by_its_value_of_any_bytes() {
    let site = descriptors();
    let call = |user: &[u8]| request(site.front, "/header", &[("x-user", user)]);
    assert_eq!(statuses(|| call(b"ana")), [200, 200, 200, 429]);
    assert_eq!(statuses(|| call(b"bob")), [200], "another value");
    assert_eq!(
        statuses(|| get(site.front, "/header")),
        [200; 5],
        "without the header there is no descriptor"
    );
    for bytes in [&b"\xff\xfe"[..], b"caf\xe9", b"\xc3\x28"] {
        assert_eq!(
            statuses(|| call(bytes)),
            [200, 200, 200, 429],
            "{bytes:?} is no UTF-8"
        );
    }
    assert_eq!(
        site.envoy.stat("cluster.application.ratelimit.over_limit"),
        4
    );
    assert_eq!(site.envoy.stat("cluster.application.ratelimit.error"), 0);
}

/// A client reads how many hits remain, of how many, and the window in which as many are admitted
/// on average.
#[test]
fn response_headers_of_bursts_make_sense_together() {
    for (value, limit, least) in [
        ("burst", "50, 50;w=5", 49),
        ("burst-per-minute", "15, 15;w=90", 14),
        ("paced", "6, 6;w=1", 5),
    ] {
        let site = site(&generic(value));
        let response = get(site.front, "/generic");
        assert_eq!(response.status, 200);
        assert_eq!(header(&response, "x-ratelimit-limit"), limit, "{value}");
        assert_eq!(
            header(&response, "x-ratelimit-remaining"),
            least.to_string(),
            "{value}"
        );
        let reset: u64 = header(&response, "x-ratelimit-reset")
            .parse()
            .expect("seconds");
        assert!(
            (1..=6).contains(&reset),
            "{value}: the time until the bucket is full, {reset} s"
        );
    }
}

#[test]
fn hits_per_descriptor_looks_and_charges_at_the_end_of_a_stream() {
    let site = descriptors();
    assert_eq!(
        statuses(|| get(site.front, "/several")),
        [200, 200, 429],
        "4 + 4 of 10, and 4 more"
    );
    charged_at_the_end(&site);
}

fn charged_at_the_end(site: &Site) {
    let left = || header(&get(site.front, "/look"), "x-ratelimit-remaining");
    assert_eq!([left(), left()], ["10", "10"], "a look takes nothing");
    for expected in ["6", "2", "0"] {
        assert_eq!(get(site.front, "/tokens").status, 200);
        // Envoy sends the charge in a separate call after the response.
        assert!(
            eventually(|| (left() == expected).then_some(())).is_some(),
            "{} is left, not {expected}",
            left()
        );
    }
    assert_eq!(
        [
            get(site.front, "/tokens").status,
            get(site.front, "/look").status
        ],
        [429, 429],
        "12 of 10 are taken"
    );
}

#[test]
fn hits_of_a_request_are_given_back_when_it_ends() {
    let site = descriptors();
    let free = || header(&get(site.front, "/free"), "x-ratelimit-remaining");
    for number in 1..=5 {
        assert_eq!(
            get(site.front, "/at-a-time").status,
            200,
            "request {number}: two at a time, and this is the only one"
        );
        // Envoy gives the hit back in a separate call after the response.
        assert!(
            eventually(|| (free() == "2").then_some(())).is_some(),
            "{} are free after request {number}",
            free()
        );
    }
}

#[test]
fn without_weir_the_failure_mode_of_envoy_decides() {
    let port = ports::free().port().to_string();
    let mut weir = Weir::start(
        &[("basic.yaml", &tools::file("config/basic.yaml"))],
        &without_drain_delay(&port),
    );
    let open = example_configuration(weir.grpc_addr());
    let closed = with(
        &open,
        "# failure_mode_deny: true",
        "failure_mode_deny: true",
    );
    let (open, closed) = (Envoy::start(&open), Envoy::start(&closed));
    let call = |envoy: &Envoy| get(envoy.listener("front"), "/");
    assert_eq!([call(&open).status, call(&closed).status], [200, 200]);
    assert!(call(&open).header("x-ratelimit-limit").is_some());

    assert!(
        weir.terminate().success(),
        "open connections of Envoy do not delay the end"
    );
    assert_eq!(
        statuses(|| call(&open)),
        [200; 25],
        "by default everything passes"
    );
    assert!(
        call(&open).header("x-ratelimit-limit").is_none(),
        "without headers about limits"
    );
    assert_eq!(statuses(|| call(&closed)), [500; 3]);
    assert!(open.stat("cluster.application.ratelimit.error") >= 25);
    assert!(open.stat("cluster.application.ratelimit.failure_mode_allowed") >= 25);
}

/// The template with tracing of each request.
fn traced(template: &str) -> String {
    const TRACING: &str = "use_remote_address: true
                max_request_headers_kb: 240
                tracing:
                  random_sampling: { value: 100 }
                  provider:
                    name: envoy.tracers.opentelemetry
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
                      service_name: front
                      grpc_service: { envoy_grpc: { cluster_name: collector } }";
    // Nothing listens there: the spans are lost, the headers are copied all the same.
    let collector = format!(
        "  clusters:
    - name: collector
      type: STATIC
      connect_timeout: 10s
      load_assignment:
        cluster_name: collector
        endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: \
            127.0.0.1, port_value: {} }} }} }} }}] }}]\n",
        ports::free().port()
    );
    with(
        &with(template, "use_remote_address: true", TRACING),
        "  clusters:\n",
        &collector,
    )
}

/// With tracing, Envoy copies the `tracestate` of its client into the call. Were the call refused
/// for its headers, Envoy would let the client pass.
#[test]
fn a_client_that_sends_a_long_tracestate_is_limited() {
    let template = traced(include_str!("envoy/descriptors.yaml"));
    let template = with(
        &template,
        "failure_mode_deny: true",
        "failure_mode_deny: false",
    );
    let site = site(&template);
    let parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let call = |kilobytes: usize| {
        let state = ["v=", &"~".repeat(kilobytes * 1_000)].concat();
        request(
            site.front,
            "/header",
            &[
                ("x-user", b"ana"),
                ("traceparent", parent),
                ("tracestate", state.as_bytes()),
            ],
        )
    };
    assert_eq!(statuses(|| call(0)), [200, 200, 200, 429]);
    // The last ones are for operators who have raised Envoy's bound of 60 KiB.
    for kilobytes in [1, 5, 15, 17, 33, 50, 60, 66, 100, 200] {
        let sent = || site.envoy.stat("cluster.weir.upstream_cx_tx_bytes_total");
        let before = sent();
        assert_eq!(call(kilobytes).status, 429, "{kilobytes} KB");
        assert!(
            sent() - before > kilobytes as u64 * 1_000,
            "the tracestate was in the call"
        );
        assert_eq!(call(0).status, 429, "after {kilobytes} KB");
    }
    let stats = [
        "upstream_cx_total",
        "upstream_cx_destroy",
        "upstream_rq_tx_reset",
        "upstream_rq_rx_reset",
    ];
    assert_eq!(
        stats.map(|stat| site.envoy.stat(&format!("cluster.weir.{stat}"))),
        [1, 0, 0, 0]
    );
    assert_eq!(site.envoy.stat("cluster.application.ratelimit.error"), 0);
    assert_eq!(
        site.envoy.stat("cluster.application.ratelimit.over_limit"),
        21
    );
}

#[test]
fn health_checks_of_envoy_follow_weir() {
    let mut site = site(include_str!("envoy/tcp.yaml"));
    let becomes = |envoy: &Envoy, healthy| {
        eventually(|| (envoy.stat("cluster.weir.membership_healthy") == healthy).then_some(()))
            .is_some()
    };
    assert!(becomes(&site.envoy, 1), "it serves");
    assert!(site.envoy.stat("cluster.weir.health_check.success") >= 1);
    assert!(site.weir.terminate().success());
    assert!(becomes(&site.envoy, 0), "it has ended");
    let again = site.weir.grpc_addr().port().to_string();
    let _weir = Weir::start(LIMITS, &without_drain_delay(&again));
    assert!(becomes(&site.envoy, 1), "it is back");
}
