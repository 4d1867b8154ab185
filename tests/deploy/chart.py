#!/usr/bin/env python3
"""Checks the Helm chart in deploy/helm/weir and the overlays in deploy/kubernetes.

It runs the real helm and kustomize, without a cluster.

    tests/deploy/chart.py lint        `helm lint --strict` for each case of cases.py
    tests/deploy/chart.py render      rendered objects match the schemas and refer to each other
    tests/deploy/chart.py refuse      helm rejects values that cannot work, with the reason
    tests/deploy/chart.py sources     alerts, dashboards and limits equal the repository's files
    tests/deploy/chart.py compare     the chart equals deploy/kubernetes and deploy/envoy-ai-gateway
    tests/deploy/chart.py page        the commands and values in deploy/README.md
    tests/deploy/chart.py overlays    `render` for deploy/kubernetes and the overlays of the pages

tests/deploy.sh runs them, and installs what they need.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import sys
import tarfile
import tempfile

# No folder of compiled files next to the scripts.
sys.dont_write_bytecode = True

import references
import schemas
from cases import CASES, REFUSED
from helm import CHART, REPOSITORY, KUBERNETES, Built, Rendered, rendered, run, template

# helm is a process for each case, and waits little.
THREADS = concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count())

OVERLAYS = REPOSITORY / "deploy/kubernetes"

# The values of the chart for the counters of an overlay, if they are not in a Redis of its own.
STORES = {"base": {"redis": {"mode": "external"}}, "memory": {"redis": {"mode": "none"}}}

# The oldest Kubernetes that Chart.yaml allows, and cases with fields that it does not have.
OLDEST = "1.27.0"
NEWER = ("details",)

# Labels of the chart that name a release.
OF_A_RELEASE = (
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
)


def lint():
    def one(name):
        code, output, errors = run(
            "lint", "--strict", "--quiet", CHART, "--kube-version", KUBERNETES, values=CASES[name]
        )
        return [] if code == 0 else [f"{name}: {output}{errors}"]

    return sum(THREADS.map(one, CASES), [])


def check(made, source, versions=schemas.VERSIONS):
    return schemas.check(made.documents, source, versions) or [
        f"{source}: {mistake}" for mistake in references.check(made)
    ]


def render():
    wrong = []
    for name, made in zip(CASES, THREADS.map(rendered, CASES.values())):
        wrong += check(
            made, name, schemas.VERSIONS if name in NEWER else (OLDEST, *schemas.VERSIONS)
        )
    code, _, errors = template({}, kubernetes=OLDEST)
    wrong += [] if code == 0 else [f"Kubernetes {OLDEST}: {errors}"]
    code, _, errors = template({}, kubernetes="1.26.0")
    wrong += (
        []
        if code != 0 and "1.26.0" in errors
        else ["Kubernetes 1.26, which is older, is not refused"]
    )
    return wrong + unused_values()


# Values below which the names are the user's.
FREE = (
    "settings",
    "autoscaling.behavior",
    "limits.files",
    "resources",
    "securityContext",
    "podSecurityContext",
    "redis.bundled.resources",
    "tls.certManager.privateKey",
    "metrics.dashboards.labels",
)

# Values of which one text is allowed, and is the default: files of values may write it.
FIXED = ("controlPlane.type",)


def unused_values():
    """Each value of values.yaml is set by a case, which renders something else without it."""

    def leaves(values, path=""):
        for name, value in values.items():
            inner = f"{path}{name}"
            yield from (
                leaves(value, f"{inner}.")
                if isinstance(value, dict) and value and inner not in FREE
                else [inner]
            )

    def without(values, path):
        """The values without one of them; None if they have it not."""
        name, _, rest = path.partition(".")
        if name not in values or rest and not isinstance(values[name], dict):
            return None
        inner = without(values[name], rest) if rest else {}
        return (
            None
            if inner is None
            else {key: value for key, value in values.items() if key != name}
            | ({name: inner} if rest else {})
        )

    def one(path):
        cases = [
            (values, without(values, path))
            for values in CASES.values()
            if without(values, path) is not None
        ]
        if not cases:
            return [f"no case sets {path}"]
        changes = any(template(changed)[1] != rendered(values).text for values, changed in cases)
        return [] if changes else [f"{path} changes nothing"]

    def undocumented(schema, values, path=""):
        """The values that only the schema has; helm adds `global` to each chart."""
        for name, inner in schema.get("properties", {}).items():
            if name not in values:
                yield f"values.yaml has no {path}{name}"
            elif isinstance(values[name], dict) and name != "settings":
                yield from undocumented(inner, values[name], f"{path}{name}.")

    values = schemas.documents((CHART / "values.yaml").read_text())[0]
    wrong = list(
        undocumented(
            json.loads((CHART / "values.schema.json").read_text()), {"global": {}, **values}
        )
    )
    return wrong + sum(THREADS.map(one, (path for path in leaves(values) if path not in FIXED)), [])


def refuse():
    def one(case):
        what, values, expected = case
        code, _, errors = template(values)
        if code == 0:
            return [f"{what} is not refused"]
        return [] if expected in errors else [f"{what}: {expected!r} is not in: {errors}"]

    return sum(THREADS.map(one, REFUSED), [])


def sources():
    made = rendered(CASES["pod-monitor"])
    alerts = schemas.documents((REPOSITORY / "deploy/monitoring/alerts.yaml").read_text())[0]
    wrong = monitoring(made, alerts, "chart") + monitoring(
        Built(OVERLAYS / "overlays/monitoring", {}), alerts, "overlay"
    )
    limits = (REPOSITORY / "deploy/kubernetes/limits/ratelimit.yaml").read_text()
    data = made.one("ConfigMap", "service")["data"]
    if (set(data), data["ratelimit.yaml"]) != ({"ratelimit.yaml", "helm-test.yaml"}, limits):
        wrong.append("the example limits are not deploy/kubernetes/limits")
    return wrong + changed_alerts(alerts) + package()


def monitoring(made, alerts, source):
    """The alerts and the dashboards equal deploy/monitoring."""
    shown = {
        name: json.loads(text)
        for one in made.all("ConfigMap")
        for name, text in one["data"].items()
        if name.endswith(".json")
    }
    dashboards = [
        json.loads(path.read_text())
        for path in (REPOSITORY / "deploy/monitoring/dashboards").iterdir()
    ]
    same = (
        made.one("PrometheusRule")["spec"] == alerts
        and len(shown) == len(dashboards)
        and all(one in shown.values() for one in dashboards)
    )
    return [] if same else [f"{source}: other alerts or dashboards than in deploy/monitoring"]


def changed_alerts(alerts):
    """Alerts with a prefix of their runbooks, a label, and without one of them."""
    rules = rendered(CASES["monitoring"]).one("PrometheusRule")["spec"]["groups"][0]["rules"]
    expected = json.loads(json.dumps(alerts["groups"][0]["rules"]))
    for rule in expected:
        rule["labels"]["team"] = "edge"
        rule["annotations"]["runbook_url"] = (
            "https://git.example/weir/blob/v0.1.0/" + rule["annotations"]["runbook_url"]
        )
    return (
        []
        if rules == [rule for rule in expected if rule["alert"] != "WeirAbsent"]
        else ["the values of prometheusRule do not apply"]
    )


def package():
    """A package has files instead of the links, and renders the same.

    The error of a copy without the files names the missing ones.
    """
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        code, output, errors = run("package", CHART, "--destination", folder)
        if code != 0:
            return [f"helm package: {output}{errors}"]
        archive = next(pathlib.Path(folder).glob("weir-*.tgz"))
        with tarfile.open(archive) as files:
            wrong += [
                f"{one.name} in the package is a link"
                for one in files.getmembers()
                if not one.isfile()
            ]
        for name in ("default", "monitoring"):
            if Rendered(CASES[name], archive).text != rendered(CASES[name]).text:
                wrong.append(f"{name}: the package renders something else than the folder")
        version = schemas.documents((CHART / "Chart.yaml").read_text())[0]
        if (
            archive.name != f"weir-{version['version']}.tgz"
            or version["appVersion"] != version["version"]
        ):
            wrong.append(f"{archive.name} and the versions in Chart.yaml")
        # As a tool that leaves links out copies it.
        with tarfile.open(archive) as files:
            files.extractall(
                folder,
                [one for one in files.getmembers() if "/files/" not in one.name],
                filter="data",
            )
        for values in ({}, {"limits": {"existingConfigMap": "a"}, **CASES["monitoring"]}):
            code, _, errors = template(values, pathlib.Path(folder, "weir"))
            if code == 0 or "symbolic link" not in errors:
                wrong.append(f"a chart without its files: {errors}")
    return wrong


# Differences between the chart and the files, and why. A path includes all paths below it.
BEYOND_THE_BASE = {
    "ServiceAccount/ratelimit": "an identity of its own, by which a mesh can admit it to a Redis",
    "Deployment/ratelimit/spec/template/spec/serviceAccountName": "the same",
    "Deployment/ratelimit/spec/template/spec/containers/0/imagePullPolicy": (
        "the default of Kubernetes for an image with a version"
    ),
    "Deployment/ratelimit/spec/template/spec/securityContext/fsGroup": (
        "keys in Secrets are readable for this group only"
    ),
    "Service/ratelimit/spec/type": "the default of Kubernetes",
    "ConfigMap/ratelimit-config/metadata/labels": "kustomize's generator gives none",
    "NetworkPolicy/ratelimit/spec/ingress/0/from/1": "helm test",
    "NetworkPolicy/ratelimit/spec/ingress/1/from/1": "helm test",
    "ConfigMap/ratelimit-config/data/helm-test.yaml": "helm test",
    "Pod/ratelimit-test-health": "helm test",
    "Pod/ratelimit-test-decision": "helm test",
    "Pod/ratelimit-test-limits": "helm test",
}
GATEWAY = "envoy-ai-gateway-ratelimit"
BEYOND_AI_GATEWAY = {
    f"ServiceAccount/{GATEWAY}": "as above",
    f"Deployment/{GATEWAY}/spec/template/spec/serviceAccountName": "as above",
    f"Deployment/{GATEWAY}/spec/template/spec/topologySpreadConstraints": "as above",
    f"Deployment/{GATEWAY}/spec/template/spec/containers/0/imagePullPolicy": "as above",
    f"Deployment/{GATEWAY}/spec/template/spec/containers/0/startupProbe": "as in the base",
    f"Deployment/{GATEWAY}/spec/template/spec/containers/0/env/DRAIN_DELAY": "as in the base",
    f"Deployment/{GATEWAY}/spec/template/spec/containers/0/env/REPLICAS": "as above",
    f"Deployment/{GATEWAY}/spec/template/spec/containers/0/env/REDIS_TYPE": (
        "the default, written out"
    ),
    f"Service/{GATEWAY}/spec/type": "as above",
    f"Service/{GATEWAY}-headless": "as above",
    f"PodDisruptionBudget/{GATEWAY}": "as in the base",
    f"NetworkPolicy/{GATEWAY}": "as above",
    f"Deployment/{GATEWAY}/spec/template/spec/containers/0/env/BACKEND_TYPE": "as in the base",
    f"Deployment/{GATEWAY}/spec/template/spec/terminationGracePeriodSeconds": "DRAIN_DELAY",
    f"Deployment/{GATEWAY}/spec/template/spec/containers/0/terminationMessagePolicy": (
        "as in the base"
    ),
    f"Pod/{GATEWAY}-test-health": "helm test",
    f"Pod/{GATEWAY}-test-decision": "helm test",
}


def compare():
    wrong = differences(
        Built(OVERLAYS, {}).documents,
        rendered({"autoscaling": {"enabled": True}}).documents,
        BEYOND_THE_BASE,
    )
    # The same labels in one namespace with a Weir for other limits would mix the two; in the chart
    # they differ by the release.
    gateway = (
        (REPOSITORY / "deploy/envoy-ai-gateway/weir.yaml")
        .read_text()
        .replace("component: quota", "component: service")
    )
    return wrong + differences(
        schemas.documents(gateway), rendered(CASES["control-plane"]).documents, BEYOND_AI_GATEWAY
    )


def differences(files, made, expected):
    """Where the manifests and the chart differ, without the differences that are expected."""
    left, right = flat(files), flat(made)
    wrong, used = [], set()
    for path in sorted({*left, *right}):
        if left.get(path) != right.get(path):
            reasons = [start for start in expected if path == start or path.startswith(f"{start}/")]
            used.update(reasons)
            wrong += (
                []
                if reasons
                else [f"{path}: {left.get(path)!r} in the files, {right.get(path)!r} in the chart"]
            )
    return wrong + [f"no difference at {path} any more" for path in expected if path not in used]


def flat(documents):
    """Each value of the objects by its path.

    Variables and ports are listed by name; a namespace and labels of a release are left out.
    """

    def walk(value, path):
        if value in ({}, []):
            yield path, value
        elif isinstance(value, dict):
            for key, inner in value.items():
                yield from walk(inner, f"{path}/{key}") if key not in OF_A_RELEASE else ()
        elif (
            isinstance(value, list)
            and all(isinstance(item, dict) and "name" in item for item in value)
            and value
            and path.endswith(("/env", "/ports", "/volumes", "/volumeMounts"))
        ):
            for item in value:
                yield from walk(item, f"{path}/{item['name']}")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from walk(item, f"{path}/{index}")
        else:
            yield path, value

    found = {}
    for document in documents:
        metadata = {key: value for key, value in document["metadata"].items() if key != "namespace"}
        found.update(
            walk({**document, "metadata": metadata}, f"{document['kind']}/{metadata['name']}")
        )
    return found


def page():
    """The values in the section about Helm render, and so do its commands.

    The commands get the first of the values as values.yaml.
    """
    text = (REPOSITORY / "deploy/README.md").read_text()
    section, gateway = (
        text.split(f"\n## {title}\n")[1].split("\n## ")[0] for title in ("Helm", "Envoy AI Gateway")
    )
    values_in = lambda part: [
        schemas.documents(block.split("```")[0])[0] for block in part.split("```yaml\n")[1:]
    ]
    blocks = values_in(section)
    wrong = [] if blocks else ["no block of values"]
    wrong += (
        []
        if values_in(gateway)
        == [CASES["control-plane"] | {"image": {"repository": "registry.example/weir"}}]
        else ["the values for Envoy AI Gateway are not those that `compare` compares"]
    )
    for values in blocks:
        wrong += check(Rendered(values), "page")
    commands = [
        shlex.split(line[2:])
        for line in section.splitlines()
        if line.startswith(("$ helm install ", "$ helm upgrade --install "))
    ]
    wrong += [] if commands else ["no command"]
    for command in commands:
        # helm install RELEASE CHART OPTIONS, or helm upgrade --install RELEASE CHART OPTIONS
        rest = command[2:] if command[1] == "install" else command[3:]
        at = rest.index("--values") if "--values" in rest else None
        if at is not None:
            del rest[at : at + 2]
        release, chart, *options = rest
        code, _, errors = run(
            "template",
            release,
            REPOSITORY / chart,
            "--kube-version",
            KUBERNETES,
            *options,
            values=blocks[0] if at is not None else {},
        )
        wrong += [] if code == 0 else [f"{shlex.join(command)}: {errors}"]
    return wrong


def overlays():
    wrong = []
    for folder in sorted(path.parent for path in OVERLAYS.rglob("kustomization.yaml")):
        text = (folder / "kustomization.yaml").read_text()
        files = [
            str(path.relative_to(folder))
            for path in folder.rglob("*")
            if path.is_file() and folder != OVERLAYS
        ]
        wrong += [
            f"{folder.name}: {file} is not in the kustomization"
            for file in files
            if file not in (*text.split(), "kustomization.yaml")
        ]
        wrong += (
            check(Built(folder, STORES.get(folder.name, {})), folder.name)
            if "kind: Component" not in text
            else []
        )
    memory = Built(OVERLAYS / "overlays/memory", {})
    pods = memory.one("HorizontalPodAutoscaler")["spec"]
    strategy = memory.one("Deployment")["spec"]["strategy"]
    wrong += (
        []
        if (pods["minReplicas"], pods["maxReplicas"], strategy) == (1, 1, {"type": "Recreate"})
        else ["memory: two pods would count separately"]
    )
    return wrong + overlays_of_pages()


def built_of(page, *values):
    """The overlays of a page, built next to a copy of the named files, and their mistakes."""
    blocks = [
        block.split("```")[0] for block in (REPOSITORY / page).read_text().split("```yaml\n")[1:]
    ]
    built = []
    with tempfile.TemporaryDirectory() as folder:
        for part in ("kubernetes", "monitoring"):
            shutil.copytree(REPOSITORY / "deploy" / part, pathlib.Path(folder, part), symlinks=True)
        for text, of_chart in zip(
            (block for block in blocks if block.startswith("resources:")), values, strict=True
        ):
            overlay = tempfile.mkdtemp(dir=folder)
            pathlib.Path(overlay, "kustomization.yaml").write_text(text)
            built.append(Built(overlay, of_chart))
    return built, sum((check(one, page) for one in built), [])


def overlays_of_pages():
    """They do what the text around them describes.

    One admits the gateway of deploy/istio, and another mounts the Secret that the page makes.
    """
    istio = schemas.documents((REPOSITORY / "deploy/istio/envoyfilter.yaml").read_text())[0]
    namespace = lambda name: {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}
    }
    gateway = namespace(istio["metadata"]["namespace"]) | {
        "podSelector": {"matchLabels": istio["spec"]["workloadSelector"]["labels"]}
    }
    (own, combined), wrong = built_of(
        "deploy/README.md",
        STORES["base"],
        {"networkPolicy": {"ask": [gateway], "scrape": [namespace("monitoring")]}},
    )
    found = (
        own.environment["REDIS_URL"],
        own.one("HorizontalPodAutoscaler")["spec"]["minReplicas"],
        own.pod["containers"][0]["image"].split(":")[0],
        {one["metadata"]["namespace"] for one in own.documents},
        {"StatefulSet", "Job", "PrometheusRule", "Certificate"}
        - {one["kind"] for one in combined.documents},
    )
    wrong += (
        []
        if found == ("redis.example:6379", 3, "registry.example/weir", {"edge"}, set())
        else [f"deploy/README.md: {found}"]
    )
    page = "deploy/support-desk.md"
    secret, file = re.search(
        r"kubectl create secret generic (\S+) --from-file=(\S+)\n", (REPOSITORY / page).read_text()
    ).groups()
    (desk,), more = built_of(page, {"debug": {"tokenSecret": secret}})
    mounts = [
        f"{mount['mountPath']}/{file}"
        for mount in desk.pod["containers"][0]["volumeMounts"]
        if mount["name"] == "admin"
    ]
    return (
        wrong
        + more
        + (
            []
            if mounts == [desk.environment["ADMIN_TOKEN_FILE"]]
            else [f"{page}: the tokens are at {mounts}"]
        )
    )


if __name__ == "__main__":
    steps = {
        "lint": lint,
        "render": render,
        "refuse": refuse,
        "sources": sources,
        "compare": compare,
        "page": page,
        "overlays": overlays,
    }
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        sys.exit(__doc__)
    mistakes = steps[sys.argv[1]]()
    print("\n".join(mistakes) or "ok")
    sys.exit(1 if mistakes else 0)
