#!/usr/bin/env bash
# Installs the manifests and the chart in a Kubernetes, and counts the requests that an Envoy loses
# while pods come and go: none. The weekly workflow runs it with kind; any other cluster does:
#
#     KUBECONFIG=... WEIR_IMAGE=registry.example/weir:0.1.0 tests/cluster.sh [manifests|chart]
#
#   WEIR_IMAGE    an image of Weir that the nodes have or can pull
#   ENVOY_IMAGE   an image whose program `envoy` is in its PATH
#   REDIS_IMAGE   redis:7
#   HELM, KUBECTL the programs, if they are not in the PATH
#   SECONDS_EACH  of load for each change
#
# It needs curl. The namespaces weir-cluster-test and weir-chart-test are made and deleted, and a
# node is drained of pods of Weir for 20 s.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=tests/tools.sh
. tests/tools.sh

image=${WEIR_IMAGE:?name an image of Weir}
envoy_image=${ENVOY_IMAGE:-envoyproxy/envoy:v1.38-latest}
redis_image=${REDIS_IMAGE:-redis:7}
seconds=${SECONDS_EACH:-110}
namespace=weir-cluster-test chart=weir-chart-test
selector=app.kubernetes.io/name=weir,app.kubernetes.io/component=service
folder=$(mktemp -d)

k() { "${KUBECTL:-kubectl}" --namespace "$namespace" "$@"; }
helm() { command "${HELM:-helm}" --namespace "$chart" "$@"; }

finish() {
    rm -rf "$folder"
    "${KUBECTL:-kubectl}" delete namespace "$namespace" "$chart" --ignore-not-found --wait=false
}
trap finish EXIT

restricted() { # NAMESPACE
    "${KUBECTL:-kubectl}" create namespace "$1"
    "${KUBECTL:-kubectl}" label namespace "$1" pod-security.kubernetes.io/enforce=restricted
}

# eventually SECONDS COMMAND...: until it succeeds.
eventually() {
    local left=$1
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || { say "gave up: $*"; return 1; }
        sleep 1
    done
}

# The Envoy of deploy/envoy, which asks the headless Service (or the Service), and refuses requests
# that get no decision. Its name is the name of the Service.
gateway() { # SERVICE
    mkdir -p "$folder/$1"
    sed -e "s/address: 127.0.0.1, port_value: 8081/address: $1, port_value: 8081/" \
        -e '/- name: weir$/,/connect_timeout/s/type: STATIC/type: STRICT_DNS/' \
        -e 's/domain: demo/domain: ratelimit/' \
        -e 's/# failure_mode_deny: true/failure_mode_deny: true/' \
        -e 's/timeout: 0.1s/timeout: 1s/' deploy/envoy/envoy.yaml >"$folder/$1/envoy.yaml"
    grep -q STRICT_DNS "$folder/$1/envoy.yaml" && grep -q ' failure_mode_deny: true' "$folder/$1/envoy.yaml"
    k create configmap "envoy-$1" --from-file="$folder/$1/envoy.yaml"
    k apply -f - <<END
apiVersion: v1
kind: Pod
metadata: { name: envoy-$1 }
spec:
  automountServiceAccountToken: false
  securityContext: { runAsNonRoot: true, runAsUser: 101, seccompProfile: { type: RuntimeDefault } }
  containers:
    - name: envoy
      image: $envoy_image
      command: [envoy, -c, /etc/weir/envoy.yaml, --concurrency, "2", --log-level, warn]
      readinessProbe: { tcpSocket: { port: 10000 }, periodSeconds: 1 }
      securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
      volumeMounts: [{ name: file, mountPath: /etc/weir }]
  volumes: [{ name: file, configMap: { name: envoy-$1 } }]
END
    k wait --for=condition=Ready "pod/envoy-$1" --timeout=120s
}

install() {
    restricted "$namespace"
    # An overlay as deploy/README.md shows it.
    mkdir -p "$folder/deploy"
    cp -r deploy/kubernetes "$folder/deploy"
    mkdir "$folder/deploy/overlay"
    cat >"$folder/deploy/overlay/kustomization.yaml" <<END
resources: [../kubernetes]
namespace: $namespace
images:
  - { name: weir, newName: "${image%:*}", newTag: "${image##*:}" }
  - { name: redis, newName: "${redis_image%:*}", newTag: "${redis_image##*:}" }
END
    k apply -k "$folder/deploy/overlay"
    k rollout status deployment/ratelimit-redis --timeout=180s
    k rollout status deployment/ratelimit --timeout=180s
    eventually 60 two_ready
    gateway ratelimit
    gateway ratelimit-headless
}

