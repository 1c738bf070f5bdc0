"""How a launch ended, asked on every surface: exactly one terminal event, and all agree on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.e2e.mesh_client import GRPC, NDJSON, SSE, TERMINAL, Event, MeshClient
from tests.lone_peer import unmet_offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a launch failed, with the parts that every failure must have."""

    step: str
    reason: str


def ending_of(mesh: MeshClient, launch_id: str) -> Event:
    """Return the terminal event of a launch, which every surface tells once and last."""
    told = {by: list(mesh.events(launch_id, by=by)) for by in (NDJSON, SSE, GRPC)}
    for events in told.values():
        # How output and steps mix is not promised; each kind by itself is.
        for is_output in (False, True):
            kinds = [
                [each.type for each in seen if (each.type == "output") is is_output]
                for seen in (events, told[NDJSON])
            ]
            assert kinds[0] == kinds[1]
        assert [each.type for each in events if each.type in TERMINAL] == [events[-1].type]
        assert events[-1].cursor == told[NDJSON][-1].cursor
    ending = told[NDJSON][-1]
    assert mesh.record(launch_id)["state"] == ending.type
    return ending


def failure_of(mesh: MeshClient, launch_id: str) -> Failure:
    """Return why a launch failed; its failure has a reason, a sentence and a remedy."""
    ending = ending_of(mesh, launch_id)
    assert ending.type == "failed", ending
    failure = ending.detail["failure"]
    assert isinstance(failure, dict)
    assert failure == mesh.record(launch_id)["failure"]
    assert str(failure["message"]).endswith("."), failure
    assert failure["remedy"], failure
    return Failure(step=str(failure["step"] or ""), reason=str(failure["reason"]))


def make_offer() -> str:
    """Return an SDP offer as the SDK makes it; whoever made it is gone when it is answered."""
    return asyncio.run(unmet_offer())
