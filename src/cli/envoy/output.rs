//! The pieces of configuration around the descriptors: for Envoy's own files, and for Istio.

use super::descriptors::Descriptors;
use super::yaml::{indented, list, scalar};

/// Envoy's name of the HTTP filter, by which routes configure it.
pub(super) const HTTP_FILTER: &str = "envoy.filters.http.ratelimit";

/// Where the descriptors are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Attach {
    /// The HTTP filter: every request, whatever its route says
    Filter,
    /// The virtual host: its requests, unless their route has `rate_limits` of its own
    VirtualHost,
    /// A route: its requests only
    Route,
    /// The network filter: TCP connections
    Tcp,
}

/// What both kinds of files need.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    pub(super) domain: &'a str,
    pub(super) attach: Attach,
    /// As Envoy writes a duration.
    pub(super) timeout: String,
    pub(super) failure_mode_deny: bool,
    pub(super) host: &'a str,
    pub(super) port: u16,
}

/// The cluster that the filter asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grpc {
    /// That of [`Asking::cluster`].
    Cluster,
    /// That which Istio makes of the Service.
    Istio,
}

/// One piece: where it belongs, and its lines.
pub(super) type Piece = (&'static str, String);

impl Asking<'_> {
    /// The pieces of a configuration file of Envoy.
    pub(super) fn envoy(&self, descriptors: &Descriptors) -> Vec<Piece> {
        let filter = list(&[self.filter(HTTP_FILTER, descriptors, Grpc::Cluster)], 2);
        let in_manager = (
            "in http_filters of the HTTP connection manager, before the router",
            format!("http_filters:\n  {filter}"),
        );
        let cluster = format!("clusters:\n  {}", list(&[self.cluster()], 2));
        let cluster = ("in the list of clusters", cluster);
        match self.attach {
            Attach::Filter => vec![in_manager, cluster],
            Attach::Tcp => {
                let place = "in the filters of the listener, before the TCP proxy";
                vec![(place, format!("filters:\n  {filter}")), cluster]
            }
            Attach::VirtualHost => {
                let piece = ("in the virtual host", rate_limits(descriptors));
                vec![piece, in_manager, cluster]
            }
            Attach::Route => {
                let piece = ("in the route, beside `match`", per_route(descriptors));
                vec![piece, in_manager, cluster]
            }
        }
    }

    /// The filter that asks Weir, under this name if it is one for HTTP.
    pub(super) fn filter(&self, name: &str, descriptors: &Descriptors, grpc: Grpc) -> String {
        let authority = match grpc {
            Grpc::Cluster => "cluster_name: weir".to_owned(),
            // Without `authority` Envoy sends the name of the cluster, in which `|` is no letter of
            // an authority.
            Grpc::Istio => format!(
                "cluster_name: {}\n        authority: {}",
                scalar(&format!("outbound|{}||{}", self.port, self.host)),
                scalar(self.host)
            ),
        };
        let is_tcp = self.attach == Attach::Tcp;
        let domain = scalar(self.domain);
        let (protocol, name) = if is_tcp {
            ("network", "envoy.filters.network.ratelimit")
        } else {
            ("http", name)
        };
        let filter = format!(
            "\
name: {name}
typed_config:
  \"@type\": type.googleapis.com/envoy.extensions.filters.{protocol}.ratelimit.v3.RateLimit
  {}domain: {domain}
  timeout: {}
  failure_mode_deny: {}
  {}rate_limit_service:
    transport_api_version: V3
    grpc_service:
      envoy_grpc:
        {authority}",
            if is_tcp {
                format!("stat_prefix: {domain}\n  ")
            } else {
                String::new()
            },
            scalar(&self.timeout),
            self.failure_mode_deny,
            if is_tcp {
                ""
            } else {
                "enable_x_ratelimit_headers: DRAFT_VERSION_03\n  "
            },
        );
        let sent = match self.attach {
            Attach::Tcp => commented(descriptors, "descriptors", "entries"),
            Attach::Filter => rate_limits(descriptors),
            Attach::VirtualHost | Attach::Route => return filter,
        };
        format!("{filter}\n  {}", indented(&sent, 2))
    }

    /// The cluster of Weir. gRPC is HTTP/2.
    pub(super) fn cluster(&self) -> String {
        // Envoy balances calls over all addresses of the name, as a headless Service has them.
        let kind = if self.host.parse::<std::net::IpAddr>().is_ok() {
            "STATIC"
        } else {
            "STRICT_DNS"
        };
        format!(
            "\
name: weir
type: {kind}
connect_timeout: \"0.25s\"
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    explicit_http_config:
      http2_protocol_options: {{}}
load_assignment:
  cluster_name: weir
  endpoints:
    - lb_endpoints:
        - endpoint:
            address:
              socket_address:
                address: {}
                port_value: {}",
            scalar(self.host),
            self.port
        )
    }
}

