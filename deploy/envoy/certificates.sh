#!/bin/sh
# Makes certificates for a trial of mtls.yaml in a new folder: of an authority (ca), of Weir for the
# name `ratelimit` (weir), and of Envoy for `envoy` (tls). They are valid for 30 days.
#
#     deploy/envoy/certificates.sh /certs
set -eu
folder=${1:?name a new folder}
if [ -e "$folder/ca.crt" ]; then
    echo "$folder/ca.crt exists; name a new folder" >&2
    exit 1
fi
umask 077
mkdir -p "$folder"
cd "$folder"

make() { # FILE NAME OPTIONS...
    file=$1 name=$2
    shift 2
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$name" \
        -keyout "$file.key" -out "$file.crt" "$@" 2>error.txt || {
        cat error.txt >&2
        exit 1
    }
    rm error.txt
}
make ca "Weir test authority"
for pair in weir:ratelimit tls:envoy; do
    name=${pair#*:}
    make "${pair%:*}" "$name" -CA ca.crt -CAkey ca.key -addext "subjectAltName=DNS:$name" \
        -addext basicConstraints=critical,CA:FALSE
done
