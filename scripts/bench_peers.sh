#!/bin/sh
# Builds the data channels that benchmarks compare with, outside of this checkout; what needs a
# compiler that is not here is left out.
set -eu
sources="$(dirname "$0")/../benchmarks/sessions"
peers="${FAIRLEAD_BENCH_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/fairlead-bench-peers}"

if command -v go >/dev/null; then
	mkdir -p "$peers/pion"
	go -C "$sources/pion" build -o "$peers/pion/pion" .
else
	echo "go is not here: pion is left out" >&2
fi
if command -v npm >/dev/null; then
	mkdir -p "$peers/node_datachannel"
	cp "$sources/node_datachannel/package.json" "$sources/node_datachannel/package-lock.json" "$peers/node_datachannel/"
	npm --prefix "$peers/node_datachannel" ci --no-audit --no-fund
else
	echo "npm is not here: node-datachannel is left out" >&2
fi
