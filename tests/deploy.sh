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

# need_go_tools: all tools of the steps below.
need_go_tools() {
    need_kustomize
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

kustomize_base() {
    "$WEIR_TEST_KUSTOMIZE" build deploy/kubernetes >/dev/null
}

step "kustomize base" kustomize_base
summary
