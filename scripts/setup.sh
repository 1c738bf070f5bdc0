#!/bin/sh
# Makes .venv and installs what the lock file says: `setup.sh run` for running a stack, `setup.sh dev` for tests as well.
# Can be interrupted and repeated at any point: the stamp that make looks at is written last.
set -eu
cd "$(dirname "$0")/.."
kind=${1:-dev}
unset VIRTUAL_ENV PYTHONHOME || true

say() { printf '%s\n' "$*" >&2; }
now() { date +%s; }
step() { printf '\342\234\224 %-58s %6d s\n' "$1" "$(($(now) - $2))"; }
is_supported() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' >/dev/null 2>&1; }
makes_venvs() { "$1" -c 'import venv, ensurepip' >/dev/null 2>&1; }

# A program of that name may be a shim that leads nowhere, so each is tried by running it.
find_python() {
    lacking=
    for candidate in ${PYTHON:-} python3.12 python3.11 python3; do
        is_supported "$candidate" || continue
        if makes_venvs "$candidate"; then
            printf '%s' "$candidate"
            return 0
        fi
        lacking=$candidate
    done
    if [ -n "$lacking" ]; then
        version=$("$lacking" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        say "setup: $lacking cannot make virtual environments: its venv or ensurepip module is missing."
        say "  Install it: apt-get install python3-venv   (or python$version-venv)"
    else
        say "setup: no Python 3.11 or 3.12 was found (python3 is $(python3 -V 2>&1 || echo missing))."
        say "  Install one: apt-get install python3 python3-venv   or name one: make setup PYTHON=/path/to/python3.12"
    fi
    return 1
}

if ! command -v git >/dev/null 2>&1; then
    say "setup: git was not found."
    say "  Install it: apt-get install git"
    exit 1
fi

started=$(now)
if ! is_supported .venv/bin/python; then
    python=$(find_python)
    # Without pip, which takes longer to unpack than everything else here: the installer does not need it.
    "$python" -m venv --clear --without-pip .venv
    step "a virtual environment with $("$python" -V)" "$started"
fi

started=$(now)
if uv --version >/dev/null 2>&1; then
    uv=uv
else
    uv=.venv/bin/uv
    if ! "$uv" --version >/dev/null 2>&1; then
        base=$(.venv/bin/python -c 'import sys; print(sys._base_executable)')
        wanted='uv>=0.13,<0.14'
        if ! "$base" -m pip --python .venv/bin/python install -q --no-input --force-reinstall "$wanted" 2>/dev/null &&
            ! { .venv/bin/python -m ensurepip --upgrade >/dev/null &&
                .venv/bin/python -m pip install -q --no-input --force-reinstall "$wanted"; }; then
            say "setup: the installer uv could not be had with pip; what pip said is above."
            say "  Install uv by other means and put it on the path, then run this again."
            exit 1
        fi
        step "the installer, $("$uv" --version | cut -d' ' -f1,2)" "$started"
    fi
fi

started=$(now)
# --inexact: the installer itself lives in .venv as well.
if [ "$kind" = run ]; then
    set -- --no-dev --extra all
else
    set -- --all-groups --all-extras
fi
if ! UV_PROJECT_ENVIRONMENT=.venv UV_PYTHON=.venv/bin/python UV_PYTHON_DOWNLOADS=never \
    "$uv" sync -q --frozen --inexact --compile-bytecode "$@"; then
    say "setup: the packages of uv.lock could not be installed; what uv said is above."
    say "  When the network was at fault, run it again: what has come already is kept."
    exit 1
fi
# Five programs start at once later: they should not all compile the same files.
.venv/bin/python -m compileall -q services limits membrane sdk tunnel walls proto/gen || true
step "the packages of uv.lock ($kind)" "$started"
touch .venv/run.stamp
if [ "$kind" = dev ]; then touch .venv/dev.stamp; fi
