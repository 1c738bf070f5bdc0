"""Lets Compose 1 ask for `systempaths=unconfined`.

The `docker` command and Compose 2 turn that word into two fields of a request to the engine;
Compose 1 hands the word to the engine, which refuses it. Between the two stands this door.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

WORD = "systempaths=unconfined"
_ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
_END = b"\r\n\r\n"
_CREATES = re.compile(rb"POST \S*/containers/create\b")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_UPGRADES = re.compile(rb"\r\nconnection: *upgrade", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)


@contextmanager
def engine_door() -> Iterator[str]:
    """Serve until the end of the block; yields what DOCKER_HOST has to be."""
    with tempfile.TemporaryDirectory(prefix="fld-") as directory:
        path = str(Path(directory) / "engine.sock")
        with socketserver.ThreadingUnixStreamServer(path, _Connection) as server:
            server.daemon_threads = True
            serving = threading.Thread(target=server.serve_forever, name="engine door")
            serving.start()
            try:
                yield f"unix://{path}"
            finally:
                server.shutdown()
                serving.join()


def translated(body: bytes) -> bytes:
    """Turn the word into what the engine understands."""
    asked = json.loads(body)
    host = asked.get("HostConfig") or {}
    options = host.get("SecurityOpt") or []
    if WORD in options:
        host["SecurityOpt"] = [each for each in options if each != WORD]
        host["MaskedPaths"] = host["ReadonlyPaths"] = []
    return json.dumps(asked).encode()


class _Connection(socketserver.BaseRequestHandler):
    """One connection, for one request."""

    request: socket.socket

    def handle(self) -> None:
        arrived = b""
        while _END not in arrived:
            piece = self.request.recv(65536)
            if not piece:
                return
            arrived += piece
        head, _, body = arrived.partition(_END)
        if not _UPGRADES.search(head):
            head = _CONNECTION.sub(b"", head) + b"\r\nConnection: close"
        length = _LENGTH.search(head)
        if _CREATES.match(head) and length:
            while len(body) < int(length[1]):
                body += self.request.recv(65536)
            body = translated(body)
            head = _LENGTH.sub(b"Content-Length: %d" % len(body), head)
        with socket.socket(socket.AF_UNIX) as engine:
            engine.connect(_ENGINE)
            engine.sendall(head + _END + body)
            sending = threading.Thread(target=_copy, args=(self.request, engine), daemon=True)
            sending.start()
            _copy(engine, self.request)
            with suppress(OSError):
                self.request.shutdown(socket.SHUT_RDWR)
            sending.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError), source.makefile("rb", 0) as reading, sink.makefile("wb", 0) as writing:
        shutil.copyfileobj(reading, writing)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
