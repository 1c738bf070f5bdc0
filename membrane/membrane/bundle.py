"""What makes a child of a Python that has no membrane: this package and msgspec in one archive, and
the program that takes it from standard input.

Whoever starts `python -c BOOT` writes `bundle()` to it first. Nothing is written to a disk: archive
and library lie in memory files. An msgspec of that Python itself is used where it is new enough,
so that any Python from 3.11 on can do; ours is for the version of Python that made the bundle.
"""

from __future__ import annotations

import importlib.util
import io
import marshal
import zipfile
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_PACKAGES = {"membrane": "", "msgspec": "carried/"}
_CORE = "msgspec/_core"
_UNCHECKED = 0b01
"""A hash-based .pyc that is not compared with its source (PEP 552)."""

BOOT = """
import os, sys
if sys.path[0] == "":
    del sys.path[0]

def refuse(text):
    import json, struct
    told = json.dumps({"unsupported": text}).encode()
    told = struct.pack("<BII", 0, 0, len(told)) + told
    while told:
        told = told[os.write(1, told):]
    os._exit(0)

def remedy(text):
    return text + "; name another Python of the sandbox with python="

version = "%d.%d" % sys.version_info[:2]
if sys.version_info < (3, 11):
    refuse(remedy(sys.executable + " is Python " + version + ", and 3.11 is the least"))

def take():
    left = int.from_bytes(some(4), "little")
    return some(left)

def some(left):
    found = bytearray()
    while len(found) < left:
        more = os.read(0, left - len(found))
        if not more:
            os._exit(0)
        found += more
    return found

def keep(content):
    place = os.memfd_create("membrane")
    content = memoryview(content)
    while content:
        content = content[os.write(place, content):]
    return "/proc/self/fd/%d" % place

suffix, archive, core = take().decode(), keep(take()), take()
try:
    import msgspec
    is_fit = tuple(map(int, msgspec.__version__.split(".")[:2])) >= (0, 20)
except ImportError:
    is_fit = False
if not is_fit:
    from importlib import machinery, util
    if suffix not in machinery.EXTENSION_SUFFIXES:
        refuse(remedy(sys.executable + " is Python " + version + " without msgspec 0.20, and the"
            " host's is for " + suffix + "; install msgspec there"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "msgspec"]:
        del sys.modules[name]

    class Core:
        place = keep(core)

        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name == "msgspec._core":
                loader = machinery.ExtensionFileLoader(name, cls.place)
                return util.spec_from_file_location(name, cls.place, loader=loader)

    sys.meta_path.insert(0, Core)
    sys.path.insert(0, archive + "/carried")
    import msgspec
    del sys.path[0]
del core
sys.path.insert(0, archive)
from membrane.distant import main
del sys.path[0]
main()
"""


@cache
def bundle() -> bytes:
    """Give what `BOOT` reads, about 1 MB: the suffix of this Python's libraries, the archive, and
    the library of msgspec, each behind its length. Takes a second the first time.
    """
    packed = io.BytesIO()
    core = b""
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for package, folder in _PACKAGES.items():
            for top in _places(package):
                for path in sorted(top.rglob("*.py")):
                    name = f"{folder}{package}/{path.relative_to(top).as_posix()}"
                    source = path.read_bytes()
                    archive.writestr(name, source)
                    archive.writestr(f"{name}c", _compiled(source, name))
                for suffix in EXTENSION_SUFFIXES:
                    if (found := top.parent / f"{_CORE}{suffix}").exists():
                        core = core or found.read_bytes()
    parts = (EXTENSION_SUFFIXES[0].encode(), packed.getvalue(), core)
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def _places(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def _compiled(source: bytes, name: str) -> bytes:
    code = compile(source, name, "exec", dont_inherit=True)
    checked = importlib.util.source_hash(source)
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + checked
    return head + marshal.dumps(code)
