"""Times processes of `multiprocessing`, one for each line on standard input; a program of its own,
so that they import no more than a small program would.
"""

from __future__ import annotations

import multiprocessing
import sys
import time


def nothing() -> None:
    """Be the work of a process that only starts and ends."""


def main() -> None:
    """Answer each line with the seconds that one process took from its start to its end."""
    multiprocessing.set_start_method(sys.argv[1])
    for _ in sys.stdin:
        begun = time.perf_counter()
        process = multiprocessing.Process(target=nothing)
        process.start()
        process.join()
        assert process.exitcode == 0
        print(time.perf_counter() - begun, flush=True)


if __name__ == "__main__":
    main()
