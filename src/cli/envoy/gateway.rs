//! The EnvoyPatchPolicy for Envoy Gateway: its Envoys ask a Weir with the limits of files.
//!
//! A BackendTrafficPolicy cannot say most of a limit (algorithms, windows, patterns), and its
//! limits come by xDS in place of files.

use std::str::FromStr;

use super::descriptors::Descriptors;
use super::output::{Asking, Grpc};
use super::yaml::{Yaml, map, one};

/// The filter's name. Envoy Gateway configures its own rate limits by the usual name, route by
/// route, and would replace these.
const FILTER: &str = "weir";

/// A listener of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listener {
    namespace: String,
    gateway: String,
    name: String,
}

impl FromStr for Listener {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let parts: Vec<_> = text.split('/').collect();
        match parts[..] {
            [namespace, gateway, listener] if parts.iter().all(|part| !part.is_empty()) => {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    gateway: gateway.to_owned(),
                    name: listener.to_owned(),
                })
            }
            _ => Err("write NAMESPACE/GATEWAY/LISTENER, such as default/eg/http"),
        }
    }
}

impl Listener {
    /// The policy. Envoy Gateway gives listeners of Envoy this name, unless Gateways are merged.
    pub(super) fn envoy_patch_policy(
        &self,
        policy: &str,
        asking: &Asking<'_>,
        descriptors: &Descriptors,
    ) -> Yaml {
        let Self {
            namespace,
            gateway,
            name,
        } = self;
        let target = map([
            ("group", "gateway.networking.k8s.io".into()),
            ("kind", "Gateway".into()),
            ("name", gateway.as_str().into()),
        ]);
        // Behind filters that verify clients, as the router is the last one.
        let router = "..http_filters[?(@.name=='envoy.filters.http.router')]";
        let filter = asking.filter(FILTER, descriptors, Grpc::Cluster);
        let insert = map([
            ("op", "add".into()),
            ("jsonPath", router.into()),
            ("value", filter),
        ]);
        let cluster = map([
            ("op", "add".into()),
            ("path", "".into()),
            ("value", asking.cluster()),
        ]);
        let patch = |kind: &str, name: String, operation: Yaml| {
            map([
                (
                    "type",
                    format!("type.googleapis.com/envoy.config.{kind}").into(),
                ),
                ("name", name.into()),
                ("operation", operation),
            ])
        };
        let patches = vec![
            patch(
                "listener.v3.Listener",
                format!("{namespace}/{gateway}/{name}"),
                insert,
            ),
            patch("cluster.v3.Cluster", "weir".to_owned(), cluster),
        ];
        map([
            ("apiVersion", "gateway.envoyproxy.io/v1alpha1".into()),
            ("kind", "EnvoyPatchPolicy".into()),
            (
                "metadata",
                one("name", policy).with("namespace", namespace.as_str()),
            ),
            (
                "spec",
                map([
                    ("targetRef", target),
                    ("type", "JSONPatch".into()),
                    ("jsonPatches", patches.into()),
                ]),
            ),
        ])
    }
}
