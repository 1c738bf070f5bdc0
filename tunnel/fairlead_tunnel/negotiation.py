"""A client's negotiation of one session, without I/O: offers, candidates, restarts, close.

Feed it with what happens; take from it what is to be done. `next_message` gives what is to be sent
to the mesh: an offer, or one batch of candidates at a time, each under way until `sent` or
`failed`. `next_step` gives what is to be done with the peer connection, one after the other.

States. A round is one offer and its answer; a restart begins the next one.

    idle        nothing has begun                    offered    the gateway has the offer
    making      the connection makes an offer        answered   the answer is there, the path is not
    offering    the offer is on its way              connected  channels carry
                                                     closed     over, for good

What each input does; `-` is no change.

    input                idle    making    offering  offered   answered   connected      closed
    begin                making  -         -         -         -          -              -
    offer_made           -       offering  -         -         -          -              -
    offer_taken          -       -         offered   -         -          -              -
    answer, this round   -       -         answered  answered  -          -              -
    answer, other round  -       -         -         -         -          -              -
    offer failed, again  -       -         resent    resent    -          -              -
    offer failed, final  -       -         closed*   closed*   -          -              -
    candidate found      -       kept      kept      flushed   at once    -              -
    batch failed, again  -       -         kept      kept      kept       dropped        -
    candidates of peer   -       kept+     kept+     kept+     applied    applied        -
    path_up              -       -         -         -         connected  -              -
    path_down            -       -         -         -         -          answered       -
    restart(_asked)      -       -         -         -         making     making         -
    close                closed  closed    closed    closed    closed     closed         -

    * of a restart whose old path carries: back to connected, in the old round
    + when they are of this round; what is of another round is ignored everywhere

A restart whose old path carries stays in `answered` until the connection tells of the new one: some
never do. The mesh numbers the rounds: the reply to an offer says which one it is.

A local candidate belongs to the round in which it was found. Those found before the gateway has the
offer leave as one message in their order, a later one leaves at once; while a message is under way
they queue, and when it failed they follow it in the same one. The end of candidates goes with the
last of them, or alone. Nothing new is sent in a round once its path is up. Without trickling no
candidate is ever sent or taken, and there is no second round. Glare cannot be: only this side
offers, and a wish of the gateway for a round that is over is ignored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

MOST_IN_BATCH: Final = 64


class NegotiationState(StrEnum):
    """How far it has come; see the table."""

    IDLE = "idle"
    MAKING = "making"
    OFFERING = "offering"
    OFFERED = "offered"
    ANSWERED = "answered"
    CONNECTED = "connected"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class SendOffer:
    """Send this offer; `round` is 1 for the first one, else it is a restart."""

    round: int
    offer: str


@dataclass(frozen=True, slots=True)
class SendCandidates:
    """Send these candidates, 0 to 64 of them; none are empty unless `ended`."""

    round: int
    candidates: tuple[str, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class MakeOffer:
    """Have the connection make the offer of a round, and say `offer_made`."""

    round: int


@dataclass(frozen=True, slots=True)
class TakeAnswer:
    """Give the connection the answer of the round."""

    round: int
    answer: str


@dataclass(frozen=True, slots=True)
class TakeCandidates:
    """Give the connection candidates of the peer, then perhaps their end."""

    round: int
    candidates: tuple[str, ...]
    ended: bool


Outgoing: TypeAlias = SendOffer | SendCandidates
Step: TypeAlias = MakeOffer | TakeAnswer | TakeCandidates

_S = NegotiationState
_NEGOTIATING = (_S.MAKING, _S.OFFERING, _S.OFFERED)


class Negotiation:
    """One session; see the table above."""

    def __init__(self, *, trickles: bool) -> None:
        self._trickles = trickles
        self._state = _S.IDLE
        self._round = 0
        self._offer: SendOffer | None = None
        self._batch: SendCandidates | None = None
        self._found: list[str] = []
        self._all_found = False
        self._told_end = False
        self._heard: set[str] = set()
        self._early: list[str] = []
        self._early_end = False
        self._heard_end = False
        self._steps: deque[Step] = deque()
        self._path_is_up = False
        self._settled_round = 0
        self._mesh_round = 0

    @property
    def state(self) -> NegotiationState:
        """How far it has come."""
        return self._state

    @property
    def round(self) -> int:
        """The round under way, from 1; 0 before the first."""
        return self._round

    @property
    def may_restart(self) -> bool:
        """Say whether `restart` would begin a round now."""
        return self._trickles and self._state in (_S.ANSWERED, _S.CONNECTED)

    def begin(self) -> None:
        """Begin the first round."""
        if self._state is _S.IDLE:
            self._begin_round()

    def restart(self) -> None:
        """Begin another round, unless one is under way or restarts cannot be."""
        if self.may_restart:
            self._begin_round()

    def restart_asked(self, replaced: int) -> None:
        """Begin another round because the gateway asks for it, unless `replaced` is over."""
        self._mesh_round = max(self._mesh_round, replaced)
        if replaced >= self._round:
            self.restart()

    def offer_made(self, of_round: int, offer: str) -> None:
        """Note the offer that `MakeOffer` asked for."""
        if self._state is _S.MAKING and of_round == self._round:
            self._offer = SendOffer(of_round, offer)
            self._state = _S.OFFERING

    def offer_taken(self, of_round: int) -> None:
        """Note that the gateway has the offer: candidates may follow."""
        if self._state is _S.OFFERING and of_round == self._round:
            self._state = _S.OFFERED

    def answer(self, of_round: int, answer: str) -> None:
        """Take an answer, by whichever way it comes first; a late or doubled one is ignored."""
        self._mesh_round = max(self._mesh_round, of_round)
        if self._state not in (_S.OFFERING, _S.OFFERED) or of_round != self._round:
            return
        self._state = _S.ANSWERED
        self._offer = None
        self._steps.append(TakeAnswer(of_round, answer))
        if self._early or self._early_end:
            self._steps.append(TakeCandidates(of_round, tuple(self._early), self._early_end))
            self._early = []
        self._settled_round = of_round

    def candidate_found(self, candidate: str) -> None:
        """Note a local candidate of the round under way."""
        if self._takes_found() and not self._all_found:
            self._found.append(candidate)

    def gathering_done(self) -> None:
        """Note that the round has no more local candidates."""
        if self._takes_found():
            self._all_found = True

    def candidates(self, of_round: int, candidates: tuple[str, ...], ended: bool) -> None:
        """Take candidates of the peer; each is applied once, also when the mesh repeats it."""
        if not self._trickles or of_round != self._round:
            return
        if self._state in (_S.IDLE, _S.CLOSED) or self._heard_end:
            return
        fresh = tuple(dict.fromkeys(each for each in candidates if each not in self._heard))
        self._heard.update(fresh)
        self._heard_end = ended
        if not fresh and not ended:
            return
        if self._state in _NEGOTIATING:
            self._early += fresh
            self._early_end = ended
        else:
            self._steps.append(TakeCandidates(of_round, fresh, ended))

    def path_up(self) -> None:
        """Note that channels carry."""
        if self._state is _S.CLOSED:
            return
        self._path_is_up = True
        if self._state is _S.ANSWERED:
            self._state = _S.CONNECTED
            self._found, self._told_end = [], True

    def path_down(self) -> None:
        """Note that nothing is heard of the peer."""
        self._path_is_up = False
        if self._state is _S.CONNECTED:
            self._state = _S.ANSWERED

    def close(self) -> None:
        """End it; nothing more is to be sent or done."""
        self._state = _S.CLOSED
        self._offer = self._batch = None
        self._found, self._early = [], []
        self._steps.clear()

    def next_message(self) -> Outgoing | None:
        """Return what is to be sent now and note it as under way; None while there is nothing."""
        if self._offer is not None:
            offer, self._offer = self._offer, None
            return offer
        is_open = self._trickles and self._state in (_S.OFFERED, _S.ANSWERED)
        if not is_open or self._batch is not None or self._told_end:
            return None
        found = tuple(self._found[:MOST_IN_BATCH])
        is_last = self._all_found and len(found) == len(self._found)
        if not (found or is_last):
            return None
        del self._found[: len(found)]
        self._told_end = is_last
        self._batch = SendCandidates(self._round, found, is_last)
        return self._batch

    def sent(self, message: Outgoing, in_round: int = 0) -> None:
        """Note that the mesh has taken a message, an offer as the one of `in_round`."""
        if isinstance(message, SendCandidates):
            if self._batch is message:
                self._batch = None
        elif message.round == self._round and self._state is not _S.CLOSED:
            self._round = in_round or self._round
            self._mesh_round = max(self._mesh_round, self._round)
            self.offer_taken(self._round)

    def failed(self, message: Outgoing, *, is_final: bool) -> None:
        """Note that a message may not have arrived: it is sent again unless that is of no use."""
        if isinstance(message, SendCandidates):
            if self._batch is message:
                self._batch = None
                if not is_final and self._state in (_S.OFFERING, _S.OFFERED, _S.ANSWERED):
                    self._found[:0] = message.candidates
                    self._told_end = False
        elif message.round == self._round and self._state in (_S.OFFERING, _S.OFFERED):
            if not is_final:
                self._offer, self._state = message, _S.OFFERING
            elif self._settled_round and self._path_is_up:
                self._round, self._state = self._settled_round, _S.CONNECTED
            else:
                self.close()

    def next_step(self) -> Step | None:
        """Return what is to be done with the connection next, and forget it."""
        return self._steps.popleft() if self._steps else None

    def _takes_found(self) -> bool:
        return self._trickles and self._state not in (_S.IDLE, _S.CONNECTED, _S.CLOSED)

    def _begin_round(self) -> None:
        self._round = max(self._round, self._mesh_round) + 1
        self._state = _S.MAKING
        self._offer = self._batch = None
        self._found, self._all_found, self._told_end = [], False, False
        self._heard, self._heard_end = set(), False
        self._early, self._early_end = [], False
        self._steps.clear()
        self._steps.append(MakeOffer(self._round))
