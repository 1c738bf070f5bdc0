#!/usr/bin/env bash
# Runs pytest. A single test that fails runs a second time, alone and in a process of its own, which decides. It is
# printed by name: it is a fault of the product or of the test, and is mended next. With $SECOND_CHANCE, a file that is
# there until a test has had one, several runs share the only second chance.
set -uo pipefail
pytest=("$(dirname "$0")/../.venv/bin/pytest" -q)
last_failed="$(dirname "$0")/../.pytest_cache/v/cache/lastfailed"

rm -f "$last_failed"
"${pytest[@]}" "$@"
status=$?
[ "$status" = 1 ] || exit "$status" # 1: tests failed; whatever else ended the run is not looked at again
names="$(python3 -c 'import json, sys; print("\n".join(json.load(open(sys.argv[1]))))' "$last_failed")" || exit "$status"
[ -n "$names" ] && [ "$(printf '%s\n' "$names" | wc -l)" = 1 ] || exit "$status"
if [ -n "${SECOND_CHANCE:-}" ]; then rm "$SECOND_CHANCE" || exit "$status"; fi
"${pytest[@]}" "$@" -n 0 --last-failed --last-failed-no-failures none
status=$?
printf '\nUNSTABLE, failed once%s: %s\n' "$([ "$status" = 0 ] || printf ' and again')" "$names"
exit "$status"
