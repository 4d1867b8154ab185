//! What is checked in each overlay as kustomize builds it: every name that one manifest has of
//! another, every port, every variable.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{OVERLAYS, at, built, container, environment, find, is_known_setting, items, text};

/// The image of Weir, and that of Redis.
const IMAGES: [&str; 2] = [concat!("weir:", env!("CARGO_PKG_VERSION")), "redis:7"];

/// What has a pod template.
fn workloads(manifests: &[Value]) -> Vec<&Value> {
    manifests
        .iter()
        .filter(|manifest| manifest.pointer("/spec/template/spec/containers").is_some())
        .collect()
}

fn containers(workload: &Value) -> &[Value] {
    items(workload, "/spec/template/spec/containers")
}

/// Whether a pod with the labels of this workload has all of `selector`.
fn selects(selector: &Value, workload: &Value) -> bool {
    let labels = at(workload, "/spec/template/metadata/labels");
    selector
        .as_object()
        .expect("labels")
        .iter()
        .all(|(name, value)| labels.get(name) == Some(value))
}

/// The only workload with these labels.
fn selected<'a>(manifests: &'a [Value], selector: &Value) -> &'a Value {
    let found: Vec<_> = workloads(manifests)
        .into_iter()
        .filter(|workload| selects(selector, workload))
        .collect();
    let [workload] = found[..] else {
        panic!("{selector} selects {} workloads", found.len())
    };
    workload
}

/// The ports of a pod: name and number.
fn ports(workload: &Value) -> Vec<(&str, u64)> {
    let ports = containers(workload).iter().flat_map(|container| {
        container
            .get("ports")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    });
    ports
        .map(|port| {
            (
                text(port, "/name"),
                port["containerPort"].as_u64().expect("a number"),
            )
        })
        .collect()
}

fn of_kind<'a>(manifests: &'a [Value], kind: &str) -> Vec<&'a Value> {
    manifests
        .iter()
        .filter(|manifest| manifest["kind"] == kind)
        .collect()
}

fn for_each_overlay(check: impl Fn(&str, &[Value])) {
    for overlay in OVERLAYS {
        if let Some(manifests) = built(overlay) {
            assert!(manifests.len() >= 6, "{overlay}");
            check(overlay, &manifests);
        }
    }
}

fn assert_autoscaled(overlay: &str, manifests: &[Value], weir: &Value) {
    let autoscalers = of_kind(manifests, "HorizontalPodAutoscaler");
    assert_eq!(
        autoscalers.len(),
        usize::from(overlay != "memory"),
        "{overlay}: counters in memory are for one pod"
    );
    for autoscaler in autoscalers {
        let target = find(
            manifests,
            text(autoscaler, "/spec/scaleTargetRef/kind"),
            text(autoscaler, "/spec/scaleTargetRef/name"),
        );
        assert_eq!(target, weir);
        assert!(
            target["spec"].get("replicas").is_none(),
            "{overlay}: `kubectl apply` would reset the number"
        );
        // The longest that a client keeps a connection, in seconds.
        let window = "/spec/behavior/scaleDown/stabilizationWindowSeconds";
        assert!(at(autoscaler, window).as_u64() >= Some(300));
    }
}

