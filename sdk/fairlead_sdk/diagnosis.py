"""What is looked at when a session does not connect, in which order, and what each look found.

Pure: the looks themselves are passed in (`mesh_probes` has those that use the network).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fairlead_sdk.errors import FairleadError


class Check(StrEnum):
    """One thing that a session needs, in the order in which it is looked at."""

    DNS = "dns"
    FRONT_DOOR = "front_door"
    KEY = "key"
    WEBSOCKET = "websocket"
    SESSION = "session"
    CARRIER_TCP = "carrier_tcp"
    CARRIER_WEBSOCKET = "carrier_websocket"
    CARRIER_STREAM = "carrier_stream"
    CARRIER_POLL = "carrier_poll"
    STUN = "stun"
    TURN = "turn"
    OFFER = "offer"
    UDP = "udp"
    CONNECTION = "connection"
    CARRIER_WEBRTC = "carrier_webrtc"
    HOLD = "hold"


CARRIERS: Final[Mapping[Check, str]] = MappingProxyType(
    {
        Check.CARRIER_TCP: "tcp",
        Check.CARRIER_WEBSOCKET: "websocket",
        Check.CARRIER_STREAM: "stream",
        Check.CARRIER_POLL: "poll",
        Check.CARRIER_WEBRTC: "webrtc",
    }
)
"""The carriers of tunnels, by the check that tries each."""


class Outcome(StrEnum):
    """How a check ended; `partly` where some of several probes failed."""

    WORKS = "works"
    PARTLY = "partly"
    FAILS = "fails"
    NOT_TRIED = "not_tried"
    NOT_CONFIGURED = "not_configured"


class IcePath(StrEnum):
    """Which ways to the gateway are probed; the values are those of a session's `ice_policy`."""

    ALL = "all"
    RELAY = "relay"
    DIRECT = "direct"


NAMES: Final[Mapping[Check, str]] = MappingProxyType(
    {
        Check.DNS: "DNS",
        Check.FRONT_DOOR: "front door",
        Check.KEY: "key",
        Check.WEBSOCKET: "WebSocket",
        Check.SESSION: "session",
        Check.STUN: "STUN",
        Check.TURN: "TURN",
        Check.OFFER: "offer",
        Check.UDP: "UDP to gateway",
        Check.CONNECTION: "connection",
        Check.HOLD: "hold",
        **{check: f"carrier {name}" for check, name in CARRIERS.items()},
    }
)
NEEDS: Final[Mapping[Check, tuple[Check, ...]]] = MappingProxyType(
    {
        Check.DNS: (),
        Check.FRONT_DOOR: (Check.DNS,),
        Check.KEY: (Check.FRONT_DOOR,),
        Check.WEBSOCKET: (Check.KEY,),
        Check.SESSION: (Check.KEY,),
        Check.STUN: (Check.SESSION,),
        Check.TURN: (Check.SESSION,),
        Check.OFFER: (Check.SESSION,),
        Check.UDP: (Check.OFFER,),
        Check.CONNECTION: (Check.UDP,),
        Check.HOLD: (Check.CONNECTION,),
        **dict.fromkeys(CARRIERS, (Check.SESSION,)),
        Check.CARRIER_WEBRTC: (Check.CONNECTION,),
    }
)
"""What must not have failed before a check makes sense; a relay-only probe also needs TURN."""

