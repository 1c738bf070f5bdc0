"""What the walls of this machine are built by: found out once by the survey, handed to the zygotes
as words.

Read in the zygotes: standard library only, and little of it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Terms:
    """What is built; the defaults are what every machine that offers the tier has."""

    def __init__(
        self,
        *,
        privileged: bool,
        own_uid: bool,
        file_rules: bool,
        call_filter: bytes,
        programs: Sequence[str],
    ) -> None:
        """`privileged` may leave namespaces without a user namespace, and `own_uid` gives each
        sandbox a host uid; `programs` are directories outside /usr that are shown too.
        """
        self.privileged = privileged
        self.own_uid = own_uid
        self.file_rules = file_rules
        self.call_filter = call_filter
        self.programs = tuple(programs)

    def words(self) -> list[bytes]:
        """Return the terms as words without a NUL."""
        flags = {
            b"privileged": self.privileged,
            b"own_uid": self.own_uid,
            b"file_rules": self.file_rules,
        }
        found = [name for name, stands in flags.items() if stands]
        found.append(b"call_filter=" + self.call_filter.hex().encode())
        return found + [b"program=" + os.fsencode(path) for path in self.programs]

    @staticmethod
    def parse(words: Iterable[bytes]) -> Terms:
        """Read what `words` returned."""
        flags, filters, programs = set(), [b""], []
        for word in words:
            name, _, value = word.partition(b"=")
            if name == b"program":
                programs.append(os.fsdecode(value))
            elif name == b"call_filter":
                filters.append(bytes.fromhex(value.decode()))
            else:
                flags.add(name)
        return Terms(
            privileged=b"privileged" in flags,
            own_uid=b"own_uid" in flags,
            file_rules=b"file_rules" in flags,
            call_filter=filters[-1],
            programs=programs,
        )
