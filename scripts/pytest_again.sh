#!/usr/bin/env bash
# Runs pytest; up to three tests that fail run a second time, alone and in a process of their own, which decides.
# Their names and tracebacks stay in the output of the first run: each is a fault to be mended.
set -uo pipefail
pytest=("$(dirname "$0")/../.venv/bin/pytest" -q)
last_failed="$(dirname "$0")/../.pytest_cache/v/cache/lastfailed"
most=3

rm -f "$last_failed"
"${pytest[@]}" "$@"
status=$?
[ "$status" = 1 ] || exit "$status" # 1: tests failed; whatever else ended the run is not looked at again
failed="$(python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' "$last_failed")" || exit "$status"
[ "$failed" -ge 1 ] && [ "$failed" -le "$most" ] || exit "$status"
echo "notice: $failed failed, and run once more by themselves"
exec "${pytest[@]}" "$@" -n 0 --last-failed --last-failed-no-failures none
