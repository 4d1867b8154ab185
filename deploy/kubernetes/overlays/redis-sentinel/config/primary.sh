# Prints the name of the primary: the answer of a Sentinel, or the first pod while there is no
# Sentinel.
for number in 0 1 2; do
    sentinel="ratelimit-redis-$number.ratelimit-redis"
    primary=$(timeout 2 redis-cli -h "$sentinel" -p 26379 \
        SENTINEL GET-MASTER-ADDR-BY-NAME ratelimit 2>/dev/null | head -n 1)
    case $primary in
    ratelimit-redis-*)
        echo "$primary"
        exit
        ;;
    esac
done
echo ratelimit-redis-0.ratelimit-redis
