"""One system in a process of its own: a line on standard input names a regime with its iterations
and its warm-up, a line of JSON on standard output answers.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import cast

from benchmarks.membrane.regimes import REGIMES
from benchmarks.membrane.system import System, Work

SYSTEMS = {
    "direct": "direct",
    "membrane": "ours",
    "extradite": "extradited",
    "pipe": "piped",
    "manager": "managed",
    "rpyc": "rpyc_served",
    "loky": "loky_submitted",
}


def loaded(name: str) -> System:
    """Return a system by its name; raises ImportError where it is not installed."""
    module = importlib.import_module(f"benchmarks.membrane.{SYSTEMS[name]}")
    return cast("System", module.SYSTEM)


def main() -> None:
    system = loaded(sys.argv[1])
    unknown = {"cold_start", "cold_start_preloaded"} - system.cold.keys()
    print(json.dumps({"lacks": sorted(system.lacks | unknown)}), flush=True)
    with ExitStack() as kept:
        work: Work | None = None
        for line in sys.stdin:
            name, iterations, warm_up = line.split()
            regime = REGIMES[name]
            if not regime.whole_life and work is None:
                work = kept.enter_context(system.cold["cold_start"]())
            target = cast("Work", work)
            if int(warm_up):
                regime.run(system, target, int(warm_up))
            timed = asdict(regime.run(system, target, int(iterations)))
            print(json.dumps(timed | {"said": system.describe()}), flush=True)


if __name__ == "__main__":
    main()
