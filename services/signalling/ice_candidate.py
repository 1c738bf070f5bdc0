"""ICE candidates as texts (RFC 8839, section 5.1): which ones are, and what became of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from chassis.limits import check_size
from fairlead_limits.table import CANDIDATES, ROUND_CANDIDATES
from signalling.description import is_sealed

_MAX_BYTES = 1024

_CANDIDATE = re.compile(
    r"candidate:[A-Za-z0-9+/]{1,32} [0-9]{1,3} [A-Za-z0-9-]{1,16} [0-9]{1,10}"
    r" [A-Za-z0-9.:_%-]{1,255} [0-9]{1,5} typ [a-z]{1,16}( [\x21-\x7e]+ [\x21-\x7e]+)*"
)


class CandidateOutcome(StrEnum):
    """What became of one candidate."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    INVALID = "invalid"
    STALE = "stale"
    LATE = "late"
    TOO_MANY = "too_many"


def is_candidate(text: str) -> bool:
    """Say whether it is a candidate of at most 1,024 bytes, or what the peers have sealed."""
    if len(text) > _MAX_BYTES:
        return False
    return is_sealed(text) or _CANDIDATE.fullmatch(text) is not None


def check_batch(candidates: Sequence[str]) -> None:
    """Raise LimitBroken for more than one call may bring."""
    check_size(CANDIDATES, len(candidates))


def sorted_out(
    candidates: Sequence[str], known: Sequence[str], *, is_stale: bool, is_late: bool
) -> tuple[list[CandidateOutcome], list[str]]:
    """Return what becomes of each candidate of a round that has the `known` ones, and those that
    are to be added.
    """
    seen = set(known)
    outcomes, accepted = [], []
    for candidate in candidates:
        if not is_candidate(candidate):
            outcome = CandidateOutcome.INVALID
        elif is_stale:
            outcome = CandidateOutcome.STALE
        elif candidate in seen:
            outcome = CandidateOutcome.DUPLICATE
        elif is_late:
            outcome = CandidateOutcome.LATE
        elif len(seen) >= ROUND_CANDIDATES:
            outcome = CandidateOutcome.TOO_MANY
        else:
            outcome = CandidateOutcome.ACCEPTED
            seen.add(candidate)
            accepted.append(candidate)
        outcomes.append(outcome)
    return outcomes, accepted
