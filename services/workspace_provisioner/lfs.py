"""What a pointer file of Git LFS looks like (git-lfs-spec(5), version 1). Pure."""

from __future__ import annotations

import re

POINTER_BYTES = 1024
"""A pointer is shorter than this."""

_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n"
    rb"(?:ext-[0-9]-[a-z0-9.-]+ [^\n]+\n)*"
    rb"oid sha256:[0-9a-f]{64}\nsize (?:0|[1-9][0-9]*)\n"
)


def is_pointer(content: bytes) -> bool:
    """Say whether a file's whole content is a pointer."""
    return len(content) < POINTER_BYTES and _POINTER.fullmatch(content) is not None
