"""How the host's program gets there: one command, and a few lines of Python that take it from
standard input and keep it.

The client sends a line of JSON at once: digest, size and root. The host answers with a mark that
only the started Python can compute, so that no login script's output is taken for it, then with one
byte: `R`, it has the program already; `S`, send it; `E`, four bytes of length and a sentence.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex

from fairlead_sdk.ssh_errors import NO_PYTHON_STATUS, OLD_PYTHON_STATUS

READY = b"R"
SEND = b"S"
FAILED = b"E"
_MARKED = b"fairlead resident "

# No single quotation mark and no line end may be in it: every login shell takes it as one word.
_SHELL = (
    "for p in python3 python3.14 python3.13 python3.12 python3.11; do "
    'if command -v "$p" >/dev/null 2>&1; then f=1; '
    'if "$p" -c "import sys; sys.exit(sys.version_info < (3, 11))" </dev/null >/dev/null 2>&1; '
    'then exec "$p" -IS -c "import base64, sys; exec(base64.b64decode(sys.argv[2]))" "$1" "$2"; '
    f'fi; fi; done; if [ "$f" ]; then exit {OLD_PYTHON_STATUS}; fi; exit {NO_PYTHON_STATUS}'
)

_PYTHON = r"""
import hashlib, json, os, sys

def take(size):
    taken = b""
    while len(taken) < size:
        more = os.read(0, size - len(taken))
        if not more:
            os._exit(1)
        taken += more
    return taken

def say(rest):
    while rest:
        rest = rest[os.write(1, rest):]

def kept(path, digest):
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest() == digest
    except OSError:
        return False

say(hashlib.sha256(b"fairlead resident " + sys.argv[1].encode()).digest())
wanted = json.loads(take(int(take(8), 16)))
try:
    place = os.path.join(os.path.expanduser(wanted["root"]), ".resident")
    os.makedirs(place, mode=0o700, exist_ok=True)
    found = os.lstat(place)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022 or os.path.islink(place):
        raise PermissionError(1, "others may write to " + place)
    path = os.path.join(place, wanted["digest"] + ".zip")
    if kept(path, wanted["digest"]):
        say(b"R")
    else:
        say(b"S")
        draft = "%s.%d" % (path, os.getpid())
        with open(draft, "wb") as file:
            file.write(take(wanted["size"]))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        if not kept(path, wanted["digest"]):
            os._exit(1)
except OSError as error:
    told = str(error.strerror).encode()
    say(b"E" + len(told).to_bytes(4, "big") + told)
    os._exit(1)
sys.path.insert(0, path)
sys.argv = ["fairlead-resident"]
from workspace_provisioner.resident.main import main
main(wanted["root"])
"""


def command(nonce: str) -> str:
    """Give the command line for the host's login shell; `nonce` is of letters and digits."""
    program = base64.b64encode(_PYTHON.encode()).decode("ascii")
    return f"exec sh -c {shlex.quote(_SHELL)} fairlead {nonce} {program}"


def mark(nonce: str) -> bytes:
    """Give what the host says first; an echo of the command does not hold it."""
    return hashlib.sha256(_MARKED + nonce.encode()).digest()


def greeting(*, digest: str, size: int, root: str) -> bytes:
    """Give what is sent first: a length in eight hexadecimal digits, and JSON."""
    line = json.dumps({"digest": digest, "size": size, "root": root}).encode()
    return b"%08x" % len(line) + line
