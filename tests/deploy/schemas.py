#!/usr/bin/env python3
"""Validates manifests against the published schemas of Kubernetes and of custom resources.

    tests/deploy/schemas.py FILE...        `-` is the standard input

It needs the Python of kubernetes-validate (target/tools/python/bin/python), which has the schemas
of Kubernetes, and the folders of CRDs in WEIR_TEST_CRDS, separated by colons; tests/deploy.sh
installs both. Every document must have a schema. The exit code is 1 if one has a mistake, and each
mistake is a line.

Kubernetes itself prunes unknown fields of custom resources in silence. Here they are mistakes, as
with `kubectl --validate=strict`.
"""

import functools
import json
import os
import pathlib
import re
import sys

import jsonschema
import referencing
import yaml
from kubernetes_validate import utils

# The releases that Kubernetes maintains.
VERSIONS = tuple(dict.fromkeys(utils.all_versions()))[-3:]

# Parts of a CRD's schema whose `properties` only restrict values that are defined elsewhere.
RESTRICTIONS = ("allOf", "anyOf", "oneOf", "not")


def documents(text):
    """The documents of a YAML file that are not empty.

    With two equal keys YAML would take the second; here they are an error.
    """
    return [document for document in yaml.load_all(text, Loader=UniqueKeys) if document is not None]


class UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """A safe loader that refuses a key that a mapping has twice."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index] and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


# `=` is text; see https://github.com/yaml/pyyaml/issues/89.
UniqueKeys.add_constructor("tag:yaml.org,2002:value", lambda loader, node: str(node.value))


@functools.lru_cache(maxsize=None)
def kubernetes(version, kind, api_version):
    """The validator of a kind of Kubernetes itself; None if it has no such kind."""
    folder = f"kubernetes-json-schema/v{version}-local-strict"
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    try:
        schema = utils.schema_contents(f"{folder}/{kind.lower()}-{group}.json", version)
    except FileNotFoundError:
        return None
    return jsonschema.Draft202012Validator(schema, registry=definitions(version))


@functools.lru_cache(maxsize=None)
def definitions(version):
    contents = utils.schema_contents(
        f"kubernetes-json-schema/v{version}-local-strict/_definitions.json", version
    )
    return referencing.Resource.from_contents(contents) @ referencing.Registry()


@functools.lru_cache(maxsize=None)
def custom_definitions():
    """The files of CRDs by the kind that they define, unread: only a few of them are used."""
    folders = [
        pathlib.Path(folder) for folder in os.environ.get("WEIR_TEST_CRDS", "").split(":") if folder
    ]
    found = {}
    for path in (path for folder in folders for path in sorted(folder.rglob("*.yaml"))):
        for part in re.split(r"^---$", path.read_text(), flags=re.MULTILINE):
            group = re.search(r"^  group: (\S+)$", part, re.MULTILINE)
            kind = re.search(r"^    kind: (\S+)$", part, re.MULTILINE)
            if group and kind:
                found[kind.group(1), group.group(1)] = part
    return found


@functools.lru_cache(maxsize=None)
def custom(kind, api_version):
    """The validator of a custom resource; None if no CRD defines it."""
    group, _, version = api_version.rpartition("/")
    part = custom_definitions().get((kind, group))
    if part is None:
        return None
    definition = next(
        document for document in documents(part) if document["kind"] == "CustomResourceDefinition"
    )
    schemas = {
        entry["name"]: entry["schema"]["openAPIV3Schema"]
        for entry in definition["spec"]["versions"]
    }
    if version not in schemas:
        return None
    # Some CRDs leave out what every object has.
    schema = {
        **schemas[version],
        "properties": {
            "apiVersion": {},
            "kind": {},
            "metadata": {"type": "object"},
            **schemas[version]["properties"],
        },
    }
    return jsonschema.Draft202012Validator(strict(schema))


def strict(schema):
    """A structural schema of a CRD as JSON Schema in which unknown fields are mistakes."""
    made = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if made.pop("nullable", False) and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    if "properties" in made:
        made["properties"] = {name: strict(inner) for name, inner in made["properties"].items()}
        if "additionalProperties" not in made and not schema.get(
            "x-kubernetes-preserve-unknown-fields"
        ):
            made["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), dict):
            made[key] = strict(made[key])
    return made


@functools.lru_cache(maxsize=None)
def mistakes_of(text, versions):
    """The mistakes of one document, given as JSON: equal documents are validated once."""
    document = json.loads(text)
    kind, api_version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(api_version, str):
        return ("no kind or no apiVersion",)
    validators = {
        f"Kubernetes {version[:-2]}": kubernetes(version, kind, api_version) for version in versions
    }
    validators = {version: validator for version, validator in validators.items() if validator}
    if validators and len(validators) < len(versions):
        return (f"{api_version} is not in all of Kubernetes {', '.join(versions)}",)
    if not validators:
        found = custom(kind, api_version)
        if found is None:
            return (
                f"no schema of {kind} {api_version}; tests/deploy.sh installs CRDs (need_crds in"
                " tests/tools.sh)",
            )
        validators = {"its CRD": found}
    wrong = []
    for source, validator in validators.items():
        for error in validator.iter_errors(document):
            wrong.append(
                f"{source}: {'/'.join(map(str, error.absolute_path)) or '/'}: {error.message[:300]}"
            )
    return tuple(wrong)


def check(found, source, versions=VERSIONS):
    """The mistakes of documents, each a line that begins with the source and the object."""
    lines = []
    for document in found:
        name = (
            f"{document.get('kind')} {document.get('metadata', {}).get('name')}"
            if isinstance(document, dict)
            else "a document"
        )
        wrong = (
            mistakes_of(json.dumps(document), versions)
            if isinstance(document, dict)
            else ("not an object",)
        )
        lines += [f"{source}: {name}: {mistake}" for mistake in wrong]
    return lines


def main(files):
    if not files:
        sys.exit(__doc__)
    wrong, count = [], 0
    for file in files:
        found = documents(sys.stdin.read() if file == "-" else pathlib.Path(file).read_text())
        if not found:
            wrong.append(f"{file}: no document")
        count += len(found)
        wrong += check(found, file)
    print(
        "\n".join(wrong)
        or f"{count} documents are valid in Kubernetes "
        f"{', '.join(version[:-2] for version in VERSIONS)} or by their CRDs"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
