#!/usr/bin/env bash
# All checks that a change must pass: installs missing tools, then checks format and lints, builds, and runs all tests.
#
#     tests/run.sh            runs everything; ends with the result lines of the test runner
#     tests/run.sh install    only installs missing tools
#
# After the installation no step needs a network. Every step runs even when an earlier one has failed, so that one run reports all failures.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=tests/tools.sh
. tests/tools.sh

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-$([ -t 1 ] && echo always || echo never)}
results="$root/target/test-results"
suites=0

# suite ARGUMENTS...: one run of `cargo test`. Its result lines are held back and printed at the end.
suite() {
    suites=$((suites + 1))
    cargo test --locked "$@" 2>&1 | sed -u -e "/^test result:/{
        w $results/$suites
        d
    }"
}

case "${1:-}" in
install)
    install_tools
    exit
    ;;
"") ;;
*) die "unknown argument '$1'; usage: tests/run.sh [install]" ;;
esac

install_tools
cargo fetch --locked --quiet || die "cannot download the dependencies in Cargo.lock; the lines above are the output of cargo fetch"
export CARGO_NET_OFFLINE=true
mkdir -p "$results"
rm -f "$results"/*

step "format" cargo fmt --all --check
step "lints" cargo clippy --locked --all-targets -- -D warnings
# What fuzz targets compile: the library without the dependencies of its tests.
step "lints of fuzz targets" cargo clippy --locked --lib -- -D warnings --cfg fuzzing
step "build" cargo test --locked --no-run
step "documentation examples" suite --doc
step "unit tests" suite --lib --bins
# One thread more than there are processors: the tests that load the machine wait for each other (`exclusive`), and a waiting one holds its thread.
step "integration tests" suite --test it -- --test-threads=$(($(nproc) + 1))

summary || result=$?
cat "$results"/*
exit ${result:-0}
