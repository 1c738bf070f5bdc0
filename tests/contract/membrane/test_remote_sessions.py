"""Sessions of a place that are started ahead, and ended by their key."""

from __future__ import annotations

from typing import Any

import pytest

from membrane import ChildLost, SessionConflict, UnsupportedUse
from membrane.remote import close_session_at, isolate_at, prewarm_at
from tests.contract.membrane.worker_place import WorkerPlace
from tests.eventually import SECONDS

TALKER = "tests.contract.membrane.targets.talker:Talker"


def test_a_child_of_a_share_key_is_started_ahead_and_ended_for_all(place: WorkerPlace) -> None:
    born = len(place.carriages)
    assert prewarm_at(place, "ahead", deadline=SECONDS)
    assert not prewarm_at(place, "ahead", deadline=SECONDS)
    kind: Any = isolate_at(place, TALKER, share_key="ahead", deadline=SECONDS)
    talker = kind()
    assert talker.ping() == "pong"
    assert len(place.carriages) == born + 1
    with pytest.raises(SessionConflict, match="deadline"):
        prewarm_at(place, "ahead")
    assert close_session_at(place, "ahead")
    assert not close_session_at(place, "ahead")
    with pytest.raises(ChildLost, match="closed"):
        talker.ping()
    for python in ("", "a\0", 5):
        with pytest.raises(ValueError, match="python"):
            prewarm_at(place, "ahead", python=python)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="share_key"):
        prewarm_at(place, None)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedUse, match="no_such_module"):
        prewarm_at(place, "ahead", preload=["no_such_module"])
    assert not close_session_at(place, "ahead")
