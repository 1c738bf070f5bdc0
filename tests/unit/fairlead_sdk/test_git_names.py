"""Spellings of `.git` and of what makes a git directory."""

from __future__ import annotations

import pytest

from fairlead_sdk.git_names import git_prefix, is_git_name, is_repository, marks_of


@pytest.mark.parametrize(
    "name",
    [
        ".git",
        ".GIT",
        ".GiT",
        ".git.",
        ".git ",
        ".git . .",
        "git~1",
        "GIT~2",
        "GI7EBA~1",
        "git~1 .",
        ".git::$INDEX_ALLOCATION",
        ".git:$I30:$INDEX_ALLOCATION",
        ".git. :stream",
        "git~1::$DATA",
        ".g\u200cit",
        "\ufeff.git",
        ".gi\u206at",
        ".g\u00adit",
        ".git\u202e",
        ".g\ufe0fit",
        ".\uff47it",
        "\uff0egit",
        "\u2024git",
        ".\U0001d420it",
        ".G\u0131T",
        "a\\.git",
        ".git\\hooks",
        ".git\\.\\hooks",
        "a\uff0f.git",
    ],
)
def test_every_spelling_is_one(name: str) -> None:
    assert is_git_name(name)


@pytest.mark.parametrize(
    "name",
    [
        ".gitignore",
        ".gitattributes",
        ".gitmodules",
        ".github",
        "git",
        "..git",
        ".git~",
        ".git1",
        "x.git",
        "repository.git",
        "git~",
        "git~1x",
        "gixxxx~1",
        "digit~1",
        "\udcff.git",
        "",
    ],
)
def test_other_names_are_none(name: str) -> None:
    assert not is_git_name(name)


def test_a_path_is_cut_behind_the_first() -> None:
    assert git_prefix("a/.GIT/hooks/.git/x") == "a/.GIT"
    assert git_prefix("a/git/x") is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["HEAD", "objects", "refs"], True),
        (["head.", "OBJECTS", "re\uff46s", "more"], True),
        (["HEAD", "commondir"], True),
        (["HEAD", "objects"], False),
        (["objects", "refs", "commondir"], False),
    ],
)
def test_what_makes_a_git_directory(names: list[str], expected: bool) -> None:
    assert is_repository(marks_of(names).__contains__) == expected
