"""What the OpenAPI document says in words: descriptions of what has the same meaning wherever it
stands, examples of bodies, and the text in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead_limits import table

PREFACE: Final = f"""A git workspace, a sandbox to run in and a tunnel to reach it.

**Keys.** Every call below `/v1` takes `Authorization: Bearer <key>`.

**Errors** are problem documents (RFC 9457) with a stable `reason`, a sentence and a remedy. 503
means try again. Parameters of a query that its route does not know are refused (`query_unknown`),
as are unknown fields of a body (`invalid_body`).

**Idempotency.** Every mutation takes `Idempotency-Key`: {table.IDEMPOTENCY_KEY.rule},
`{table.IDEMPOTENCY_KEY.pattern}`. The same key with the same body gets the same answer for 24
hours, with another body 409 `idempotency_conflict`.

**Bodies** have at most 64 KiB, and as much more as their route needs: 1 MiB at most, of a batch
(413 `body_too_large`). Packs (`POST /v1/snapshots`) and files (`PUT …/files/…`) are streamed, and
bounded by the host. What fields may hold is in docs/limits.md.

**Streams** are NDJSON (`application/x-ndjson`), or server-sent events when `text/event-stream` is
accepted. Each event has a cursor, to go on from with `?cursor=` or `Last-Event-ID`. Exactly one
event is terminal; closing a stream stops nothing.

**WebSockets** (docs/protocol.md). A browser, which cannot send headers, offers the subprotocol of
the route and `fairlead.key.<key>`.

- `/v1/executions/{{execution_id}}/terminal`, `fairlead.terminal.v1`: types into a terminal and
  shows it
- `/v1/sandboxes/{{sandbox_id}}/objects`, `fairlead.objects.v1`: Python objects in a sandbox
- `/v1/sessions/{{session_id}}/watch?cursor=`, `fairlead.session.v1`: events of a session, the first
  one is `subscribed`
