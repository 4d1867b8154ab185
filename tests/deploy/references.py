"""Checks references between the objects of a chart or an overlay: all names must exist.

Schemas do not cover this.
"""

import re

import helm


def check(rendered):
    """The mistakes of a rendered chart or an overlay, as lines."""
    found = []

    def must(condition, message):
        if not condition:
            found.append(message)

    labels_of = lambda document: document["metadata"].get("labels", {})
    identities = [
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
        for one in rendered.documents
    ]
    must(len(set(identities)) == len(identities), "two objects have one name")
    for kind, namespace, name in identities:
        must(namespace, f"{kind} {name} has no namespace")
        must(len(name) <= 63, f"{kind} {name}: its name is too long")

    deployments = rendered.all("Deployment") + rendered.all("StatefulSet")
    claims = {
        claim["metadata"]["name"]
        for one in deployments
        for claim in one["spec"].get("volumeClaimTemplates", [])
    }
    pods = [one["spec"]["template"] for one in deployments + rendered.all("Job")] + rendered.all(
        "Pod"
    )
    selected = lambda selector: [pod for pod in pods if selector.items() <= labels_of(pod).items()]
    containers = lambda pod: pod["spec"]["containers"]
    ports = lambda pod: {
        port["name"]: port["containerPort"]
        for one in containers(pod)
        for port in one.get("ports", [])
    }

    for deployment in deployments:
        template = deployment["spec"]["template"]
        must(
            selected(deployment["spec"]["selector"]["matchLabels"]) == [template],
            f"{deployment['metadata']['name']} selects other pods than its own",
        )
    for service in rendered.all("Service"):
        name, chosen = service["metadata"]["name"], selected(service["spec"]["selector"])
        must(len(chosen) == 1, f"Service {name} selects {len(chosen)} kinds of pods")
        for port in service["spec"]["ports"]:
            must(
                ports(chosen[0]).get(port["targetPort"]) == port["port"],
                f"Service {name}: port {port['name']}",
            )
    for budget in rendered.all("PodDisruptionBudget"):
        must(
            len(selected(budget["spec"]["selector"]["matchLabels"])) == 1,
            "the PodDisruptionBudget selects no pods",
        )
    for autoscaler in rendered.all("HorizontalPodAutoscaler"):
        target = autoscaler["spec"]["scaleTargetRef"]["name"]
        scaled = [one for one in deployments if one["metadata"]["name"] == target]
        must(
            len(scaled) == 1 and "replicas" not in scaled[0]["spec"],
            "the autoscaler has no Deployment, or the Deployment undoes what it does",
        )
    must(
        rendered.all("HorizontalPodAutoscaler")
        or "replicas" in rendered.one("Deployment", "service")["spec"],
        "no number of replicas",
    )

    config_maps = {one["metadata"]["name"] for one in rendered.all("ConfigMap")}
    given = rendered.values.get("limits", {}).get("existingConfigMap")
    secrets = secrets_in(rendered.values) | {
        one["spec"]["secretName"] for one in rendered.all("Certificate")
    }
    issuers = {one["metadata"]["name"]: one["spec"] for one in rendered.all("Issuer")}
    must(
        all(one["ca"]["secretName"] in secrets for one in issuers.values() if "ca" in one),
        "an Issuer has no Secret",
    )
    must(
        not issuers
        or all(one["spec"]["issuerRef"]["name"] in issuers for one in rendered.all("Certificate")),
        "a Certificate has no Issuer",
    )
    accounts = {one["metadata"]["name"] for one in rendered.all("ServiceAccount")} | {
        rendered.values.get("serviceAccount", {}).get("name"),
        "default",
    }
    for pod in pods:
        spec = pod["spec"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        must(len(volumes) == len(spec.get("volumes", [])), "two volumes have one name")
        mounted = [mount for one in containers(pod) for mount in one.get("volumeMounts", [])]
        must(
            {mount["name"] for mount in mounted} - claims == set(volumes),
            f"volumes {sorted(volumes)}, mounts {sorted({mount['name'] for mount in mounted})}",
        )
        must(not any("subPath" in mount for mount in mounted), "a file by subPath never changes")
        for volume in volumes.values():
            if "configMap" in volume and volume["name"] != "overlay":
                must(
                    volume["configMap"]["name"] in config_maps | {given},
                    f"no ConfigMap {volume['configMap']['name']}",
                )
            if "secret" in volume:
                must(
                    volume["secret"]["secretName"] in secrets,
                    f"no Secret {volume['secret']['secretName']}",
                )
                must(
                    spec["securityContext"].get("fsGroup")
                    == spec["securityContext"].get("runAsGroup"),
                    f"the Secret {volume['name']} is not readable",
                )
        must(
            spec.get("serviceAccountName", "default") in accounts,
            f"no ServiceAccount {spec.get('serviceAccountName')}",
        )
        must(
            spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
            and spec["securityContext"]["runAsNonRoot"] is True,
            "the pod may do more than it needs",
        )
        must(
            spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"},
            "no seccomp profile",
        )
        for one in containers(pod):
            context = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            must(
                context.items() <= one["securityContext"].items(),
                f"container {one['name']} has the security context {one['securityContext']}",
            )
            must(
                "memory" in one["resources"]["limits"] and "cpu" not in one["resources"]["limits"],
                f"limits of container {one['name']}",
            )
            must(
                len({entry["name"] for entry in one.get("env", [])}) == len(one.get("env", [])),
                "a variable is set twice",
            )
            for probe in (
                one[name]
                for name in ("startupProbe", "readinessProbe", "livenessProbe")
                if name in one
            ):
                must(
                    "grpc" not in probe or "GRPC_SERVER_USE_TLS" not in rendered.environment,
                    "probes by gRPC speak no TLS",
                )
                asked = next(
                    (
                        probe[kind]["port"]
                        for kind in ("httpGet", "grpc", "tcpSocket")
                        if kind in probe
                    ),
                    None,
                )
                must(
                    "exec" in probe or asked in ports(pod) or asked in ports(pod).values(),
                    f"a probe asks port {asked}",
                )
        for constraint in spec.get("topologySpreadConstraints", []):
            must(
                selected(constraint["labelSelector"]["matchLabels"]) == [pod],
                "a constraint spreads other pods",
            )
    must(
        all(
            len(one["spec"]["template"]["spec"]["topologySpreadConstraints"]) == 2
            for one in rendered.all("StatefulSet")
        ),
        "a StatefulSet is not spread",
    )

    of_urls = ("PROMETHEUS_PATH",)
    files = [
        value
        for name, value in rendered.environment.items()
        if name not in of_urls and str(value).startswith("/")
    ]
    folders = [
        mount["mountPath"] for mount in rendered.pod["containers"][0].get("volumeMounts", [])
    ]
    for file in files:
        must(
            any(
                folder.startswith(f"{file}/") or file.startswith(f"{folder}/") for folder in folders
            ),
            f"{file} is in no mounted folder",
        )

    network(rendered, must, selected, ports)
    replicas(rendered, must)
    monitors(rendered, must)
    certificates(rendered, must)
    return found


def secrets_in(values):
    """The names of Secrets that values name."""
    if isinstance(values, dict):
        named = {
            value
            for key, value in values.items()
            if re.search(r"[sS]ecret(Name)?$", key) and isinstance(value, str)
        }
        return named.union(*(secrets_in(value) for value in values.values()))
    return set()


def network(rendered, must, selected, ports):
    """Each port of each pod is open to the peers that the values name, and to no others."""
    values = rendered.values.get("networkPolicy", {})
    policies = rendered.all("NetworkPolicy")
    for policy in policies:
        chosen = selected(policy["spec"]["podSelector"]["matchLabels"])
        must(len(chosen) == 1, "a NetworkPolicy selects no pods")
        for rule in policy["spec"].get("ingress") or []:
            must(
                rule.get("from") and all(rule["from"]) and rule.get("ports"),
                f"{rule} admits all peers or all ports",
            )
            for port in rule["ports"] if rule not in values.get("extraIngress", []) else []:
                must(port["port"] in ports(chosen[0]), f"a NetworkPolicy names port {port['port']}")
    for deployment in rendered.all("Deployment") + rendered.all("StatefulSet"):
        component = deployment["metadata"]["labels"]["app.kubernetes.io/component"]
        own = [
            one
            for one in policies
            if one["metadata"]["labels"]["app.kubernetes.io/component"] == component
        ]
        if component == "service" and values.get("enabled") is False:
            must(not own, "there is a NetworkPolicy")
            continue
        must(len(own) == 1, f"{len(own)} NetworkPolicies for {component}")
        rules = own[0]["spec"].get("ingress") or []
        if component != "service":
            must(
                {port["port"] for rule in rules for port in rule["ports"]}
                == set(ports(deployment["spec"]["template"])),
                f"ports of {component}",
            )
            local = all(
                "namespaceSelector" not in peer and selected(peer["podSelector"]["matchLabels"])
                for rule in rules
                for peer in rule["from"]
            )
            must(local, f"{component} has no password, and is open to other pods than those here")
            continue
        must(
            own[0]["spec"]["policyTypes"]
            == ["Ingress", *(["Egress"] if values.get("egress", {}).get("enabled") else [])],
            "policyTypes",
        )
        must(
            [rule for rule in rules if rule in values.get("extraIngress", [])]
            == values.get("extraIngress", []),
            "extraIngress",
        )
        cluster = [{"namespaceSelector": {}}]
        expected = {
            "grpc": values.get("ask", cluster),
            "http": values.get("scrape", cluster),
            "metrics": values.get("scrape", cluster),
            "debug": values.get("administer", []),
        }
        test = bool(rendered.tests)
        for port in ports({"spec": rendered.pod}):
            peers = [
                peer
                for rule in rules
                for peer in rule["from"]
                if port in [one["port"] for one in rule["ports"]]
            ]
            of_test = [
                peer
                for peer in peers
                if peer.get("podSelector", {})
                .get("matchLabels", {})
                .get("app.kubernetes.io/component")
                == "test"
            ]
            must(
                [peer for peer in peers if peer not in of_test] == expected[port],
                f"port {port} is open to {peers}, not to {expected[port]}",
            )
            must(
                len(of_test) == (1 if test and port != "debug" else 0),
                f"port {port} and the pod of helm test",
            )
            must(
                all(
                    len(selected(peer["podSelector"]["matchLabels"])) == len(rendered.tests)
                    for peer in of_test
                ),
                "the NetworkPolicy does not select the pods of helm test",
            )


def replicas(rendered, must):
    """The replicas that Weir counts are those of an existing headless Service."""
    services = {one["metadata"]["name"]: one["spec"] for one in rendered.all("Service")}
    kind, _, name = rendered.environment.get("REPLICAS", "").partition(":")
    must(
        kind != "dns" or services.get(name.split(".")[0], {}).get("clusterIP") == "None",
        f"REPLICAS: {name} is no headless Service",
    )


def monitors(rendered, must):
    """A monitor finds each pod once, at a port that there is."""
    for monitor in rendered.all("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        services = [
            one for one in rendered.all("Service") if selector <= one["metadata"]["labels"].items()
        ]
        must(
            len(services) == 1 and services[0]["spec"].get("clusterIP") != "None",
            f"the ServiceMonitor selects {len(services)} Services",
        )
        names = [port["name"] for one in services for port in one["spec"]["ports"]]
        must(
            all(endpoint["port"] in names for endpoint in monitor["spec"]["endpoints"]),
            "the ServiceMonitor names no port",
        )
        must(
            monitor["spec"]["namespaceSelector"]["matchNames"]
            == [services[0]["metadata"]["namespace"]],
            "the ServiceMonitor looks elsewhere",
        )
    for monitor in rendered.all("PodMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        labels = rendered.one("Deployment", "service")["spec"]["template"]["metadata"]["labels"]
        must(
            selector <= labels.items()
            and monitor["spec"].get("jobLabel", "app.kubernetes.io/name") in labels,
            "the PodMonitor selects no pods",
        )
        names = [port["name"] for port in rendered.pod["containers"][0]["ports"]]
        must(
            all(endpoint["port"] in names for endpoint in monitor["spec"]["podMetricsEndpoints"]),
            "the PodMonitor names no port",
        )
    annotations = rendered.one("Deployment", "service")["spec"]["template"]["metadata"].get(
        "annotations", {}
    )
    has_monitor = bool(rendered.all("ServiceMonitor") or rendered.all("PodMonitor"))
    by_annotations = rendered.values.get("metrics", {}).get("annotations", True) and not has_monitor
    must(
        isinstance(rendered, helm.Built)
        or ("prometheus.io/scrape" in annotations) == by_annotations,
        "pods are scraped twice, or not at all",
    )


def certificates(rendered, must):
    """A certificate is mounted where Weir reads it, for the names that clients use for Services."""
    for certificate in (one for one in rendered.all("Certificate") if not one["spec"].get("isCA")):
        secret = certificate["spec"]["secretName"]
        mounted = [
            volume["secret"]["secretName"]
            for volume in rendered.pod["volumes"]
            if "secret" in volume
        ]
        must(secret in mounted, f"the Secret {secret} is not mounted")
        for service in (
            one["metadata"]
            for one in rendered.all("Service")
            if one["metadata"]["labels"]["app.kubernetes.io/component"] != "redis"
        ):
            for name in (
                service["name"],
                f"{service['name']}.{service['namespace']}.svc",
                f"{service['name']}.{service['namespace']}.svc.cluster.local",
            ):
                must(name in certificate["spec"]["dnsNames"], f"the certificate is not for {name}")