#[test]
fn services_budgets_and_autoscalers_select_one_workload_and_its_ports() {
    for_each_overlay(|overlay, manifests| {
        for service in of_kind(manifests, "Service") {
            let workload = selected(manifests, at(service, "/spec/selector"));
            for port in items(service, "/spec/ports") {
                let target = ports(workload)
                    .into_iter()
                    .find(|(name, _)| port["targetPort"] == *name);
                // Redis Cluster and Sentinel announce the ports of pods, and clients of the
                // headless Service connect to them.
                assert_eq!(
                    target.map(|(_, number)| json!(number)),
                    Some(port["port"].clone()),
                    "{overlay}: {port}"
                );
            }
        }
        let weir = find(manifests, "Deployment", "ratelimit");
        assert_eq!(
            at(
                find(manifests, "Service", "ratelimit-headless"),
                "/spec/clusterIP"
            ),
            "None",
            "{overlay}"
        );
        for name in ["ratelimit", "ratelimit-headless"] {
            assert_eq!(
                selected(
                    manifests,
                    at(find(manifests, "Service", name), "/spec/selector")
                ),
                weir,
                "{overlay}: {name}"
            );
        }
        for budget in of_kind(manifests, "PodDisruptionBudget") {
            selected(manifests, at(budget, "/spec/selector/matchLabels"));
        }
        for monitor in of_kind(manifests, "PodMonitor") {
            let workload = selected(manifests, at(monitor, "/spec/selector/matchLabels"));
            let port = text(monitor, "/spec/podMetricsEndpoints/0/port");
            assert!(
                ports(workload).iter().any(|(name, _)| *name == port),
                "{overlay}: {port}"
            );
        }
        assert_autoscaled(overlay, manifests, weir);
        if overlay == "memory" {
            assert_eq!(
                (at(weir, "/spec/replicas"), at(weir, "/spec/strategy")),
                (&json!(1), &json!({"type": "Recreate"}))
            );
        }
    });
}

#[test]
fn network_policies_name_every_port_and_only_existing_ones() {
    for_each_overlay(|overlay, manifests| {
        let policies = of_kind(manifests, "NetworkPolicy");
        let mut closed = 0;
        for workload in workloads(manifests) {
            let own: Vec<_> = policies
                .iter()
                .filter(|policy| selects(at(policy, "/spec/podSelector/matchLabels"), workload))
                .collect();
            let rules = own.iter().flat_map(|policy| items(policy, "/spec/ingress"));
            let named: BTreeSet<_> = rules
                .flat_map(|rule| items(rule, "/ports"))
                .map(|port| text(port, "/port"))
                .collect();
            let declared: BTreeSet<_> = ports(workload).into_iter().map(|(name, _)| name).collect();
            assert_eq!(
                named,
                declared,
                "{overlay}: {}",
                text(workload, "/metadata/name")
            );
            closed += usize::from(
                own.iter()
                    .all(|policy| policy["spec"]["policyTypes"] == json!(["Ingress"]))
                    && !own.is_empty(),
            );
        }
        // The Job that creates a cluster has no port.
        assert_eq!(
            closed,
            workloads(manifests).len() - of_kind(manifests, "Job").len(),
            "{overlay}"
        );
        for policy in policies {
            for peer in items(policy, "/spec/ingress")
                .iter()
                .flat_map(|rule| items(rule, "/from"))
            {
                if peer.get("namespaceSelector").is_none() {
                    selected(manifests, at(peer, "/podSelector/matchLabels"));
                }
            }
            let is_redis = policy["metadata"]["name"] == "ratelimit-redis";
            let peers = items(policy, "/spec/ingress")
                .iter()
                .flat_map(|rule| items(rule, "/from"));
            assert!(
                !is_redis
                    || peers
                        .into_iter()
                        .all(|peer| peer.get("namespaceSelector").is_none()),
                "{overlay}: Redis has no password"
            );
        }
    });
}

/// Pods of which there are several are spread over zones and nodes.
fn assert_spread(workload: &Value, pod: &Value, name: &str) {
    let has_several =
        workload["kind"] == "StatefulSet" || workload["metadata"]["name"] == "ratelimit";
    if !has_several {
        return;
    }
    let spread = items(pod, "/topologySpreadConstraints");
    let keys: Vec<_> = spread
        .iter()
        .map(|constraint| text(constraint, "/topologyKey"))
        .collect();
    assert_eq!(
        keys,
        ["topology.kubernetes.io/zone", "kubernetes.io/hostname"],
        "{name}"
    );
    for constraint in spread {
        assert_eq!(
            at(constraint, "/labelSelector/matchLabels"),
            at(workload, "/spec/selector/matchLabels"),
            "{name}"
        );
    }
}

