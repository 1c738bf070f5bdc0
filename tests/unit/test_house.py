"""Repository rules that no linter checks: no machine paths, module docstrings, no TODO marks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE_FOLDERS = (
    "services", "limits", "membrane", "native/fairlead_native", "sdk", "tunnel", "walls", "scripts",
    "tests", "benchmarks", "loadtests",
)  # fmt: skip
OWN_NAMES = tuple(folder for folder in CODE_FOLDERS if folder != "tests")

# Where a checkout or a person's home happens to be; /root is also a path inside images.
MACHINE_PATH = re.compile(rf"/(?:home|Users)/[a-z][\w.-]*/|{re.escape(str(ROOT))}\b")


def python_files(*folders: str) -> list[Path]:
    return sorted(
        file
        for folder in folders
        for file in (ROOT / folder).rglob("*.py")
        if not {"gen", "__pycache__", ".venv"} & set(file.relative_to(ROOT).parts)
    )


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), filename=str(file))


def text_files() -> Iterator[Path]:
    kinds = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".proto", ".sh", ".cfg", ".txt", ""}
    for folder in (*CODE_FOLDERS, "docs", "deploy", "proto", ".ci"):
        for file in (ROOT / folder).rglob("*"):
            parts = set(file.relative_to(ROOT).parts)
            if file.is_file() and file.suffix in kinds and not {"__pycache__", "out"} & parts:
                yield file
    yield from (file for file in ROOT.iterdir() if file.is_file() and file.suffix in kinds)


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    own = Path(__file__)
    found = [
        f"{file.relative_to(ROOT)}: {match.group()}"
        for file in text_files()
        if file != own
        for match in MACHINE_PATH.finditer(file.read_text(errors="replace"))
    ]
    assert not found


def test_modules_start_with_a_docstring() -> None:
    silent = [
        str(file.relative_to(ROOT))
        for file in python_files(*OWN_NAMES)
        if file.name != "__init__.py" and not ast.get_docstring(parsed(file))
    ]
    assert not silent


def test_no_todo_is_left_behind() -> None:
    marks = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
    own = Path(__file__)
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in python_files(*CODE_FOLDERS)
        if file != own
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert not found
