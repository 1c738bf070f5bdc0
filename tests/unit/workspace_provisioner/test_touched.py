"""Which paths of a layer git has to compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from workspace_provisioner.trees.touched import MOST_PATHS, upper_paths


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, Path]:
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for name in (".git", "src/deep"):
        (upper / name).mkdir(parents=True)
        (lower / name).mkdir(parents=True)
    (lower / "src/deep/file").touch()
    (lower / "src/other").touch()
    (lower / "was-file").touch()
    (upper / ".git/index").touch()
    return upper, lower


def test_what_is_shared_is_looked_into_and_what_is_not_stands_for_all_below(
    layers: tuple[Path, Path],
) -> None:
    upper, _ = layers
    assert upper_paths(layers) == []
    (upper / "src/deep/file").write_bytes(b"changed")
    (upper / "src/fresh/below").mkdir(parents=True)
    (upper / "src/fresh/below/file").touch()
    (upper / "src/fresh/.gitattributes").touch()
    (upper / "was-file").mkdir()
    (upper / "link").symlink_to("src")
    assert sorted(upper_paths(layers) or ()) == ["link", "src/deep/file", "src/fresh", "was-file"]


@pytest.mark.parametrize("name", [".gitattributes", "src/.gitattributes", "src/.git"])
def test_what_changes_the_meaning_of_others_is_left_to_git(
    layers: tuple[Path, Path], name: str
) -> None:
    (layers[0] / name).touch()
    assert upper_paths(layers) is None


def test_many_paths_are_left_to_git(layers: tuple[Path, Path]) -> None:
    for number in range(MOST_PATHS):
        (layers[0] / f"src/{number}").touch()
    assert len(upper_paths(layers) or ()) == MOST_PATHS
    (layers[0] / "one-more").touch()
    assert upper_paths(layers) is None
