"""The secret that seals sessions, from the file that the user names."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fairlead_sdk.errors import InvalidArgument

VARIABLE = "FAIRLEAD_SEAL_SECRET_FILE"
_SECRET = re.compile(r"[0-9a-fA-F]{64}")


class SealSecretUnusable(InvalidArgument):
    """The file that is named holds no secret."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} cannot be read as a secret that seals sessions.",
            reason="seal_secret_invalid",
            remedy="Give a file with the 64 hexadecimal digits that the gateway's file has.",
        )


def seal_secret(path: str) -> bytes:
    """Return the secret of a file, of the one in the environment where none is named, and nothing
    where there is none either; raises SealSecretUnusable.
    """
    chosen = path or os.environ.get(VARIABLE, "")
    if not chosen:
        return b""
    try:
        text = Path(chosen).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise SealSecretUnusable(chosen) from None
    if not _SECRET.fullmatch(text):
        raise SealSecretUnusable(chosen)
    return bytes.fromhex(text)
