#!/bin/sh
# Copies the files that a container needs to run a binary: the binary, the shared libraries that it
# names, and the few files that they read.
#
#     deploy/rootfs.sh BINARY FOLDER
#
# FOLDER must not exist or be empty. Used by deploy/Dockerfile; the tests run the result by chroot.
set -eu

[ $# = 2 ] || { echo "usage: $0 BINARY FOLDER" >&2; exit 2; }
binary=$1
root=$2
[ -x "$binary" ] || { echo "$0: $binary is no program; build it first" >&2; exit 1; }
if [ -d "$root" ] && [ -n "$(ls -A "$root")" ]; then
    echo "$0: $root is not empty; name a new folder" >&2
    exit 1
fi

mkdir -p "$root/etc"
cp "$binary" "$root/weir"
chmod 755 "$root/weir"
# The command of manifests for envoyproxy/ratelimit.
mkdir -p "$root/bin"
ln -s /weir "$root/bin/ratelimit"

# Lines of ldd are `name => /path (address)`, or `/path (address)` for the loader; a static program
# has none.
libraries=$(ldd "$binary" 2>/dev/null || true)
case $libraries in
*"not found"*)
    printf '%s\n' "$libraries" >&2
    echo "$0: a library of $binary is missing here" >&2
    exit 1
    ;;
esac
printf '%s\n' "$libraries" |
    sed -n 's/.*=> \(\/[^ ]*\) (.*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' |
    while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done

# The user that the image runs as, for programs that need its name.
echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$root/etc/passwd"
echo 'nonroot:x:65532:' >"$root/etc/group"
# Names are looked up in /etc/hosts first, then by DNS; both files come from the container runtime.
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"

# To check certificates, if this system has some.
certificates=/etc/ssl/certs/ca-certificates.crt
if [ -f "$certificates" ]; then
    mkdir -p "$root/etc/ssl/certs"
    cp -L "$certificates" "$root$certificates"
fi
