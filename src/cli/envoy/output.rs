//! The pieces of configuration around the descriptors: for Envoy's own files, for Istio, and for
//! Envoy Gateway. `templates` has what is the same in all of them.

use clap::Args;

use super::descriptors::Descriptors;
use super::reservations::RELEASE;
use super::source::SourceKind;
use super::sources::STREAM_ID;
use super::yaml::{fill, indented, list, scalar};
use super::{Envoy, Target};

/// Envoy's name of the HTTP filter, by which routes configure it.
const HTTP_FILTER: &str = "envoy.filters.http.ratelimit";

/// The filter's name in Envoy Gateway, which configures its own rate limits by the usual name,
/// route by route, and would replace these.
const FILTER_OF_GATEWAY: &str = "weir";

/// The filter that writes Envoy's own number of a request into this header and replaces what a
/// client sends.
const STREAM_ID_FILTER: &str = include_str!("templates/stream_id.yaml");

/// Where the descriptors are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Attach {
    /// The HTTP filter: every request, whatever its route has
    Filter,
    /// The virtual host: its requests, unless their route has `rate_limits` of its own
    VirtualHost,
    /// A route: its requests only
    Route,
    /// The network filter: TCP connections
    Tcp,
}

/// Inputs of all kinds of files.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    pub(super) envoy: &'a Envoy,
    pub(super) domain: &'a str,
    /// As Envoy writes a duration.
    pub(super) timeout: String,
    /// Host and port.
    pub(super) service: (String, u16),
    pub(super) descriptors: &'a Descriptors,
}

impl Asking<'_> {
    /// The pieces of a configuration file of Envoy: where each belongs, and its lines.
    pub(super) fn envoy(&self) -> Vec<(&'static str, String)> {
        let filter = list(&self.filters(HTTP_FILTER), 2);
        let mut pieces = match self.envoy.attach {
            Attach::Filter | Attach::Tcp => Vec::new(),
            Attach::VirtualHost => vec![("in the virtual host", self.rate_limits())],
            Attach::Route => vec![("in the route, next to `match`", self.per_route())],
        };
        pieces.push(if self.envoy.attach == Attach::Tcp {
            let place = "in the filters of the listener, before the TCP proxy";
            (place, format!("filters:\n  {filter}"))
        } else {
            let place = "in http_filters of the HTTP connection manager, before the router";
            (place, format!("http_filters:\n  {filter}"))
        });
        let cluster = list(&[self.cluster()], 2);
        pieces.push(("in the list of clusters", format!("clusters:\n  {cluster}")));
        pieces
    }

    /// The filters in their order, of which the last one asks Weir; see `filter`.
    fn filters(&self, name: &str) -> Vec<String> {
        let is_sent = self.descriptors.send_stream_id();
        let stream_id = is_sent.then(|| STREAM_ID_FILTER.trim_end().to_owned());
        stream_id.into_iter().chain([self.filter(name)]).collect()
    }

    /// The filter that asks Weir, under this name if it is one for HTTP.
    fn filter(&self, name: &str) -> String {
        let (host, domain) = (&*self.service.0, scalar(self.domain));
        // The cluster that Istio makes of the Service, or our own in `cluster`.
        let (cluster, authority) = if self.envoy.target == Target::Istio {
            // Without `authority` Envoy sends the name of the cluster, in which `|` is no letter of
            // an authority.
            let cluster = scalar(&format!("outbound|{}||{host}", self.service.1));
            (cluster, format!("authority: {}", scalar(host)))
        } else {
            ("weir".to_owned(), String::new())
        };
        let (protocol, name, stat_prefix, headers) = if self.envoy.attach == Attach::Tcp {
            let prefix = format!("stat_prefix: {domain}");
            ("network", "envoy.filters.network.ratelimit", prefix, "")
        } else {
            let headers = "enable_x_ratelimit_headers: DRAFT_VERSION_03";
            ("http", name, String::new(), headers)
        };
        let descriptors = match self.envoy.attach {
            Attach::Tcp => self.commented("descriptors", "entries"),
            Attach::Filter => self.rate_limits(),
            Attach::VirtualHost | Attach::Route => String::new(),
        };
        let failure_mode_deny = self.envoy.failure_mode_deny.to_string();
        let blocks = [
            ("name", name),
            ("protocol", protocol),
            ("stat_prefix", &stat_prefix),
            ("domain", &domain),
            ("timeout", &scalar(&self.timeout)),
            ("failure_mode_deny", &failure_mode_deny),
            ("headers", headers),
            ("cluster", &cluster),
            ("authority", &authority),
            ("descriptors", &descriptors),
        ];
        fill(include_str!("templates/filter.yaml"), &blocks)
    }

    /// The cluster of Weir. gRPC is HTTP/2.
    fn cluster(&self) -> String {
        // Envoy balances calls over all addresses of the name, as a headless Service has them.
        let (host, port) = &self.service;
        let kind = match host.parse::<std::net::IpAddr>() {
            Ok(_) => "STATIC",
            Err(_) => "STRICT_DNS",
        };
        let (host, port) = (scalar(host), port.to_string());
        let blocks = [("type", kind), ("host", &host), ("port", &port)];
        fill(include_str!("templates/cluster.yaml"), &blocks)
    }

    /// The filter's configuration of a route.
    fn per_route(&self) -> String {
        let rate_limits = self.rate_limits();
        let blocks = [("rate_limits", &*rate_limits)];
        fill(include_str!("templates/route.yaml"), &blocks)
    }

    fn rate_limits(&self) -> String {
        self.commented("rate_limits", "actions")
    }

    /// The descriptors in a field, each below the limits that it finds.
    fn commented(&self, field: &str, of_each: &str) -> String {
        let mut text = format!("{field}:");
        for own in &self.descriptors.all {
            for line in own.comments() {
                text += &format!("\n  # {line}");
            }
            let mut steps = own.expiries.steps(&self.envoy.hit_formats);
            if steps.is_empty() {
                let release = "the same when the request has ended";
                let release = (release, None, RELEASE.to_owned());
                steps.push(("", None, String::new()));
                steps.extend(own.is_released.then_some(release));
            }
            for (comment, key, rest) in steps {
                let id = SourceKind::Header(STREAM_ID.to_owned());
                let last = key.map(|key| id.action(key, None));
                let actions: Vec<_> = own.actions.iter().cloned().chain(last).collect();
                let item = format!("{of_each}:\n  {}{rest}", list(&actions, 2));
                if !comment.is_empty() {
                    text += &format!("\n  # {comment}");
                }
                text += &format!("\n  - {}", indented(&item, 4));
            }
        }
        text
    }
}

