//! The EnvoyPatchPolicy for Envoy Gateway: its Envoys ask a Weir with the limits of files.
//!
//! A BackendTrafficPolicy cannot say most of a limit (algorithms, windows, patterns), and its
//! limits come by xDS in place of files.

use std::str::FromStr;

use super::descriptors::Descriptors;
use super::output::{Asking, Grpc};
use super::yaml::{indented, scalar};

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
    ) -> String {
        let Self {
            namespace,
            gateway,
            name,
        } = self;
        // The filter stands behind filters that verify clients, as the router is the last one.
        format!(
            "\
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyPatchPolicy
metadata:
  name: {}
  namespace: {}
spec:
  targetRef:
    group: gateway.networking.k8s.io
    kind: Gateway
    name: {}
  type: JSONPatch
  jsonPatches:
    - type: type.googleapis.com/envoy.config.listener.v3.Listener
      name: {}
      operation:
        op: add
        jsonPath: \"..http_filters[?(@.name=='envoy.filters.http.router')]\"
        value:
          {}
    - type: type.googleapis.com/envoy.config.cluster.v3.Cluster
      name: weir
      operation:
        op: add
        path: \"\"
        value:
          {}",
            scalar(policy),
            scalar(namespace),
            scalar(gateway),
            scalar(&format!("{namespace}/{gateway}/{name}")),
            indented(&asking.filter(FILTER, descriptors, Grpc::Cluster), 10),
            indented(&asking.cluster(), 10)
        )
    }
}