ready() { # NAMESPACE: the number of ready pods
    "${KUBECTL:-kubectl}" --namespace "$1" get pods --selector "$selector" --output \
        'jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}' |
        grep -c True || true
}
two_ready() { [ "$(ready "$namespace")" -ge 2 ]; }

# Sends 100 requests a second through an Envoy for some time. Prints each status.
load() { # SERVICE PORT
    # Not by k: the process itself is ended below.
    "${KUBECTL:-kubectl}" --namespace "$namespace" port-forward "pod/envoy-$1" "$2:10000" >/dev/null &
    local forward=$!
    eventually 20 curl --silent --output /dev/null "http://127.0.0.1:$2/"
    curl --silent --rate 100/s --output /dev/null \
        --write-out '%{http_code}\n' "http://127.0.0.1:$2/[1-$((100 * seconds))]" || true
    kill "$forward"
    wait "$forward" 2>/dev/null || true
}

# change NAME COMMAND...: under load through both Envoys; every request gets a decision. A lost one
# does not end the script.
change() {
    local name=$1 first second service all lost
    shift
    printf '\n== %s\n' "$name"
    eventually 120 two_ready
    load ratelimit 18001 >"$folder/ratelimit.txt" &
    first=$!
    load ratelimit-headless 18002 >"$folder/ratelimit-headless.txt" &
    second=$!
    sleep 5
    "$@"
    wait "$first" "$second"
    for service in ratelimit ratelimit-headless; do
        all=$(wc -l <"$folder/$service.txt")
        lost=$(grep -cvE '^(200|429)$' "$folder/$service.txt" || true)
        say "$name, by $service: $lost of $all requests lost"
        if [ "$lost" != 0 ] || [ "$all" -lt $((50 * seconds)) ]; then
            failed+=("$name, by $service")
        fi
    done
}

rollout() {
    k rollout restart deployment/ratelimit
    k rollout status deployment/ratelimit --timeout=180s
}

delete() {
    k delete "$(k get pods --selector "$selector" --output name | head -n 1)" --wait=false
}

drain() {
    local node
    node=$(k get pods --selector "$selector" --output 'jsonpath={.items[0].spec.nodeName}')
    "${KUBECTL:-kubectl}" drain "$node" --pod-selector="$selector" --timeout=170s \
        --ignore-daemonsets --delete-emptydir-data &
    local draining=$!
    sleep 20
    "${KUBECTL:-kubectl}" uncordon "$node"
    wait "$draining"
}

# A ConfigMap with a mistake: running pods keep their limits, and say so.
mistake() {
    local limits=$folder/deploy/kubernetes/base/limits/ratelimit.yaml pod
    sed -i 's/unit: minute/unit: minutes_/' "$limits"
    k apply -k "$folder/deploy/overlay"
    pod=$(k get pods --selector "$selector" --output name | head -n 1)
    refused() { k logs "$pod" | grep -q 'ratelimit.yaml:[0-9]*:[0-9]*'; }
    eventually 100 refused
    sed -i 's/unit: minutes_/unit: minute/' "$limits"
    k apply -k "$folder/deploy/overlay"
}

install_chart() { # OPTIONS
    helm upgrade --install weir deploy/helm/weir --wait --timeout 3m \
        --set image.repository="${image%:*}" --set image.tag="${image##*:}" \
        --set redis.bundled.image="$redis_image" "$@"
}

release() {
    restricted "$chart"
    install_chart
    helm test weir --logs
    # Turning the autoscaler on takes no pod away.
    install_chart --set autoscaling.enabled=true &
    local upgrade=$! least=2 now
    while kill -0 "$upgrade" 2>/dev/null; do
        now=$(ready "$chart")
        [ "$now" -ge "$least" ] || least=$now
        sleep 0.5
    done
    wait "$upgrade"
    say "while autoscaling is turned on: $least ready pods or more"
    [ "$least" -ge 2 ]
    helm test weir --logs
    # Without Redis the test fails.
    "${KUBECTL:-kubectl}" --namespace "$chart" scale deployment/weir-redis --replicas=0
    sleep 15
    if helm test weir --logs; then
        failed+=("helm test without Redis")
    fi
    helm uninstall weir
}

what=${1:-all}
case "$what" in
all | manifests | chart) ;;
*) die "unknown argument '$what'; usage: tests/cluster.sh [manifests|chart]" ;;
esac
if [ "$what" != chart ]; then
    install
    change "rollout" rollout
    change "deleted pod" delete
    change "drained node" drain
    change "mistake in a limit" mistake
fi
if [ "$what" != manifests ]; then
    release
fi
[ ${#failed[@]} = 0 ] || die "failed: $(printf '%s; ' "${failed[@]}")"
say "no request was lost"
