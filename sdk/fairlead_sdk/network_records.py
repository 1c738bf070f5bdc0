"""What a sandbox reaches, and what it lately tried to reach, as the front door describes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fairlead_sdk import json_form as form
from fairlead_sdk.json_form import JsonObject


@dataclass(frozen=True, slots=True)
class NetworkDecision:
    """What was decided about one connection; `reason` is `allowed`, or why not.

    `host` is empty when the request could not be read, `address` when none was chosen.
    """

    at: datetime
    host: str
    port: int
    address: str
    reason: str

    @property
    def allowed(self) -> bool:
        """Whether bytes were carried."""
        return self.reason == "allowed"

    @classmethod
    def read(cls, document: JsonObject) -> NetworkDecision:
        """Read the JSON form."""
        return cls(
            at=form.time_or_epoch(document, "at"),
            host=form.text(document, "host"),
            port=form.number(document, "port"),
            address=form.text(document, "address"),
            reason=form.text(document, "reason"),
        )


@dataclass(frozen=True, slots=True)
class NetworkRecord:
    """A sandbox's policy, and the last decisions about its connections, oldest first."""

    network: str
    allow: tuple[str, ...]
    decisions: tuple[NetworkDecision, ...]
    document: JsonObject

    @classmethod
    def read(cls, document: JsonObject) -> NetworkRecord:
        """Read the JSON form."""
        policy = form.child(document, "policy") or {}
        return cls(
            network=form.text(policy, "mode"),
            allow=tuple(form.texts(policy, "allow")),
            decisions=tuple(
                NetworkDecision.read(each) for each in form.children(document, "decisions")
            ),
            document=document,
        )