#[test]
fn pods_are_spread_restricted_and_have_what_they_mount() {
    for_each_overlay(|overlay, manifests| {
        for workload in workloads(manifests) {
            let name = format!(
                "{overlay}: {} {}",
                text(workload, "/kind"),
                text(workload, "/metadata/name")
            );
            let pod = at(workload, "/spec/template/spec");
            assert_eq!(
                (
                    &pod["automountServiceAccountToken"],
                    &pod["enableServiceLinks"]
                ),
                (&json!(false), &json!(false)),
                "{name}"
            );
            assert_eq!(at(pod, "/securityContext/runAsNonRoot"), true, "{name}");
            assert_eq!(
                at(pod, "/securityContext/seccompProfile/type"),
                "RuntimeDefault",
                "{name}"
            );
            assert_spread(workload, pod, &name);
            for container in containers(workload) {
                let limits = at(container, "/resources/limits");
                assert!(
                    limits.get("memory").is_some() && limits.get("cpu").is_none(),
                    "{name}: {limits}"
                );
                let expected = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}});
                assert_eq!(at(container, "/securityContext"), &expected, "{name}");
                assert!(
                    IMAGES.iter().any(|image| container["image"] == *image),
                    "{name}: {}",
                    container["image"]
                );
                for mount in container
                    .get("volumeMounts")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                {
                    assert!(
                        mount.get("subPath").is_none(),
                        "{name}: a subPath never changes"
                    );
                    mounted(overlay, manifests, workload, text(mount, "/name"));
                }
            }
        }
    });
}

/// A volume of a workload, with what it mounts.
fn mounted(overlay: &str, manifests: &[Value], workload: &Value, name: &str) {
    let named = |list: &str, pointer: &str| {
        let mut list = workload
            .pointer(list)
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        list.find(|entry| entry.pointer(pointer).is_some_and(|found| found == name))
            .cloned()
    };
    let claimed = named("/spec/volumeClaimTemplates", "/metadata/name");
    let volume = named("/spec/template/spec/volumes", "/name")
        .or(claimed)
        .unwrap_or_else(|| panic!("{overlay}: no volume {name}"));
    if let Some(config) = volume.pointer("/configMap/name") {
        find(manifests, "ConfigMap", config.as_str().expect("a name"));
    }
    if let Some(secret) = volume.pointer("/secret/secretName") {
        let made = of_kind(manifests, "Certificate")
            .into_iter()
            .any(|certificate| at(certificate, "/spec/secretName") == secret);
        assert!(made, "{overlay}: no certificate makes the Secret {secret}");
    }
}

#[test]
fn certificates_have_the_names_of_the_services_and_existing_issuers() {
    let Some(manifests) = built("tls") else {
        return;
    };
    for object in of_kind(&manifests, "Certificate") {
        find(
            &manifests,
            text(object, "/spec/issuerRef/kind"),
            text(object, "/spec/issuerRef/name"),
        );
    }
    let authority = text(
        find(&manifests, "Issuer", "ratelimit-ca"),
        "/spec/ca/secretName",
    );
    assert_eq!(
        authority,
        text(
            find(&manifests, "Certificate", "ratelimit-ca"),
            "/spec/secretName"
        )
    );
    let names = items(
        find(&manifests, "Certificate", "ratelimit"),
        "/spec/dnsNames",
    );
    for service in ["ratelimit", "ratelimit-headless"] {
        find(&manifests, "Service", service);
        assert!(
            names.contains(&json!(format!("{service}.default.svc.cluster.local"))),
            "{service}"
        );
    }
    let weir = find(&manifests, "Deployment", "ratelimit");
    let mount = items(container(weir), "/volumeMounts")
        .iter()
        .find(|mount| mount["name"] == "certificates")
        .expect("the Secret");
    for (name, value) in environment(container(weir))
        .into_iter()
        .filter(|(name, _)| name.starts_with("GRPC_SERVER_TLS_"))
    {
        assert!(
            value.starts_with(text(mount, "/mountPath")),
            "{name}={value}"
        );
    }
    // Probes of Kubernetes by gRPC speak no TLS.
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        assert!(
            container(weir)[probe].get("grpc").is_none()
                && container(weir)[probe].get("httpGet").is_some(),
            "{probe}"
        );
    }
}

