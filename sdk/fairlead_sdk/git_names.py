"""Names that git gives a meaning to, in each spelling that git or a file system takes for them.

Git itself refuses `.git` in the spellings of NTFS and HFS+ (`is_ntfs_dotgit` in path.c,
`is_hfs_dotgit` in utf8.c). File systems that fold case and normalise (APFS, ext4 with casefold,
ZFS with `normalization`) accept more; the comparison here is at least as coarse as each of them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection

HEAD, OBJECTS, REFS, COMMON = "head", "objects", "refs", "commondir"
MARKS = (HEAD, OBJECTS, REFS, COMMON)
"""Folded names of the entries by which git recognises a git directory."""

# NTFS gives `.git` the short name git~1, or git~2 where that is taken, and after four of those one
# with a checksum: gi1f2e~1.
_GIT = re.compile(r"\.git|git~[0-9]+|gi[0-9a-f]{4}~[0-9]+")
# Default_Ignorable_Code_Point of Unicode 15: HFS+ and ext4 skip some or all of them.
_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def folded(name: str) -> str:
    """Give the form in which names are compared: case, compatibility forms, ignorable code points,
    trailing dots and spaces and the stream of NTFS make no difference.
    """
    if not name.isascii():
        name = _IGNORED.sub("", unicodedata.normalize("NFKC", name)).casefold()
        # A fold may give characters that fold again, and the dotless i is an upper-case I.
        name = unicodedata.normalize("NFKC", name).replace("\u0131", "i")
    return name.lower().partition(":")[0].rstrip(". ")


def is_git_name(name: str) -> bool:
    """Say whether one part of a path names `.git`, also as a part of a Windows path."""
    # Short of this, no part of it folds to one: most names leave here.
    if name.isascii() and "git" not in name.lower() and "~" not in name:
        return False
    return any(_GIT.fullmatch(folded(part)) for part in re.split(r"[/\\]", _slashes(name)))


def git_prefix(path: str) -> str | None:
    """Give the path down to its first part that names `.git`; None when no part does."""
    parts = path.split("/")
    for count, part in enumerate(parts, 1):
        if is_git_name(part):
            return "/".join(parts[:count])
    return None


def is_repository(has: Callable[[str], bool]) -> bool:
    """Say whether git takes a directory with these entries for a git directory
    (`is_git_directory` in setup.c), by names alone; `has` is asked for some of `MARKS`.
    """
    return has(HEAD) and (has(COMMON) or (has(OBJECTS) and has(REFS)))


def marks_of(names: Collection[str]) -> set[str]:
    """Give those of `MARKS` that are among the names."""
    return {fold for name in names if (fold := folded(name)) in MARKS}


def _slashes(name: str) -> str:
    """Give a name with the slashes that a normalising file system would see in it."""
    return name if name.isascii() else unicodedata.normalize("NFKC", name)
