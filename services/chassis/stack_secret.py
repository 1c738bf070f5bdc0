"""The secrets of a stack, made once: what internal calls carry, and the password of its Redis."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path


def ensure_stack_secret(path: Path, mode: int = 0o600) -> None:
    """Write 256 random bits as text to `path`, unless the file is there already.

    Whoever comes second keeps what the first one wrote: the file appears whole, by link(2), or
    not at all.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_urlsafe(32))
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink()


if __name__ == "__main__":
    ensure_stack_secret(Path(sys.argv[1]))
    if sys.argv[2:]:
        # Redis runs as another user; who else can see the directory decides who reads it.
        ensure_stack_secret(Path(sys.argv[2]), 0o644)
