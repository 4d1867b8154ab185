#!/usr/bin/env bash
# Builds the image with docker buildx, and prints its size.
#
#     deploy/build-image.sh [--push] [--platforms LIST] [--output FILE] [--tag TAG]... [NAME]
#
# NAME is the name of the image without a tag: weir, or registry.example/team/weir. The tag is the
# version in Cargo.toml unless --tag is given.
#
#   --push             push it to the registry of NAME, for linux/amd64 and linux/arm64, with
#                      provenance and a bill of materials
#   --output FILE      write it to FILE as an OCI archive, for linux/amd64 and linux/arm64
#   --platforms LIST   other platforms, separated by commas
#
# Without --push and --output the image is for this machine, and docker has it afterwards. Both
# architectures are compiled on this machine and not emulated. Several platforms, and --push, need a
# builder other than docker's own: docker buildx create --use
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

usage() {
    echo "usage: deploy/build-image.sh [--push] [--platforms LIST] [--output FILE] [--tag TAG]..." \
        "[NAME]" >&2
    exit 2
}

die() {
    echo "deploy/build-image.sh: $*" >&2
    exit 1
}

name=
push=
platforms=
archive=
tags=()
while [ $# -gt 0 ]; do
    case $1 in
    --push) push=yes ;;
    --platforms | --output | --tag)
        [ $# -gt 1 ] || usage
        case $1 in
        --platforms) platforms=$2 ;;
        --output) archive=$2 ;;
        --tag) tags+=("$2") ;;
        esac
        shift
        ;;
    -*) usage ;;
    *)
        [ -z "$name" ] || usage
        name=$1
        ;;
    esac
    shift
done
name=${name:-weir}
[ -z "$push" ] || [ -z "$archive" ] ||
    die "--push and --output exclude each other: run it twice, the second run builds nothing again"
command -v docker >/dev/null || die "docker is not installed. Install it with its plugin buildx" \
    "(https://docs.docker.com/engine/install/)"

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
[ ${#tags[@]} != 0 ] || tags=("$version")
arguments=(--file deploy/Dockerfile)
for tag in "${tags[@]}"; do
    arguments+=(--tag "$name:$tag")
done

# The time of the commit: an image that is built again is the same. It is not known in a folder
# without git.
if commit=$(git rev-parse --short=12 HEAD 2>/dev/null); then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
    created=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
    arguments+=(--build-arg "WEIR_COMMIT=$commit" --build-arg "WEIR_CREATED=$created")
fi
[ -z "${WEIR_SOURCE:-}" ] || arguments+=(--build-arg "WEIR_SOURCE=$WEIR_SOURCE")

both=linux/amd64,linux/arm64
if [ -n "$push" ]; then
    arguments+=(--platform "${platforms:-$both}" --push --provenance=mode=max --sbom=true)
elif [ -n "$archive" ]; then
    arguments+=(--platform "${platforms:-$both}" --output "type=oci,dest=$archive")
else
    [ -z "$platforms" ] || arguments+=(--platform "$platforms")
    arguments+=(--load)
fi
docker buildx build "${arguments[@]}" .

if [ -n "$push" ]; then
    for tag in "${tags[@]}"; do
        docker buildx imagetools inspect "$name:$tag"
    done
elif [ -n "$archive" ]; then
    echo "$(($(wc -c <"$archive") / 1024)) KiB $archive"
else
    for tag in "${tags[@]}"; do
        size=$(docker image inspect --format '{{.Size}}' "$name:$tag")
        echo "$((size / 1024)) KiB $name:$tag"
    done
fi
