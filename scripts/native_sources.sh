#!/bin/sh
# Makes native/sources/sctp-proto: the release that native/sctp names, with native/sctp/sctp.patch.
# What is there already is kept while neither the name nor the patch has changed.
set -eu
cd "$(dirname "$0")/../native"

wanted=$(cat sctp/Cargo.toml sctp/Cargo.lock sctp/sctp.patch | cksum)
if [ "$(cat sources/made 2>/dev/null)" = "$wanted" ]; then exit 0; fi

rm -rf sources
mkdir sources
# Cargo checks the sum of what it fetches against sctp/Cargo.lock.
cargo vendor -q --locked --manifest-path sctp/Cargo.toml sources/fetched >/dev/null
mv sources/fetched/sctp-proto sources/sctp-proto
rm -rf sources/fetched
patch -s -p1 -d sources/sctp-proto <sctp/sctp.patch
printf '%s\n' "$wanted" >sources/made
