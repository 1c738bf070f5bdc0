"""What a process may reach of the file system (Landlock). For the small programs that wall others
in: standard library only.
"""

from __future__ import annotations

import os
import struct

from fairlead_walls.kernel_calls import system_call

_CREATE, _ADD, _RESTRICT = 444, 445, 446


def file_rules_version() -> int:
    """Return the version of Landlock that the kernel has; raises OSError where it has none.

    From 2 on, files may be moved between directories that allow it.
    """
    return system_call("landlock", _CREATE, None, 0, 1)


class FileRules:
    """What a process and its descendants may reach of the file system (landlock(7))."""

    _READ_FILE, _READ_DIRECTORY, _EXECUTE = 1 << 2, 1 << 3, 1 << 0
    _OF_FILES = sum(1 << bit for bit in (0, 1, 2, 14, 15))
    READ = _READ_FILE | _READ_DIRECTORY
    READ_AND_EXECUTE = READ | _EXECUTE
    # All but executing, and making devices, sockets and pipes.
    WRITE = sum(1 << bit for bit in (1, 2, 3, 4, 5, 7, 8, 12, 13, 14))
    USE = sum(1 << bit for bit in (1, 2, 14, 15))
    # All but making devices.
    OWN = sum(1 << bit for bit in (0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 15))

    def __init__(self, *, refuse_tcp: bool) -> None:
        """Raises OSError where the kernel has no Landlock."""
        version = file_rules_version()
        bits = 13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16
        self._handled = (1 << bits) - 1
        attributes = struct.pack("=Q", self._handled)
        if version >= 4:
            attributes += struct.pack("=Q", 3 if refuse_tcp else 0)
        if version >= 6:
            # No abstract sockets of, and no signals to, others.
            attributes += struct.pack("=Q", 3)
        self._rules = system_call("landlock", _CREATE, attributes, len(attributes), 0)

    def allow(self, path: str, access: int) -> None:
        """Allow access to a file or to everything below a directory; a path that is absent is
        passed over.
        """
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            if not os.path.isdir(path):
                access &= self._OF_FILES
            rule = struct.pack("=Qi", access & self._handled, opened)
            system_call("landlock", _ADD, self._rules, 1, rule, 0)
        finally:
            os.close(opened)

    def enforce(self) -> None:
        """Restrict this process for good; gain_nothing comes first."""
        system_call("landlock", _RESTRICT, self._rules, 0)
        self.close()

    def close(self) -> None:
        """Forget the rules."""
        os.close(self._rules)