/// Which workloads an EnvoyFilter changes.
#[derive(Debug)]
pub(super) struct Mesh<'a> {
    pub(super) name: String,
    pub(super) namespace: &'a str,
    /// Name and value of a label.
    pub(super) selector: (&'a str, &'a str),
    pub(super) context: Context,
    /// The virtual host or the route that gets the descriptors.
    pub(super) target: Option<&'a str>,
    /// The port of the listener, for TCP.
    pub(super) port: Option<u16>,
}

/// The proxies that an EnvoyFilter changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Context {
    /// Gateways
    Gateway,
    /// Sidecars, for requests that come in
    Sidecar,
}

impl Context {
    const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "GATEWAY",
            Self::Sidecar => "SIDECAR_INBOUND",
        }
    }
}

impl Mesh<'_> {
    /// The EnvoyFilter.
    pub(super) fn envoy_filter(&self, asking: &Asking<'_>, descriptors: &Descriptors) -> String {
        let mut patches = vec![self.insert(asking, descriptors)];
        match asking.attach {
            Attach::Filter | Attach::Tcp => {}
            Attach::VirtualHost => {
                let host = |name: &str| format!("name: {name}");
                patches.push(self.merge("VIRTUAL_HOST", host, &rate_limits(descriptors)));
            }
            Attach::Route => {
                let route = |name: &str| format!("route:\n  name: {name}");
                patches.push(self.merge("HTTP_ROUTE", route, &per_route(descriptors)));
            }
        }
        let (label, value) = self.selector;
        format!(
            "\
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata:
  name: {}
  namespace: {}
spec:
  workloadSelector:
    labels:
      {}: {}
  configPatches:
    {}",
            scalar(&self.name),
            scalar(self.namespace),
            scalar(label),
            scalar(value),
            list(&patches, 4)
        )
    }

    /// The patch that adds the filter before the one that ends the chain.
    fn insert(&self, asking: &Asking<'_>, descriptors: &Descriptors) -> String {
        let (apply_to, last) = if asking.attach == Attach::Tcp {
            ("NETWORK_FILTER", "name: envoy.filters.network.tcp_proxy")
        } else {
            (
                "HTTP_FILTER",
                "\
name: envoy.filters.network.http_connection_manager
subFilter:
  name: envoy.filters.http.router",
            )
        };
        let port = self.port.map(|port| format!("portNumber: {port}\n    "));
        format!(
            "\
applyTo: {apply_to}
match:
  context: {}
  listener:
    {}filterChain:
      filter:
        {}
patch:
  operation: INSERT_BEFORE
  value:
    {}",
            self.context.name(),
            port.unwrap_or_default(),
            indented(last, 8),
            indented(&asking.filter(HTTP_FILTER, descriptors, Grpc::Istio), 4)
        )
    }

    /// A patch of virtual hosts or routes: of that with the name, or of all.
    fn merge(&self, apply_to: &str, by_name: impl FnOnce(&str) -> String, value: &str) -> String {
        let matched = self.target.map_or_else(String::new, |name| {
            let vhost = indented(&by_name(&scalar(name)), 6);
            format!("\n  routeConfiguration:\n    vhost:\n      {vhost}")
        });
        format!(
            "\
applyTo: {apply_to}
match:
  context: {}{matched}
patch:
  operation: MERGE
  value:
    {}",
            self.context.name(),
            indented(value, 4)
        )
    }
}

/// The filter's configuration of a route.
fn per_route(descriptors: &Descriptors) -> String {
    format!(
        "\
typed_per_filter_config:
  {HTTP_FILTER}:
    \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
    {}",
        indented(&rate_limits(descriptors), 4)
    )
}

fn rate_limits(descriptors: &Descriptors) -> String {
    commented(descriptors, "rate_limits", "actions")
}

/// The descriptors in a field, each below the limits that it finds.
fn commented(descriptors: &Descriptors, field: &str, of_each: &str) -> String {
    let mut text = format!("{field}:");
    let mut add = |comments: &[String], item: &str| {
        for line in comments {
            text += &format!("\n  # {line}");
        }
        text += &format!("\n  - {}", indented(item, 4));
    };
    for own in &descriptors.all {
        let item = format!("{of_each}:\n  {}", list(&own.actions, 2));
        add(&own.comments(), &item);
        if own.is_released {
            let back = "\
hits_addend:
  number: 1
  is_negative_hits: true
apply_on_stream_done: true";
            let comment = ["the same when the request has ended".to_owned()];
            add(&comment, &format!("{item}\n{back}"));
        }
    }
    text
}
