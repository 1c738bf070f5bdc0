"""Git's fetch protocol, spoken by this room itself (gitprotocol-v2(5), gitprotocol-pack(5)): no git
process ever has a network, and what comes is an upload like any other.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Protocol

from workspace_provisioner.origin_ports import Talk
from workspace_provisioner.origins import Origin, OriginFailed, OriginFault
from workspace_provisioner.sources import ObjectFormat
from workspace_provisioner.transport.address import OriginAddresses
from workspace_provisioner.transport.credentials import Credentials
from workspace_provisioner.transport.https import HttpsLine
from workspace_provisioner.transport.packet_lines import Mark, PacketReader, as_lines, packed
from workspace_provisioner.transport.ssh import SshLine

_AGENT = "agent=git/fairlead"


class Line(Protocol):
    """A way to an origin's `git upload-pack`."""

    async def open(self) -> PacketReader:
        """Connect and return what it says first."""
        ...

    async def ask(self, request: bytes) -> PacketReader:
        """Send a request and return its answer."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...


class GitOrigins:
    """Origins over https and ssh. `trust` says whose certificates are good; without it, the
    system's authorities do, which are read when they are first needed.
    """

    def __init__(
        self, *, addresses: OriginAddresses, credentials: Credentials, trust: ssl.SSLContext | None
    ) -> None:
        self._addresses = addresses
        self._credentials = credentials
        self._trust = trust

    def talk(
        self, tenant: str, origin: Origin, object_format: ObjectFormat
    ) -> AbstractAsyncContextManager[Talk]:
        return self._talk(tenant, origin, object_format)

    @asynccontextmanager
    async def _talk(
        self, tenant: str, origin: Origin, object_format: ObjectFormat
    ) -> AsyncIterator[Talk]:
        pinned = await self._addresses.of(origin)
        line: Line
        if origin.scheme == "https":
            login = self._credentials.login(tenant, origin)
            self._trust = self._trust or ssl.create_default_context()
            line = HttpsLine(origin=origin, addresses=pinned, login=login, trust=self._trust)
        else:
            identity = self._credentials.identity(tenant)
            line = SshLine(origin=origin, addresses=pinned, identity=identity)
        try:
            with _faults():
                first = await line.open()
                talk = await _begun(line, first, object_format)
            yield talk
        finally:
            await line.close()


async def _begun(line: Line, first: PacketReader, object_format: ObjectFormat) -> Talk:
    """Read the greeting of either version of the protocol."""
    packet = await first.packet()
    if isinstance(packet, bytes) and packet.startswith(b"# service="):
        if await first.packet() is not Mark.FLUSH:
            raise OriginFailed(OriginFault.MALFORMED, "its greeting is malformed")
        packet = await first.packet()
    if packet == b"version 2":
        offered = [each.decode("utf-8", "replace") async for each in first.lines()]
        _same_format(offered, object_format)
        names_format = any(each.startswith("object-format=") for each in offered)
        return _TalkV2(line, object_format, names_format=names_format)
    advertised: dict[str, str] = {}
    capabilities: list[str] = []
    while isinstance(packet, bytes):
        text, _, words = packet.partition(b"\0")
        capabilities += words.decode("utf-8", "replace").split()
        oid, _, ref = text.decode("utf-8", "replace").partition(" ")
        if ref.startswith(("refs/heads/", "refs/tags/")) and not ref.endswith("^{}"):
            advertised[ref] = oid
        packet = await first.packet()
    _same_format(capabilities, object_format)
    return _TalkV0(line, object_format, advertised, frozenset(capabilities))


def _same_format(offered: Sequence[str], object_format: ObjectFormat) -> None:
    named = [each.partition("=")[2] for each in offered if each.startswith("object-format=")]
    if object_format not in (named or [ObjectFormat.SHA1]):
        raise OriginFailed(OriginFault.MALFORMED, "its repository has another object format")


class _TalkV2:
    """Version 2: only the refs that are asked for are listed, and any commit may be wanted."""

    def __init__(self, line: Line, object_format: ObjectFormat, *, names_format: bool) -> None:
        self._line = line
        self._format = object_format
        self._names = (f"object-format={object_format}",) if names_format else ()

    def _command(self, name: str, *arguments: str) -> bytes:
        head = (f"command={name}", _AGENT, *self._names)
        return packed(*head, Mark.DELIMITER, *arguments, Mark.FLUSH)

    async def tip(self, branch: str) -> str:
        ref = f"refs/heads/{branch}"
        with _faults():
            answer = await self._line.ask(self._command("ls-refs", f"ref-prefix {ref}"))
            found = [each.decode("utf-8", "replace").split(" ") async for each in answer.lines()]
        return _tip_of({words[1]: words[0] for words in found if len(words) > 1}, ref, self._format)

    async def pack(self, commit: str, having: Sequence[str]) -> AsyncIterator[bytes]:
        with _faults():
            answer = await self._line.ask(
                self._command(
                    "fetch", "thin-pack", "ofs-delta", "no-progress",
                    f"want {commit}", *as_lines(having, "have"), "done",
                )
            )  # fmt: skip
            while (packet := await answer.packet()) != b"packfile":
                if packet is Mark.FLUSH:
                    raise OriginFailed(OriginFault.MALFORMED, "it sends no pack")
            async for chunk in answer.sideband():
                yield chunk


class _TalkV0:
    """The first version, which most servers speak over ssh: every ref is listed at once."""

    def __init__(
        self,
        line: Line,
        object_format: ObjectFormat,
        advertised: dict[str, str],
        capabilities: frozenset[str],
    ) -> None:
        self._line = line
        self._format = object_format
        self._advertised = advertised
        self._capabilities = capabilities

    async def tip(self, branch: str) -> str:
        return _tip_of(self._advertised, f"refs/heads/{branch}", self._format)

    async def pack(self, commit: str, having: Sequence[str]) -> AsyncIterator[bytes]:
        wanted = [commit]
        listed = sorted(set(self._advertised.values()))
        any_commit = {"allow-reachable-sha1-in-want", "allow-any-sha1-in-want"}
        if commit not in listed and not any_commit & self._capabilities:
            # The commit is somewhere below the tips, or not there at all, which shows afterwards.
            wanted = listed
        if not wanted:
            raise OriginFailed(OriginFault.COMMIT_MISSING, "its repository is empty")
        words = {"side-band-64k", "ofs-delta", "thin-pack", "no-progress"} & self._capabilities
        if "side-band-64k" not in words:
            raise OriginFailed(OriginFault.MALFORMED, "its git is older than 1.5")
        if self._format is not ObjectFormat.SHA1:
            words = words | {f"object-format={self._format}"}
        wants = as_lines(wanted, "want")
        wants[0] = " ".join((wants[0], *sorted(words), _AGENT))
        with _faults():
            answer = await self._line.ask(
                packed(*wants, Mark.FLUSH, *as_lines(having, "have"), "done")
            )
            while isinstance(packet := await answer.content(), bytes):
                if not packet.startswith((b"ACK ", b"NAK")):
                    break
            if isinstance(packet, Mark):
                raise OriginFailed(OriginFault.MALFORMED, "it sends no pack")
            async for chunk in answer.sideband(packet):
                yield chunk


def _tip_of(refs: dict[str, str], ref: str, object_format: ObjectFormat) -> str:
    tip = refs.get(ref, "")
    if not tip:
        raise OriginFailed(OriginFault.BRANCH_MISSING, "there is no such branch")
    if len(tip) != object_format.digits or not all(each in "0123456789abcdef" for each in tip):
        raise OriginFailed(OriginFault.MALFORMED, "a ref names no commit")
    return tip


@contextmanager
def _faults() -> Iterator[None]:
    """Raise OriginFailed for what the connection raises."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise OriginFailed(
            OriginFault.DENIED, f"its certificate: {error.verify_message}"
        ) from error
    except asyncio.IncompleteReadError as error:
        raise OriginFailed(OriginFault.UNREACHABLE, "the connection ended early") from error
    except TimeoutError as error:
        raise OriginFailed(OriginFault.TIMEOUT, "the connection stalled") from error
    except OSError as error:
        cause = error.strerror or type(error).__name__
        raise OriginFailed(OriginFault.UNREACHABLE, f"the connection broke: {cause}") from error
