"""`make load`: a stack of its own, locust against it without a web page, and its verdict."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.local_stack import local_stack

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--time", default="30s")
    options = parser.parse_args()
    (HERE / "out").mkdir(exist_ok=True)
    with local_stack() as stack:
        environment = os.environ | {
            "FAIRLEAD_URL": stack.url,
            "FAIRLEAD_GRPC": stack.grpc,
            "FAIRLEAD_API_KEY": stack.api_key,
            "PYTHONPATH": str(HERE.parent),
        }
        locust = [
            str(Path(sys.executable).with_name("locust")),
            *("-f", str(HERE / "locustfile.py"), "--headless", "--only-summary"),
            *("-u", str(options.users), "-r", str(options.users), "-t", options.time),
            *("--stop-timeout", "30", "--csv", str(HERE / "out" / "load")),
        ]
        return subprocess.run(locust, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
