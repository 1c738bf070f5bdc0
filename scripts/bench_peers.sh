#!/bin/sh
# Builds what benchmarks compare with and are driven by, outside of this checkout; what needs a compiler
# that is not here is left out.
set -eu
benchmarks="$(dirname "$0")/../benchmarks"
sources="$benchmarks/sessions"
peers="${FAIRLEAD_BENCH_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/fairlead-bench-peers}"

if command -v go >/dev/null; then
	mkdir -p "$peers/pion"
	go -C "$sources/pion" build -o "$peers/pion/pion" .
	mkdir -p "$peers/relay"
	go -C "$benchmarks/relay/load" build -o "$peers/relay/load" .
else
	echo "go is not here: pion and the load tool of tunnels are left out" >&2
fi
if command -v npm >/dev/null; then
	mkdir -p "$peers/node_datachannel"
	cp "$sources/node_datachannel/package.json" "$sources/node_datachannel/package-lock.json" "$peers/node_datachannel/"
	npm --prefix "$peers/node_datachannel" ci --no-audit --no-fund
else
	echo "npm is not here: node-datachannel is left out" >&2
fi
