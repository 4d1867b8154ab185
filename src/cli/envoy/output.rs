//! The pieces of configuration around the descriptors: for Envoy's own files, and for Istio.

use super::descriptors::Descriptors;
use super::yaml::{Yaml, map, one};

/// Envoy's name of the HTTP filter, by which routes configure it.
const HTTP_FILTER: &str = "envoy.filters.http.ratelimit";
const HTTP_FILTER_TYPE: &str =
    "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit";
const PER_ROUTE_TYPE: &str =
    "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";
const NETWORK_FILTER: &str = "envoy.filters.network.ratelimit";
const NETWORK_FILTER_TYPE: &str =
    "type.googleapis.com/envoy.extensions.filters.network.ratelimit.v3.RateLimit";
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

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

/// One piece: where it belongs, and what it is.
pub(super) type Piece = (&'static str, Yaml);

impl Asking<'_> {
    /// The pieces of a configuration file of Envoy.
    pub(super) fn envoy(&self, descriptors: &Descriptors) -> Vec<Piece> {
        let cluster = (
            "in the list of clusters",
            one("clusters", vec![self.cluster()]),
        );
        let filter = self.filter(HTTP_FILTER, descriptors, Grpc::Cluster);
        match self.attach {
            Attach::Filter => {
                vec![
                    (
                        "in http_filters of the HTTP connection manager, before the router",
                        one("http_filters", vec![filter]),
                    ),
                    cluster,
                ]
            }
            Attach::Tcp => vec![
                (
                    "in the filters of the listener, before the TCP proxy",
                    one("filters", vec![filter]),
                ),
                cluster,
            ],
            Attach::VirtualHost => vec![
                (
                    "in the virtual host",
                    one("rate_limits", rate_limits(descriptors)),
                ),
                (
                    "in http_filters of the HTTP connection manager, before the router",
                    one("http_filters", vec![filter]),
                ),
                cluster,
            ],
            Attach::Route => vec![
                (
                    "in the route, beside `match`",
                    one(
                        "typed_per_filter_config",
                        one(HTTP_FILTER, per_route(descriptors)),
                    ),
                ),
                (
                    "in http_filters of the HTTP connection manager, before the router",
                    one("http_filters", vec![filter]),
                ),
                cluster,
            ],
        }
    }

    /// The filter that asks Weir, under this name if it is one for HTTP.
    pub(super) fn filter(&self, name: &str, descriptors: &Descriptors, grpc: Grpc) -> Yaml {
        let service = match grpc {
            Grpc::Cluster => one("cluster_name", "weir"),
            // Without `authority` Envoy sends the name of the cluster, in which `|` is no letter of
            // an authority.
            Grpc::Istio => map([
                (
                    "cluster_name",
                    format!("outbound|{}||{}", self.port, self.host).into(),
                ),
                ("authority", self.host.into()),
            ]),
        };
        let service = map([
            ("transport_api_version", "V3".into()),
            ("grpc_service", one("envoy_grpc", service)),
        ]);
        if self.attach == Attach::Tcp {
            let config = map([
                ("@type", NETWORK_FILTER_TYPE.into()),
                ("stat_prefix", self.domain.into()),
                ("domain", self.domain.into()),
                ("timeout", self.timeout.as_str().into()),
                ("failure_mode_deny", self.failure_mode_deny.into()),
                ("rate_limit_service", service),
                ("descriptors", commented(descriptors, "entries")),
            ]);
            return map([("name", NETWORK_FILTER.into()), ("typed_config", config)]);
        }
        let config = map([
            ("@type", HTTP_FILTER_TYPE.into()),
            ("domain", self.domain.into()),
            ("timeout", self.timeout.as_str().into()),
            ("failure_mode_deny", self.failure_mode_deny.into()),
            ("enable_x_ratelimit_headers", "DRAFT_VERSION_03".into()),
            ("rate_limit_service", service),
        ]);
        let config = if self.attach == Attach::Filter {
            config.with("rate_limits", rate_limits(descriptors))
        } else {
            config
        };
        map([("name", name.into()), ("typed_config", config)])
    }

    /// The cluster of Weir. gRPC is HTTP/2.
    pub(super) fn cluster(&self) -> Yaml {
        let http2 = map([
            (
                "@type",
                format!("type.googleapis.com/{HTTP_OPTIONS}").into(),
            ),
            (
                "explicit_http_config",
                one("http2_protocol_options", map([])),
            ),
        ]);
        let address = map([
            ("address", self.host.into()),
            ("port_value", u32::from(self.port).into()),
        ]);
        let endpoint = one("endpoint", one("address", one("socket_address", address)));
        let endpoints = one("lb_endpoints", vec![endpoint]);
        // Envoy balances calls over all addresses of the name, as a headless Service has them.
        let kind = if self.host.parse::<std::net::IpAddr>().is_ok() {
            "STATIC"
        } else {
            "STRICT_DNS"
        };
        map([
            ("name", "weir".into()),
            ("type", kind.into()),
            ("connect_timeout", "0.25s".into()),
            ("typed_extension_protocol_options", one(HTTP_OPTIONS, http2)),
            (
                "load_assignment",
                map([
                    ("cluster_name", "weir".into()),
                    ("endpoints", vec![endpoints].into()),
                ]),
            ),
        ])
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
    pub(super) fn envoy_filter(&self, asking: &Asking<'_>, descriptors: &Descriptors) -> Yaml {
        let mut patches = vec![self.insert(asking, descriptors)];
        match asking.attach {
            Attach::Filter | Attach::Tcp => {}
            Attach::VirtualHost => {
                patches.push(self.merge(
                    "VIRTUAL_HOST",
                    |name| one("name", name),
                    one("rate_limits", rate_limits(descriptors)),
                ));
            }
            Attach::Route => {
                let value = one(
                    "typed_per_filter_config",
                    one(HTTP_FILTER, per_route(descriptors)),
                );
                patches.push(self.merge(
                    "HTTP_ROUTE",
                    |name| one("route", one("name", name)),
                    value,
                ));
            }
        }
        let (label, value) = self.selector;
        map([
            ("apiVersion", "networking.istio.io/v1alpha3".into()),
            ("kind", "EnvoyFilter".into()),
            (
                "metadata",
                map([
                    ("name", self.name.as_str().into()),
                    ("namespace", self.namespace.into()),
                ]),
            ),
            (
                "spec",
                map([
                    ("workloadSelector", one("labels", one(label, value))),
                    ("configPatches", patches.into()),
                ]),
            ),
        ])
    }

    /// The patch that adds the filter before the one that ends the chain.
    fn insert(&self, asking: &Asking<'_>, descriptors: &Descriptors) -> Yaml {
        let is_tcp = asking.attach == Attach::Tcp;
        let filter = if is_tcp {
            one("name", "envoy.filters.network.tcp_proxy")
        } else {
            let router = one("name", "envoy.filters.http.router");
            map([
                (
                    "name",
                    "envoy.filters.network.http_connection_manager".into(),
                ),
                ("subFilter", router),
            ])
        };
        let listener = self
            .port
            .map_or_else(|| map([]), |port| one("portNumber", u32::from(port)))
            .with("filterChain", one("filter", filter));
        map([
            (
                "applyTo",
                if is_tcp {
                    "NETWORK_FILTER"
                } else {
                    "HTTP_FILTER"
                }
                .into(),
            ),
            (
                "match",
                map([
                    ("context", self.context.name().into()),
                    ("listener", listener),
                ]),
            ),
            (
                "patch",
                map([
                    ("operation", "INSERT_BEFORE".into()),
                    (
                        "value",
                        asking.filter(HTTP_FILTER, descriptors, Grpc::Istio),
                    ),
                ]),
            ),
        ])
    }

    /// A patch of virtual hosts or routes: of that with the name, or of all.
    fn merge(&self, apply_to: &str, by_name: impl FnOnce(&str) -> Yaml, value: Yaml) -> Yaml {
        let all = one("context", self.context.name());
        let matched = match self.target {
            Some(name) => all.with("routeConfiguration", one("vhost", by_name(name))),
            None => all,
        };
        map([
            ("applyTo", apply_to.into()),
            ("match", matched),
            (
                "patch",
                map([("operation", "MERGE".into()), ("value", value)]),
            ),
        ])
    }
}

fn per_route(descriptors: &Descriptors) -> Yaml {
    map([
        ("@type", PER_ROUTE_TYPE.into()),
        ("rate_limits", rate_limits(descriptors)),
    ])
}

fn rate_limits(descriptors: &Descriptors) -> Yaml {
    commented(descriptors, "actions")
}

/// The descriptors, each below the limits that it finds.
fn commented(descriptors: &Descriptors, field: &str) -> Yaml {
    let mut items = Vec::with_capacity(descriptors.all.len());
    for own in &descriptors.all {
        let item = one(field, own.actions.clone());
        items.push(Yaml::Commented(own.comments(), Box::new(item.clone())));
        if own.is_released {
            let back = map([("number", 1_u32.into()), ("is_negative_hits", true.into())]);
            let release = item
                .with("hits_addend", back)
                .with("apply_on_stream_done", true);
            items.push(Yaml::Commented(
                vec!["the same when the request has ended".to_owned()],
                Box::new(release),
            ));
        }
    }
    items.into()
}
