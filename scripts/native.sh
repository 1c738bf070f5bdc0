#!/bin/sh
# Works on native/ with the cargo of this machine: `native.sh build` puts the wheel into .venv, `native.sh check` checks the code.
# A wheel is kept by the hash of what it is made of, so that a clone of the same code does not build it again.
set -eu
cd "$(dirname "$0")/.."

install() {
    uv=uv
    "$uv" --version >/dev/null 2>&1 || uv=.venv/bin/uv
    "$uv" pip install -q --python "$PYTHON" --reinstall "$1"/*.whl
}

if ! cargo --version >/dev/null 2>&1; then
    echo "native: cargo was not found; without it aiortc carries the WebRTC channels, and asyncio the tunnels." >&2
    echo "  Install Rust 1.89 or newer with cargo, and cmake or a C compiler: apt-get install rustc cargo, or rustup." >&2
    exit 1
fi
kept=${XDG_CACHE_HOME:-$HOME/.cache}/fairlead/native
hash=$({
    uname -sm
    cargo --version
    echo "${RUSTFLAGS:-}"
    "$PYTHON" -c 'import sys; print(sys.implementation.cache_tag)'
    find native scripts/native_sources.sh \( -path native/target -o -path native/sources -o -name __pycache__ \) -prune \
        -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
} | sha256sum | cut -d' ' -f1)
if [ "$1" = build ] && [ -d "$kept/$hash" ]; then
    touch "$kept/$hash"
    install "$kept/$hash"
    exit 0
fi

sh scripts/native_sources.sh
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/native/target}
export CARGO_TARGET_DIR
cd native

case $1 in
build)
    rm -rf target/wheels
    nice "$PYTHON" -m maturin build -q --release -o target/wheels
    mkdir -p "$kept"
    made=$(mktemp -d "$kept/making.XXXXXX")
    cp target/wheels/*.whl "$made"
    mv -T "$made" "$kept/$hash" 2>/dev/null || rm -rf "$made" # another build was quicker
    ls -dt "$kept"/*/ | tail -n +6 | xargs -r rm -rf
    cd ..
    install native/target/wheels
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
