# shellcheck shell=bash
# Sourced by the other scripts. Changes to the repository root.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C.UTF-8

note() { printf '\n== %s\n' "$*" >&2; }

# install_packages GROUP...: installs the packages of these groups in scripts/packages.txt that are missing.
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

# install_python FOLDER LIST...: installs the Python packages of these lists into a virtual environment.
install_python() {
  local folder=$1 wanted
  shift
  wanted=$(cat "$@" | sha256sum)
  [ "$(cat "$folder/installed" 2>/dev/null)" = "$wanted" ] && return
  rm -rf "$folder" &&
    /usr/bin/python3 -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --disable-pip-version-check "${@/#/-r}" &&
    echo "$wanted" >"$folder/installed"
}

# make_venv: installs the Python packages of tests and checks, with pinned versions, into build/venv.
make_venv() { install_python build/venv tests/e2e/requirements.txt tools/cuda_requirements.txt; }

# make_clients: installs clients that need other versions than the tests into build/clients, and the oldest versions of
# the Python client's dependencies into build/oldest_client.
make_clients() {
  install_python build/clients tests/e2e/clients/requirements.txt &&
    install_python build/oldest_client tests/e2e/oldest_client.txt
}

# has_cuda BUILD: true if the build folder was configured with CUDA.
has_cuda() { grep -q '^CMAKE_CUDA_COMPILER:[A-Z]*=.*nvcc' "$1/CMakeCache.txt"; }

# has_gpu: true if this machine has a device of NVIDIA's driver or of WSL.
has_gpu() { compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ]; }

# Checks the ptxas reports and the machine code of the kernels in a build folder. Needs make_venv.
cuda_gate() {
  local cuobjdump
  cuobjdump=$(echo build/venv/lib/python3*/site-packages/nvidia/cu13/bin/cuobjdump)
  /usr/bin/python3 tools/checks/cuda_gate.py "$1" --cuobjdump "$cuobjdump"
}