/// Which workloads an EnvoyFilter of Istio changes.
#[derive(Args, Debug)]
#[command(next_help_heading = "Istio")]
pub(super) struct Mesh {
    /// Create the EnvoyFilter in this namespace
    #[arg(long, default_value = "istio-system")]
    namespace: String,
    /// Select workloads with this label
    #[arg(long, default_value = "istio=ingressgateway")]
    #[arg(value_name = "LABEL=VALUE", value_parser = label)]
    selector: (String, String),
    /// Change proxies of this kind
    #[arg(long, default_value = "gateway", value_name = "gateway|sidecar")]
    context: Proxies,
    /// Change only the virtual host or route of this name, with --attach virtual-host or route
    /// [default: all]
    #[arg(long, value_name = "NAME")]
    target_name: Option<String>,
    /// Change only the listener on this port; 1 to 65535 [default: all]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    listener_port: Option<u16>,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("write LABEL=VALUE, such as app=shop".to_owned()),
    }
}

/// The proxies that an EnvoyFilter changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Proxies {
    /// Gateways
    Gateway,
    /// Sidecars, for inbound requests
    Sidecar,
}

impl Mesh {
    const fn context(&self) -> &'static str {
        match self.context {
            Proxies::Gateway => "GATEWAY",
            Proxies::Sidecar => "SIDECAR_INBOUND",
        }
    }

    pub(super) fn envoy_filter(&self, name: &str, asking: &Asking<'_>) -> String {
        let filters = asking.filters(HTTP_FILTER);
        let inserts = filters.iter().map(|filter| self.insert(asking, filter));
        let mut patches: Vec<_> = inserts.collect();
        // The patch of virtual hosts or routes: of that with the name, or of all.
        let target = self.target_name.as_deref().map(scalar);
        match asking.envoy.attach {
            Attach::Filter | Attach::Tcp => {}
            Attach::VirtualHost => {
                let matched = target.map(|name| format!("name: {name}"));
                patches.push(self.merge("VIRTUAL_HOST", matched, &asking.rate_limits()));
            }
            Attach::Route => {
                let matched = target.map(|name| format!("route:\n  name: {name}"));
                patches.push(self.merge("HTTP_ROUTE", matched, &asking.per_route()));
            }
        }
        let (label, value) = &self.selector;
        let label = format!("{}: {}", scalar(label), scalar(value));
        let blocks = [
            ("name", &*scalar(name)),
            ("namespace", &scalar(&self.namespace)),
            ("label", &label),
            ("patches", &list(&patches, 0)),
        ];
        fill(include_str!("templates/envoy_filter.yaml"), &blocks)
    }

    /// The patch that adds a filter before the one that ends the chain.
    fn insert(&self, asking: &Asking<'_>, filter: &str) -> String {
        let (apply_to, before) = if asking.envoy.attach == Attach::Tcp {
            ("NETWORK_FILTER", "name: envoy.filters.network.tcp_proxy")
        } else {
            let before = "name: envoy.filters.network.http_connection_manager\nsubFilter:\n  \
                name: envoy.filters.http.router";
            ("HTTP_FILTER", before)
        };
        let port = self.listener_port;
        let port = port.map_or_else(String::new, |port| format!("portNumber: {port}"));
        let blocks = [
            ("apply_to", apply_to),
            ("context", self.context()),
            ("port", &port),
            ("before", before),
            ("filter", filter),
        ];
        fill(include_str!("templates/insert_patch.yaml"), &blocks)
    }

    fn merge(&self, apply_to: &str, matched: Option<String>, value: &str) -> String {
        let matched = matched.map_or_else(String::new, |matched| {
            let matched = indented(&matched, 4);
            format!("routeConfiguration:\n  vhost:\n    {matched}")
        });
        let blocks = [
            ("apply_to", apply_to),
            ("context", self.context()),
            ("matched", &matched),
            ("value", value),
        ];
        fill(include_str!("templates/merge_patch.yaml"), &blocks)
    }
}

