"""The archive that is sent to a host: what it needs, nothing else, and always the same."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from fairlead_sdk import ssh_program
from fairlead_sdk.ssh_errors import ProgramMissing
from fairlead_sdk.ssh_program import make_host_program

OWN = ("chassis", "fairlead_limits", "fairlead_walls", "workspace_provisioner")
OF_THE_ROOM = {"grpc_api", "tracing", "wiring", "settings", "snapshot_directory", "__main__"}


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_it_needs_python_alone_and_leaves_the_room_at_home() -> None:
    with zipfile.ZipFile(io.BytesIO(make_host_program().archive)) as archive:
        names = archive.namelist()
        for name in names:
            for module in imported(archive.read(name).decode()):
                top = module.partition(".")[0]
                assert top in OWN or top in sys.stdlib_module_names, f"{name} imports {module}"
    modules = {name.removeprefix("workspace_provisioner/").removesuffix(".py") for name in names}
    assert "resident/main" in modules
    assert not modules & OF_THE_ROOM


def test_the_same_sources_give_the_same_bytes_and_few_of_them() -> None:
    first, second = make_host_program(), make_host_program()
    assert first == second
    assert len(first.archive) < 320 * 1024


def test_it_starts_from_the_archive_alone(tmp_path: Path) -> None:
    archive = tmp_path / "program.zip"
    archive.write_bytes(make_host_program().archive)
    script = (
        f"import sys; sys.path.insert(0, {str(archive)!r});"
        " import workspace_provisioner.resident.main as it; print(it.__file__)"
    )
    ended = subprocess.run(
        [sys.executable, "-IS", "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith(str(archive))


def test_without_the_sources_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(ssh_program, "find_spec", nowhere)
    with pytest.raises(ProgramMissing) as missing:
        make_host_program()
    assert missing.value.reason == "resident_missing"
    assert missing.value.remedy == "pip install fairlead"
