#!/usr/bin/env bash
# The parts of a release that need no service. RELEASING.md describes when each is run, and
# .github/workflows/release.yaml runs them.
#
#     deploy/release.sh set-version VERSION   write VERSION into all files that name the version
#     deploy/release.sh check TAG             fail unless TAG (v1.2.3) is ready to be released
#     deploy/release.sh notes VERSION         print the section of CHANGELOG.md
#     deploy/release.sh package BINARY ARCHITECTURE FOLDER
#                                             write FOLDER/weir-VERSION-linux-ARCHITECTURE.tar.gz;
#                                             equal files give equal archives
#     deploy/release.sh sbom FOLDER           write FOLDER/weir-VERSION.cdx.json,
#                                             a bill of materials; needs cargo-cyclonedx
#     deploy/release.sh checksums FOLDER      write FOLDER/SHA256SUMS over all other files there
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# Another copy of the repository, for tests.
cd "${WEIR_RELEASE_ROOT:-$root}"

die() {
    printf '%s\n' "deploy/release.sh: $*" >&2
    exit 1
}

usage() {
    sed -n 's/^#     //p' "$root/deploy/release.sh" >&2
    exit 2
}

# Versions of Semantic Versioning 2.0.0, without build metadata, which a tag of an image cannot
# have.
is_version() { [[ $1 =~ ^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$ ]]; }

version() { sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml; }

# The lines of a version's section of the changelog, without its heading and empty lines around
# them.
notes() {
    awk -v heading="## [$1]" '
        index($0, "## ") == 1 { inside = (index($0, heading) == 1); next }
        inside { lines[++count] = $0 }
        END {
            first = 1
            while (first <= count && lines[first] == "") first++
            while (count >= first && lines[count] == "") count--
            for (at = first; at <= count; at++) print lines[at]
        }' CHANGELOG.md
}

# The files that name the version of the image, of the chart or of the process. Recorded output and
# the changelog keep their version.
files_with_version() {
    grep --recursive --files-with-matches --extended-regexp "$(mentions "${1//./\\.}")" \
        README.md RELEASING.md deploy tests/it || true
}

# The forms of a mention, as a regular expression.
mentions() {
    printf '%s' "(weir[ :-]|version=\"?|ersion: \"?|newTag: )$1"
}

set_version() {
    local old new=$1
    is_version "$new" || die "$new is no version; write it as 1.2.3"
    old=$(version)
    [ "$old" != "$new" ] || die "the version is $new already"
    local pattern=${old//./\\.}
    files_with_version "$old" | while read -r file; do
        sed -i -E "s/$(mentions "$pattern")/\1$new/g" "$file"
        echo "$file"
    done
    sed -i "s/^version = \"$pattern\"$/version = \"$new\"/" Cargo.toml
    # Locks name it once, below the name of the package.
    sed -i "/^name = \"weir\"$/{n;s/^version = \"$pattern\"$/version = \"$new\"/;}" \
        Cargo.lock fuzz/Cargo.lock
    printf '%s\n' Cargo.toml Cargo.lock fuzz/Cargo.lock
}

check() {
    local tag=$1 version
    version=$(version)
    [ "$tag" = "v$version" ] ||
        die "the tag is $tag, but Cargo.toml has version $version. Run:" \
            "deploy/release.sh set-version ${tag#v}"
    is_version "$version" || die "Cargo.toml has version $version, which is not of the form 1.2.3"
    grep -A1 '^name = "weir"$' Cargo.lock | grep -qx "version = \"$version\"" ||
        die "Cargo.lock has another version. Run: cargo update --workspace"
    [[ $(grep -F "## [$version]" CHANGELOG.md) =~ \
        ^"## [$version] - "[0-9]{4}-[0-9]{2}-[0-9]{2}$ ]] ||
        die "CHANGELOG.md has no line '## [$version] - YYYY-MM-DD'." \
            "Write it below '## [Unreleased]'"
    [ -n "$(notes "$version")" ] || die "CHANGELOG.md says nothing about $version"
    echo "ready: $tag"
}

# In seconds since 1970: the time of the commit, if git knows it.
time_of_sources() {
    echo "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}"
}

package() {
    local binary=$1 architecture=$2 folder=$3 name work
    [ -x "$binary" ] ||
        die "$binary is no program; build it first: deploy/build-binary.sh $architecture"
    [[ $architecture =~ ^(amd64|arm64)$ ]] ||
        die "$architecture is no architecture; write amd64 or arm64"
    name=weir-$(version)-linux-$architecture
    work=$(mktemp -d)
    mkdir "$work/$name" "$work/$name/config" "$work/$name/deploy"
    install -m 755 "$binary" "$work/$name/weir"
    install -m 644 LICENSE README.md CHANGELOG.md "$work/$name"
    install -m 644 config/* "$work/$name/config"
    # Where the files of config/ name it.
    install -m 644 deploy/limits.schema.json "$work/$name/deploy"
    mkdir -p "$folder"
    # The same order, owner and time for each run.
    tar --create --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$(time_of_sources)" "$name" |
        gzip --no-name --best >"$folder/$name.tar.gz"
    rm -r "$work"
    echo "$(($(wc -c <"$folder/$name.tar.gz") / 1024)) KiB $folder/$name.tar.gz"
}

sbom() {
    local folder=$1 made=weir.cdx.json
    cargo cyclonedx --version >/dev/null 2>&1 ||
        die "cargo-cyclonedx is not installed. Install it: cargo install --locked cargo-cyclonedx"
    # The crates that are linked into the binary on Linux: no build scripts, no crates of tests.
    cargo cyclonedx --quiet --format json --spec-version 1.5 --target x86_64-unknown-linux-gnu \
        --no-build-deps --override-filename weir.cdx
    mkdir -p "$folder"
    mv "$made" "$folder/weir-$(version).cdx.json"
    echo "$folder/weir-$(version).cdx.json"
}

checksums() {
    cd "$1"
    rm -f SHA256SUMS
    sha256sum -- * >SHA256SUMS.part
    mv SHA256SUMS.part SHA256SUMS
    cat SHA256SUMS
}

case ${1:-} in
set-version | check | notes | sbom | checksums) [ $# = 2 ] || usage ;;
package) [ $# = 4 ] || usage ;;
*) usage ;;
esac
command=${1//-/_}
shift
"$command" "$@"
