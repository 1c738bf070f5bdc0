"""Answering a miss: the pack that the host lacks, sent again when it fails, in two parts where the
host has nothing yet.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

from fairlead_sdk.client import FrontDoor, make_idempotency_key
from fairlead_sdk.errors import FairleadError, RepositoryError, Unavailable
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.known_tags import learn_uploaded
from fairlead_sdk.known_tips import KnownTips
from fairlead_sdk.packs import PackMaking, Part, each_chunk, stream_pack, tips_of
from fairlead_sdk.repository import Repository, Tip
from fairlead_sdk.source import known_tips

UploadProgress = Callable[[int, int | None], None]
"""Hears how many bytes of a part were sent, and how many percent of it git has written."""
PAUSES = (1.0, 2.0)
SETTLE_SECONDS = 2.0
_NEARLY = 90
FILES_FIRST_BYTES = 8 * 1024 * 1024
"""Where the objects take less, their history travels with the files: two uploads cost more."""
_MENDED_BY_RETRY = frozenset({"pack_invalid", "snapshot_incomplete", "upload_under_way"})
TOKEN_USED = "upload_token_invalid"  # noqa: S105 - a reason, no token


class SentContents:
    """The contents of uncommitted files that a host was sent before, and need not be sent again;
    blocking.
    """

    def __init__(self, *, repository: Repository, url: str) -> None:
        self._changes = repository.changes
        self._key = f"{url}\0{repository.project}"
        self.names: frozenset[str] = frozenset()

    def recall(self) -> None:
        """Leave out what was sent before."""
        if self._changes is not None and self._changes.kept is not None:
            self.names = self._changes.kept.uploaded(self._key)

    def learn(self) -> None:
        """Note that all contents are there."""
        changes = self._changes
        if changes is not None and changes.kept is not None and changes.make_objects is not None:
            changes.kept.learn_uploaded(self._key, changes.make_objects().blobs)

    def forget(self) -> None:
        """Leave nothing out from now on: a host lacks what was sent to another one."""
        self.names = frozenset()
        if self._changes is not None and self._changes.kept is not None:
            self._changes.kept.forget_uploaded(self._key)


class MissAnswer:
    """The answer to one miss: `first` sends what the host needs to go on, `rest` what is left."""

    def __init__(
        self,
        *,
        door: FrontDoor,
        repository: Repository,
        token: str,
        host_tips: Sequence[str],
        on_upload: UploadProgress | None = None,
    ) -> None:
        self._door = door
        self._repository = repository
        self._token = token
        self._host_tips = host_tips
        self._on_upload = on_upload
        self._tips: tuple[Tip, ...] = ()
        self.has_rest = False
        self.failure: FairleadError | None = None
        self._fault: RepositoryError | None = None
        self._making = PackMaking()
        self._contents = SentContents(repository=repository, url=door.url)

    @property
    def is_nearly_done(self) -> bool:
        """Whether git has written nearly all of what is being sent."""
        return (self._making.written or 0) >= _NEARLY

    async def first(self) -> JsonObject:
        """Send until it is durable over there; gives what the front door answered.

        A failed upload is sent again after 1 and after 2 seconds, the last time without borrowing
        from what the host has. Raises what the last one met, and `RepositoryError`,
        `client_objects_missing`.
        """
        part = await asyncio.to_thread(self._plan)
        self.has_rest = part is Part.FILES
        answer = await self._sent(part)
        await asyncio.to_thread(self._contents.learn)
        if self.has_rest:
            await asyncio.to_thread(
                self._known().learn_files, self._repository.commit, token=self._token
            )
        else:
            await asyncio.to_thread(self._learn)
        return answer

    async def rest(self) -> None:
        """Send the history, when `first` sent the files alone.

        When it fails `failure` says why, and a later upload brings it.
        """
        if not self.has_rest:
            return
        try:
            if not self._tips:
                self._tips = await asyncio.to_thread(tips_of, self._repository)
            await self._sent(Part.HISTORY)
        except FairleadError as error:
            self.failure = error
            if not isinstance(error, Unavailable):
                await asyncio.to_thread(self._known().forget_token)
            return
        self.has_rest = False
        await asyncio.to_thread(self._learn)

    def _plan(self) -> Part:
        self._tips = tips_of(self._repository)
        known = self._known()
        known.replace(self._host_tips)
        if self._host_tips:
            self._contents.recall()
        # Where history is lacking the host's tips reach less than they do here.
        is_first = not self._host_tips and is_large(os.fspath(self._repository.objects))
        return Part.FILES if known.lacks_history or is_first else Part.WHOLE

    def _known(self) -> KnownTips:
        return known_tips(self._repository, url=self._door.url)

    def _learn(self) -> None:
        self._known().learn_history(self._commits())
        learn_uploaded(self._repository, self._tips, url=self._door.url)

    def _commits(self) -> tuple[str, ...]:
        return (self._repository.commit, *(tip.commit for tip in self._tips))

    async def _sent(self, part: Part) -> JsonObject:
        key = make_idempotency_key()
        for pause in (*PAUSES, None):
            if pause is None:
                key = make_idempotency_key()  # another pack is another request
            try:
                async with aclosing(self._body(part, is_thin=pause is not None)) as body:
                    answer = await self._door.upload(self._token, body, key=key)
            except FairleadError as error:
                if self._fault is not None:
                    raise self._fault from error
                if error.reason == TOKEN_USED and pause != PAUSES[0]:
                    return {}  # the answer of the attempt before was lost
                mended = isinstance(error, Unavailable) or error.reason in _MENDED_BY_RETRY
                if self._contents.names and error.reason in _MENDED_BY_RETRY:
                    await asyncio.to_thread(self._contents.forget)
                    key = make_idempotency_key()  # another pack is another request
                if pause is None or not mended:
                    raise
            else:
                if self._fault is not None:
                    raise self._fault
                return answer
            await self._door.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    async def _body(self, part: Part, *, is_thin: bool) -> AsyncGenerator[bytes, None]:
        tips = () if part is Part.FILES else self._tips
        head: dict[str, object] = {"tips": [{"ref": tip.ref, "commit": tip.commit} for tip in tips]}
        if part is Part.FILES:
            head["tips_only"] = True
        yield json.dumps(head, separators=(",", ":")).encode() + b"\n"
        self._making = making = PackMaking()
        pack = stream_pack(
            self._repository,
            tips=tips,
            host_tips=self._host_tips if is_thin else (),
            part=part,
            is_thin=is_thin,
            making=making,
            sent=self._contents.names if is_thin else (),
        )
        sent = 0
        self._fault = None
        try:
            async with aclosing(each_chunk(pack, making)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    sent += len(chunk)
                    if self._on_upload is not None:
                        self._on_upload(sent, making.written)
        except RepositoryError as error:
            if sent:
                raise
            # The host refuses what is empty where objects lack, and counts the reason.
            self._fault = error


class Histories:
    """The histories that are sent while their launches are under way, or `lasts` beyond them."""

    def __init__(self, *, lasts: bool = False) -> None:
        self._lasts = lasts
        self._tasks: dict[asyncio.Task[None], MissAnswer] = {}
        self._failures: list[FairleadError] = []

    @property
    def is_busy(self) -> bool:
        """Whether one is being sent."""
        return bool(self._tasks)

    def begin(self, answer: MissAnswer) -> None:
        """Send what is left of an answer."""
        task = asyncio.ensure_future(self._send(answer))
        self._tasks[task] = answer
        task.add_done_callback(self._tasks.pop)

    def take_failures(self) -> list[FairleadError]:
        """Give what went wrong since the last time."""
        failures, self._failures = self._failures, []
        return failures

    async def _send(self, answer: MissAnswer) -> None:
        await answer.rest()
        if answer.failure is not None and answer.failure.reason != TOKEN_USED:
            self._failures.append(answer.failure)

    async def settle(self, *, wait: bool) -> bool:
        """Let them end before this process does; says whether one was cut.

        Without `wait` they have two seconds, and ten more when nearly all was sent. What was cut
        goes with a later launch.
        """
        tasks = dict(self._tasks)
        if self._lasts or not tasks:
            return False
        _, cut = await asyncio.wait(tasks, timeout=None if wait else SETTLE_SECONDS)
        if any(tasks[task].is_nearly_done for task in cut):
            _, cut = await asyncio.wait(cut, timeout=5 * SETTLE_SECONDS)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut)
        return bool(cut)

    async def close(self) -> None:
        """Cut them all."""
        self._lasts = False
        for task in list(self._tasks):
            task.cancel()
        await self.settle(wait=True)


def history_of(door: FrontDoor, repository: Repository) -> MissAnswer | None:
    """Give the rest of an answer that an earlier launch could not send to its end."""
    known = known_tips(repository, url=door.url)
    if not known.history_token or repository.commit not in known.commits:
        return None
    answer = MissAnswer(door=door, repository=repository, token=known.history_token, host_tips=())
    answer.has_rest = True
    return answer


async def answer_miss(
    door: FrontDoor,
    repository: Repository,
    *,
    token: str,
    tips: Sequence[str],
    on_upload: UploadProgress | None = None,
) -> JsonObject:
    """Send all that a host lacks, and give what the front door answered to the first part."""
    answer = MissAnswer(
        door=door, repository=repository, token=token, host_tips=tips, on_upload=on_upload
    )
    document = await answer.first()
    await answer.rest()
    return document


def is_large(objects: str) -> bool:
    """Say whether the objects take more than `FILES_FIRST_BYTES`, as far as one must count."""
    total = 0
    for name in ("pack", *(f"{number:02x}" for number in range(256))):
        try:
            entries = os.scandir(f"{objects}/{name}")
        except OSError:
            continue
        with entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # git may pack them at the same time
                    total += entry.stat(follow_symlinks=False).st_size
                if total > FILES_FIRST_BYTES:
                    return True
    return False
