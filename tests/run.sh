#!/usr/bin/env bash
# All checks that a change must pass: installs missing tools, then checks format and lints, builds,
# and runs all tests.
#
#     tests/run.sh            runs everything; ends with the result lines of the test runner
#     tests/run.sh install    only installs missing tools
#
# After the installation no step needs a network. Every step runs even if an earlier one has failed:
# one run reports all failures.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=tests/tools.sh
. tests/tools.sh

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-$([ -t 1 ] && echo always || echo never)}
results="$root/target/test-results"

# suite NAME TARGETS... -- OPTIONS...: one run of `cargo test`. Its result line is kept and printed
# at the end. The times of tests are an unstable option of the test runner, which stable compilers
# accept in this environment.
suite() {
    local name=$1
    shift
    cargo test --locked --config 'target."cfg(all())".runner = ["env", "RUSTC_BOOTSTRAP=1"]' "$@" \
        -Zunstable-options --report-time 2>&1 |
        tee "$results/$name.log" | sed -u -e "/^test result:/{
        w $results/$name.result
        d
    }"
}

# The tests of tests/it/alone.txt run one at a time, next to the others. Of the others one more runs
# than there are processors: many wait, and the servers of the rest compute. The unit tests, which
# compute, get the remaining time of the processors.
all_tests() {
    local alone code=0 unit=0
    mapfile -t alone < <(grep -v '^#' tests/it/alone.txt)
    suite integration-alone --test it -- --test-threads=1 "${alone[@]}" >"$results/alone.output" &
    local alone_process=$!
    { renice -n 10 "$BASHPID" >/dev/null && suite unit --lib --bins --; } >"$results/unit.output" &
    local unit_process=$!
    suite integration --test it -- --test-threads=$(($(nproc) + 1)) "${alone[@]/#/--skip=}" ||
        code=1
    wait "$alone_process" || code=1
    wait "$unit_process" || unit=1
    cat "$results/alone.output" "$results/unit.output"
    [ $code = 0 ] || again || return 1
    return $unit
}

# Integration tests measure real time, and a machine that is busy with something else makes a few of
# them late. Up to fifteen that failed run once more, one at a time and with nothing next to them, and
# are named at the end: the result is that of this run. More failures have another cause.
again() {
    local late
    mapfile -t late < <(sed -n 's/^test \(.*\) \.\.\. FAILED.*/\1/p' "$results"/integration*.log)
    [ ${#late[@]} -ge 1 ] && [ ${#late[@]} -le 15 ] || return 1
    printf '\n== once more, alone: %s\n' "${late[*]}"
    suite again --test it -- --exact --test-threads=1 "${late[@]}" || return 1
    sed -i 's/^test result: FAILED/first run: some failed, and passed alone/' \
        "$results"/integration*.result
    printf 'LATE: %s\n' "${late[@]}" >"$results/late.result"
}

# Prints the slowest tests of all suites.
slowest() {
    printf '== slowest tests\n'
    sed -n 's/^test \(.*\) \.\.\. .*<\([0-9.]*\)s>$/\2 s  \1/p' "$results"/*.log |
        sort -rn | sed -n 1,20p
    printf '\n'
}

case "${1:-}" in
install)
    install_tools
    exit
    ;;
"") ;;
*) die "unknown argument '$1'; usage: tests/run.sh [install]" ;;
esac

step "installation" install_tools
cargo fetch --locked --quiet || die "cannot download the dependencies in Cargo.lock; the lines" \
    "above are the output of cargo fetch"
export CARGO_NET_OFFLINE=true
mkdir -p "$results"
rm -f "$results"/*

step "format" cargo fmt --all --check
step "lints" cargo clippy --locked --all-targets -- -D warnings
# Fuzz targets compile the library without the dependencies of its tests. Its lints ran before.
step "fuzz targets" cargo rustc --locked --lib --profile check -- -D warnings --cfg fuzzing
step "build" cargo test --locked --no-run
step "documentation examples" cargo test --locked --doc
step "tests" all_tests

slowest
summary || result=$?
cat "$results"/*.result
exit ${result:-0}
