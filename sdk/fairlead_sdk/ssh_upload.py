"""A workspace on a host over SSH in one round trip, or in two: what is lacking follows the miss."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from fairlead_sdk import json_form as form
from fairlead_sdk.errors import FailedPrecondition, FairleadError
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.known_tags import learn_sent, learn_uploaded
from fairlead_sdk.origin import origin_fields
from fairlead_sdk.packs import PackMaking, Part, each_chunk, stream_pack, tips_of
from fairlead_sdk.repository import Repository, Tip
from fairlead_sdk.source import known_tips, source_document
from fairlead_sdk.ssh_channel import HostCall, HostChannel
from fairlead_sdk.uploads import SentContents, is_large

MissListener = Callable[[str], None]
"""Hears why the host cannot make the workspace yet."""
UploadListener = Callable[[int, int | None], None]
"""Hears how many bytes were sent, and how many percent of the pack git has written."""
PAUSES = (1.0, 2.0)
_MENDED_BY_RETRY = frozenset({"pack_invalid", "snapshot_incomplete"})


class StillMissing(FailedPrecondition):
    """The host lacks objects, also after it was sent all that it said it lacks."""

    def __init__(self, destination: str, reason: str) -> None:
        super().__init__(
            f"{destination} still cannot make the workspace: {reason}.",
            reason=reason,
            remedy="Try again; if it stays so, look at `git fsck` here and there.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRequest:
    """What is asked for: `fields` are those of `materialize` beside the source."""

    repository: Repository
    url: str
    fields: Mapping[str, object]
    from_: str = ""
    submodules: bool = False
    on_miss: MissListener | None = None
    on_upload: UploadListener | None = None


@dataclass(frozen=True, slots=True)
class Materialized:
    """A workspace's JSON form; `history` sends what its commit's files were sent ahead of, and says
    whether all of it arrived.
    """

    workspace: JsonObject
    history: Callable[[], Coroutine[object, object, bool]] | None = None


async def materialized(channel: HostChannel, request: WorkspaceRequest) -> Materialized:
    """Make a workspace. An upload that fails is sent again after 1 and after 2 seconds, the last
    time without borrowing from what the host has; of a large repository that the host has nothing
    of, the files are sent first.

    Raises `ConnectionLost`, the host's errors, and `RepositoryError`, `client_objects_missing`.
    """
    source = await asyncio.to_thread(_source, request)
    answer = await channel.ask("materialize", source=source, **request.fields)
    workspace = form.child(answer, "workspace")
    upload = _Upload(channel=channel, request=request, source=source)
    if workspace is not None:
        lacks_history = False
        if not request.from_:  # else it is another commit
            lacks_history = await asyncio.to_thread(_learn, request, source, workspace)
        return Materialized(workspace, upload.rest if lacks_history else None)
    miss = form.child(answer, "miss") or {}
    if request.on_miss is not None:
        request.on_miss(form.text(miss, "reason"))
    part = await asyncio.to_thread(upload.plan, form.texts(miss, "tips"))
    workspace = await upload.first(part)
    return Materialized(workspace, upload.rest if part is Part.FILES else None)


def _source(request: WorkspaceRequest) -> JsonObject:
    repository = request.repository
    source = source_document(repository, url=request.url)
    if not (request.from_ or request.submodules):
        return source
    fields = origin_fields(repository.top, from_=request.from_, submodules=request.submodules)
    return {**source, **fields}


class _Upload:
    """What a host lacks, on its way there."""

    def __init__(
        self, *, channel: HostChannel, request: WorkspaceRequest, source: JsonObject
    ) -> None:
        self._channel = channel
        self._request = request
        self._source = source
        self._tips: tuple[Tip, ...] = ()
        self._host_tips: Sequence[str] = ()
        self._contents = SentContents(repository=request.repository, url=request.url)

    def plan(self, host_tips: Sequence[str]) -> Part:
        """Choose what is sent first."""
        repository = self._request.repository
        self._tips = tips_of(repository)
        known = known_tips(repository, url=self._request.url)
        known.replace(host_tips)
        if host_tips:
            self._contents.recall()
        if known.lacks_history:
            return Part.WHOLE  # the host's tips have no ancestors that could be borrowed
        self._host_tips = host_tips
        first_ever = not host_tips and is_large(os.fspath(repository.objects))
        return Part.FILES if first_ever else Part.WHOLE

    async def first(self, part: Part) -> JsonObject:
        """Send until the workspace is made."""
        for pause in (*PAUSES, None):
            try:
                answer = await self._send(part, is_thin=pause is not None)
            except FairleadError as error:
                if pause is None or error.reason not in _MENDED_BY_RETRY:
                    raise
            else:
                made = form.child(answer, "materialized") or {}
                workspace = form.child(made, "workspace")
                if workspace is not None:
                    await asyncio.to_thread(self._contents.learn)
                    return workspace
                if pause is None:
                    reason = form.text(form.child(made, "miss") or {}, "reason")
                    raise StillMissing(self._channel.destination, reason)
            await asyncio.to_thread(self._contents.forget)
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    async def rest(self) -> bool:
        """Send the history; where that fails, the next upload brings it."""
        try:
            if not self._tips:
                self._tips = await asyncio.to_thread(tips_of, self._request.repository)
            await self._send(Part.HISTORY, is_thin=True)
        except FairleadError:
            return False
        return True

    async def _send(self, part: Part, *, is_thin: bool) -> JsonObject:
        tips = () if part is Part.FILES else self._tips
        fields: dict[str, object] = {
            "source": self._source,
            "tips": [{"ref": tip.ref, "commit": tip.commit} for tip in tips],
            "tips_only": part is Part.FILES,
        }
        if part is not Part.HISTORY:
            fields["materialize"] = self._request.fields
        listener = None if part is Part.HISTORY else self._request.on_upload
        call = await self._channel.start("import", **fields)
        making = PackMaking()
        pack = stream_pack(
            self._request.repository,
            tips=tips,
            host_tips=self._host_tips if is_thin else (),
            part=part,
            is_thin=is_thin,
            making=making,
            sent=self._contents.names if is_thin else (),
        )
        try:
            async with aclosing(each_chunk(pack, making)) as chunks:
                await _fed(call, chunks, listener, making)
            answer = await call.answered()
        finally:
            await call.close()
        await asyncio.to_thread(self._learn, part)
        return answer

    def _learn(self, part: Part) -> None:
        repository = self._request.repository
        known = known_tips(repository, url=self._request.url)
        if part is Part.FILES:
            known.learn_files(repository.commit, token="")
        else:
            known.learn_history((repository.commit, *(tip.commit for tip in self._tips)))
            learn_uploaded(repository, self._tips, url=self._request.url)


async def _fed(
    call: HostCall,
    chunks: AsyncIterator[bytes],
    listener: UploadListener | None,
    making: PackMaking,
) -> None:
    sent = 0
    async for chunk in chunks:
        if not await call.send(chunk):
            return
        sent += len(chunk)
        if listener is not None:
            listener(sent, making.written)
    await call.end()


def _learn(request: WorkspaceRequest, source: JsonObject, workspace: JsonObject) -> bool:
    """Note that the host has the commit, and the tags unless it left some out; says whether it
    lacks the history.
    """
    known = known_tips(request.repository, url=request.url)
    known.learn((request.repository.commit,))
    if not form.flag(workspace, "tags_left_out"):
        learn_sent(request.repository, source, url=request.url)
    return known.lacks_history