/// Whether `host:port` is a port of a Service, or of a pod by the name that its headless Service
/// gives it.
fn assert_reachable(overlay: &str, manifests: &[Value], address: &str) {
    let (host, port) = address
        .split_once(':')
        .unwrap_or_else(|| panic!("{overlay}: {address} has no port"));
    let service = find(
        manifests,
        "Service",
        host.rsplit('.').next().expect("a name"),
    );
    let has_port = items(service, "/spec/ports")
        .iter()
        .any(|entry| entry["port"].as_u64() == port.parse().ok());
    assert!(has_port, "{overlay}: {address}");
    if let Some((pod, _)) = host.split_once('.') {
        let (set, number) = pod
            .rsplit_once('-')
            .expect("the name of a pod of a StatefulSet");
        let set = find(manifests, "StatefulSet", set);
        assert_eq!(
            (
                text(set, "/spec/serviceName"),
                at(service, "/spec/clusterIP")
            ),
            (text(service, "/metadata/name"), &json!("None"))
        );
        assert!(
            number.parse::<u64>().ok() < at(set, "/spec/replicas").as_u64(),
            "{overlay}: {address}"
        );
    }
}

#[test]
fn every_variable_is_a_setting_and_every_address_a_service() {
    let is_known = is_known_setting();
    for_each_overlay(|overlay, manifests| {
        let weir = find(manifests, "Deployment", "ratelimit");
        let settings = environment(container(weir));
        for (name, _) in &settings {
            assert!(
                is_known(name),
                "{overlay}: {name} is not in `weir serve --help`"
            );
        }
        let value = |name: &str| {
            settings
                .iter()
                .find(|setting| setting.0 == name)
                .map(|setting| setting.1)
        };
        let Some(url) = value("REDIS_URL") else {
            assert_eq!(
                (overlay, value("BACKEND_TYPE"), value("REPLICAS")),
                ("memory", Some("memory"), None)
            );
            return;
        };
        let addresses: Vec<_> = url.split(',').collect();
        let (servers, expected) = match value("REDIS_TYPE") {
            None => (&addresses[..], "redis"),
            Some("sentinel") => (&addresses[1..], "redis-sentinel"),
            Some("cluster") => (&addresses[..], "redis-cluster"),
            Some(other) => panic!("{other}"),
        };
        assert!(
            overlay == expected || ["tls", "monitoring"].contains(&overlay),
            "{overlay}"
        );
        for address in servers {
            assert_reachable(overlay, manifests, address);
        }
        let name = value("REPLICAS")
            .and_then(|replicas| replicas.strip_prefix("dns:"))
            .expect("a name");
        assert_eq!(
            at(find(manifests, "Service", name), "/spec/clusterIP"),
            "None",
            "{overlay}: the name has the addresses of the pods"
        );
    });
}

/// The scripts name each pod by its number.
#[test]
fn scripts_name_as_many_pods_as_there_are() {
    for overlay in ["redis-sentinel", "redis-cluster"] {
        let Some(manifests) = built(overlay) else {
            return;
        };
        let replicas = at(
            find(&manifests, "StatefulSet", "ratelimit-redis"),
            "/spec/replicas",
        )
        .as_u64()
        .expect("a number");
        let numbers = (0..replicas)
            .map(|number| format!(" {number}"))
            .collect::<String>();
        let config = of_kind(&manifests, "ConfigMap")
            .into_iter()
            .find(|map| text(map, "/metadata/name").starts_with("ratelimit-redis"));
        let files = at(config.expect("a ConfigMap"), "/data")
            .as_object()
            .expect("files");
        let loops = files
            .values()
            .filter_map(Value::as_str)
            .flat_map(str::lines)
            .filter(|line| line.trim().starts_with("for number in"));
        let loops: Vec<_> = loops.collect();
        assert!(
            !loops.is_empty()
                && loops
                    .iter()
                    .all(|line| line.trim() == format!("for number in{numbers}; do")),
            "{overlay}: {loops:?}"
        );
    }
}
