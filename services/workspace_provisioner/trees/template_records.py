"""Templates as JSON: the READY file that makes a checkout one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NotRequired, TypedDict

from workspace_provisioner.sources import ObjectFormat, ProjectKey
from workspace_provisioner.stamps import StampRecord, stamp_of, stamp_record
from workspace_provisioner.templates import Template

READY = "READY"


class TemplateRecord(TypedDict):
    """A template's record on disk. `boot` is the boot in which its files were written, until they
    are known to be on the disk; then it is empty.
    """

    template_id: str
    tenant: str
    project: str
    object_format: str
    commit: str
    base: str
    under: NotRequired[str]
    tree: NotRequired[str]
    has_submodules: bool
    submodules_fault: str
    lfs_pointers: int
    converts: bool
    files: int
    size: int
    made_at: float
    grafted: bool
    tags: NotRequired[str]
    stamp: StampRecord
    boot: str


def ready_text(template: Template, boot: str) -> bytes:
    """Return what READY says."""
    key = template.key
    record = TemplateRecord(
        template_id=template.template_id,
        tenant=key.tenant,
        project=key.project,
        object_format=key.object_format,
        commit=template.commit,
        base=template.base,
        under=template.under,
        tree=template.tree,
        has_submodules=template.has_submodules,
        submodules_fault=template.submodules_fault,
        lfs_pointers=template.lfs_pointers,
        converts=template.converts,
        files=template.files,
        size=template.size,
        made_at=template.made_at,
        grafted=template.grafted,
        tags=template.tags,
        stamp=stamp_record(template.stamp),
        boot=boot,
    )
    return json.dumps(record).encode()


def read_ready(directory: Path) -> tuple[Template, str] | None:
    """Read a directory's READY: the template and its boot; None when it has none, or a torn one."""
    try:
        record: TemplateRecord = json.loads((directory / READY).read_bytes())
        key = ProjectKey(record["tenant"], record["project"], ObjectFormat(record["object_format"]))
        template = Template(
            template_id=record["template_id"],
            key=key,
            commit=record["commit"],
            base=record["base"],
            under=record.get("under", ""),
            tree=record.get("tree", ""),
            has_submodules=record["has_submodules"],
            submodules_fault=record["submodules_fault"],
            lfs_pointers=record["lfs_pointers"],
            converts=record["converts"],
            files=record["files"],
            size=record["size"],
            made_at=record["made_at"],
            grafted=record["grafted"],
            tags=record.get("tags", ""),
            stamp=stamp_of(record["stamp"]),
        )
        return template, record["boot"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
