"""Sandboxes in Python: made as asked, worked in, released with their block, refusals typed."""

from __future__ import annotations

import pytest

from fairlead_sdk import (
    AsyncFairlead,
    Fairlead,
    FairleadError,
    IsolationUnavailable,
    LimitExceeded,
    NetworkUnavailable,
    ProfileUnknown,
    SandboxInUse,
    SandboxNotFound,
    SandboxReleased,
    Wall,
)
from fairlead_sdk.json_form import JsonObject
from tests.fakes.scripted_door import Answer, Script, ScriptedTransport, problem

SANDBOX_ID = "sbx_" + "a" * 26
SANDBOXES = "/v1/sandboxes"
PATH = f"{SANDBOXES}/{SANDBOX_ID}"


def document(**changes: object) -> JsonObject:
    found: JsonObject = {
        "sandbox_id": SANDBOX_ID,
        "state": "provisioned",
        "isolation": "walled",
        "profile": "default",
        "limits": {"memory_bytes": 0, "open_files": 4096, "wall_time": 1.5},
        "network": {"mode": "egress", "allow": ["pypi.org"]},
        "walls": [
            {"name": "seccomp", "stands": True, "reason": ""},
            {"name": "own_uid", "stands": False, "reason": "The worker is not root."},
        ],
        "host_id": "hst_" + "a" * 26,
        "workspace_id": "",
        "launch_id": "",
        "fence": {"epoch": 1, "counter": 2},
        "created_at": "2026-01-02T03:04:05Z",
        "expires_at": "2026-01-02T03:34:05Z",
    }
    return {**found, **changes}  # type: ignore[dict-item]


@pytest.fixture
def script() -> Script:
    return (
        Script()
        .on("POST", SANDBOXES, Answer(status=201, document=document()))
        .on("DELETE", PATH, Answer(document={"released": True}))
    )


def client(script: Script) -> AsyncFairlead:
    return AsyncFairlead(url="http://door", api_key="k", transport=ScriptedTransport(script))


@pytest.mark.asyncio
async def test_a_sandbox_is_made_as_asked_and_released_with_its_block(script: Script) -> None:
    async with client(script) as fairlead:
        async with await fairlead.sandboxes.create(
            isolation="walled",
            profile="default",
            limits={"memory_bytes": 1 << 30},
            allow=["pypi.org"],
            lease=60,
            workspace_id="wsp_x",
            host_id="hst_x",
        ) as sandbox:
            assert sandbox.sandbox_id == SANDBOX_ID
            record = sandbox.record
            assert script.asked("DELETE", PATH) == []
        assert len(script.asked("DELETE", PATH)) == 1
    assert record.missing_walls == (Wall("own_uid", False, "The worker is not root."),)
    assert (record.network, record.allow) == ("egress", ("pypi.org",))
    assert record.limits == {"open_files": 4096, "wall_time": 1.5}
    (asked,) = script.asked("POST", SANDBOXES)
    assert asked.headers["idempotency-key"]
    assert asked.document == {
        "isolation": "walled",
        "profile": "default",
        "limits": {"memory_bytes": 1 << 30},
        "network": {"mode": "egress", "allow": ["pypi.org"]},
        "lease": 60,
        "workspace_id": "wsp_x",
        "host_id": "hst_x",
    }


@pytest.mark.asyncio
async def test_nothing_is_asked_for_that_was_not_said(script: Script) -> None:
    async with client(script) as fairlead:
        await fairlead.sandboxes.create()
    assert script.asked("POST", SANDBOXES)[0].document == {}


@pytest.mark.asyncio
async def test_a_block_that_fails_releases_and_tells_its_own_error(script: Script) -> None:
    script.on("DELETE", PATH, problem(404, "sandbox_not_found"))
    async with client(script) as fairlead:
        with pytest.raises(ZeroDivisionError):
            async with await fairlead.sandboxes.create():
                raise ZeroDivisionError
        assert len(script.asked("DELETE", PATH)) == 1


