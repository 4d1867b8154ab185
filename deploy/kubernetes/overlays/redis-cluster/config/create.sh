# Creates the cluster, unless it exists.
set -eu
nodes=""
for number in 0 1 2 3 4 5; do
    node="ratelimit-redis-$number.ratelimit-redis"
    until [ "$(timeout 2 redis-cli -h "$node" PING 2>/dev/null)" = PONG ]; do
        echo "waiting for $node"
        sleep 1
    done
    nodes="$nodes $(getent hosts "$node" | awk 'NR == 1 { print $1 }'):6379"
done
if redis-cli -h ratelimit-redis-0.ratelimit-redis CLUSTER INFO |
    grep -q '^cluster_slots_assigned:16384'; then
    echo "the cluster exists"
    exit
fi
# The first three become primaries.
# shellcheck disable=SC2086
redis-cli --cluster create $nodes --cluster-replicas 1 --cluster-yes
