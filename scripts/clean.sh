#!/bin/sh
# Removes everything that this checkout has made: the environment, caches, build output and the local stack's state.
set -eu
cd "$(dirname "$0")/.."
if [ -x .venv/bin/python ] && [ -d .fairlead ]; then
    FAIRLEAD_STATE="$PWD/.fairlead" .venv/bin/python -m devstack down || true
fi
rm -rf .venv .fairlead .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist benchmarks/out loadtests/out
find . -name .git -prune -o -type d \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +
