#!/usr/bin/env bash
# Measures the goals of Weir while Redis fails: runs the long scenarios of tests/it/redis/faults/
# one after the other. Run nothing else meanwhile.
#
#     tests/faults.sh             prints one line per goal: Gnn PASS figures, or Gnn FAIL figures;
#                                 fails if a goal fails
#     tests/faults.sh --write     writes the figures into tests/faults.txt too
#     tests/faults.sh g3 g8       runs only these goals
#     tests/faults.sh --all       then also runs the weekly tests, which tests/run.sh does not run,
#                                 and five times the usual cases of each property
#
# The goals take about eight minutes after the build, and no scenario takes longer than one minute.
# --all takes about half an hour.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=tests/tools.sh
. tests/tools.sh

write=
all=
filters=()
for argument in "$@"; do
    case "$argument" in
    --write) write=yes ;;
    --all) all=yes ;;
    [gG][0-9]*) filters+=("::${argument,,}_") ;;
    *)
        die "unknown argument '$argument'; usage: tests/faults.sh [--all] [--write] [GOAL...]," \
            "for example g3"
        ;;
    esac
done
[ ${#filters[@]} != 0 ] || filters=("faults::")

# write_figures LINES: writes the figures of each goal into tests/faults.txt; goals without a line
# stay.
write_figures() {
    local new
    new=$(mktemp)
    awk -v lines="$1" '
        BEGIN {
            while ((getline line <lines) > 0) {
                split(line, words, " ")
                figures[words[1]] = substr(line, length(words[1]) + 2)
            }
        }
        $1 in figures {
            verdict = figures[$1]
            sub(/^PASS /, "", verdict)
            sub(/^FAIL /, "missed: ", verdict)
            $0 = $1 " " verdict
        }
        { print }' tests/faults.txt >"$new"
    cat "$new" >tests/faults.txt
    rm -f "$new"
}

has cargo || die "cargo is not installed. Install a Rust toolchain of version 1.88 or newer" \
    "(https://rustup.rs)"
if [ -n "$all" ]; then install_tools; else need_redis; fi
export CARGO_TERM_COLOR=never
quietly "build the tests" cargo test --locked --test it --no-run

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
failed=
# Other output of a test is printed only when it fails.
WEIR_FAULTS=script cargo test --quiet --locked --test it -- \
    --include-ignored --test-threads=1 --nocapture "${filters[@]}" 2>&1 |
    tee "$lines.all" |
    sed -u -n 's/^.*\(\<G[0-9][0-9]* \(PASS\|FAIL\) .*\)$/\1/p' |
    tee "$lines" || failed=yes
if [ -n "$failed" ] || ! grep -q PASS "$lines"; then
    cat "$lines.all" >&2
fi
rm -f "$lines.all"
[ -z "$write" ] || write_figures "$lines"
if [ -n "$all" ]; then
    cargo test --locked --test it -- --ignored --skip=redis::faults:: --test-threads=1 || failed=yes
    WEIR_TEST_CASES=500 cargo test --locked --lib || failed=yes
fi
[ -z "$failed" ] && ! grep -q FAIL "$lines"
