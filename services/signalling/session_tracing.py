"""The spans of sessions: `session.open`, `session.offer`, `candidates.flush`, `session.restart` and
`session.watch` around what clients ask for, `channel.open` around one connection into a sandbox.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from types import TracebackType

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    StatusCode,
    TracerProvider,
    get_current_span,
    set_span_in_context,
)

from chassis.errors import FairleadError
from chassis.telemetry import links_to, remote_context
from signalling.gateway import Meeting
from signalling.gateway_desk import GatewayDesk
from signalling.ice_candidate import CandidateOutcome
from signalling.ice_servers import IceServer
from signalling.session import Session
from signalling.session_ports import Sessions, Targets, Watched
from signalling.tunnel import Tunnel

ATTRIBUTES = (
    "fairlead.launch.id",
    "fairlead.session.id",
    "fairlead.session.gateway_id",
    "fairlead.session.candidates",
    "fairlead.session.round",
    "fairlead.channel.port",
)


class _Spans:
    def __init__(self, tracer_provider: TracerProvider) -> None:
        self._tracer = tracer_provider.get_tracer("signalling.sessions")

    def open(
        self, name: str, attributes: dict[str, str | int], context: Context | None = None
    ) -> _Step:
        """Open a span; in a context of its own it is linked to whoever asked. One in a trace that
        is not sampled is none of its own, as nobody would see it.
        """
        parent = get_current_span(context).get_span_context()
        if parent.is_valid and not parent.trace_flags.sampled:
            return _Step(NonRecordingSpan(parent))
        links = links_to(get_current()) if context else None
        return _Step(
            self._tracer.start_span(name, context=context, links=links, attributes=attributes)
        )


class _Step:
    """The span of what is done in a block. The library's own block is three generators, which take
    longer than a span that is not sampled.
    """

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        self._token = attach(set_span_in_context(self._span))
        return self._span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        detach(self._token)
        match error:
            case FairleadError():
                self._span.set_status(StatusCode.ERROR, error.reason)
            case Exception():
                self._span.set_status(StatusCode.ERROR, "internal")
        self._span.end()


class _TracedWatch(AsyncGenerator[Watched, None]):
    """A watch with a span around its first step. Each later one is that of the watch itself: with a
    generator around it, each of thousands that wait would take half a kilobyte more.
    """

    __slots__ = ("_opening", "_watch")

    def __init__(self, watch: AsyncGenerator[Watched, None], opening: Callable[[], _Step]) -> None:
        self._watch = watch
        self._opening: Callable[[], _Step] | None = opening

    def __anext__(self) -> Coroutine[object, object, Watched]:
        return self.asend(None)

    def asend(self, value: None) -> Coroutine[object, object, Watched]:
        opening, self._opening = self._opening, None
        return self._watch.asend(value) if opening is None else self._begin(opening)

    async def athrow(self, *raised: object) -> Watched:
        return await self._watch.athrow(*raised)  # type: ignore[call-overload,no-any-return]

    async def aclose(self) -> None:
        await self._watch.aclose()

    async def _begin(self, opening: Callable[[], _Step]) -> Watched:
        with opening():
            return await anext(self._watch)


class TracedSessions:
    """Sessions with a span around each step, in the trace of the launch that they lead to.

    `trace_of` gives the traceparent of a tenant's session, `trace_of_launch` that of a tenant's
    launch; empty where it is not known here, and the span is in the caller's trace.
    """

    def __init__(
        self,
        *,
        sessions: Sessions,
        tracer_provider: TracerProvider,
        trace_of: Callable[[str, str], str],
        trace_of_launch: Callable[[str, str], str],
    ) -> None:
        self._sessions = sessions
        self._trace_of = trace_of
        self._trace_of_launch = trace_of_launch
        self._spans = _Spans(tracer_provider)

    async def open(
        self,
        tenant: str,
        launch_id: str,
        mode: str,
        key: str | None,
        *,
        policy: str = "",
        conversation_id: str = "",
    ) -> Session:
        """Reserve a gateway."""
        attributes: dict[str, str | int] = {"fairlead.launch.id": launch_id[:64]}
        context = _context(self._trace_of_launch(tenant, launch_id))
        with self._spans.open("session.open", attributes, context) as span:
            session = await self._sessions.open(
                tenant, launch_id, mode, key, policy=policy, conversation_id=conversation_id
            )
            span.set_attribute("fairlead.session.id", session.session_id)
            span.set_attribute("fairlead.session.gateway_id", session.gateway_id)
            return session

    def ice_servers(self, session: Session) -> Sequence[IceServer]:
        """Return the servers that the peers of a session may use, with fresh credentials."""
        return self._sessions.ice_servers(session)

    async def tunnel(self, session: Session) -> Tunnel | None:
        """Return what the client of a session attaches with; no span says any of it."""
        return await self._sessions.tunnel(session)

    async def offer(self, tenant: str, session_id: str, offer: str) -> Session:
        """Have an offer answered."""
        context = self._context(tenant, session_id)
        with self._spans.open("session.offer", _of(session_id), context) as span:
            session = await self._sessions.offer(tenant, session_id, offer)
            span.set_attribute("fairlead.launch.id", session.launch_id)
            span.set_attribute("fairlead.session.gateway_id", session.gateway_id)
            return session

    async def add_candidates(
        self,
        tenant: str,
        session_id: str,
        candidates: Sequence[str],
        *,
        ended: bool,
        round_number: int = 0,
    ) -> Sequence[CandidateOutcome]:
        """Give candidates to the gateway, as part of the trace of the offer."""
        attributes = _of(session_id) | {"fairlead.session.candidates": len(candidates)}
        with self._spans.open("candidates.flush", attributes, self._context(tenant, session_id)):
            return await self._sessions.add_candidates(
                tenant, session_id, candidates, ended=ended, round_number=round_number
            )

    async def restart(self, tenant: str, session_id: str, offer: str) -> Session:
        """Begin a round, as part of the trace of the first offer."""
        with self._spans.open(
            "session.restart", _of(session_id), self._context(tenant, session_id)
        ) as span:
            session = await self._sessions.restart(tenant, session_id, offer)
            span.set_attribute("fairlead.session.round", session.round)
            return session

    def watch(self, tenant: str, session_id: str, cursor: int) -> AsyncGenerator[Watched, None]:
        """Watch a session; the span ends when the watcher is there."""
        return _TracedWatch(
            self._sessions.watch(tenant, session_id, cursor),
            lambda: self._spans.open(
                "session.watch", _of(session_id), self._context(tenant, session_id)
            ),
        )

    def _context(self, tenant: str, session_id: str) -> Context | None:
        return _context(self._trace_of(tenant, session_id))

    async def get(self, tenant: str, session_id: str) -> Session:
        """Return a session."""
        return await self._sessions.get(tenant, session_id)

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Session], str]:
        """Return a page of sessions."""
        return await self._sessions.list(tenant, page_size, page_token)

    async def close(self, tenant: str, session_id: str) -> Session:
        """Close a session."""
        return await self._sessions.close(tenant, session_id)

    async def close_as_admin(self, tenant: str, session_id: str, message: str) -> Session:
        """Close a session of any tenant."""
        return await self._sessions.close_as_admin(tenant, session_id, message)

    async def answer(self, tenant: str, launch_id: str, offer: str) -> tuple[str, str]:
        """Have the offer of a launch answered."""
        with self._spans.open("session.offer", {"fairlead.launch.id": launch_id}) as span:
            session_id, answer = await self._sessions.answer(tenant, launch_id, offer)
            span.set_attribute("fairlead.session.id", session_id)
            return session_id, answer

    async def close_launch(self, launch_id: str) -> None:
        """Close the sessions of a launch."""
        await self._sessions.close_launch(launch_id)


def _context(traceparent: str) -> Context | None:
    """Return the trace to be in; None is the caller's own."""
    return remote_context(traceparent) if traceparent else None


