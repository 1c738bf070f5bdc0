"""What a launch imports while it has nothing to wait for."""

from __future__ import annotations

import subprocess
import sys


def test_what_speaks_http_is_imported_once_the_connection_is_under_way() -> None:
    script = """
import asyncio, socket, sys
import fairlead_sdk.cli.launch
from fairlead_sdk.client import FrontDoor

def loaded():
    return sorted({"h11", "httpx2"} & sys.modules.keys())

async def main():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with FrontDoor(url=url, api_key="") as door:
            before = loaded()
            door.connect_ahead()
            await asyncio.sleep(0)
            print(before, loaded())

asyncio.run(main())
"""
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, check=True)
    assert done.stdout == b"[] ['h11']\n"
