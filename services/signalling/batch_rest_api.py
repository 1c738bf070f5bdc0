"""The route of batches: pieces of work as JSON in, one outcome for each out."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Protocol

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from signalling.batch import Batch, BatchOutcome, BatchState
from signalling.caller import current_tenant
from signalling.execution import Command
from signalling.file import (
    FileOperation,
    MakeDirectory,
    MoveFile,
    ReadFile,
    RemoveFile,
    StatFile,
    WriteFile,
)
from signalling.file_text import from_text, stat_json
from signalling.files_rest_api import FileAnswer, MakeBody, MoveBody, PathText, StatBody
from signalling.launch_json import Json, execution_json
from signalling.problems import problem_documents
from signalling.rest_bodies import CommandBody, ExecutionAnswer
from signalling.rest_parameters import IdempotencyKey
from signalling.rest_types import Body, EncodedBytes
from signalling.source_rules import InvalidRequest


class Batches(Protocol):
    """Batches from the caller's side."""

    async def run_batch(
        self, tenant: str, sandbox_id: str, batch: Batch, key: str | None
    ) -> Sequence[BatchOutcome]:
        """Run a batch to its end."""
        ...


class WriteBody(Body):
    """A whole file to write."""

    path: PathText
    content: EncodedBytes = Field(description="At most 1 MiB.")
    permissions: int | None = Field(
        default=None, json_schema_extra={"minimum": 0, "maximum": 0o777}
    )
    parents: bool = Field(default=False, description="Make the directories that are missing.")


class ReadBody(Body):
    """A whole file to read."""

    path: PathText


class RemoveBody(Body):
    """A file or a tree to remove."""

    path: PathText
    recursive: bool = False


class FileWorkBody(Body):
    """A file operation: exactly one of its members."""

    write: WriteBody | None = None
    read: ReadBody | None = None
    remove: RemoveBody | None = None
    move: MoveBody | None = None
    make_directory: MakeBody | None = None
    stat: StatBody | None = None

    def value(self) -> FileOperation:
        """Return the domain's value; raises InvalidRequest unless it is exactly one."""
        found = [
            each
            for each in (
                self.write,
                self.read,
                self.remove,
                self.move,
                self.make_directory,
                self.stat,
            )
            if each is not None
        ]
        match found:
            case [WriteBody() as write]:
                return WriteFile(_path(write.path), write.content, write.permissions, write.parents)
            case [ReadBody() as read]:
                return ReadFile(_path(read.path))
            case [RemoveBody() as remove]:
                return RemoveFile(_path(remove.path), remove.recursive)
            case [MoveBody() as move]:
                return MoveFile(_path(move.source), _path(move.target), move.overwrite)
            case [MakeBody() as make]:
                return MakeDirectory(_path(make.path), make.parents)
            case [StatBody() as stat]:
                return StatFile(_path(stat.path), stat.follow)
            case _:
                raise _one_of("A file operation has exactly one member.")


class BatchItemBody(Body):
    """A piece of work: a command without standard input, or a file operation."""

    command: CommandBody | None = None
    file: FileWorkBody | None = None

    def value(self) -> Command | FileOperation:
        """Return the domain's value; raises InvalidRequest unless it is exactly one."""
        if self.command is not None and self.file is None:
            return self.command.value()
        if self.file is not None and self.command is None:
            return self.file.value()
        raise _one_of("A piece of work is a command or a file operation.")


class BatchBody(Body):
    """Pieces of work, one after the other."""

    items: list[BatchItemBody] = Field(json_schema_extra={"minItems": 1, "maxItems": 64})
    continue_on_failure: bool = Field(default=False, description="Go on after a piece that failed.")


class BatchFailureAnswer(BaseModel):
    """The error of one piece of work."""

    reason: str
    message: str
    remedy: str


class FileWorkAnswer(BaseModel):
    """What a file operation gave."""

    stat: FileAnswer | None = Field(description="The file as it is then; null once removed.")
    content: EncodedBytes


class BatchOutcomeAnswer(BaseModel):
    """What became of one piece of work."""

    state: BatchState
    execution: ExecutionAnswer | None
    stdout: EncodedBytes = Field(description="The last 16 KiB of standard output.")
    stderr: EncodedBytes = Field(description="The last 16 KiB of standard error.")
    truncated: bool = Field(description="Whether either lacks what came before.")
    failure: BatchFailureAnswer | None = Field(
        description="Why the work could not be done; null where an execution says it."
    )
    file: FileWorkAnswer | None


class BatchAnswer(BaseModel):
    """One outcome for each piece of work, in the same order."""

    outcomes: list[BatchOutcomeAnswer]


def batch_router(batches: Batches) -> APIRouter:
    """Return the route of batches."""
    router = APIRouter(prefix="/v1", tags=["executions"])

    @router.post(
        "/sandboxes/{sandbox_id}/batch",
        response_model=BatchAnswer,
        responses=problem_documents(404, 409, 413),
    )
    async def run_batch(
        sandbox_id: str, body: BatchBody, key: IdempotencyKey = None
    ) -> JSONResponse:
        """Run pieces of work one after the other; it answers when the last one is done."""
        batch = Batch(
            items=tuple(item.value() for item in body.items),
            continue_on_failure=body.continue_on_failure,
        )
        outcomes = await batches.run_batch(current_tenant(), sandbox_id, batch, key)
        return JSONResponse({"outcomes": [_outcome_json(outcome) for outcome in outcomes]})

    return router


def _outcome_json(outcome: BatchOutcome) -> Json:
    failure, file = outcome.failure, outcome.file
    return {
        "state": outcome.state.value,
        "execution": None if outcome.execution is None else execution_json(outcome.execution),
        "stdout": _text(outcome.stdout),
        "stderr": _text(outcome.stderr),
        "truncated": outcome.truncated,
        "failure": None
        if failure is None
        else {"reason": failure.reason, "message": failure.message, "remedy": failure.remedy},
        "file": None
        if file is None
        else {
            "stat": None if file.stat is None else stat_json(file.stat),
            "content": _text(file.content),
        },
    }


def _path(text: str) -> bytes:
    return from_text(text, field="items")


def _text(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def _one_of(sentence: str) -> InvalidRequest:
    return InvalidRequest("items", sentence, reason="batch_invalid")
