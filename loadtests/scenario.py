"""What every user of the load tests shares: a small repository, an offer, a way to time a step."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from benchmarks.local_stack import Repository, make_repository
from locust.env import Environment

URL = os.environ.get("FAIRLEAD_URL", "http://127.0.0.1:7300")
GRPC = os.environ.get("FAIRLEAD_GRPC", "127.0.0.1:7301")
KEY = os.environ.get("FAIRLEAD_API_KEY", "")
CHUNK = 1 << 20

# A complete offer of a peer that nobody runs: it is answered, and the session closed at once.
OFFER = "\r\n".join(
    [
        "v=0",
        "o=- 4611731400430051336 2 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
        "a=group:BUNDLE 0",
        "m=application 50000 UDP/DTLS/SCTP webrtc-datachannel",
        "c=IN IP4 127.0.0.1",
        "a=candidate:1 1 udp 2130706431 127.0.0.1 50000 typ host",
        "a=end-of-candidates",
        "a=ice-ufrag:load",
        "a=ice-pwd:aaaaaaaaaaaaaaaaaaaaaaaa",
        "a=fingerprint:sha-256 " + ":".join(["AB"] * 32),
        "a=setup:actpass",
        "a=mid:0",
        "a=sctp-port:5000",
        "a=max-message-size:65536",
        "",
    ]
)


@cache
def repository() -> Repository:
    """Return the repository that every launch takes: 100 files, one for all users."""
    directory = Path(tempfile.mkdtemp(prefix="fairlead-load-"))
    return make_repository(directory / "repository", files=100, seed=7)


@cache
def pack() -> bytes:
    """Return the pack that a host lacks at first; git is forked before any channel exists."""
    return repository().pack()


def remove_repository() -> None:
    """Remove what `repository` made."""
    subprocess.run(["rm", "-rf", str(repository().path.parent)], check=True)


def key() -> str:
    """Return a fresh idempotency key."""
    return uuid.uuid4().hex


@contextmanager
def timed(environment: Environment, name: str) -> Iterator[None]:
    """Report the block to locust as one request; an exception is its failure, and ends there."""
    start = time.perf_counter()
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    environment.events.request.fire(  # type: ignore[no-untyped-call]
        request_type=name.split()[0],
        name=name,
        response_time=(time.perf_counter() - start) * 1000,
        response_length=0,
        exception=failure,
        context={},
    )
