# Starts Redis as the primary, or as a replica of the one that the Sentinels name.
set -eu
config=$(dirname "$0")
own="$POD_NAME.ratelimit-redis"
primary=$(sh "$config/primary.sh")
set -- "$config/redis.conf" --bind "$POD_IP" --replica-announce-ip "$own"
if [ "$primary" != "$own" ]; then
    set -- "$@" --replicaof "$primary" 6379
fi
exec redis-server "$@"
