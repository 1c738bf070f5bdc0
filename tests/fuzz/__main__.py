"""`python -m tests.fuzz SECONDS`: feeds each target for so long, led by what it reaches."""

from __future__ import annotations

import os
import sys

import atheris

with atheris.instrument_imports(include=["fairlead_tunnel"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz each target in a process of its own, which ends at the first fault."""
    seconds = int(sys.argv[1].removesuffix("s"))
    for name, target in TARGETS.items():
        child = os.fork()
        if not child:
            sys.stderr.write(f"fuzzing {name} for {seconds} s\n")
            options = [f"-max_total_time={seconds}", "-max_len=4096", "-verbosity=0"]
            atheris.Setup([name, *options], target)
            atheris.Fuzz()
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{name} has failed; its input is in the crash file here")


if __name__ == "__main__":
    main()
