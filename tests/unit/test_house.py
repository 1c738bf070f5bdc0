"""The rules of the house that no linter knows: sizes, names, places and furniture."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE_FOLDERS = (
    "services", "membrane", "native/fairlead_native", "sdk", "tunnel", "walls", "scripts", "tests",
    "benchmarks", "loadtests",
)  # fmt: skip
OWN_NAMES = tuple(folder for folder in CODE_FOLDERS if folder != "tests")
ROOMS = ("signalling", "relay_gateway", "workspace_provisioner", "sandbox_worker")
FURNITURE = (
    "README.md",
    "__init__.py",
    "__main__.py",
    "settings.py",
    "wiring.py",
    "ports.py",
    "tracing.py",
)
LONGEST_FILE = 400

BANNED = {"manager", "handler", "helper", "util", "utils", "common", "data", "info"}
BANNED_START = {"process", "do", "my", "new"}
"""Banned where a name goes on after it: `process_frame`, `new_session`; `process` is a noun."""
BANNED_CLASS = re.compile(r"_?(?:(?:Base|Abstract)[A-Z]\w*|\w+Impl)")
DICTATED = {"data_received", "do_GET", "do_POST", "process_exited"}
"""Names that an interface of the standard library or of a dependency gives us."""
NOUNS = ("data_channel", "common_directory", "process_control", "process_group", "process_id")
"""Terms of WebRTC, git and the operating system that hold a banned word."""

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


def words(name: str) -> list[str]:
    """Split a snake-case or camel-case name: `TreeStore2` is tree, store, 2."""
    return [
        word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name.strip("_"))
    ]


def is_banned(name: str) -> bool:
    if name.strip("_") in DICTATED:
        return False
    text = "_".join(words(name))
    for noun in NOUNS:
        text = text.replace(noun, "noun")
    parts = text.split("_")
    is_class = name.strip("_")[:1].isupper() and not name.isupper()
    starts_so = len(parts) > 1 and parts[0] in BANNED_START and not is_class
    return bool(BANNED & set(parts)) or starts_so or bool(BANNED_CLASS.fullmatch(name))


def defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines, and their lines; imported ones are not ours."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name, node.lineno


def test_files_are_short() -> None:
    long = {
        str(file.relative_to(ROOT)): count
        for file in python_files(*CODE_FOLDERS)
        if (count := len(file.read_text().splitlines())) > LONGEST_FILE
    }
    assert not long, "a noun is missing"


def test_names_say_what_they_are() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file in python_files(*OWN_NAMES)
        for name, line in [
            (file.stem, 1),
            *defined_names(parsed(file)),
        ]
        if is_banned(name)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "banned"),
    [
        ("SessionManager", True),
        ("error_handler", True),
        ("utils", True),
        ("BaseCarrier", True),
        ("CarrierImpl", True),
        ("new_session", True),
        ("process_frame", True),
        ("_data", True),
        ("database", False),
        ("base_url", False),
        ("BaseUrl", True),
        ("information", False),
        ("process", False),
        ("ProcessIsolation", False),
        ("DataChannelPort", False),
        ("renew", False),
        ("data_received", False),
    ],
)
def test_the_banned_words_are_whole_words(name: str, banned: bool) -> None:
    assert is_banned(name) is banned


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    own = Path(__file__)
    found = [
        f"{file.relative_to(ROOT)}: {match.group()}"
        for file in text_files()
        if file != own
        for match in MACHINE_PATH.finditer(file.read_text(errors="replace"))
    ]
    assert not found


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_its_furniture(room: str) -> None:
    folder = ROOT / "services" / room
    missing = [name for name in FURNITURE if not (folder / name).is_file()]
    assert not missing
    assert list(folder.glob("*_api.py")), "a room answers on the wire"


def test_server_packages_have_empty_inits() -> None:
    full = [
        str(file.relative_to(ROOT))
        for file in python_files("services")
        if file.name == "__init__.py" and file.read_text().strip()
    ]
    assert not full


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
