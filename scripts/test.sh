#!/usr/bin/env bash
# Runs the tests of a build folder: failures in full, and one closing line that counts.
#
#   scripts/test.sh FOLDER [CTEST OPTION...]      e.g. scripts/test.sh build -L fast
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$1
shift
results=$PWD/$folder/test-results.xml
rm -f "$results"
arguments=(--test-dir "$folder" --parallel "${JOBS:-2}" --no-tests=error --output-on-failure
  --output-junit "$results" "$@")
start=$SECONDS
if [ -t 1 ]; then
  ctest --progress "${arguments[@]}"
  status=$?
else
  # The lines of tests that passed say nothing that the count does not.
  ctest "${arguments[@]}" | grep -vE '^ *(Start +[0-9]+:|[0-9]+/[0-9]+ Test .* Passed )'
  status=${PIPESTATUS[0]}
fi
if [ -e "$results" ]; then
  count() { tr '\n' ' ' <"$results" | grep -oE "$1=\"[0-9]+\"" | head -n 1 | tr -dc 0-9; }
  failed=$(count failures)
  skipped=$(($(count skipped) + $(count disabled)))
  if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
    failed=$skipped skipped=0 # programs that were not built count as skipped in ctest's file
  fi
  echo "$folder: $((SECONDS - start)) seconds"
  echo "$(($(count tests) - failed - skipped)) passed, $failed failed, $skipped skipped"
fi
exit "$status"
