"""`python -m benchmarks.sessions.bare`: a FastAPI application with one empty route, served as the
front door is. Prints its port.
"""

from __future__ import annotations

import asyncio
import sys

from fastapi import FastAPI

from benchmarks.sessions.program import own_input
from chassis.http_server import serve_http


async def main() -> None:
    app = FastAPI()

    @app.get("/")
    async def empty() -> dict[str, str]:
        return {}

    async with serve_http(app, bind="127.0.0.1:0") as server:
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        await (await own_input()).read()


if __name__ == "__main__":
    asyncio.run(main())
