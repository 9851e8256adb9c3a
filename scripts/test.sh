#!/usr/bin/env bash
# Runs the tests of a build folder and closes with one line that counts them.
#
#   scripts/test.sh FOLDER [CTEST OPTION...]      e.g. scripts/test.sh build -L fast
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$1
shift
results=$folder/test-results.xml
rm -f "$results"
ctest --test-dir "$folder" --parallel "${JOBS:-2}" --no-tests=error --output-on-failure \
  --output-junit "$(pwd)/$results" --quiet "$@"
status=$?
if [ ! -e "$results" ]; then
  # ctest says why on a run that is not quiet.
  ctest --test-dir "$folder" --no-tests=error "$@" | tail -n 5
  echo "tests of $folder: none ran" >&2
  exit 1
fi
# Tests that failed were shown by --output-on-failure only on a run that is not quiet: run them again.
if [ "$status" -ne 0 ]; then
  ctest --test-dir "$folder" --rerun-failed --output-on-failure
fi
exit "$status"