"""

PARAMETERS: Final[Mapping[str, tuple[str, str]]] = {
    "launch_id": ("Id of a launch.", "lch_aaaaaaaaaaaaaaaaaaaaaaaaaa"),
    "workspace_id": ("Id of a workspace.", "wsp_aaaaaaaaaaaaaaaaaaaaaaaaaa"),
    "sandbox_id": ("Id of a sandbox.", "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa"),
    "execution_id": ("Id of an execution.", "exe_aaaaaaaaaaaaaaaaaaaaaaaaaa"),
    "session_id": (
        "Id of a session, or its client's name for it.",
        "ses_aaaaaaaaaaaaaaaaaaaaaaaaaa",
    ),
}
"""Parameters of paths: their meaning and an example."""

FIELDS: Final[Mapping[str, str]] = {
    "address": "Address.",
    "allow": "Entries of the allow list.",
    "answer": "The gateway's answer.",
    "arguments": "Program and arguments.",
    "as_of": "When the upstream last told its tip; null when it never did.",
    "at": "When it was decided.",
    "attributes": "Attributes of the span.",
    "branch": "Branch; empty when HEAD is detached.",
    "cancelled": "Of `cancelled`.",
    "changed_files": "Files that differ from the commit; null when they were not counted.",
    "changes": "Uncommitted changes; none when null.",
    "channels": "Channels that are open.",
    "command": "The command.",
    "commit": "Full object id of a commit.",
    "commits": "New commits; none when null.",
    "connected_at": "When it connected.",
    "content": "Content in base64.",
    "content_bytes": "Bytes of their content.",
    "counter": "Number within the epoch.",
    "cpu_milli": "Thousandths of a processor.",
    "created_at": "When it was made.",
    "critical": "Whether somebody should look.",
    "cursor": "Where to go on from.",
    "decisions": "The last decisions, oldest first.",
    "detail": "How it was done, such as the rung of a workspace.",
    "digest": "Digest of the local heads; may be empty.",
    "directories": "Directories that are watched.",
    "directory": "Whether it is a directory.",
    "discarded": "Whether changes were discarded with the workspace.",
    "disk_bytes": "Bytes that the sandbox may add to the disk.",
    "draining": "Whether it is about to stop and takes nothing more.",
    "elapsed": "Seconds that the step took; null while it goes on.",
    "ended_at": "When it ended; null while it goes on.",
    "entries": "Files and directories.",
    "environment": "Variables on top of the sandbox's own, at most 128 KiB.",
    "epoch": "Life of the host's worker.",
    "etag": "Names this content of the file.",
    "execution": "The execution.",
    "execution_id": "Id of the execution; empty before there is one.",
    "exit": "How it ended; null while it runs.",
    "exited": "Of `exited`.",
    "expires_at": "When its lease or its time ends.",
    "failed": "Whether it failed; in an event, of `failed`.",
    "failure": "Why it failed; null unless it did.",
    "fallback": "Whether the client's own commit was taken.",
    "fence": "Orders the holders of the sandbox.",
    "file": "A file operation.",
    "file_bytes": "Size of each file that is written.",
    "files": "The files.",
    "first_sequence": "Number of the first record that is missing.",
    "freshness": "How the upstream's tip was found; null when none was asked for.",
    "gap": "Records that are missing.",
    "gateway_id": "Id of the gateway.",
    "gateways": "The gateways.",
    "has_submodules": "Whether the tree has submodules.",
    "host_id": "Id of the host; empty before one is chosen.",
    "hosts": "The hosts.",
    "ice_policy": "Which paths it may take.",
    "ice_servers": "STUN and TURN servers.",
    "isolation": "Isolation that it has.",
    "items": "Pieces of work, done one after the other.",
    "keep": "Whether everything is held after the command has ended.",
    "last_sequence": "Number of the last record or event.",
    "launch": "The launch.",
    "launch_id": "Id of the launch.",
    "launches": "The launches.",
    "limits": "Limits.",
    "make_directory": "Make a directory.",
    "memory_bytes": "Bytes of memory.",
    "message": "A sentence.",
    "miss": "Of `miss`.",
    "mode": "What of the network it reaches, or how a session's peers meet.",
    "move": "Rename a file or a tree.",
    "name": "Name; empty for none.",
    "network": "Network; the profile's or the isolation's when null.",
    "next_page_token": "Empty on the last page.",
    "occurred_at": "When it happened.",
    "open_files": "Open files of each process.",
    "outcomes": "What became of each, in the same order.",
    "output": "Of `output`.",
    "output_bytes": "Bytes of output that are kept of each execution.",
    "overwrite": "Replace what is there.",
    "page_size": "How many at once.",
    "page_token": "`next_page_token` of the page before.",
    "parent_span_id": "Id of the span that it belongs to; empty for the first.",
    "parents": "Make directories above it.",
    "path": "Path below the workspace; `%` and bytes that are not UTF-8 are percent-encoded.",
    "permissions": "Permission bits.",
    "policy": "The policy in force.",
    "port": "Port.",
    "processes": "Processes and threads.",
    "profile": "Profile that it was made with.",
    "project": "The caller's name for the project.",
    "provisioned": "Of `provisioned`.",
    "read": "Read a whole small file.",
    "reason": "Why, as one stable word.",
    "recursive": "With what is in it.",
    "ref": "Full name of a ref.",
    "released_at": "When what it held was given back; null before.",
    "remedy": "What to do.",
    "remove": "Remove a file.",
    "removed": "Whether it was removed.",
    "retryable": "Whether another one may work.",
    "sandbox_id": "Id of the sandbox; empty before there is one.",
    "sandboxes": "The sandboxes, or how many there are.",
    "sequence": "Number, from 1.",
    "service": "Service that opened it.",
    "session": "The session.",
    "session_id": "Id of the session; empty when there is none.",
    "sessions": "The sessions, or how many there are.",
    "size_bytes": "Bytes of content.",
    "snapshot": "What there is when the stream begins.",
    "snapshot_id": "Id of the snapshot.",
    "source": "What to check out; of a move, where it was.",
    "span_id": "Id of the span.",
    "spans": "The spans.",
    "stands": "Whether it stands.",
    "started_at": "When it began.",
    "stat": "Describe a file.",
    "state": "How far it has come.",
    "status": "`ok`.",
    "step": "Step of the launch.",
    "stream": "Standard output or standard error.",
    "tips": "Tips of the host or the client.",
    "trace_id": "Id of the trace (W3C).",
    "type": "Which event it is.",
    "upload_token": "Token for `POST /v1/snapshots?upload=`.",
    "upstream": "Upstream whose tip is wanted; none when null.",
    "urls": "Addresses.",
    "user_initiated": "Whether a person or a program wanted it.",
    "wall_time": "Seconds that each execution may run.",
    "walls": "What holds it in.",
    "wanted": "Objects that are lacking.",
    "workspace_id": "Id of the workspace; empty before there is one.",
    "workspaces": "The workspaces.",
    "write": "Write a whole small file.",
    "written_at": "When it was written.",
    "executions": "The executions.",
    "rows": "Rows.",
    "columns": "Columns.",
}
"""What a field means where its model says nothing else."""

_COMMIT: Final = "a" * 40
_SOURCE: Final = {"project": "example", "commit": _COMMIT, "branch": "main"}

EXAMPLES: Final[Mapping[str, Mapping[str, object]]] = {
    "LaunchBody": {
        "source": _SOURCE,
        "command": {"arguments": ["pytest", "-q"], "timeout": 300},
    },
    "RenewBody": {"lease": 1800},
    "MaterializeBody": {"source": _SOURCE, "name": "fix-login", "lease": 3600},
    "ForkBody": {"name": "fix-login-2", "branch": "try-2"},
    "RenameBody": {"name": "fix-login"},
    "SandboxBody": {
        "limits": {"memory_bytes": 1 << 30, "processes": 256},
        "network": {"mode": "egress", "allow": ["pypi.org", "*.pythonhosted.org"]},
        "lease": 600,
    },
    "NetworkBody": {"mode": "egress", "allow": ["pypi.org"]},
    "CommandBody": {"arguments": ["sh", "-c", "echo hello"], "timeout": 30},
    "BatchBody": {
        "items": [
            {"file": {"write": {"path": "in.txt", "content": "aGVsbG8="}}},
            {"command": {"arguments": ["cat", "in.txt"]}},
        ]
    },
    "StdinBody": {"offset": 0, "content": "aGVsbG8K", "close": True},
    "SignalBody": {"signal": 15},
    "TerminalBody": {"rows": 24, "columns": 80},
    "StatBody": {"path": "notes.txt"},
    "ListBody": {"path": "src", "page_size": 100},
    "MoveBody": {"source": "a.txt", "target": "b.txt"},
    "MakeBody": {"path": "notes/today", "parents": True},
    "WatchBody": {"path": "src", "recursive": True},
    "OpenBody": {"target": "lch_aaaaaaaaaaaaaaaaaaaaaaaaaa", "mode": "tunnel"},
    "OfferBody": {"offer": "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\n…"},
    "CandidatesBody": {
        "candidates": ["candidate:1 1 udp 2130706431 192.0.2.1 50000 typ host"],
        "end_of_candidates": True,
    },
    "RestartBody": {},
}
"""A body that each route takes, by its model."""
