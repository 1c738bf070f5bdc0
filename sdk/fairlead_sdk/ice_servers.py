"""STUN and TURN servers that a session is handed out, as the front door writes them."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_sdk import json_form as form
from fairlead_sdk.json_form import JsonObject


@dataclass(frozen=True, slots=True)
class IceServer:
    """Servers that one peer may ask, as in WebRTC's RTCIceServer; a STUN server has no name."""

    urls: tuple[str, ...]
    username: str = ""
    credential: str = ""


def ice_servers_of(document: JsonObject) -> tuple[IceServer, ...]:
    """Read `ice_servers` of an opened session; empty when absent."""
    return tuple(
        IceServer(
            urls=form.texts(each, "urls"),
            username=form.text(each, "username"),
            credential=form.text(each, "credential"),
        )
        for each in form.children(document, "ice_servers")
    )
