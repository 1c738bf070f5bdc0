"""A git server over https on loopback: Python's ssl in front of `git http-backend`, with a
certificate of its own making.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

NAME = "origin.test"
_PIECE = 16 * 1024


@dataclass(slots=True)
class HttpsGitServer:
    """A running server for the repositories below `root`, and how it misbehaves.

    `logins` asks for a name and a password below a path; `redirects` sends a path elsewhere;
    while `answering` is clear, it takes requests and says nothing.
    """

    root: Path
    port: int
    certificate: Path
    logins: dict[str, tuple[str, str]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    speaks_v2: bool = True
    broken_pack: bool = False
    answering: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Event = field(default_factory=threading.Event)

    def url(self, name: str, host: str = NAME) -> str:
        """Return the address of a repository."""
        return f"https://{host}:{self.port}/{name}"

    def trust(self) -> ssl.SSLContext:
        """Return a context that trusts this server alone."""
        return ssl.create_default_context(cafile=str(self.certificate))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, state: HttpsGitServer, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.state = state
        self.context = context

    def finish_request(self, request: object, client_address: object) -> None:
        """Make TLS in the connection's own thread."""
        assert isinstance(request, socket.socket)
        try:
            wrapped = self.context.wrap_socket(request, server_side=True)
        except OSError:
            return
        try:
            super().finish_request(wrapped, client_address)
        finally:
            wrapped.close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing about clients that hang up."""


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        assert isinstance(self.server, _Server)
        state = self.server.state
        path, _, query = self.path.partition("?")
        state.requests.append(f"{self.command} {path}")
        state.waiting.set()
        state.answering.wait(30)
        for prefix, location in state.redirects.items():
            if path.startswith(prefix):
                self._short(301, ("Location", location + path.removeprefix(prefix) + f"?{query}"))
                return
        for prefix, (user, password) in state.logins.items():
            wanted = base64.b64encode(f"{user}:{password}".encode()).decode()
            if path.startswith(prefix) and self.headers["Authorization"] != f"Basic {wanted}":
                self._short(401, ("WWW-Authenticate", "Basic"))
                return
        self._run_git(state, path, query, body)

    def _short(self, status: int, header: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header(*header)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _run_git(self, state: HttpsGitServer, path: str, query: str, body: bytes) -> None:
        found = subprocess.run(
            ["git", "http-backend"],
            input=body,
            capture_output=True,
            check=False,
            env={
                "PATH": os.environ["PATH"],
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_PROJECT_ROOT": str(state.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": self.headers["Git-Protocol"] if state.speaks_v2 else "",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers["Content-Type"] or "",
                "REMOTE_ADDR": "127.0.0.1",
            },
        )
        head, _, content = found.stdout.partition(b"\r\n\r\n")
        status = 200
        headers = []
        for line in head.decode().split("\r\n"):
            name, _, value = line.partition(": ")
            if name == "Status":
                status = int(value.split()[0])
            else:
                headers.append((name, value))
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command == "GET":
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        if state.broken_pack and b"PACK" in content:
            content = content[: content.index(b"PACK") + 40]
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(content), _PIECE):
            piece = content[start : start + _PIECE]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def https_git_server(directory: Path) -> Iterator[HttpsGitServer]:
    """Serve the repositories of `directory`/repositories; skips the test without openssl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl program, to make a certificate")
    root = directory / "repositories"
    root.mkdir(parents=True)
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", f"/CN={NAME}",
            "-addext", f"subjectAltName=DNS:{NAME},DNS:other.test,IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    state = HttpsGitServer(root, 0, certificate)
    state.answering.set()
    server = _Server(state, context)
    assert isinstance(server, socketserver.TCPServer)
    state.port = int(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.answering.set()
        server.shutdown()
        thread.join()
        server.server_close()
