"""A reading that is given up, at whatever moment, leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from fairlead_sdk import changes as module
from fairlead_sdk.fast_import import ImportedTree
from fairlead_sdk.repository import read_repository
from fairlead_sdk.scratch import Scratch
from tests.fakes.local_repository import LocalRepository


@pytest.mark.parametrize("moment", ["before", "while", "after"])
def test_a_reading_that_is_given_up_leaves_nothing(
    moment: str, repository: LocalRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "scratches"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    repository.write("new", os.urandom(300_000))
    scratch = Scratch()
    if moment == "before":
        scratch.close()
    if moment == "while":
        pack = module._thin_pack

        def given_up(directory: Path, imported: ImportedTree, commit: str) -> bytes:
            content = pack(directory, imported, commit)
            scratch.close()
            (directory / "objects").mkdir(parents=True)
            return content

        monkeypatch.setattr(module, "_thin_pack", given_up)
    read_repository(repository.path, scratch=scratch)
    if moment == "after":
        assert list(place.iterdir())
        scratch.close()
    assert list(place.iterdir()) == []