def _of(session_id: str) -> dict[str, str | int]:
    return {"fairlead.session.id": session_id[:64]}


_UNSAMPLED = f"00-{'f' * 32}-{'f' * 16}-00"
"""W3C Trace Context, section 3.2.2.5: a caller that is not recorded."""


class UntracedTargets:
    """Targets that are asked for without spans: it happens every few seconds, and belongs to
    nothing that anybody did.
    """

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    async def is_gone(self, tenant: str, launch_id: str) -> bool:
        """Say whether a launch or sandbox is over."""
        token = attach(remote_context(_UNSAMPLED))
        try:
            return await self._targets.is_gone(tenant, launch_id)
        finally:
            detach(token)


class TracedDesk:
    """The gateways' desk with a span around each connection, in the trace that they name."""

    def __init__(self, *, desk: GatewayDesk, tracer_provider: TracerProvider) -> None:
        self._desk = desk
        self._spans = _Spans(tracer_provider)

    async def take_answer(
        self, gateway_id: str, session_id: str, answer: str, *, round_number: int
    ) -> None:
        """Keep an answer."""
        await self._desk.take_answer(gateway_id, session_id, answer, round_number=round_number)

    async def take_refusal(
        self, gateway_id: str, session_id: str, message: str, *, reason: str, round_number: int
    ) -> None:
        """Take a refusal."""
        await self._desk.take_refusal(
            gateway_id, session_id, message, reason=reason, round_number=round_number
        )

    async def take_candidates(
        self,
        gateway_id: str,
        session_id: str,
        candidates: Sequence[str],
        *,
        round_number: int,
        first: int,
        ended: bool,
    ) -> None:
        """Keep candidates of a gateway."""
        await self._desk.take_candidates(
            gateway_id,
            session_id,
            candidates,
            round_number=round_number,
            first=first,
            ended=ended,
        )

    async def take_wish(self, gateway_id: str, session_id: str, round_number: int) -> None:
        """Take a wish for a restart."""
        await self._desk.take_wish(gateway_id, session_id, round_number)

    async def take_change(
        self,
        gateway_id: str,
        session_id: str,
        *,
        connected: bool,
        reason: str,
        round_number: int,
    ) -> None:
        """Take a change of an association."""
        await self._desk.take_change(
            gateway_id, session_id, connected=connected, reason=reason, round_number=round_number
        )

    async def keep_connected(self, gateway_id: str) -> None:
        """Renew a gateway's connected sessions."""
        await self._desk.keep_connected(gateway_id)

    async def open_port(
        self, gateway_id: str, session_id: str, port: int, meeting: Meeting, *, traceparent: str
    ) -> None:
        """Open a connection as part of the trace that `traceparent` (W3C) belongs to."""
        attributes: dict[str, str | int] = {
            "fairlead.session.id": session_id[:64],
            "fairlead.session.gateway_id": gateway_id,
            "fairlead.channel.port": port,
        }
        with self._spans.open("channel.open", attributes, remote_context(traceparent)):
            await self._desk.open_port(gateway_id, session_id, port, meeting)