_STOPS: Final = frozenset({Outcome.FAILS, Outcome.NOT_TRIED})
_GOOD: Final = frozenset({Outcome.WORKS, Outcome.NOT_CONFIGURED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be probed: by which path, how many sessions at once, held open for how long."""

    path: IcePath = IcePath.ALL
    probes: int = 1
    hold_seconds: float = 0.0

    @property
    def checks(self) -> tuple[Check, ...]:
        """Return the checks that belong to it, in order."""
        left_out = set() if self.hold_seconds else {Check.HOLD}
        if self.path is not IcePath.ALL:
            left_out |= CARRIERS.keys()  # a tunnel's carriers are chosen by no ICE policy
        match self.path:
            case IcePath.RELAY:
                left_out.add(Check.STUN)
            case IcePath.DIRECT:
                left_out.add(Check.TURN)
        return tuple(check for check in Check if check not in left_out)

    def needs(self, check: Check) -> tuple[Check, ...]:
        """Return the checks that must not have failed before this one makes sense."""
        if check is Check.OFFER and self.path is IcePath.RELAY:
            return (*NEEDS[check], Check.TURN)
        return NEEDS[check]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look saw: a sentence, and the errors of those of its `tried` probes that failed."""

    sentence: str
    is_configured: bool = True
    tried: int = 1
    failures: Sequence[FairleadError] = ()
    milliseconds: Mapping[str, float] = field(default_factory=dict)


Look = Callable[[], Awaitable[Seen]]
"""Looks; raises FairleadError when nothing of what it looks at works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is known of one check; `error` is why it fails, `seconds` how long the look took."""

    check: Check
    outcome: Outcome
    sentence: str
    seconds: float | None = None
    error: FairleadError | None = None
    milliseconds: Mapping[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """Give the JSON form."""
        found: dict[str, object] = {
            "check": self.check.value,
            "outcome": self.outcome.value,
            "sentence": self.sentence,
        }
        if self.seconds is not None:
            found["seconds"] = round(self.seconds, 4)
        if self.error is not None:
            found |= {"reason": self.error.reason, "remedy": self.error.remedy}
        if self.milliseconds:
            found["milliseconds"] = {
                name: round(value, 2) for name, value in self.milliseconds.items()
            }
        return found


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that was found, in order."""

    findings: Sequence[Finding]

    @property
    def works(self) -> bool:
        """Say whether all that was asked works; what is not configured is no fault."""
        return all(finding.outcome in _GOOD for finding in self.findings)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Return what fails, without what could not be tried for it."""
        return tuple(finding for finding in self.findings if finding.error is not None)


async def diagnose_mesh(
    asked: Asked,
    looks: Mapping[Check, Look],
    *,
    now: Callable[[], float],
    on_check: Callable[[Check], None] = lambda check: None,
) -> Diagnosis:
    """Look at one check after the other, and not at those that an earlier one makes pointless.

    `now` counts seconds; `on_check` is told what is looked at next.
    """
    findings: dict[Check, Finding] = {}
    for check in asked.checks:
        stopping = [need for need in asked.needs(check) if findings[need].outcome in _STOPS]
        if stopping:
            findings[check] = Finding(
                check=check,
                outcome=Outcome.NOT_TRIED,
                sentence=f"{_root(stopping[0], asked, findings)} has to work first.",
            )
            continue
        on_check(check)
        begun = now()
        try:
            seen = await looks[check]()
        except FairleadError as error:
            seen = Seen(sentence="", failures=(error,))
        findings[check] = _finding(check, seen, now() - begun)
    return Diagnosis(tuple(findings.values()))


def _root(check: Check, asked: Asked, findings: Mapping[Check, Finding]) -> str:
    """Name the check that failed, at which a row of untried ones begins."""
    while findings[check].outcome is Outcome.NOT_TRIED:
        check = next(need for need in asked.needs(check) if findings[need].outcome in _STOPS)
    return NAMES[check]


def _finding(check: Check, seen: Seen, seconds: float) -> Finding:
    if not seen.failures:
        outcome = Outcome.WORKS if seen.is_configured else Outcome.NOT_CONFIGURED
        return Finding(
            check=check,
            outcome=outcome,
            sentence=seen.sentence,
            seconds=seconds,
            milliseconds=seen.milliseconds,
        )
    error = seen.failures[0]
    failed = len(seen.failures)
    counted = f"{failed} of {seen.tried}: " if seen.tried > 1 else ""
    return Finding(
        check=check,
        outcome=Outcome.FAILS if failed >= seen.tried else Outcome.PARTLY,
        sentence=f"{counted}{error.message}",
        seconds=seconds,
        error=error,
        milliseconds=seen.milliseconds,
    )
