"""What uses its process as nobody should: prints, threads, large answers, sudden ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable


class Talker:
    """Lives in a child whose standard output is somebody's stream."""

    def ping(self) -> str:
        return "pong"

    def print(self) -> None:
        sys.stdout.write("to standard output\n")
        sys.stdout.buffer.write(bytes(range(256)))
        sys.stdout.flush()
        os.write(1, b"and past it")
        subprocess.run(["echo", "from a program"], check=True)

    def read(self) -> str:
        return sys.stdin.read()

    def blob(self, size: int) -> bytes:
        return bytes(range(256)) * (size // 256)

    def wait(self, begun: Callable[[], object]) -> None:
        begun()
        while True:
            time.sleep(1)

    def leave(self, code: int, words: str) -> None:
        os.write(2, words.encode())
        os._exit(code)

    def start(self) -> int:
        return subprocess.Popen(["sleep", "1000"]).pid

    def place(self) -> tuple[str, str]:
        return os.getcwd(), sys.path[0]
