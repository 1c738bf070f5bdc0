"""Has the C library keep what buffers of bulk have left, for those that follow."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

KEPT_BYTES: Final = 32 * 1024 * 1024
"""At most so many at the end of the heap are free and not the system's."""
_LARGEST: Final = 1024 * 1024
"""What is larger is mapped by itself; no buffer of a carrier is."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Have glibc keep `KEPT_BYTES` of this process's freed memory (mallopt(3)); say whether it is.

    A quarter of a megabyte goes back to the system with each batch otherwise, and is faulted in
    anew, page by page, for the next one. Other C libraries know no such thing.
    """
    if sys.platform != "linux":
        return False
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is None:
        return False
    return bool(tune(_M_MMAP_THRESHOLD, _LARGEST) and tune(_M_TRIM_THRESHOLD, KEPT_BYTES))
