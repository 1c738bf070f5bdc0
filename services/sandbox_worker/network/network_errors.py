"""The errors of network policies."""

from __future__ import annotations

from chassis.errors import InvalidArgument
from sandbox_worker.errors import short


class AllowEntryInvalid(InvalidArgument):
    """An entry of an allow list cannot be read."""

    def __init__(self, entry: str, cause: str) -> None:
        super().__init__(
            f"The allow list's entry {short(entry)!r} cannot be read: {cause}.",
            reason="allow_entry_invalid",
            remedy="Write a name, *.name, an address or a network, each with :port when wanted.",
            fields={"entry": short(entry)},
        )


class AllowListTooLong(InvalidArgument):
    """An allow list has more entries than one may have."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"An allow list has at most {most} entries.",
            reason="allow_list_too_long",
            remedy="Join names below *.name.",
            fields={"limit": str(most)},
        )
