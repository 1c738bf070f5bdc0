"""Which of the optional packages there are."""

from __future__ import annotations

from importlib.util import find_spec


def is_installed(name: str) -> bool:
    """Say whether a package may be imported, without doing so."""
    try:
        return find_spec(name) is not None
    except ValueError:  # `sys.modules` says that it is not to be imported
        return False
