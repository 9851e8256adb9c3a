#!/usr/bin/env bash
# Builds on a machine with an NVIDIA GPU and checks parity, memory, NCCL and speed there, in about 8 minutes.
# Prints one line per check: PASS, FAIL or SKIPPED. Without a GPU every check is SKIPPED, exit code 0.
#
#   TORCH_PYTHON=PYTHON scripts/check_gpu.sh     PYTHON has a CUDA build of torch
#
# Where nothing can be installed, SLUICE_DEPS names a folder of scripts/pack_deps.sh.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export TORCH_PYTHON=${TORCH_PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
if ! reason=$("$TORCH_PYTHON" -c '
import sys
try:
    import torch
except ImportError:
    sys.exit(print("has no torch"))
if not torch.cuda.is_available():
    print(f"sees no GPU (torch {torch.__version__})")
' 2>&1); then reason="does not run: $reason"; fi
if [ -n "$reason" ]; then
  for check in build tests parity memory nccl speed; do
    echo "SKIPPED $check: $TORCH_PYTHON $reason"
  done
  exit 0
fi

nvidia-smi --query-gpu=name,memory.total --format=csv,noheader 2>/dev/null
start=$SECONDS
log=build/check-gpu.log
mkdir -p build
if ! { scripts/setup.sh && timeout 240 scripts/build.sh torch; } >"$log" 2>&1; then
  tail -n 20 "$log"
  echo "FAIL build: see $log"
  for check in tests parity memory nccl speed; do echo "SKIPPED $check: nothing was built"; done
  exit 1
fi
echo "PASS build: $((SECONDS - start)) s"
"$TORCH_PYTHON" scripts/check_gpu.py --seconds $((480 - (SECONDS - start)))
