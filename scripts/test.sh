#!/usr/bin/env bash
# Runs the tests of a build folder: failures in full, and one closing line that counts.
#
#   scripts/test.sh FOLDER [CTEST OPTION...]      e.g. scripts/test.sh build -L fast
#
# One test alone: build/model_test --gtest_filter='Attention.*'
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$1
shift
results=$PWD/$folder/test-results.xml
rm -rf "$results" "$folder/results"
arguments=(--test-dir "$folder" --parallel "${JOBS:-2}" --no-tests=error --output-on-failure
  --output-junit "$results" "$@")
start=$SECONDS
if [ -t 1 ]; then
  ctest --progress "${arguments[@]}"
  status=$?
else
  ctest "${arguments[@]}" | grep -vE '^ *Start +[0-9]+:'
  status=${PIPESTATUS[0]}
fi
if [ -e "$results" ]; then
  echo "$folder: $((SECONDS - start)) seconds"
  "${PYTHON:-python3}" scripts/count_tests.py "$folder" || status=1
fi
exit "$status"
