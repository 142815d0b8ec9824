#!/bin/bash
# Makes a bundle of the build in $1 and runs it in a root that holds glibc and nothing else, without network.
# 77, with the reason, where no such root can be had.
set -euo pipefail
build=$(realpath "$1")
source=$(cd "$(dirname "$0")/../.." && pwd)
[ "$(id -u)" -eq 0 ] || { echo "skipped: only root can enter an empty root"; exit 77; }
unshare --net --mount true 2>/dev/null || { echo "skipped: unshare is not permitted here"; exit 77; }
"$source/scripts/gpu_bundle" --build "$build" --folder
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/tmp" "$root/proc" "$root/lib64" "$root/lib/x86_64-linux-gnu"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64"
for library in libc libm libdl libpthread librt libresolv; do
  cp -L /lib/x86_64-linux-gnu/$library.so.? "$root/lib/x86_64-linux-gnu"
done
cp -r "$source/build/gpu/quire-gpu" "$root"
# /proc as in every container: by it the loader knows what $ORIGIN is. A status of 77 means no device here.
# shellcheck disable=SC2016 # $0 and $@ are those of the inner shell
unshare --net --mount sh -c 'mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"' "$root" \
  /quire-gpu/run --out /tmp/results.tar.gz --emulated facts smoke || { echo "run: status $?"; exit 1; }
tar -xzf "$root/tmp/results.tar.gz" -O results/results.json >"$root/results.json"
grep -q '"is_emulated": true' "$root/results.json"