/// Reads a listener of a Gateway of Envoy Gateway: the namespace, the Gateway and the listener.
///
/// # Errors
/// What to write.
pub(super) fn gateway_listener(text: &str) -> Result<[String; 3], &'static str> {
    let parts: Vec<_> = text.split('/').map(str::to_owned).collect();
    let is_named = parts.iter().all(|part| !part.is_empty());
    let parts = parts.try_into().ok().filter(|_| is_named);
    parts.ok_or("write NAMESPACE/GATEWAY/LISTENER, such as default/eg/http")
}

impl Asking<'_> {
    /// The EnvoyPatchPolicy of this name: the Envoys of Envoy Gateway ask a Weir with the limits of
    /// files. A BackendTrafficPolicy has no fields for most of it (algorithms, windows, patterns),
    /// and its limits come by xDS instead of files.
    pub(super) fn envoy_patch_policy(&self, name: &str, listener: &[String; 3]) -> String {
        let [namespace, gateway, _] = listener;
        let name_of_listener = scalar(&listener.join("/"));
        let insert = |filter: &String| {
            let blocks = [("listener", &*name_of_listener), ("filter", filter)];
            fill(include_str!("templates/listener_patch.yaml"), &blocks)
        };
        let filters = self.filters(FILTER_OF_GATEWAY);
        let patches: Vec<_> = filters.iter().map(insert).collect();
        // Envoy Gateway gives listeners of Envoy this name, unless Gateways are merged. The filter
        // is after filters that verify clients, as the router is the last one.
        let blocks = [
            ("name", &*scalar(name)),
            ("namespace", &scalar(namespace)),
            ("gateway", &scalar(gateway)),
            ("patches", &list(&patches, 0)),
            ("cluster", &self.cluster()),
        ];
        fill(include_str!("templates/envoy_patch_policy.yaml"), &blocks)
    }
}
