#!/usr/bin/env bash
# Reformats the C++ sources; with --check only says what clang-format would change, and fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=(-i)
if [ "${1:-}" = --check ]; then mode=(--dry-run -Werror); fi
folders=()
for folder in sluice tests bench examples; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done
mapfile -d '' -t files < <(find "${folders[@]}" \( -name '*.h' -o -name '*.cc' \) -print0 | sort -z)
clang-format "${mode[@]}" "${files[@]}"
echo "format: ${#files[@]} files"
