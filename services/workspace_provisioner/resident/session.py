"""One connection: takes frames apart into calls and lets them run beside each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from chassis.errors import FairleadError, Kind, Unavailable
from workspace_provisioner.resident.calls import Call, Verb, error_fields
from workspace_provisioner.resident.frames import (
    MAX_CALLS,
    Decoder,
    Frame,
    FrameInvalid,
    encoded,
)

log = logging.getLogger(__name__)

_READ_BYTES = 256 * 1024
_FAREWELL_SECONDS = 2.0


class Outlet:
    """Writes frames whole and in order, whoever sends them."""

    def __init__(self, *, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, frame: bytes) -> None:
        """Send a frame; returns when there is room for more."""
        self._writer.write(frame)
        await self._writer.drain()


class Session:
    """Serves one client until its channel ends or nothing came for `idle_seconds`."""

    def __init__(
        self,
        *,
        reader: asyncio.StreamReader,
        outlet: Outlet,
        verbs: Mapping[str, Verb],
        idle_seconds: float,
    ) -> None:
        self._reader = reader
        self._outlet = outlet
        self._verbs = verbs
        self._idle_seconds = idle_seconds
        self._calls: dict[int, Call] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Serve; when it returns, no call runs any more."""
        decoder = Decoder()
        try:
            async with asyncio.TaskGroup() as running:
                try:
                    while received := await self._received():
                        for frame in decoder.feed(received):
                            self._take(frame, running)
                finally:
                    for task in self._tasks.values():
                        task.cancel()
        except* FrameInvalid as broken:
            cause = str(broken.exceptions[0])
            log.warning("connection ended: no frame", extra={"cause": cause})
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    await self._tell(0, _protocol_error(cause))
        except* (ConnectionError, TimeoutError):
            log.info("connection lost")

    async def _received(self) -> bytes:
        async with asyncio.timeout(self._idle_seconds):
            return await self._reader.read(_READ_BYTES)

    def _take(self, frame: Frame, running: asyncio.TaskGroup) -> None:
        if frame.type == "call":
            self._start(frame, running)
            return
        call = self._calls.get(frame.call)
        if call is None:
            return  # its answer and this frame have crossed
        match frame.type:
            case "bytes":
                call.take(frame.payload)
            case "end":
                call.end()
            case "credit":
                call.grant(frame.fields.get("credit"))
            case "signal":
                number = frame.fields.get("signal")
                if type(number) is int and call.signals is not None:
                    call.signals(number)
            case "cancel":
                self._tasks[frame.call].cancel()
            case _:
                raise FrameInvalid("an unknown type")

    def _start(self, frame: Frame, running: asyncio.TaskGroup) -> None:
        if frame.call == 0 or frame.call in self._calls:
            raise FrameInvalid("a call's number is in use")
        call = Call(
            number=frame.call, fields=frame.fields, payload=frame.payload, sink=self._outlet
        )
        has_place = len(self._calls) < MAX_CALLS
        self._calls[frame.call] = call
        self._tasks[frame.call] = running.create_task(self._answer(call, has_place=has_place))

    async def _answer(self, call: Call, *, has_place: bool) -> None:
        try:
            if not has_place:
                raise TooManyCalls
            answer = await self._outcome(call)
            await self._outlet.send(encoded(call.number, "answer", **answer))
        except FrameInvalid:
            await self._tell(call.number, _fault())
        except FairleadError as error:
            await self._tell(call.number, _error(error))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("call failed")
            await self._tell(call.number, _fault())
        finally:
            del self._calls[call.number], self._tasks[call.number]

    async def _outcome(self, call: Call) -> Mapping[str, object]:
        name = call.fields.get("verb")
        verb = self._verbs.get(name) if isinstance(name, str) else None
        if verb is None:
            return await _unknown()
        return await verb(call)

    async def _tell(self, number: int, fields: Mapping[str, object]) -> None:
        await self._outlet.send(encoded(number, "error", **fields))


class VerbUnknown(FairleadError):
    """The client asks for what this program does not do."""

    kind = Kind.INVALID_ARGUMENT

    def __init__(self) -> None:
        super().__init__(
            "The host's program does not know that verb.",
            reason="verb_unknown",
            remedy="Use the same version of fairlead on both ends; it is sent again by itself.",
        )


class TooManyCalls(Unavailable):
    """The connection has as many calls as it may have."""

    def __init__(self) -> None:
        super().__init__(
            f"The host serves {MAX_CALLS} calls of this connection already.",
            reason="too_many_calls",
            remedy="Try again when one of them has ended.",
        )


async def _unknown() -> Mapping[str, object]:
    raise VerbUnknown


def _error(error: FairleadError) -> dict[str, object]:
    return error_fields(
        error.kind,
        error.message,
        reason=error.reason,
        remedy=error.remedy,
        fields=error.fields,
    )


def _fault() -> dict[str, object]:
    return error_fields(
        Kind.INTERNAL,
        "Something is wrong in the host's program itself.",
        reason="internal",
        remedy="Please report it; `ssh` shows its log with FAIRLEAD_DEBUG=1.",
        fields={},
    )


def _protocol_error(cause: str) -> dict[str, object]:
    return error_fields(
        Kind.INVALID_ARGUMENT,
        f"The host's program received what is no frame: {cause}.",
        reason="protocol_error",
        remedy="Use the same version of fairlead on both ends.",
        fields={},
    )
