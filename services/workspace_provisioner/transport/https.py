"""The smart HTTP transport of git (gitprotocol-http(5)), over TLS, to an address that was judged.

No proxy, no cookie, no redirect to another place; a login is sent to its own host only.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote, urlsplit

from workspace_provisioner.origins import Origin, OriginFailed, OriginFault
from workspace_provisioner.transport.credentials import Login
from workspace_provisioner.transport.http_answer import Answer, read_answer
from workspace_provisioner.transport.packet_lines import PacketReader

CONNECT_SECONDS = 3.0
MOST_GREETING_BYTES = 32 * 1024 * 1024

_MOST_REDIRECTS = 3
_SERVICE = "git-upload-pack"
_GREETING = f"/info/refs?service={_SERVICE}"


@dataclass(slots=True)
class HttpsLine:
    """One connection to one of `addresses`, made again when the other side closes it."""

    origin: Origin
    addresses: Sequence[str]
    login: Login | None
    trust: ssl.SSLContext
    _reader: asyncio.StreamReader | None = field(default=None, init=False)
    _writer: asyncio.StreamWriter | None = field(default=None, init=False)
    _answer: Answer | None = field(default=None, init=False)

    async def open(self) -> PacketReader:
        for _ in range(_MOST_REDIRECTS + 1):
            answer = await self._exchange("GET", f"{_quoted(self.origin.path)}{_GREETING}")
            if answer.status in (301, 302, 303, 307, 308):
                self.origin = _redirected(self.origin, answer.headers.get("location", ""))
                continue
            return self._packets(answer, "advertisement")
        raise OriginFailed(OriginFault.REDIRECTED, "it redirects without end")

    async def ask(self, request: bytes) -> PacketReader:
        target = f"{_quoted(self.origin.path)}/{_SERVICE}"
        answer = await self._exchange("POST", target, request)
        if 300 <= answer.status < 400:
            raise OriginFailed(OriginFault.REDIRECTED, "it redirects what it was sent")
        return self._packets(answer, "result")

    async def close(self) -> None:
        writer, self._writer, self._reader, self._answer = self._writer, None, None, None
        if writer is not None:
            # Without a farewell: what is left of an answer need not come.
            writer.transport.abort()

    def _packets(self, answer: Answer, kind: str) -> PacketReader:
        match answer.status:
            case 200:
                pass
            case 401 | 403 | 407:
                raise OriginFailed(OriginFault.UNAUTHORIZED, f"it answers {answer.status}")
            case _:
                raise OriginFailed(OriginFault.UNREACHABLE, f"it answers {answer.status}")
        content_type = answer.headers.get("content-type", "").partition(";")[0].strip()
        if content_type != f"application/x-{_SERVICE}-{kind}":
            raise OriginFailed(OriginFault.MALFORMED, "it does not speak git's smart protocol")
        return PacketReader(read_exactly=answer.read_exactly, limit=MOST_GREETING_BYTES)

    async def _exchange(self, method: str, target: str, body: bytes = b"") -> Answer:
        if self._answer is not None and not await self._answer.finish():
            await self.close()
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await self._connect()
        self._writer.write(self._head(method, target, body) + body)
        await self._writer.drain()
        self._answer = await read_answer(self._reader)
        return self._answer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        failure: OSError = ConnectionRefusedError("no address")
        for address in self.addresses:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await asyncio.open_connection(
                        address, self.origin.port, ssl=self.trust, server_hostname=self.origin.host
                    )
            except ssl.SSLCertVerificationError:
                raise
            except OSError as error:
                failure = error
        raise failure

    def _head(self, method: str, target: str, body: bytes) -> bytes:
        host = f"[{self.origin.host}]" if ":" in self.origin.host else self.origin.host
        port = "" if self.origin.port == 443 else f":{self.origin.port}"
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {host}{port}",
            # Some servers tell git from browsers by this name.
            "User-Agent: git/2.39.0 (fairlead)",
            "Git-Protocol: version=2",
        ]
        if body:
            lines += [
                f"Content-Type: application/x-{_SERVICE}-request",
                f"Accept: application/x-{_SERVICE}-result",
                f"Content-Length: {len(body)}",
            ]
        else:
            lines.append("Accept: */*")
        if self.login is not None:
            pair = f"{self.login.user}:{self.login.password}".encode()
            lines.append(f"Authorization: Basic {base64.b64encode(pair).decode('ascii')}")
        return "\r\n".join((*lines, "", "")).encode("ascii")


def _quoted(path: str) -> str:
    return quote(path, safe="/%:@!$&()*+,;=~-._")


def _redirected(origin: Origin, location: str) -> Origin:
    """Return the origin under its other path; raises OriginFailed when it is another place."""
    if re.search(r"[\s\\']", location) or not location.isprintable():
        raise OriginFailed(OriginFault.REDIRECTED, "it redirects to nowhere")
    try:
        parts = urlsplit(location)
        port = parts.port or 443
    except ValueError:
        raise OriginFailed(OriginFault.REDIRECTED, "it redirects to nowhere") from None
    is_relative = not parts.scheme and not parts.netloc and parts.path.startswith("/")
    is_here = (parts.scheme, (parts.hostname or "").rstrip("."), port, parts.username) == (
        "https", origin.host, origin.port, None,
    )  # fmt: skip
    if not (is_relative or is_here):
        raise OriginFailed(OriginFault.REDIRECTED, "it redirects to another host")
    path, _, query = _GREETING.partition("?")
    if not parts.path.endswith(path) or parts.query != query:
        raise OriginFailed(OriginFault.REDIRECTED, "it redirects to what is no repository")
    return replace(origin, path=parts.path.removesuffix(path) or "/")
