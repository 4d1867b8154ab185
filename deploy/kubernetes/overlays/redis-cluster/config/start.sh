# Starts a node of the cluster.
set -eu
config=$(dirname "$0")

# A pod that restarts has another address, and so may all others if they restart together. A node
# that meets a known node takes its new address.
meet_others() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
        sleep 2
        for number in 0 1 2 3 4 5; do
            address=$(getent hosts "ratelimit-redis-$number.ratelimit-redis" |
                awk 'NR == 1 { print $1 }')
            if [ -n "$address" ] && [ "$address" != "$POD_IP" ]; then
                redis-cli -h "$POD_IP" CLUSTER MEET "$address" 6379 >/dev/null 2>&1 || true
            fi
        done
    done
}

# Not before the cluster is created: until then each node must know only itself.
if [ -s /data/nodes.conf ] &&
    [ "$(grep -c ' connected\| disconnected' /data/nodes.conf)" -gt 1 ]; then
    meet_others &
fi
exec redis-server "$config/redis.conf" --bind "$POD_IP" --cluster-announce-ip "$POD_IP" \
    --cluster-announce-hostname "$POD_NAME.ratelimit-redis"
