"""Git's packet lines (gitprotocol-common(5)): written whole, read from whatever gives bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from enum import Enum

from workspace_provisioner.origins import OriginFailed, OriginFault

_LONGEST = 65520


class Mark(Enum):
    """A packet without content."""

    FLUSH = 0
    DELIMITER = 1
    RESPONSE_END = 2


def packed(*packets: str | Mark) -> bytes:
    """Return packets as they travel; texts get a line end."""
    return b"".join(_packed(each) for each in packets)


def _packed(packet: str | Mark) -> bytes:
    if isinstance(packet, Mark):
        return b"%04x" % packet.value
    content = packet.encode() + b"\n"
    return b"%04x" % (len(content) + 4) + content


class PacketReader:
    """Packets out of `read_exactly`, of at most `limit` bytes until the pack begins."""

    def __init__(self, *, read_exactly: Callable[[int], Awaitable[bytes]], limit: int) -> None:
        self._read_exactly = read_exactly
        self._left = limit

    async def packet(self) -> bytes | Mark:
        """Return the next packet, a text without its line end; raises OriginFailed for an `ERR`."""
        content = await self.content()
        if isinstance(content, Mark):
            return content
        self._left -= len(content) + 4
        if self._left < 0:
            raise OriginFailed(OriginFault.MALFORMED, "it lists more refs than can be read")
        return content.removesuffix(b"\n")

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield packets up to a flush."""
        while not isinstance(packet := await self.packet(), Mark):
            yield packet
        if packet is not Mark.FLUSH:
            raise OriginFailed(OriginFault.MALFORMED, "a section ends where none was expected")

    async def sideband(self, first: bytes | None = None) -> AsyncIterator[bytes]:
        """Yield the pack out of the side-band, up to a flush."""
        packet: bytes | Mark = await self.content() if first is None else first
        while not isinstance(packet, Mark):
            band, content = packet[:1], packet[1:]
            if band == b"\x01":
                yield content
            elif band == b"\x03":
                raise _refusal(content)
            elif band != b"\x02":
                raise OriginFailed(OriginFault.MALFORMED, "what it sends is no side-band")
            packet = await self.content()

    async def content(self) -> bytes | Mark:
        """Return the next packet as it is; raises OriginFailed for an `ERR`."""
        header = await self._read_exactly(4)
        try:
            length = int(header, 16)
        except ValueError:
            raise OriginFailed(OriginFault.MALFORMED, "it does not speak git's protocol") from None
        if length < 3:
            return Mark(length)
        if not 4 <= length <= _LONGEST:
            raise OriginFailed(OriginFault.MALFORMED, "a packet has an impossible length")
        content = await self._read_exactly(length - 4)
        if content.startswith(b"ERR "):
            raise _refusal(content[4:])
        return content


def _refusal(content: bytes) -> OriginFailed:
    text = content.decode("utf-8", "replace").strip()[:200]
    if "not our ref" in text or "unadvertised object" in text:
        return OriginFailed(OriginFault.COMMIT_MISSING, text)
    return OriginFailed(OriginFault.MALFORMED, text)


def as_lines(texts: Iterable[str], prefix: str) -> list[str]:
    """Return texts with a word in front of each, as packets want them."""
    return [f"{prefix} {each}" for each in texts]
