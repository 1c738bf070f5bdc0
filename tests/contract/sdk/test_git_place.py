"""Repositories that are more than they look like are left to git."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead_sdk.git_place import find_place
from fairlead_sdk.refs_reader import Unsure
from fairlead_sdk.repository import read_repository
from tests.fakes.local_repository import LocalRepository


def a_submodule(repository: LocalRepository, tmp_path: Path) -> Path:
    inner = LocalRepository.make(tmp_path / "inner")
    inner.commit()
    allowed = ("-c", "protocol.file.allow=always")
    repository.git(*allowed, "submodule", "--quiet", "add", str(inner.path), "sub")
    return repository.path / "sub"


def sha256_objects(repository: LocalRepository, tmp_path: Path) -> Path:
    made = LocalRepository.make(tmp_path / "sha256", "--object-format=sha256")
    made.commit()
    return made.path


def another_extension(repository: LocalRepository, tmp_path: Path) -> Path:
    repository.git("config", "core.repositoryFormatVersion", "1")
    repository.git("config", "extensions.preciousObjects", "true")
    return repository.path


def a_working_directory_elsewhere(repository: LocalRepository, tmp_path: Path) -> Path:
    repository.git("config", "core.worktree", str(repository.path))
    return repository.path


def included_configuration(repository: LocalRepository, tmp_path: Path) -> Path:
    repository.git("config", "include.path", str(tmp_path / "more"))
    return repository.path


def a_section_and_its_value_on_one_line(repository: LocalRepository, tmp_path: Path) -> Path:
    with open(repository.path / ".git" / "config", "a") as file:
        file.write("[core] bare = false\n")
    return repository.path


def a_value_with_what_is_a_line_for_unicode_alone(
    repository: LocalRepository, tmp_path: Path
) -> Path:
    with open(repository.path / ".git" / "config", "a", encoding="utf-8") as file:
        file.write(f"[core]\n\tx = a\u2028[user]\n\tworktree = {repository.path}\n")
    return repository.path


@pytest.mark.parametrize(
    "make",
    [
        a_submodule,
        sha256_objects,
        another_extension,
        a_working_directory_elsewhere,
        included_configuration,
        a_section_and_its_value_on_one_line,
        a_value_with_what_is_a_line_for_unicode_alone,
    ],
)
def test_repositories_of_another_kind_are_left_to_git(
    make: Callable[[LocalRepository, Path], Path], repository: LocalRepository, tmp_path: Path
) -> None:
    place = make(repository, tmp_path)
    with pytest.raises(Unsure):
        find_place(str(place), environment={})
    found = read_repository(place)
    listing = LocalRepository(place).git_bytes("show-ref", "--heads")
    assert found.digest == hashlib.sha256(listing).hexdigest()


def test_reftables_are_left_to_git(repository: LocalRepository) -> None:
    """This git knows none, so that the configuration alone says that it is one."""
    repository.git("config", "core.repositoryFormatVersion", "1")
    repository.git("config", "extensions.refStorage", "reftable")
    with pytest.raises(Unsure):
        find_place(str(repository.path), environment={})


def test_environments_that_move_repositories_are_left_to_git(repository: LocalRepository) -> None:
    with pytest.raises(Unsure):
        find_place(str(repository.path), environment={"GIT_CEILING_DIRECTORIES": "/"})
