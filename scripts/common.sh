# Sourced by the scripts beside it. Leaves the shell in the repository root.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C.UTF-8

note() { printf '\n== %s\n' "$*" >&2; }

# install_packages GROUP...: the packages of scripts/packages.txt that are not installed yet.
install_packages() {
  local group missing=()
  for group in "$@"; do
    local package
    for package in $(sed -n "s/^$group //p" scripts/packages.txt); do
      dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
        missing+=("$package")
    done
  done
  [ ${#missing[@]} -eq 0 ] && return
  note "installing ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null || {
      echo "cannot install packages: run this as root, or allow sudo without a password" >&2
      exit 1
    }
    as_root=(sudo -n)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}"
}
