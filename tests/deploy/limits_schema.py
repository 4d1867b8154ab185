#!/usr/bin/env python3
"""Compares the JSON Schema of limit files with `weir check`.

    tests/deploy/limits_schema.py WEIR FILE...

The schema has to accept each file that `weir check` accepts, and to reject each file that `weir
check` rejects for its form: an unknown or misplaced key, a value of another type, an unknown name.
The exit code is 1 if one is wrong, and each mistake is a line. It needs Python with jsonschema and
PyYAML (target/tools/python/bin/python).
"""

import json
import re
import subprocess
import sys

import jsonschema
import yaml

# Errors about the form of a file, by parts of their messages.
FORM = re.compile(
    r"^unknown (key|unit|algorithm|value of|kind of match)|^expected a map|, not (a map|a list|text|"
    r"a number|true or false|a duration|1% to 100%)|has no meaning (in|at)|in quotes, which is text|"
    r"which is (negative|too large|read as a floating-point number)|read as a floating-point number|"
    r"next to 'key' and is ignored|'ttl', after which|which has (no|an unknown) unit|has no (domain|"
    r"key|unit|name)$|not a whole percentage|is missing, which means 0"
)

class Loader(yaml.SafeLoader):
    """YAML as Weir reads it: dates are texts, and so is all that is no bool and no number."""


Loader.yaml_implicit_resolvers = {
    letter: [
        (tag, pattern)
        for tag, pattern in resolvers
        if not tag.endswith(("timestamp", "value")) and ":" not in letter
    ]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))
Loader.bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}
Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^0o[0-7]+$"), ["0"])


def whole(loader, node):
    """A whole number, also an octal one as YAML 1.2 writes it."""
    text = loader.construct_scalar(node)
    return int(text, 8) if text.startswith("0o") else loader.construct_yaml_int(node)


Loader.add_constructor("tag:yaml.org,2002:int", whole)


def real(loader, node):
    """A number with a fraction, even if that is zero: JSON does not tell 1.0 from 1."""
    value = loader.construct_yaml_float(node)
    return value + 0.5 if value == value // 1 else value


Loader.add_constructor("tag:yaml.org,2002:float", real)


def check(weir, file):
    """The errors of `weir check`; empty if it accepts the file."""
    done = subprocess.run(
        [weir, "check", "--format", "json", file], capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout)
    errors = [one["what"] for one in report["problems"] if one["severity"] == "error"]
    return [] if report["summary"]["ok"] else errors


def main(weir, *files):
    schema = json.loads(subprocess.check_output([weir, "check", "--schema"]))
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    counts = {"accepted": 0, "rejected": 0}
    wrong = []
    for file in files:
        errors = check(weir, file)
        try:
            with open(file, "rb") as text:
                document = yaml.load(text, Loader=Loader)
            found = list(validator.iter_errors(document))
        # No YAML, or too many levels for this program.
        except (yaml.YAMLError, ValueError, RecursionError):
            continue
        if not errors:
            counts["accepted"] += 1
            wrong += [f"{file}: check accepts it: {one.message[:200]}" for one in found[:1]]
        elif forms := [error for error in errors if FORM.search(error)]:
            counts["rejected"] += 1
            wrong += [f"{file}: the schema accepts it: {forms[0]}"] if not found else []
    print(counts)
    print("\n".join(wrong))
    return 1 if wrong or min(counts.values()) < 20 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
