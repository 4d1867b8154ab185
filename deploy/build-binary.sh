#!/bin/sh
# Builds the release binary of Weir for Linux on amd64 or arm64, on a machine of either: the other
# architecture is cross-compiled.
#
#     deploy/build-binary.sh [--static] [--dependencies] ARCHITECTURE
#     deploy/build-binary.sh --tools ARCHITECTURE
#
# The binary is target/TRIPLE/dist/weir; the last line printed is its size and path.
#
#   --static         link the C library (glibc) into the binary. Names are then looked up by
#                    /etc/hosts and DNS only, as in the image. Without it the binary uses the
#                    libraries of the system that it runs on, and needs glibc 2.34 or newer there.
#   --dependencies   compile only the crates of Cargo.lock, from Cargo.toml and Cargo.lock alone: a
#                    layer of an image that stays valid while only Weir's own files change.
#   --tools          install the tools that the build needs in addition to a Rust toolchain and a C
#                    compiler: a cross compiler from Debian's packages (needs root), the standard
#                    library of that architecture, and cargo-auditable.
#
# If cargo-auditable is installed, the binary contains the list of its crates, which scanners for
# vulnerabilities read (syft, trivy, grype).
set -eu

auditable_version=0.7.7

fail() {
    echo "$0: $*" >&2
    exit 1
}

cd "$(dirname "$0")/.."
static=
only=
for argument; do
    case $argument in
    --static) static=yes ;;
    --dependencies | --tools) only=${argument#--} ;;
    amd64 | arm64) architecture=$argument ;;
    *)
        echo "usage: $0 [--static] [--dependencies | --tools] amd64|arm64" >&2
        exit 2
        ;;
    esac
done
[ -n "${architecture:-}" ] || {
    echo "usage: $0 [--static] [--dependencies | --tools] amd64|arm64" >&2
    exit 2
}

case $architecture in
amd64)
    machine=x86_64
    package=gcc-x86-64-linux-gnu
    ;;
arm64)
    machine=aarch64
    package=gcc-aarch64-linux-gnu
    ;;
esac
triple=$machine-unknown-linux-gnu
case $(uname -m) in
"$machine") linker=cc ;;
arm64) [ "$machine" = aarch64 ] && linker=cc || linker=$machine-linux-gnu-gcc ;;
*) linker=$machine-linux-gnu-gcc ;;
esac

if [ "$only" = tools ]; then
    if [ "$linker" != cc ]; then
        apt-get update
        apt-get install -y --no-install-recommends "$package" "libc6-dev-$architecture-cross"
    fi
    rustup target add "$triple"
    cargo install --locked --version "$auditable_version" cargo-auditable
    exit
fi

command -v "$linker" >/dev/null ||
    fail "$linker is not installed. Install it (Debian package: $package), or run:" \
        "$0 --tools $architecture"

# Cargo reads the linker and the flags of a target from variables with its name; crates in C (ring)
# find the same compiler by CC_*.
name=$(echo "$triple" | tr '[:lower:]-' '[:upper:]_')
export "CARGO_TARGET_${name}_LINKER=$linker" "CC_$(echo "$triple" | tr - _)=$linker"
# For both kinds of binaries: messages do not contain the folders of this machine, because equal
# sources must give equal binaries.
flags="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}/registry/src=crates"
[ -z "$static" ] || flags="$flags -C target-feature=+crt-static"
export "CARGO_TARGET_${name}_RUSTFLAGS=$flags"

build() {
    if cargo auditable --version >/dev/null 2>&1; then
        cargo auditable build --locked --profile dist --target "$triple" --bin weir
    else
        cargo build --locked --profile dist --target "$triple" --bin weir
    fi
}

if [ "$only" = dependencies ]; then
    [ ! -e src ] || fail "there is a folder src; --dependencies writes a crate without code in" \
        "its place, and is for an image"
    # Cargo needs a file for each program that Cargo.toml names.
    mkdir -p src benches
    touch src/lib.rs
    echo 'fn main() {}' | tee src/main.rs >build.rs
    sed -n '/^\[\[bench\]\]/{n;s/^name = "\(.*\)"$/\1/p;}' Cargo.toml | while read -r bench; do
        touch "benches/$bench.rs"
    done
    build
    # Files of an image keep their times, which may be older than the files built here.
    cargo clean --locked --profile dist --target "$triple" --package weir
    rm -r src build.rs
    exit
fi

build
binary=target/$triple/dist/weir
if [ -n "$static" ] && readelf --program-headers "$binary" | grep -q INTERP; then
    fail "$binary is not static: it asks for a dynamic loader"
fi
echo "$(($(wc -c <"$binary") / 1024)) KiB $binary"
