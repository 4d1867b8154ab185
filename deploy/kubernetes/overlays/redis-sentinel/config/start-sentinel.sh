# Starts a Sentinel. It writes its state into its configuration, which is therefore a copy; a
# container that restarts goes on with it.
set -eu
config=$(dirname "$0")
copy=/data/sentinel.conf
if [ ! -s "$copy" ]; then
    primary=$(sh "$config/primary.sh")
    # A Sentinel does not start with a name that it cannot resolve, and names of new pods take a
    # moment.
    until getent hosts "$primary" >/dev/null; do sleep 1; done
    {
        cat "$config/sentinel.conf"
        echo "bind $POD_IP"
        echo "sentinel announce-ip $POD_NAME.ratelimit-redis"
        # Two of three Sentinels must agree that the primary is down.
        echo "sentinel monitor ratelimit $primary 6379 2"
        echo "sentinel down-after-milliseconds ratelimit 2000"
        echo "sentinel failover-timeout ratelimit 10000"
    } >"$copy.new"
    mv "$copy.new" "$copy"
fi
exec redis-server "$copy" --sentinel
