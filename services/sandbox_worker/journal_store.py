"""The directory of all journals: one directory per execution with its description and segments."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Executor
from datetime import datetime
from pathlib import Path

from chassis.ids import is_id
from sandbox_worker.errors import StorageUnavailable
from sandbox_worker.execution import Execution, Exit
from sandbox_worker.file_journal import FileJournal, Segment, Write, recovered
from sandbox_worker.ports import KeptExecution

log = logging.getLogger(__name__)

_DESCRIPTION = "execution.json"
_SEGMENTS = 8


class JournalStore:
    """Keeps journals below `root`; `most_bytes` bounds each of them."""

    def __init__(
        self, *, root: Path, executor: Executor, most_bytes: int, write: Write = os.write
    ) -> None:
        self._root = root
        self._executor = executor
        self._segment_bytes = most_bytes // _SEGMENTS
        self._write = write

    async def open(self, execution: Execution) -> FileJournal:
        """Make a journal; what a failed start left under the same id is replaced."""
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, self._open, execution
        )

    async def recover(self) -> Sequence[KeptExecution]:
        """Read all journals; those whose description is unreadable are removed."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._recover)

    def _open(self, execution: Execution) -> FileJournal:
        directory = self._root / execution.execution_id
        try:
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir(mode=0o700, parents=True)
            journal = self._journal(directory)
            journal.open()
            # Last, by rename: a directory with a description has a segment, or it is thrown away.
            draft = directory / f"{_DESCRIPTION}.draft"
            draft.write_bytes(_described(execution))
            draft.rename(directory / _DESCRIPTION)
        except OSError as error:
            log.error("a journal cannot be made", extra={"cause": error.strerror})
            shutil.rmtree(directory, ignore_errors=True)
            raise StorageUnavailable from error
        return journal

    def _journal(
        self, directory: Path, segments: Sequence[Segment] = (), last_sequence: int = 0
    ) -> FileJournal:
        return FileJournal(
            directory=directory,
            executor=self._executor,
            segment_bytes=self._segment_bytes,
            most_segments=_SEGMENTS,
            write=self._write,
            segments=segments,
            last_sequence=last_sequence,
        )

    def _recover(self) -> list[KeptExecution]:
        kept: list[KeptExecution] = []
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for directory in sorted(self._root.iterdir()):
            try:
                description = (directory / _DESCRIPTION).read_bytes()
                segments, last_sequence, exit_ = recovered(directory)
                execution = _execution(directory.name, description, exit_)
            except (OSError, ValueError, KeyError, TypeError):
                segments = []
            if not segments:
                log.warning("an unreadable journal is removed")
                shutil.rmtree(directory, ignore_errors=True)
                continue
            kept.append(
                KeptExecution(
                    execution=execution,
                    journal=self._journal(directory, segments, last_sequence),
                )
            )
        return kept


def _described(execution: Execution) -> bytes:
    return json.dumps(
        {
            "sandbox_id": execution.sandbox_id,
            "tenant": execution.tenant,
            "arguments": execution.arguments,
            "started_at": execution.started_at.isoformat(),
            "fingerprint": execution.fingerprint,
        }
    ).encode()


def _execution(execution_id: str, description: bytes, exit_: Exit | None) -> Execution:
    if not is_id("exe", execution_id):
        raise ValueError(execution_id)
    fields = json.loads(description)
    return Execution(
        execution_id=execution_id,
        sandbox_id=str(fields["sandbox_id"]),
        tenant=str(fields["tenant"]),
        arguments=tuple(str(argument) for argument in fields["arguments"]),
        started_at=datetime.fromisoformat(fields["started_at"]),
        exit=exit_,
        fingerprint=str(fields.get("fingerprint", "")),
    )
