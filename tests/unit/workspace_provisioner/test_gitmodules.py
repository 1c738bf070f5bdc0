"""`.gitmodules` and LFS pointers, read strictly."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workspace_provisioner.gitmodules import (
    GitmodulesInvalid,
    Submodule,
    fault_of,
    parse_gitmodules,
)
from workspace_provisioner.lfs import is_pointer


def test_what_git_writes() -> None:
    content = b"""
# a comment
[submodule "libs/one"]
\tpath = libs/one
\turl = ../one.git
\tbranch = main
[submodule "two \\"quoted\\""]
\tpath = "with space"   ; comment
\turl = https://example.com/two\\
.git
\tshallow
[submodule "without-url"]
\tpath = x
[other "section"]
\tpath = ../../y
"""
    assert parse_gitmodules(content) == (
        Submodule("libs/one", "libs/one", "../one.git"),
        Submodule('two "quoted"', "with space", "https://example.com/two.git"),
    )
    assert parse_gitmodules(b"") == ()


@pytest.mark.parametrize(
    "content",
    [
        b"[submodule",
        b"path = x",
        b'[submodule "a" path = x',
        b'[submodule "a"]\npath = "x',
        b'[submodule "a"]\npath = x\\q',
        b'[submodule "a"]\npath x y',
        b'[submodule "a"]\n= x',
        b"\xff\xfe",
        b"a\0b",
        b"#" * (1024 * 1024 + 1),
        b'[submodule "a"]\npath = ../x\nurl = u',
        b'[submodule "a"]\npath = /x\nurl = u',
        b'[submodule "a"]\npath = a/.GIT/x\nurl = u',
        b'[submodule "a"]\npath = -x\nurl = u',
        b'[submodule "../a"]\npath = x\nurl = u',
        b'[submodule "a\\\\..\\\\b"]\npath = x\nurl = u',
        b'[submodule "a"]\npath = x\nurl = -u',
        b'[submodule "a"]\npath = x\nurl = "u\\nv"',
    ],
)
def test_what_cannot_be_used(content: bytes) -> None:
    with pytest.raises(GitmodulesInvalid):
        parse_gitmodules(content)
    assert fault_of(content)


def test_a_symbolic_link_is_a_fault_and_a_good_file_is_none() -> None:
    assert fault_of(None) == "is a symbolic link"
    assert fault_of(b'[submodule "a"]\npath = x\nurl = u\n') == ""


_TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp", "Cn", "Co")),
    min_size=1,
    max_size=20,
)


@settings(max_examples=25, deadline=None)
@given(url=_TEXT, name=_TEXT)
def test_values_mean_what_they_mean_to_git(
    tmp_path_factory: pytest.TempPathFactory, url: str, name: str
) -> None:
    path: Path = tmp_path_factory.mktemp("config") / "gitmodules"
    for key, value in (("path", "x"), ("url", f' {url}#;\\"')):
        subprocess.run(["git", "config", "-f", path, f"submodule.{name}.{key}", value], check=True)
    try:
        found = parse_gitmodules(path.read_bytes())
    except GitmodulesInvalid:
        assert ".." in name or not name.isprintable() or not url.isprintable()
        return
    assert found == (Submodule(name, "x", f' {url}#;\\"'),)


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (POINTER, True),
        (POINTER.replace(b"oid ", b"ext-0-foo sha256:00\noid ", 1), True),
        (POINTER[:-1], False),
        (POINTER + b"more\n", False),
        (POINTER.replace(b"spec/v1", b"spec/v2"), False),
        (POINTER.replace(b"size 12345", b"size x"), False),
        (b"x" + POINTER, False),
        (POINTER.replace(b"ext", b"ext") + b"#" * 1024, False),
        (b"", False),
    ],
)
def test_pointers_of_lfs(content: bytes, expected: bool) -> None:
    assert is_pointer(content) is expected
