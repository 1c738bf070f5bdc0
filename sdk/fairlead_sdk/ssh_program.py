"""The program that is sent to an SSH host: exactly the modules that it needs, as one small archive.

Server code is never imported here: its sources are found, read, and followed from import to import.
"""

from __future__ import annotations

import ast
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fairlead_sdk.ssh_errors import ProgramMissing

# The second one is started by its name, as a process of its own.
_ENTRIES = ("workspace_provisioner.resident.main", "workspace_provisioner.wall.spawner")
_PACKAGES = ("chassis", "fairlead_limits", "fairlead_walls", "workspace_provisioner")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that an archive can name


@dataclass(frozen=True, slots=True)
class HostProgram:
    """An archive for `zipimport`, and its SHA-256 in hexadecimal digits."""

    archive: bytes
    digest: str


def make_host_program() -> HostProgram:
    """Make the archive; the same sources give the same bytes. Raises `ProgramMissing`."""
    roots = {package: _directory(package) for package in _PACKAGES}
    sources: dict[str, bytes] = {}
    waiting = list(_ENTRIES)
    while waiting:
        module = waiting.pop()
        path = _path(module, roots)
        if path is None or (name := _name_in_archive(path, module)) in sources:
            continue
        source = path.read_bytes()
        sources[name] = source
        waiting += _imported(source)
        waiting += [module.rpartition(".")[0]] if "." in module else []
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name in sorted(sources):
            file.writestr(zipfile.ZipInfo(name, _EPOCH), sources[name], zipfile.ZIP_DEFLATED, 9)
    content = archive.getvalue()
    return HostProgram(content, hashlib.sha256(content).hexdigest())


def _directory(package: str) -> Path:
    spec = find_spec(package)  # of a top-level package, so that nothing is imported
    places = None if spec is None else spec.submodule_search_locations
    if not places:
        raise ProgramMissing(package)
    return Path(next(iter(places)))


def _path(module: str, roots: dict[str, Path]) -> Path | None:
    """Give a module's file, None for what is not ours."""
    package, *rest = module.split(".")
    if package not in roots:
        return None
    place = roots[package].joinpath(*rest)
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None


def _name_in_archive(path: Path, module: str) -> str:
    name = module.replace(".", "/")
    return f"{name}/__init__.py" if path.name == "__init__.py" else f"{name}.py"


def _imported(source: bytes) -> Iterator[str]:
    """Give the modules that a source imports; names imported from packages may be modules too."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                yield from (f"{module}.{each.name}" for each in names)
