"""A user of the REST front door."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import requests
from locust import User, task

from loadtests import scenario

Body = dict[str, str | list[str] | dict[str, str] | dict[str, list[str]]]


class RestUser(User):
    """Launches, runs commands in a launch that it keeps, and negotiates with a gateway for it."""

    def on_start(self) -> None:
        self.http = requests.Session()
        self.http.headers["Authorization"] = f"Bearer {scenario.KEY}"
        self.http.trust_env = False
        self.kept = self._launch(keep=True)

    def on_stop(self) -> None:
        self._post(f"/v1/launches/{self.kept['launch_id']}/cancel", {})

    @task(3)
    def launch(self) -> None:
        with scenario.timed(self.environment, "REST launch"):
            self._launch(keep=False)

    @task(3)
    def execute(self) -> None:
        with scenario.timed(self.environment, "REST exec"):
            sandbox = self.kept["sandbox_id"]
            body: Body = {"arguments": ["printf", "x"]}
            execution = self._post(f"/v1/sandboxes/{sandbox}/executions", body)
            path = f"/v1/executions/{execution['execution_id']}/output"
            answer = self.http.get(scenario.URL + path, stream=True, timeout=30)
            frames = [json.loads(line) for line in answer.iter_lines() if line]
            written = b"".join(
                base64.b64decode(f["content"]) for f in frames if f["type"] == "output"
            )
            if written != b"x" or frames[-1]["exit"]["code"] != 0:
                raise AssertionError(f"unexpected output: {frames}")

    @task(1)
    def negotiate(self) -> None:
        with scenario.timed(self.environment, "REST negotiate"):
            body: Body = {"launch_id": self.kept["launch_id"], "mode": "complete"}
            session = self._post("/v1/sessions", body)["session_id"]
            answer = self._post(f"/v1/sessions/{session}/offer", {"offer": scenario.OFFER})
            if not answer["answer"].startswith("v=0"):
                raise AssertionError(f"not an answer: {answer}")
            self.http.delete(f"{scenario.URL}/v1/sessions/{session}", timeout=30).raise_for_status()

    def _post(self, path: str, body: Body) -> dict[str, str]:
        answer = self.http.post(
            scenario.URL + path, json=body, headers={"Idempotency-Key": scenario.key()}, timeout=30
        )
        if not answer.ok:
            raise AssertionError(answer.text)
        document: dict[str, str] = answer.json()
        return document

    def _launch(self, *, keep: bool) -> dict[str, str]:
        """Run `printf x`, or with `keep` nothing; return the launch as it was provisioned."""
        repository = scenario.repository()
        body: Body = {
            "source": {
                "project": repository.project,
                "commit": repository.commit,
                "branch": "main",
            }
        }
        if not keep:
            body["command"] = {"arguments": ["printf", "x"]}
        headers = {"Accept": "application/x-ndjson", "Idempotency-Key": scenario.key()}
        stream = self.http.post(
            f"{scenario.URL}/v1/launches", json=body, headers=headers, stream=True, timeout=60
        )
        if not stream.ok:
            raise AssertionError(stream.text)
        output = b""
        for line in stream.iter_lines():
            event = json.loads(line)
            match event["type"]:
                case "output":
                    output += base64.b64decode(event["output"]["content"])
                case "miss":
                    self._upload(event["miss"]["upload_token"])
                case "provisioned" if keep:
                    stream.close()
                    kept: dict[str, str] = event["provisioned"]["launch"]
                    return kept
                case "failed" | "cancelled":
                    raise AssertionError(line)
                case "exited" if event["exited"]["exit"]["code"] != 0:
                    raise AssertionError(line)
                case _:
                    pass
        if output != b"x":
            raise AssertionError(f"unexpected output: {output!r}")
        return {}

    def _upload(self, token: str) -> None:
        def body() -> Iterator[bytes]:
            yield b'{"tips": []}\n'
            yield scenario.pack()

        self.http.post(
            f"{scenario.URL}/v1/snapshots",
            params={"upload": token},
            data=body(),
            headers={"Content-Type": "application/x-fairlead-pack"},
            timeout=60,
        ).raise_for_status()
