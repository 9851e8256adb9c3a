#!/usr/bin/env bash
# Configures a preset of CMakePresets.json when that is needed, then builds.
#
#   scripts/build.sh PRESET [TARGET...]      PRESET: torch, core, asan or tsan; no TARGET: everything
#
# Environment: JOBS (default: all processors), WERROR=ON, TORCH_PYTHON, SLUICE_DEPS (a folder of
# scripts/pack_deps.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=$1
shift
folder=build-$preset
options=("-DSLUICE_WERROR=${WERROR:-OFF}")
# Sanitizers make g++ warn about code that is right; warnings are errors in the other builds.
case $preset in asan | tsan) options=("-DSLUICE_WERROR=OFF") ;; esac
if [ -n "${SLUICE_DEPS:-}" ]; then options+=("-DCMAKE_PREFIX_PATH=$SLUICE_DEPS/usr"); fi
if [ "$preset" = torch ]; then
  folder=build
  options+=("-DTORCH_PYTHON=${TORCH_PYTHON:-}")
fi

# Configured anew when the options differ from those of last time; ninja itself does so when a CMake
# file changed or a source came or went.
stamp=$folder/.configured
if [ ! -e "$folder/build.ninja" ] || [ "$(cat "$stamp" 2>/dev/null)" != "${options[*]}" ]; then
  mkdir -p "$folder"
  if ! cmake --preset "$preset" "${options[@]}" >"$folder/configure.log" 2>&1; then
    cat "$folder/configure.log" >&2
    exit 1
  fi
  echo "${options[*]}" >"$stamp"
fi
cmake --build "$folder" --parallel "${JOBS:-$(nproc)}" ${1:+--target "$@"}
