#!/bin/sh
# Works on native/ with the cargo of this machine: `native.sh build` puts the wheel into .venv, `native.sh check` checks the code.
set -eu
cd "$(dirname "$0")/.."

if ! cargo --version >/dev/null 2>&1; then
    echo "native: cargo was not found; without it aiortc carries the WebRTC channels, and asyncio the tunnels." >&2
    echo "  Install Rust 1.89 or newer with cargo, and cmake or a C compiler: apt-get install rustc cargo, or rustup." >&2
    exit 1
fi
sh scripts/native_sources.sh
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/native/target}
export CARGO_TARGET_DIR
cd native

case $1 in
build)
    rm -rf target/wheels
    nice "$PYTHON" -m maturin build -q --release -o target/wheels
    uv=uv
    "$uv" --version >/dev/null 2>&1 || uv=../.venv/bin/uv
    "$uv" pip install -q --python "$PYTHON" --reinstall target/wheels/*.whl
    ;;
check)
    cargo fmt --check
    nice cargo clippy -q --locked --all-targets -- -D warnings
    # With the build's profile: its dependencies are compiled once.
    nice cargo test -q --locked --release --no-default-features
    for crate in turn tunnel; do
        (
            cd $crate
            cargo fmt --check
            nice cargo clippy -q --locked --all-targets -- -D warnings
            nice cargo test -q --locked --release
        )
    done
    ;;
esac
