#!/usr/bin/env bash
# Trains configs/tiny_python.toml on the sources of the Python at hand, then prints a sample.
#
#   scripts/train.sh [OPTION OF sluice train...]      STEPS=N trains N steps only
#
# Each run gets a folder of its own below runs/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

corpus=$("${PYTHON:-python3}" -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
run=runs/tiny_python
for ((number = 2; ; number++)); do
  [ -e "$run" ] || break
  run=runs/tiny_python-$number
done
options=(--set "data.paths=[\"$corpus\"]"
  --set 'data.ignore=["site-packages", "dist-packages", "__pycache__"]'
  --set "run.dir=\"$run\"")
if [ -n "${STEPS:-}" ]; then options+=(--steps "$STEPS"); fi

build/sluice train configs/tiny_python.toml "${options[@]}" "$@"
printf '\nsample:\n'
build/sluice generate "$run" --prompt 'def ' --tokens 200
