#!/usr/bin/env bash
# Checks of deploy/ that need tools written in Go, which are built into target/tools where they are missing: see need_go_tools below.
#
#     tests/deploy.sh            runs everything
#     tests/deploy.sh install    only installs missing tools
#
# After the installation no step needs a network. Every step runs even when an earlier one has failed, so that one run reports all failures.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=tests/tools.sh
. tests/tools.sh

has go || die "Go is not installed. Install it (Debian package: golang-go, or https://go.dev/dl), then run this again"

# need_go_tools: all tools of the steps below. Building helm takes five minutes of CPU; the definitions of custom resources are 17 MB.
need_go_tools() {
    need_kustomize
    need_helm
    need_crds
    need_kubernetes_validate
    need_promtool
    need_redis
    need_openssl
}

case "${1:-}" in
install)
    need_go_tools
    exit
    ;;
"") ;;
*) die "unknown argument '$1'; usage: tests/deploy.sh [install]" ;;
esac

need_go_tools

# The Python that has the schemas of Kubernetes. It leaves no compiled files beside the scripts.
python=$(dirname "$WEIR_TEST_K8S_VALIDATE")/python
export PYTHONDONTWRITEBYTECODE=1

kustomize_base() {
    "$WEIR_TEST_KUSTOMIZE" build deploy/kubernetes >/dev/null
}

# Every manifest of deploy/, and what kustomize builds of every folder: patches are no whole manifests.
manifests() {
    local files folder invalid=0
    mapfile -t files < <(grep -rlE --include='*.yaml' '^apiVersion:' deploy | grep -v -e '^deploy/helm/' -e '^deploy/kubernetes/')
    "$python" tests/deploy/schemas.py "${files[@]}" || invalid=1
    while read -r folder; do
        printf '%s: ' "$folder"
        "$WEIR_TEST_KUSTOMIZE" build "$folder" | "$python" tests/deploy/schemas.py - || invalid=1
    done < <(grep -rlE --include=kustomization.yaml '^kind: Kustomization' deploy | xargs -n 1 dirname | sort)
    return "$invalid"
}

# The binary that the last step runs; WEIR_TEST_WEIR is another one.
binary() {
    [ -n "${WEIR_TEST_WEIR:-}" ] || cargo build --locked --bin weir
}

step "kustomize base" kustomize_base
step "manifests" manifests
step "chart: lint" "$python" tests/deploy/chart.py lint
step "chart: render" "$python" tests/deploy/chart.py render
step "chart: refuse" "$python" tests/deploy/chart.py refuse
step "chart: sources" "$python" tests/deploy/chart.py sources
step "chart: compare" "$python" tests/deploy/chart.py compare
step "chart: page" "$python" tests/deploy/chart.py page
step "weir" binary
step "chart: serve" "$python" tests/deploy/serve.py
summary
