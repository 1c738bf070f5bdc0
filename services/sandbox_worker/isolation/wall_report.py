"""Says which walls sandboxes can have on this machine:
`python -m sandbox_worker.isolation.wall_report DIRECTORY`, as the worker's settings are here. Exit
code 0 when all stand, 1 otherwise.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from sandbox_worker.isolation.wall_survey import survey_walls
from sandbox_worker.settings import Settings


def main() -> int:
    """Print the report as JSON."""
    settings = Settings()
    found = asyncio.run(
        survey_walls(
            Path(sys.argv[1]),
            path=settings.path,
            first_uid=settings.uid_first,
            uids=settings.uid_count,
        )
    )
    standing = [name for name, reason in found.reasons.items() if not reason]
    report = {"offered": found.stands, "standing": standing, "missing": found.missing}
    sys.stdout.write(json.dumps(report) + "\n")
    return 1 if found.missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
