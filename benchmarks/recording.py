"""How every benchmark writes its result, so that runs can be compared."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
QUICK = os.environ.get("QUICK") == "1"


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of `samples`; `share` from 0 to 1."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median_ms(samples: Sequence[float]) -> float:
    """Return the median of `samples` (seconds) in milliseconds."""
    return round(statistics.median(samples) * 1000, 2)


def processor() -> str:
    """Return the processor's name as the kernel gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str:
    """Return the commit that is measured, with `-dirty` when the tree differs from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=True,
    )
    return described.stdout.strip()


@dataclass
class Recording:
    """One run of one benchmark; a metric that could not be measured is None, with a note."""

    name: str
    runs: int
    metrics: dict[str, float | None] = field(default_factory=dict)
    peers: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])

    def write(self) -> Path:
        """Write `out/<name>.json`, a quick run's to `out/quick`, print it and return its path."""
        path = HERE / "out" / ("quick" if QUICK else "") / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "name": self.name,
            "commit": commit(),
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "quick": QUICK,
            "machine": {
                "cpu": processor(),
                "cores": os.cpu_count(),
                "kernel": platform.release(),
                "python": platform.python_version(),
            },
            "load_before": round(self.load_before, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "runs": self.runs,
            "metrics": self.metrics,
            "peers": self.peers,
            "notes": self.notes,
        }
        text = json.dumps(document, indent=2)
        path.write_text(text + "\n")
        print(text)
        return path
