#!/bin/bash
# Makes a bundle of the build in $1 and runs it without network in a root that contains only glibc and Python.
# Exits with 77 and the reason if no such root can be created.
set -euo pipefail
build=$(realpath "$1")
source=$(cd "$(dirname "$0")/../.." && pwd)
[ "$(id -u)" -eq 0 ] || { echo "skipped: only root can enter an empty root"; exit 77; }
unshare --net --mount true 2>/dev/null || { echo "skipped: unshare is not permitted here"; exit 77; }
"$source/scripts/gpu_bundle" --build "$build" --folder
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/tmp" "$root/proc" "$root/dev" "$root/lib64" "$root/lib/x86_64-linux-gnu"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64"
for library in libc libm libdl libpthread librt libresolv; do
  cp -L /lib/x86_64-linux-gnu/$library.so.? "$root/lib/x86_64-linux-gnu"
done
cp -r "$source/build/gpu/quire-gpu" "$root"
# Only Python's own process searches the folder of its libraries, so that they cannot replace those of the bundle.
python=$(readlink -f /usr/bin/python3)
library=$("$python" -c 'import os; print(os.path.dirname(os.__file__))')
mkdir -p "$root/python/lib"
cp "$python" "$root/python/python3"
ldd "$python" | awk '$3 ~ /^\// {print $3}' | xargs cp -L -t "$root/python/lib"
cp -r "$library" "$root/python/lib"
# Every container has /dev/null and /proc, which the loader needs to resolve $ORIGIN. A status of 77 means that there is no device.
# shellcheck disable=SC2016 # $0 and $@ are those of the inner shell
unshare --net --mount sh -c 'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && PYTHONHOME=/python exec chroot "$0" "$@"' "$root" \
  /lib64/ld-linux-x86-64.so.2 --library-path /python/lib /python/python3 -B \
  /quire-gpu/run --dry-run --out /tmp/results facts shapes || { echo "run: status $?"; exit 1; }
grep -q '"dry_run": true' "$root/tmp/results/results.json"
