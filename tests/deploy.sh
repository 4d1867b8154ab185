#!/usr/bin/env bash
# Checks of deploy/ that need tools written in Go. Missing tools are built into target/tools: see
# need_go_tools below.
#
#     tests/deploy.sh            runs everything
#     tests/deploy.sh install    only installs missing tools
#     tests/deploy.sh static     only tests the image with a static binary; needs its own build
#
# After the installation no step needs a network. Every step runs even if an earlier one has failed:
# one run reports all failures.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=tests/tools.sh
. tests/tools.sh

has go || die "Go is not installed. Install it (Debian package: golang-go, or" \
    "https://go.dev/dl), then run this again"

# need_go_tools: all tools of the steps below. Building helm takes five minutes of CPU,
# cargo-cyclonedx one or two; the definitions of custom resources are 17 MB.
need_go_tools() {
    need_kustomize
    need_helm
    need_crds
    need_kubernetes_validate
    need_redis
    need_openssl
    need_actionlint
    need_cyclonedx
    need_systemd_analyze
}

# The tests of the image with a static binary, as deploy/Dockerfile builds it, but without
# optimization.
static_image() {
    local triple flags
    triple=$(uname -m)-unknown-linux-gnu
    flags=CARGO_TARGET_$(echo "$triple" | tr '[:lower:]-' '[:upper:]_')_RUSTFLAGS
    env "$flags=-C target-feature=+crt-static" \
        cargo build --locked --quiet --target "$triple" --bin weir &&
        WEIR_TEST_IMAGE_BINARY="$root/target/$triple/debug/weir" \
            cargo test --locked --quiet --test it -- deploy::image deploy::gateways
}

case "${1:-}" in
install)
    need_go_tools
    exit
    ;;
static)
    install_tools
    step "static image" static_image
    summary
    exit
    ;;
"") ;;
*) die "unknown argument '$1'; usage: tests/deploy.sh [install|static]" ;;
esac

need_go_tools

# The Python that has the schemas of Kubernetes. It leaves no compiled files next to the scripts.
python=$(dirname "$WEIR_TEST_K8S_VALIDATE")/python
export PYTHONDONTWRITEBYTECODE=1

# Every manifest of deploy/ that neither helm nor kustomize builds.
manifests() {
    local files
    mapfile -t files < <(
        grep -rlE --include='*.yaml' '^apiVersion:' deploy |
            grep -v -e '^deploy/helm/' -e '^deploy/kubernetes/' -e '^deploy/compose/' \
                -e /kustomization.yaml
    )
    "$python" tests/deploy/schemas.py "${files[@]}"
}

# The binary that the next step runs, as tests/run.sh has built it; WEIR_TEST_WEIR is another one.
binary() {
    [ -n "${WEIR_TEST_WEIR:-}" ] || cargo test --locked --quiet --no-run --test it
}

step "manifests" manifests
step "overlays" "$python" tests/deploy/chart.py overlays
step "chart: lint" "$python" tests/deploy/chart.py lint
step "chart: render" "$python" tests/deploy/chart.py render
step "chart: refuse" "$python" tests/deploy/chart.py refuse
step "chart: sources" "$python" tests/deploy/chart.py sources
step "chart: compare" "$python" tests/deploy/chart.py compare
step "chart: page" "$python" tests/deploy/chart.py page
step "weir" binary
step "chart: serve" "$python" tests/deploy/serve.py

# The JSON Schema of limit files against `weir check`, on vectors without options of their own.
limits_schema() {
    local weir=${WEIR_TEST_WEIR:-target/debug/weir} file files=(config/*.yaml)
    for file in tests/vectors/config/*.yaml; do
        grep -qs '^options:' "${file%.yaml}.expect" || files+=("$file")
    done
    "$python" tests/deploy/limits_schema.py "$weir" "${files[@]}" deploy/kubernetes/limits/*.yaml
}
step "limits schema" limits_schema

# The custom resources that `weir envoy` prints.
generated() {
    local weir=${WEIR_TEST_WEIR:-target/debug/weir} output invalid=0
    local sources=(
        remote_address=remote-address path=path generic_key=generic-key
        user=header:x-user api_key=header:x-api-key
    )
    for output in "istio --attach filter" "istio --attach virtual-host" \
        "istio --attach route" "envoy-gateway --attach filter"; do
        printf '%s: ' "$output"
        # shellcheck disable=SC2086 # several words
        "$weir" envoy config/basic.yaml "${sources[@]/#/--from=}" --for $output |
            "$python" tests/deploy/schemas.py - || invalid=1
    done
    return "$invalid"
}
step "weir envoy" generated

# Every crate that cargo links into the binary is in the bill of materials, and no crate that only
# tests use. (Features that only build scripts enable add a few others.)
bill_of_materials() {
    local folder linked listed missing
    folder=$(mktemp -d)
    deploy/release.sh sbom "$folder"
    linked=$(cargo tree --locked --edges normal --target x86_64-unknown-linux-gnu \
        --prefix none --format '{p}' | sed 's/ (.*//' | sort -u)
    listed=$(python3 -c 'import json, sys
for crate in json.load(open(sys.argv[1]))["components"]:
    print(crate["name"], "v" + crate["version"])' "$folder"/weir-*.cdx.json | sort -u)
    rm -r "$folder"
    # Weir itself is not one of its components.
    missing=$(comm -23 <(echo "$linked") <(echo "$listed") | grep -v '^weir ' || true)
    echo "$(wc -l <<<"$linked") crates are linked, $(wc -l <<<"$listed") are listed;" \
        "missing: ${missing:-none}"
    [ -z "$missing" ] && ! grep -E '^(proptest|rcgen|tempfile) ' <<<"$listed"
}

# systemd requires that the program exists.
systemd_unit() {
    local folder
    folder=$(mktemp -d)
    sed 's,/usr/local/bin/weir,/bin/true,' deploy/systemd/weir.service >"$folder/weir.service"
    systemd-analyze verify "$folder/weir.service" 2>&1 | tee "$folder/log"
    # It also warns of units of this machine.
    ! grep -F "$folder/weir.service" "$folder/log" &&
        systemd-analyze security --offline=true --threshold=20 "$folder/weir.service" | tail -n 1
}

step "workflows" "$WEIR_TEST_ACTIONLINT"
step "bill of materials" bill_of_materials
step "unit of systemd" systemd_unit
summary
