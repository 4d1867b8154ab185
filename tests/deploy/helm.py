"""Runs the real helm and kustomize, and reads the objects that they build."""

import functools
import json
import os
import pathlib
import subprocess
import tempfile

import schemas

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "deploy/helm/weir"
RELEASE, NAMESPACE = "ratelimit", "edge"
KUBERNETES = schemas.VERSIONS[-1]


def run(*arguments, values=None):
    """Runs helm with these values. Returns its exit code, standard output and standard error."""
    program = os.environ.get("WEIR_TEST_HELM") or "helm"
    with tempfile.TemporaryDirectory() as folder:
        # Nothing of the user's own helm is read or written.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "HELM_CONFIG_HOME": folder,
            "HELM_CACHE_HOME": folder,
            "HELM_DATA_HOME": folder,
        }
        if values is not None:
            file = pathlib.Path(folder, "values.yaml")
            file.write_text(json.dumps(values))
            arguments = (*arguments, "--values", str(file))
        ended = subprocess.run(
            [program, *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
    return ended.returncode, ended.stdout, ended.stderr


def template(values, chart=CHART, kubernetes=KUBERNETES):
    """As `helm template`: exit code, text and messages."""
    return run(
        "template",
        RELEASE,
        chart,
        "--namespace",
        NAMESPACE,
        "--kube-version",
        kubernetes,
        values=values,
    )


class Objects:
    """Manifests, and the values of the chart that render the same.

    They come from the chart with some values, or from an overlay of kustomize.
    """

    def __init__(self, text, values):
        self.text, self.values, self.documents = text, values, schemas.documents(text)

    def all(self, kind, component=None):
        """The objects of a kind, and of a component by its label."""
        wanted = [document for document in self.documents if document["kind"] == kind]
        return [
            one
            for one in wanted
            if component
            in (None, one["metadata"].get("labels", {}).get("app.kubernetes.io/component"))
        ]

    def one(self, kind, component=None):
        """The only such object."""
        found = self.all(kind, component)
        assert len(found) == 1, f"{len(found)} objects {kind} {component}"
        return found[0]

    @property
    def pod(self):
        """The pod's specification of Weir."""
        return self.one("Deployment", "service")["spec"]["template"]["spec"]

    @property
    def environment(self):
        """The variables of Weir and their values."""
        return {entry["name"]: entry.get("value") for entry in self.pod["containers"][0]["env"]}

    @property
    def tests(self):
        """The pods of `helm test`, each with one container: helm prints the log of no other pod."""
        found = [pod["spec"] for pod in self.all("Pod", "test")]
        assert all(len(pod["containers"]) == 1 for pod in found), "helm test: several containers"
        return found


class Rendered(Objects):
    """The objects that the chart makes of some values."""

    def __init__(self, values, chart=CHART):
        code, text, errors = template(values, chart)
        if code != 0:
            raise AssertionError(f"helm refuses {json.dumps(values)}:\n{errors}")
        super().__init__(text, values)

    @classmethod
    @functools.lru_cache(maxsize=None)
    def of(cls, values):
        """The objects of values that are given as JSON; each is rendered once."""
        return cls(json.loads(values))


class Built(Objects):
    """The output of kustomize for a folder, in the namespace `default` unless it has another."""

    def __init__(self, folder, values):
        ended = subprocess.run(
            [os.environ["WEIR_TEST_KUSTOMIZE"], "build", folder],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if ended.returncode != 0:
            raise AssertionError(f"kustomize refuses {folder}: {ended.stderr}")
        super().__init__(ended.stdout, values)
        for document in self.documents:
            document["metadata"].setdefault("namespace", "default")


def rendered(values):
    return Rendered.of(json.dumps(values, sort_keys=True))
