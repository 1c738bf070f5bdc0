"""`python -m relay_gateway` as a process: its probes, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import urllib.error
import urllib.request

import pytest

from fairlead_sdk.forwarding import forward
from tests.fakes.port_worker import open_servers, open_worker
from tests.fakes.scripted_sessions import ScriptedSessions
from tests.fakes.scripted_signalling import serve_signalling


async def probe(port: int, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            url = f"http://127.0.0.1:{port}{path}"
            with urllib.request.urlopen(url, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    return await asyncio.to_thread(ask)


async def until(port: int, path: str, status: int) -> str:
    async with asyncio.timeout(60):
        while True:
            got, body = await probe(port, path)
            if got == status:
                return body
            await asyncio.sleep(0.05)


@pytest.mark.asyncio
async def test_a_gateway_lives_becomes_ready_and_stops(unused_tcp_port: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/signalling.sock"
        gateway = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "relay_gateway",
            env={
                **os.environ,
                "FAIRLEAD_RELAY_SIGNALLING": address,
                "FAIRLEAD_RELAY_WORKERS_BIND": f"unix:{folder}/relay.sock",
                "FAIRLEAD_RELAY_HTTP_BIND": f"127.0.0.1:{unused_tcp_port}",
                "FAIRLEAD_RELAY_TCP_BIND": "127.0.0.1:0",
                "FAIRLEAD_DRAIN_SECONDS": "5",
            },
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            await until(unused_tcp_port, "/healthz", 200)
            body = await until(unused_tcp_port, "/readyz", 503)
            assert json.loads(body)["reason"] == "signalling_unavailable"
            async with (
                open_servers() as servers,
                open_worker() as worker,
                serve_signalling(worker, address) as signalling,
            ):
                await until(unused_tcp_port, "/readyz", 200)
                api = ScriptedSessions(signalling)
                async with forward(api, "lch_a", servers.echo) as local:
                    reader, writer = await asyncio.open_connection(local.host, local.port)
                    writer.write(b"x")
                    assert await reader.readexactly(1) == b"x"
                    gateway.send_signal(signal.SIGTERM)
                    await until(unused_tcp_port, "/readyz", 503)
                    with pytest.raises(ConnectionResetError):
                        async with asyncio.timeout(60):
                            await reader.read()
                    writer.close()
                async with asyncio.timeout(60):
                    _, log = await gateway.communicate()
                assert gateway.returncode == 0
                (session_id,) = signalling.answers
                assert signalling.closed(session_id) == ["drained"]
            assert b"Traceback" not in log
            assert b"never retrieved" not in log
        finally:
            if gateway.returncode is None:
                gateway.kill()
                await gateway.communicate()
