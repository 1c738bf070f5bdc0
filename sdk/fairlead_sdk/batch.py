"""Batches: pieces of work in one sandbox, one after the other, in one call."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead_sdk import json_form as form
from fairlead_sdk.file_records import FilePath, FileRecord, text_of
from fairlead_sdk.json_form import JsonObject, JsonValue
from fairlead_sdk.launches import Command
from fairlead_sdk.records import ExecutionRecord


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Write a whole file of at most 1 MiB; `permissions` are those of a new one."""

    path: FilePath
    content: bytes
    permissions: int | None = None
    parents: bool = False

    def document(self) -> JsonObject:
        """Give the JSON form."""
        document: JsonObject = {
            "path": text_of(self.path),
            "content": base64.b64encode(self.content).decode("ascii"),
            "parents": self.parents,
        }
        if self.permissions is not None:
            document["permissions"] = self.permissions
        return {"write": document}


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Read a whole file; the files of a batch have at most 1 MiB together."""

    path: FilePath

    def document(self) -> JsonObject:
        """Give the JSON form."""
        return {"read": {"path": text_of(self.path)}}


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Remove a file, or with `recursive` a tree."""

    path: FilePath
    recursive: bool = False

    def document(self) -> JsonObject:
        """Give the JSON form."""
        return {"remove": {"path": text_of(self.path), "recursive": self.recursive}}


@dataclass(frozen=True, slots=True)
class MoveFile:
    """Rename a file or a tree."""

    source: FilePath
    target: FilePath
    overwrite: bool = False

    def document(self) -> JsonObject:
        """Give the JSON form."""
        source, target = text_of(self.source), text_of(self.target)
        return {"move": {"source": source, "target": target, "overwrite": self.overwrite}}


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Make a directory."""

    path: FilePath
    parents: bool = False

    def document(self) -> JsonObject:
        """Give the JSON form."""
        return {"make_directory": {"path": text_of(self.path), "parents": self.parents}}


FileWork = WriteFile | ReadFile | RemoveFile | MoveFile | MakeDirectory


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of one piece of work.

    `state` is `succeeded`, `failed` or `skipped`. A command that was started has its `execution`
    and the ends of its output, at most 16 KiB each; `truncated` says that there was more. `reason`
    and `message` say why work could not be done; `file` is what a file operation left, `content`
    what it read.
    """

    state: str
    execution: ExecutionRecord | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    reason: str
    message: str
    file: FileRecord | None
    content: bytes

    @property
    def succeeded(self) -> bool:
        """Whether it did well."""
        return self.state == "succeeded"

    @property
    def exit_code(self) -> int | None:
        """The exit code of a command that was started, as a shell counts."""
        if self.execution is None or self.execution.exit is None:
            return None
        return self.execution.exit.exit_code

    @classmethod
    def read(cls, document: JsonObject) -> BatchOutcome:
        """Read the JSON form; `ValueError` when content is not base64."""
        execution = form.child(document, "execution")
        failure = form.child(document, "failure") or {}
        file = form.child(document, "file") or {}
        stat = form.child(file, "stat")
        return cls(
            state=form.text(document, "state"),
            execution=None if execution is None else ExecutionRecord.read(execution),
            stdout=_content(document, "stdout"),
            stderr=_content(document, "stderr"),
            truncated=form.flag(document, "truncated"),
            reason=form.text(failure, "reason"),
            message=form.text(failure, "message"),
            file=None if stat is None else FileRecord.read(stat),
            content=_content(file, "content"),
        )


def batch_document(items: Sequence[Command | FileWork], *, continue_on_failure: bool) -> JsonObject:
    """Give the JSON form of a batch."""
    documents: list[JsonValue] = [
        {"command" if isinstance(item, Command) else "file": item.document()} for item in items
    ]
    return {"items": documents, "continue_on_failure": continue_on_failure}


def _content(document: JsonObject, name: str) -> bytes:
    try:
        return base64.b64decode(form.text(document, name), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name} is not base64") from error
