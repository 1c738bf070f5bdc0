"""What a client may ask of the resident program: the provisioner's calls, and commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from chassis.clock import Clock
from chassis.errors import FairleadError
from chassis.ids import is_id
from workspace_provisioner.errors import FieldInvalid, WorkspaceNotFound
from workspace_provisioner.operations import SnapshotOperations, WorkspaceOperations
from workspace_provisioner.resident.calls import Answer, Call, Verb
from workspace_provisioner.resident.commands import run_command
from workspace_provisioner.resident.wire_forms import (
    TENANT,
    Fields,
    branch_of,
    command_of,
    lease_of,
    name_of,
    outcome_form,
    snapshot_form,
    source_of,
    tips_of,
    workspace_form,
    workspace_id_of,
)
from workspace_provisioner.sources import DEFAULT_LEASE, Source
from workspace_provisioner.workspaces import State, Workspace

log = logging.getLogger(__name__)

_LARGEST_PAGE = 1000
_PAGE = 100


class Verbs:
    """The verbs of one connection."""

    def __init__(
        self,
        *,
        workspaces: WorkspaceOperations,
        snapshots: SnapshotOperations,
        trees: Path,
        host_id: str,
        clock: Clock,
    ) -> None:
        self._workspaces = workspaces
        self._snapshots = snapshots
        self._trees = trees
        self._host_id = host_id
        self._clock = clock

    def table(self) -> Mapping[str, Verb]:
        """Return the verbs by their names."""
        return {
            "ping": self.ping,
            "materialize": self.materialize,
            "import": self.import_,
            "get": self.get,
            "list": self.list,
            "renew": self.renew,
            "release": self.release,
            "fork": self.fork,
            "rename": self.rename,
            "run": self.run,
        }

    async def ping(self, call: Call) -> Answer:
        """Answer at once, to show that the connection lives."""
        return {}

    async def materialize(self, call: Call) -> Answer:
        """Make a workspace, or say what is lacking."""
        return await self._materialized(source_of(Fields(call.fields)), Fields(call.fields))

    async def import_(self, call: Call) -> Answer:
        """Take the pack that follows, and make the workspace that `materialize` asks for."""
        fields = Fields(call.fields)
        source = source_of(fields)
        snapshot = await self._snapshots.receive(
            source,
            tips_of(fields, source),
            call.received(),
            tips_only=fields.flag("tips_only"),
        )
        answer: dict[str, object] = {"snapshot": snapshot_form(snapshot, host_id=self._host_id)}
        wanted = fields.part("materialize")
        if wanted is not None:
            answer["materialized"] = await self._materialized(source, wanted)
        return answer

    async def _materialized(self, source: Source, fields: Fields) -> Answer:
        outcome = await self._workspaces.materialize(
            idempotency_key=fields.text("idempotency_key"),
            source=source,
            branch=branch_of(fields),
            lease=lease_of(fields),
            name=name_of(fields),
            claims_branch=fields.flag("claim_branch"),
        )
        return outcome_form(outcome, trees=self._trees, host_id=self._host_id)

    async def get(self, call: Call) -> Answer:
        """Return a workspace, with the count of its changes when asked."""
        fields = Fields(call.fields)
        found = await self._workspaces.get(TENANT, workspace_id_of(fields))
        form = self._form(found)
        if fields.flag("count_changes"):
            form["changed_files"] = await self._workspaces.count_changes(found)
        return {"workspace": form}

    async def list(self, call: Call) -> Answer:
        """Return a page of workspaces."""
        fields = Fields(call.fields)
        size, token = fields.number("page_size"), fields.text("page_token")
        if size > _LARGEST_PAGE or (token and not is_id("wsp", token)):
            raise FieldInvalid(
                "page_size" if size > _LARGEST_PAGE else "page_token",
                "is not one that a page can have",
                remedy=f"Ask for at most {_LARGEST_PAGE}, with the token of the page before.",
            )
        page, rest = await self._workspaces.list(TENANT, size=size or _PAGE, after=token)
        return {"workspaces": [self._form(each) for each in page], "next_page_token": rest}

    async def renew(self, call: Call) -> Answer:
        """Move the end of a lease."""
        fields = Fields(call.fields)
        renewed = await self._workspaces.renew(TENANT, workspace_id_of(fields), lease_of(fields))
        return {"workspace": self._form(renewed)}

    async def release(self, call: Call) -> Answer:
        """Give a workspace back, by its id or by the key that made it."""
        fields = Fields(call.fields)
        checked = fields.flag("checked")
        if fields.text("workspace_id"):
            released = await self._workspaces.release(
                TENANT, workspace_id=workspace_id_of(fields), checked=checked
            )
        else:
            released = await self._workspaces.release(
                TENANT, idempotency_key=fields.text("idempotency_key"), checked=checked
            )
        return {"released": released}

    async def fork(self, call: Call) -> Answer:
        """Copy a workspace with its uncommitted changes."""
        fields = Fields(call.fields)
        copy = await self._workspaces.fork(
            TENANT,
            workspace_id_of(fields),
            idempotency_key=fields.text("idempotency_key"),
            name=name_of(fields),
            branch=branch_of(fields),
            lease=lease_of(fields),
            overlay=False,
        )
        return {"workspace": self._form(copy)}

    async def rename(self, call: Call) -> Answer:
        """Give a workspace another name."""
        fields = Fields(call.fields)
        renamed = await self._workspaces.rename(TENANT, workspace_id_of(fields), name_of(fields))
        return {"workspace": self._form(renamed)}

    async def run(self, call: Call) -> Answer:
        """Run a command in a workspace, which is held while the command runs."""
        fields = Fields(call.fields)
        request = command_of(fields)
        found = await self._workspaces.get(TENANT, workspace_id_of(fields))
        if found.state is not State.PROVISIONED:
            raise WorkspaceNotFound(found.workspace_id)
        async with self._held(found):
            return await run_command(call, request, tree=self._trees / found.workspace_id)

    @asynccontextmanager
    async def _held(self, workspace: Workspace) -> AsyncIterator[None]:
        """Renew the lease again and again, so that it cannot end under a command."""
        renewing = asyncio.ensure_future(self._renew_for_ever(workspace))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait((renewing,))

    async def _renew_for_ever(self, workspace: Workspace) -> None:
        third = DEFAULT_LEASE / 3
        while True:
            pause = third
            if workspace.expires_at < self._clock.now() + 2 * third:
                try:
                    workspace = await self._workspaces.renew(
                        TENANT, workspace.workspace_id, DEFAULT_LEASE
                    )
                except WorkspaceNotFound:
                    return
                except FairleadError as error:
                    # A full disk, perhaps, which the command itself may clear again.
                    log.warning("lease not renewed", extra={"cause": error.reason})
                    pause = third / 20
            await asyncio.sleep(pause.total_seconds())

    def _form(self, workspace: Workspace) -> dict[str, object]:
        return workspace_form(workspace, trees=self._trees, host_id=self._host_id)
