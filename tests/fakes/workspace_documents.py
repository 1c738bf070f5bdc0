"""JSON documents of workspaces and of their misses, as the front door sends them."""

from __future__ import annotations

from tests.fakes.scripted_door import Answer

WORKSPACE_ID = "wsp_" + "a" * 26
PATH = f"/v1/workspaces/{WORKSPACE_ID}"
TOKEN = "token-1"

Document = dict[str, object]


def workspace(**members: object) -> Document:
    """Make a workspace."""
    document: Document = {
        "workspace_id": WORKSPACE_ID,
        "state": "provisioned",
        "name": "fix",
        "project": "p",
        "commit": "c" * 40,
        "branch": "main",
        "host_id": "hst_" + "a" * 26,
        "rung": "overlay",
        "has_submodules": False,
        "lfs_pointers": 0,
        "tags_left_out": False,
        "changed_files": None,
        "freshness": None,
        "created_at": "2026-01-02T03:04:05.678901Z",
        "expires_at": "2026-01-02T03:34:05Z",
    }
    return document | members


def miss(reason: str = "no_base", *tips: str) -> Answer:
    """Make a miss, as `POST /v1/workspaces` answers it."""
    return Answer(
        status=409,
        document={
            "status": 409,
            "reason": reason,
            "detail": "The host lacks it.",
            "remedy": "Send it.",
            "wanted": ["c" * 40],
            "tips": list(tips),
            "upload_token": TOKEN,
            "expires_at": "2026-01-02T03:06:05Z",
        },
    )


def uploaded(made: Document | None) -> Answer:
    """Make the answer to an upload, with the workspace that it led to."""
    return Answer(
        status=201,
        document={
            "snapshot_id": "snp_" + "a" * 26,
            "project": "p",
            "host_id": "hst_" + "a" * 26,
            "digest": "",
            "tips": [],
            "created_at": "2026-01-02T03:04:05.678901Z",
            "received_bytes": 9,
            "workspace": made,
        },
    )
