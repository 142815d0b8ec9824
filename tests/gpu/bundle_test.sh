#!/bin/bash
# Makes a bundle of the build in $1 and runs it without network in a root that contains only glibc.
# Exits with 77 and the reason if no such root can be created.
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
# The loader needs /proc, which every container has, to resolve $ORIGIN. A status of 77 means that there is no device.
# shellcheck disable=SC2016 # $0 and $@ are those of the inner shell
unshare --net --mount sh -c 'mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"' "$root" \
  /quire-gpu/run --out /tmp/results.tar.gz --emulated facts smoke || { echo "run: status $?"; exit 1; }
tar -xzf "$root/tmp/results.tar.gz" -O results/results.json >"$root/results.json"
grep -q '"is_emulated": true' "$root/results.json"
