"""pip through `fairlead socks`, from an index of one package on loopback."""

from __future__ import annotations

import asyncio
import base64
import ensurepip
import hashlib
import os
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.contract.tunnel.line_world import world
from tests.contract.tunnel.test_socks import ran, serving
from tests.eventually import SECONDS

pytestmark = pytest.mark.asyncio
_WHEEL = "hawser-1.0-py3-none-any.whl"
_CONTENT = os.urandom(300_000)


def _wheel() -> bytes:
    """Return a wheel with one module and CONTENT beside it."""
    files = {
        "hawser/__init__.py": b"",
        "hawser/content": _CONTENT,
        "hawser-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: hawser\nVersion: 1.0\n",
        "hawser-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
    }
    record = "hawser-1.0.dist-info/RECORD"
    lines = [f"{name},{_digest(content)},{len(content)}\n" for name, content in files.items()]
    whole = BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(record, "".join([*lines, f"{record},,\n"]))
    return whole.getvalue()


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


async def test_pip_installs_from_an_index_that_the_exit_reaches(tmp_path: Path) -> None:
    wheel = _wheel()
    pages = {
        b"/simple/hawser/": f'<a href="/{_WHEEL}">{_WHEEL}</a>'.encode(),
        f"/{_WHEEL}".encode(): wheel,
    }

    async def index(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        found = pages.get(path)
        kind = "text/html" if path.endswith(b"/") else "application/octet-stream"
        status = "200 OK" if found is not None else "404 Not Found"
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(found or b'')}\r\n"
        )
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + (found or b""))
        await writer.drain()
        writer.close()

    # pip as Python brings it, with the PySocks of this environment.
    bundled = Path(ensurepip.__file__).parent / "_bundled"
    pip = next(bundled.glob("pip-*.whl")) / "pip"
    async with asyncio.timeout(SECONDS), world() as it:
        port = await it.serve(index)
        status, output, errors = await ran(
            *(sys.executable, str(pip), "--isolated", "--disable-pip-version-check", "install"),
            *("--proxy", f"socks5h://127.0.0.1:{await serving(it)}", "--trusted-host", "exit.test"),
            *("--index-url", f"http://exit.test:{port}/simple/", "--no-cache-dir", "--no-deps"),
            *("--target", str(tmp_path / "site"), "hawser==1.0"),
        )
        assert status == 0, (output, errors)
        assert set(it.exit.wants) == {f"tcp:exit.test:{port}"}
    assert (tmp_path / "site" / "hawser" / "content").read_bytes() == _CONTENT
