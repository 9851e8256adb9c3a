#!/usr/bin/env bash
# Installs what a build needs and is missing: system packages, and a .venv with torch.
#
#   scripts/setup.sh          everything
#   scripts/setup.sh --core   what the torch-free half needs (no .venv)
#   scripts/setup.sh --format adds clang-format to either
#
# As root missing packages are installed with apt-get; otherwise the one command to run is printed.
# TORCH_PYTHON names a Python that has torch already; then no .venv is made. SLUICE_DEPS names a
# folder of scripts/pack_deps.sh with the libraries. Quick when all is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

torch_version=2.13.0
python=${PYTHON:-python3}
want_torch=yes
packages=(g++ cmake ninja-build ccache)
if [ -z "${SLUICE_DEPS:-}" ]; then
  packages+=(libgtest-dev libbenchmark-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
    libfmt-dev libxxhash-dev libopenmpi-dev openmpi-bin iproute2)
fi

if [ "$python" = python3 ]; then packages+=(python3); fi

fail() {
  echo "setup: $*" >&2
  exit 1
}

for option in "$@"; do
  case "$option" in
    --core) want_torch=no ;;
    --format) packages+=(clang-format) ;;
    *) fail "unknown option $option; valid: --core, --format" ;;
  esac
done

# Prints those of the arguments that are not installed. A tool counts when it can be called,
# whatever it came from.
missing_packages() {
  local package tool
  for package in "$@"; do
    tool=${package/ninja-build/ninja}
    if command -v "$tool" >/dev/null 2>&1; then continue; fi
    if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
      echo "$package"
    fi
  done
}

# Installs those of the arguments that are missing.
install_packages() {
  local missing
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "setup: no apt-get here; install what these Debian packages hold: $*" >&2
    return
  fi
  mapfile -t missing < <(missing_packages "$@")
  if [ "${#missing[@]}" -eq 0 ]; then return; fi
  if [ "$(id -u)" -ne 0 ]; then
    fail "packages are missing. Run this once, then make again:
  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
  fi
  echo "setup: installing ${missing[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends "${missing[@]}" >/dev/null
}

check_python() {
  command -v "$1" >/dev/null || fail "no $1; install Python 3.10 or newer, or set PYTHON"
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$("$1" --version) found, 3.10 or newer is needed; set PYTHON to one"
}

# Makes .venv with the pinned torch, the CPU build where pip's indexes offer one. The stamp is
# written last, so that an interrupted install is done again.
install_torch() {
  local stamp=.venv/.torch-$torch_version
  if [ -e "$stamp" ] && [ -x .venv/bin/python ]; then return; fi
  check_python "$python"
  echo "setup: making .venv with torch $torch_version (a minute or two)" >&2
  "$python" -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
  "$python" -m venv --clear .venv
  local pip=(.venv/bin/python -m pip --quiet --disable-pip-version-check install)
  "${pip[@]}" "torch==$torch_version+cpu" numpy 2>/dev/null ||
    "${pip[@]}" "torch==$torch_version" numpy ||
    fail "pip could not install torch $torch_version; set TORCH_PYTHON to a Python that has torch"
  .venv/bin/python -c 'import torch, numpy'
  touch "$stamp"
}

install_packages "${packages[@]}"
if [ "$want_torch" = yes ]; then
  if [ -n "${TORCH_PYTHON:-}" ]; then
    "$TORCH_PYTHON" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' ||
      fail "TORCH_PYTHON=$TORCH_PYTHON cannot import torch"
  else
    install_torch
  fi
fi
