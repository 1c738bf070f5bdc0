"""Shared memory of a lane: where large buffers travel, nameless, sealed against resizing, mapped
once and used again.

The sender numbers its regions from 1 in the order in which both sides get them, and refers to a
buffer by number, offset and length. It starts from the front with each message, which it may,
because on a lane the two sides take turns and the receiver has copied everything out before it
answers. Both sides let go of the same regions after the same messages.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final, Protocol

from msgspec.msgpack import Ext

from membrane.errors import ProtocolError
from membrane.extensions import LENT, REGION, REGION_LAYOUT

SMALLEST: Final = 1 << 20
KEPT: Final = 64 << 20
"""Bytes up to which a region stays mapped for the next message; a larger one serves one message."""

HEADER: Final = mmap.PAGESIZE
"""The first page: its first byte is 1 while the receiver holds views of the region."""

MOST_LENT: Final = 4
"""Regions under views that are remembered for use again; beyond it the oldest belongs to its views
alone."""

MOST_REGIONS: Final = 32
"""Regions of one direction at once: growing by doubling needs a dozen."""


class Lane(Protocol):
    """Know how to agree with the other side on a region."""

    def share(self, size: int) -> tuple[int, int]:
        """Give a descriptor of a fresh region for this side to write to, and its size of at least
        `size` bytes.

        The other side has been told of it, or will be before it reads the next message.
        """
        ...


def make_region(size: int) -> int:
    """Make `size` bytes of shared memory without a name, and give its descriptor.

    Its pages are there, so that no later access can run out of memory, and it can neither shrink
    nor grow, so that neither side can make the other fault. Raise OSError where there is no memory.
    """
    fd = os.memfd_create("membrane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
    except BaseException:
        os.close(fd)
        raise
    return fd


def wanted_size(needed: int) -> int:
    """Say how large a region for `needed` bytes is made: a power of two, beyond the kept ones whole
    pages."""
    needed += HEADER
    if needed > KEPT:
        return -(-needed // mmap.PAGESIZE) * mmap.PAGESIZE
    return max(SMALLEST, 1 << (needed - 1).bit_length())


class Region:
    """Map one region for writing (`writable`) or for reading, with all its pages in place."""

    def __init__(self, *, fd: int, size: int, writable: bool) -> None:
        try:
            if size <= HEADER or os.fstat(fd).st_size != size:
                raise ProtocolError(f"a region is not of the {size} bytes that were announced")
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
            self._fd = fd
            self.map = mmap.mmap(fd, size, flags=flags, prot=access)
            self._header: mmap.mmap | None = None
            self.size = size
        except BaseException:
            os.close(fd)
            raise

    def is_viewed(self) -> bool:
        """Say whether a view of a region that is mapped for reading is alive in this process."""
        try:
            # Maps tell that they are exported only when asked to change, and say so before they
            # refuse to: a map for reading cannot.
            self.map.resize(self.size)
        except BufferError:
            return True
        except TypeError:
            return False
        return False

    def give_back(self) -> None:
        """Tell the sender that no view is left."""
        if self._header is None:
            self._header = mmap.mmap(self._fd, HEADER)
        self._header[0] = 0

    def close(self) -> None:
        """Let go of it; views that are alive keep its memory."""
        os.close(self._fd)
        if self._header is not None:
            self._header.close()
        try:
            self.map.close()
        except BufferError:
            return


class Direction:
    """Hold the regions of one direction of a lane: the newest, and those that are lent for
    views."""

    def __init__(self, *, writable: bool) -> None:
        self._writable = writable
        self.regions: dict[int, Region] = {}
        self.lent: list[int] = []
        self._count = 0

    def add(self, fd: int, size: int) -> int:
        """Map a region and give its number; takes over the descriptor, also when it fails."""
        if len(self.regions) >= MOST_REGIONS:
            os.close(fd)
            raise ProtocolError(f"more than {MOST_REGIONS} regions were made and not used")
        region = Region(fd=fd, size=size, writable=self._writable)
        self._count += 1
        self.regions[self._count] = region
        return self._count

    def settle(self, used: set[int], *, lend: bool) -> None:
        """Let go of what the other side lets go of too, now that a message that used these regions
        is through."""
        if not lend and not self.lent and len(self.regions) == 1:
            # As mostly: the one region that there is, which stays unless it is too large.
            (only,) = self.regions.values()
            if only.size <= KEPT and self._count in self.regions:
                return
        for number in sorted(used):
            if number in self.lent:
                self.lent.remove(number)
            if lend:
                self.lent.append(number)
        kept = set(self.lent[-MOST_LENT:])
        if self._count in self.regions and self.regions[self._count].size <= KEPT:
            kept.add(self._count)
        for number in self.regions.keys() - kept:
            self.regions.pop(number).close()
        self.lent = [number for number in self.lent if number in kept]

    def close(self) -> None:
        """Let go of all."""
        for region in self.regions.values():
            region.close()
        self.regions.clear()
        self.lent.clear()


class LaneRegions:
    """Hold the regions of one lane in both directions; used by one conversation at a time."""

    def __init__(self, *, lane: Lane) -> None:
        self._lane = lane
        self._outgoing = Direction(writable=True)
        self._incoming = Direction(writable=False)
        self._spaces: dict[int, int] = {}
        self._read: set[int] = set()

    @property
    def incoming_bytes(self) -> int:
        """Say how many bytes of the other side's regions are mapped here."""
        # At once: another thread asks, while the one of this lane goes on.
        return sum(region.size for region in list(self._incoming.regions.values()))

    def place(self, buffer: bytes | bytearray | memoryview) -> tuple[int, int, int]:
        """Copy a buffer into shared memory; give region, offset and length.

        A fresh region is got from the lane where there is no room; what the lane raises then is
        raised.
        """
        length = len(buffer)
        number = self._room(length)
        offset = self._spaces.get(number, HEADER)
        self._outgoing.regions[number].map[offset : offset + length] = buffer
        # Aligned, as numpy is faster on whole words.
        self._spaces[number] = offset + length + (-length % 64)
        return number, offset, length

    def placed(self, buffer: bytes | bytearray | memoryview, kind: int, *, lend: bool) -> Ext:
        """Copy a buffer of `kind` into shared memory, and give what a message says of it."""
        place = self.place(buffer)
        return Ext(REGION, REGION_LAYOUT.pack(kind | LENT if lend else kind, *place))

    def _room(self, length: int) -> int:
        for number, region in reversed(self._outgoing.regions.items()):
            if region.size - self._spaces.get(number, HEADER) < length:
                continue
            if number not in self._outgoing.lent or not region.map[0]:
                return number
        fd, size = self._lane.share(wanted_size(length + sum(self._spaces.values())))
        number = self._outgoing.add(fd, size)
        if self._outgoing.regions[number].size - HEADER < length:
            raise ProtocolError("the other side gave a region that is smaller than was asked for")
        return number

    def sent(self, *, lend: bool) -> None:
        """End a message that was encoded; with `lend` the receiver takes views of what was
        placed."""
        if not self._spaces:
            return
        if lend:
            for number in self._spaces:
                self._outgoing.regions[number].map[0] = 1
        self._outgoing.settle(set(self._spaces), lend=lend)
        self._spaces.clear()

    def unsent(self) -> None:
        """Forget what was placed for a message that could not be encoded."""
        self._spaces.clear()

    def attached(self, fd: int, size: int) -> None:
        """Take over the descriptor of a region that the other side will write to.

        Raise ProtocolError where it is not of that size.
        """
        self._incoming.add(fd, size)

    def read(self, number: int, offset: int, length: int) -> memoryview:
        """Give the part of a region that a message refers to, read-only; what it holds may change
        until it is copied.

        Raise ProtocolError where there is no such part.
        """
        region = self._incoming.regions.get(number)
        if region is None:
            raise ProtocolError(f"a buffer is in region {number}, which is not attached")
        if not HEADER <= offset <= region.size or length > region.size - offset:
            raise ProtocolError(f"a buffer reaches outside of region {number}")
        self._read.add(number)
        return memoryview(region.map)[offset : offset + length]

    def received(self, *, lend: bool) -> None:
        """End a message that was decoded; with `lend` its buffers were taken as views."""
        if not self._read:
            return
        self._incoming.settle(self._read, lend=lend)
        self._read.clear()
        for number in self._incoming.lent:
            region = self._incoming.regions[number]
            if not region.is_viewed():
                region.give_back()

    def close(self) -> None:
        """Let go of all regions; views that are alive keep theirs."""
        self._outgoing.close()
        self._incoming.close()
