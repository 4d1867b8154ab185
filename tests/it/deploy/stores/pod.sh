# Runs COMMAND as in a container of a pod: with its own /config, /data and /etc/hosts. It must run
# in its own mount namespace (unshare --mount).
#
#     pod.sh ROOT HOSTS CONFIG DATA COMMAND...
#
# ROOT is an empty folder.
set -e
root=$1 hosts=$2 config=$3 data=$4
shift 4
for name in bin sbin lib lib32 lib64 libx32 usr etc dev proc; do
    if [ -L "/$name" ]; then
        cp -d "/$name" "$root/$name"
    elif [ -d "/$name" ]; then
        mkdir "$root/$name"
        mount --rbind "/$name" "$root/$name"
    fi
done
mkdir "$root/config" "$root/data" "$root/tmp"
mount --bind "$hosts" "$root/etc/hosts"
mount --bind "$config" "$root/config"
# As a ConfigMap: Sentinel makes Redis rewrite its configuration.
mount -o remount,bind,ro "$root/config"
mount --bind "$data" "$root/data"
exec chroot "$root" "$@"