@pytest.mark.asyncio
async def test_a_sandbox_is_found_renewed_and_listed(script: Script) -> None:
    script.on("GET", PATH, Answer(document=document()))
    script.on("POST", f"{PATH}/renew", Answer(document=document(profile="renewed")))
    page: JsonObject = {"sandboxes": [document()], "unanswered_hosts": ["hst_gone"]}
    script.on("GET", SANDBOXES, Answer(document=page))
    silent: list[str] = []
    async with client(script) as fairlead:
        sandbox = await fairlead.sandboxes.get(SANDBOX_ID)
        assert (await sandbox.renew(lease=90)).profile == "renewed"
        assert sandbox.record.profile == "renewed"
        (listed,) = await fairlead.sandboxes.list(on_unanswered=silent.append)
    assert listed.sandbox_id == SANDBOX_ID
    assert silent == ["hst_gone"]
    assert script.asked("POST", f"{PATH}/renew")[0].document == {"lease": 90}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (404, "sandbox_not_found", SandboxNotFound),
        (409, "sandbox_in_use", SandboxInUse),
        (409, "sandbox_released", SandboxReleased),
        (409, "isolation_unavailable", IsolationUnavailable),
        (409, "network_unavailable", NetworkUnavailable),
        (400, "profile_unknown", ProfileUnknown),
        (400, "limit_exceeded", LimitExceeded),
    ],
)
async def test_refusals_are_typed(
    script: Script, status: int, reason: str, kind: type[FairleadError]
) -> None:
    script.on("POST", SANDBOXES, problem(status, reason))
    async with client(script) as fairlead:
        with pytest.raises(kind) as refused:
            await fairlead.sandboxes.create()
    assert refused.value.reason == reason


def test_the_blocking_client_has_the_same_calls(script: Script) -> None:
    script.on("GET", PATH, Answer(document=document()))
    script.on("POST", f"{PATH}/renew", Answer(document=document()))
    script.on("GET", SANDBOXES, Answer(document={"sandboxes": [document()]}))
    transport = ScriptedTransport(script)
    with Fairlead(url="http://door", api_key="k", transport=transport) as fairlead:
        with fairlead.sandboxes.create(isolation="walled") as sandbox:
            assert sandbox.record.isolation == "walled"
            assert sandbox.renew().sandbox_id == SANDBOX_ID
        assert len(script.asked("DELETE", PATH)) == 1
        assert fairlead.sandboxes.get(SANDBOX_ID).sandbox_id == SANDBOX_ID
        assert [each.sandbox_id for each in fairlead.sandboxes.list()] == [SANDBOX_ID]
        assert fairlead.sandboxes.renew(SANDBOX_ID).sandbox_id == SANDBOX_ID
        assert fairlead.sandboxes.release(SANDBOX_ID)


NETWORK = {
    "policy": {"mode": "egress", "allow": ["pypi.org"]},
    "decisions": [
        {
            "at": "2026-01-02T03:04:05Z",
            "host": "pypi.org",
            "port": 443,
            "address": "151.101.0.223",
            "reason": "allowed",
        },
        {
            "at": "2026-01-02T03:04:06Z",
            "host": "evil.test",
            "port": 443,
            "address": "",
            "reason": "not_listed",
        },
    ],
}


@pytest.mark.asyncio
async def test_a_network_policy_is_changed_and_its_decisions_are_shown(script: Script) -> None:
    changed = document(network={"mode": "none", "allow": []})
    script.on("PUT", f"{PATH}/network", Answer(document=changed))
    script.on("GET", f"{PATH}/network", Answer(document=NETWORK))
    async with client(script) as fairlead:
        sandbox = await fairlead.sandboxes.create(network="egress", allow=["pypi.org"])
        found = await sandbox.network()
        assert (found.network, found.allow) == ("egress", ("pypi.org",))
        assert [(each.host, each.allowed, each.reason) for each in found.decisions] == [
            ("pypi.org", True, "allowed"),
            ("evil.test", False, "not_listed"),
        ]
        record = await sandbox.set_network("none")
        assert (record.network, sandbox.record.network) == ("none", "none")
    (put,) = script.asked("PUT", f"{PATH}/network")
    assert put.document == {"mode": "none", "allow": []}


def test_the_blocking_client_changes_a_network_policy(script: Script) -> None:
    script.on("PUT", f"{PATH}/network", Answer(document=document()))
    script.on("GET", f"{PATH}/network", Answer(document=NETWORK))
    transport = ScriptedTransport(script)
    with (
        Fairlead(url="http://door", api_key="k", transport=transport) as fairlead,
        fairlead.sandboxes.create() as sandbox,
    ):
        assert sandbox.set_network("egress", allow=["pypi.org"]).allow == ("pypi.org",)
        assert len(sandbox.network().decisions) == 2
    (put,) = script.asked("PUT", f"{PATH}/network")
    assert put.document == {"mode": "egress", "allow": ["pypi.org"]}
