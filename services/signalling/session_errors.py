"""What can be wrong with a request for a session."""

from __future__ import annotations

from chassis.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    Unavailable,
)


class SessionNotFound(NotFound):
    """No such session, or not the caller's."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "There is no such session.",
            reason="session_not_found",
            remedy="Open one; sessions are forgotten some minutes after they are closed.",
            fields={"session_id": session_id[:64]},
        )


class SessionClosed(FailedPrecondition):
    """The session is closed for good."""

    def __init__(self, session_id: str, reason: str) -> None:
        super().__init__(
            f"The session is closed ({reason}).",
            reason="session_closed",
            remedy="Open another session.",
            fields={"session_id": session_id, "close_reason": str(reason)},
        )


class GatewayGone(Unavailable):
    """The session is closed, because its gateway has gone or stops."""

    def __init__(self, session_id: str, reason: str) -> None:
        super().__init__(
            f"The session's gateway has gone, and the session is closed ({reason}).",
            reason="gateway_gone",
            remedy="Open another session.",
            fields={"session_id": session_id, "close_reason": str(reason)},
        )


class GatewayBusy(Unavailable):
    """The session is closed, because its gateway holds as many as it takes."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The session's gateway holds as many sessions as it takes; this one is closed.",
            reason="gateway_busy",
            remedy="Open another session, so that another gateway is chosen.",
            fields={"session_id": session_id},
        )


class GatewayNotReady(Unavailable):
    """The session's gateway is away, and did not come back in time."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The session's gateway is not connected just now.",
            reason="gateway_not_ready",
            remedy="Send the same again in a moment.",
            fields={"session_id": session_id},
        )


class OfferRefused(FailedPrecondition):
    """The gateway could not make an answer."""

    def __init__(self, session_id: str, detail: str) -> None:
        super().__init__(
            "The gateway refused the offer" + (f": {detail}" if detail else "."),
            reason="offer_refused",
            remedy="Make a fresh offer and open another session with it.",
            fields={"session_id": session_id},
        )


class OfferConflict(AlreadyExists):
    """The session has another offer already."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The session already has another offer.",
            reason="offer_conflict",
            remedy="Send the offer that the session has, or open another session.",
            fields={"session_id": session_id},
        )


class SessionStateInvalid(FailedPrecondition):
    """What was said does not fit how far the session has come."""

    def __init__(self, session_id: str, word: str, phase: str) -> None:
        super().__init__(
            f"A session that is {phase} takes no {word}.",
            reason="session_state_invalid",
            remedy="Wait for the answer to the first offer, or open another session.",
            fields={"session_id": session_id, "state": phase},
        )


class RestartUnsupported(FailedPrecondition):
    """The session's mode has no restart."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "A session of mode `complete` cannot be restarted.",
            reason="restart_unsupported",
            remedy="Open another session, or one of mode `trickle`.",
            fields={"session_id": session_id},
        )


class ModeConflict(FailedPrecondition):
    """Candidates were sent to a session whose descriptions are complete."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "A session of mode `complete` takes no candidates beside its offer.",
            reason="mode_conflict",
            remedy="Put all candidates into the offer, or open a session of mode `trickle`.",
            fields={"session_id": session_id},
        )


class TunnelConflict(FailedPrecondition):
    """Something was asked of a tunnel that only a negotiation has; `session_id` is empty before
    there is one.
    """

    def __init__(self, session_id: str, word: str) -> None:
        super().__init__(
            f"A session of mode `tunnel` takes no {word}: nothing is negotiated.",
            reason="mode_conflict",
            remedy="Attach to the gateway with the ticket, or open a session of another mode.",
            fields={"session_id": session_id} if session_id else {},
        )


class RoundInvalid(InvalidArgument):
    """A round was named that has not begun."""

    def __init__(self, session_id: str, given: int, current: int) -> None:
        super().__init__(
            f"The session is in round {current}; there is no round {given}.",
            reason="round_invalid",
            remedy="Send the candidates once the restart is answered, or name no round.",
            fields={"session_id": session_id, "round": str(current)},
        )


class CandidatesGap(Unavailable):
    """A gateway's candidates do not follow on what is known of them."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "Candidates of the gateway are missing before these.",
            reason="candidates_gap",
            remedy="State all candidates of the round again.",
            fields={"session_id": session_id},
        )


class EventsGone(OutOfRange):
    """Events after the cursor are no longer kept."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The events after the cursor are no longer kept.",
            reason="cursor_gone",
            remedy="Watch without a cursor: the first message shows the session as it is.",
            fields={"session_id": session_id},
        )


class CursorAhead(InvalidArgument):
    """The cursor is of an event that has not happened."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The session has had no event with the cursor's number.",
            reason="cursor_invalid",
            remedy="Use the sequence of the last event seen, or none to start over.",
            fields={"session_id": session_id},
        )


class ModeInvalid(InvalidArgument):
    """A session was asked for with a mode that there is not."""

    def __init__(self) -> None:
        super().__init__(
            "There is no such mode of sessions.",
            reason="mode_invalid",
            remedy="Use complete, trickle or tunnel.",
        )


class ModeUnsupported(InvalidArgument):
    """A session was asked for with a mode that no gateway can have."""

    def __init__(self) -> None:
        super().__init__(
            "No gateway that is connected can do the session's mode.",
            reason="mode_unsupported",
            remedy="Ask for mode `complete`; for `trickle` a gateway needs the native core, and for"
            " `tunnel` one is needed that takes tunnels.",
        )


class GatewayTimeout(DeadlineExceeded):
    """The gateway did not answer the offer in time."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The gateway did not answer the offer in time.",
            reason="gateway_timeout",
            remedy="Send the same offer again, or open another session.",
            fields={"session_id": session_id},
        )


class SessionContended(Unavailable):
    """Too many changed the same session at once."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The session is being changed by too many at once.",
            reason="session_contended",
            remedy="Try again.",
            fields={"session_id": session_id},
        )


class SessionKeyConflict(AlreadyExists):
    """The key was used for another request."""

    def __init__(self) -> None:
        super().__init__(
            "The idempotency key was used for a different session.",
            reason="idempotency_conflict",
            remedy="Use a new key for a new request.",
        )
