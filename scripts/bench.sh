#!/usr/bin/env bash
# Runs the benchmarks for a look (about two minutes), or with --quick as a check that they run and that
# their results are right. bench/README.md has the runs behind the published figures.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${TORCH_PYTHON:-.venv/bin/python}
if [ "${1:-}" = --quick ]; then
  build/bench/bench_simulate --benchmark_min_time=0.01
  build/bench/gemm_roofline --rounds 1 --seconds 0.005
  "$python" bench/compare_torch.py --quick
else
  build/bench/bench_simulate
  build/bench/gemm_roofline
  "$python" bench/compare_torch.py --lengths 512 --sequences 8 --steps 1 --runs eager pipeline sluice
fi
