"""Idempotency-Key for the mutations whose use cases know no keys: one is done, a retry gets its
answer.

The creating routes are not among them; there the key makes the id. Nor are restarts of sessions,
whose answers have credentials: the same offer gets the same answer there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chassis.errors import FairleadError
from signalling.caller import current_tenant
from signalling.kept_answers import AnswerConflict, AnswerPending, KeptAnswer, KeptAnswers
from signalling.launch_request import check_key
from signalling.problems import problem_response
from signalling.request_header import header_of

log = logging.getLogger(__name__)

KEPT_SECONDS = 24 * 3600
_PENDING_SECONDS = 60
_LOOK_AGAIN_SECONDS = 0.05
_WAIT_SECONDS = 30.0
_OF_THEIR_OWN = re.compile(
    r"/v1/(launches|sessions|snapshots|workspaces|workspaces/[^/]+/fork|sandboxes|sandboxes/[^/]+/(executions|batch))"
    r"|/v1/sandboxes/[^/]+/files:(stat|list|watch)"
    r"|/v1/sessions/.+/restart"
)


class IdempotentMutations:
    """Stands right before the routes, behind the key gate and the limit of the body."""

    def __init__(self, app: ASGIApp, *, answers: KeptAnswers) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or not any(name == b"idempotency-key" for name, _ in scope["headers"])
            or scope["method"] not in ("POST", "DELETE", "PUT", "PATCH")
            or not scope["path"].startswith("/v1/")
            or _OF_THEIR_OWN.fullmatch(scope["path"])
        ):
            await self._app(scope, receive, send)
            return
        try:
            key = header_of(scope, b"idempotency-key")
            response = await self._once(scope, receive, send, key)
        except FairleadError as error:
            response = problem_response(error)
        if response is not None:
            await response(scope, receive, send)

    async def _once(self, scope: Scope, receive: Receive, send: Send, key: str) -> Response | None:
        """Do the request and return None, or return the answer of the one that was first."""
        check_key(key)
        body = await receive()
        asked = scope["query_string"] + b"\n" + body.get("body", b"")
        digest = hashlib.sha256(asked).hexdigest()
        name = hashlib.sha256(
            "\0".join((current_tenant(), scope["method"], scope["path"], key)).encode()
        ).hexdigest()
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while found := await self._answers.claim(
                    name, digest, ttl_seconds=_PENDING_SECONDS
                ):
                    if found.digest != digest:
                        raise AnswerConflict
                    if not found.is_pending:
                        return Response(
                            found.body, status_code=found.status, media_type=found.media_type
                        )
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        except TimeoutError as error:
            raise AnswerPending from error
        await self._do(scope, body, receive, send, name, digest)
        return None

    async def _do(
        self, scope: Scope, body: Message, receive: Receive, send: Send, name: str, digest: str
    ) -> None:
        answer = _Recorder(send)
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return body

        kept = None
        try:
            await self._app(scope, replay, answer.send)
            kept = answer.kept(digest)
        finally:
            await self._settle(name, kept)
        await answer.finish()

    async def _settle(self, name: str, kept: KeptAnswer | None) -> None:
        try:
            if kept is None:
                await self._answers.drop(name)
            else:
                await self._answers.keep(name, kept, ttl_seconds=KEPT_SECONDS)
        except FairleadError as error:
            # The request is done; only a retry of it will not be told so.
            log.warning("answer not kept", extra={"reason": error.reason})


class _Recorder:
    """Holds an answer back until it is kept, so that nobody has it who could not get it again."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._messages: list[Message] = []

    async def send(self, message: Message) -> None:
        self._messages.append(message)

    def kept(self, digest: str) -> KeptAnswer | None:
        """Return the answer to keep; None when it is an error."""
        if not self._messages or not 200 <= self._messages[0]["status"] < 300:
            return None
        body = b"".join(message.get("body", b"") for message in self._messages[1:])
        return KeptAnswer(
            digest=digest,
            status=self._messages[0]["status"],
            media_type=Headers(raw=self._messages[0]["headers"]).get("content-type", ""),
            body=body.decode(),
        )

    async def finish(self) -> None:
        """Pass the answer on."""
        for message in self._messages:
            await self._send(message)
