"""The gateway's settings."""

from __future__ import annotations

from pydantic import Field

from chassis.settings import RoomSettings, room_config


class Settings(RoomSettings):
    """Read from FAIRLEAD_RELAY_…, and the names that all rooms share."""

    model_config = room_config("FAIRLEAD_RELAY_")

    http_bind: str = Field(
        default="127.0.0.1:7310",
        description="Where /healthz and /readyz are served, host:port; port 0 takes a free one.",
    )
    signalling: str = Field(
        default="127.0.0.1:7302",
        description="Signalling's internal address to dial, host:port or unix:/path.",
    )
    workers_bind: str = Field(
        default="127.0.0.1:7311",
        description="Where workers dial it with the connections of channels: unix:/path or"
        " host:port.",
    )
    workers_advertise: str = Field(
        default="",
        description="The address that workers are told to dial; the bound one when empty.",
    )
    sessions: int = Field(default=256, ge=1, le=65536, description="Most sessions that it takes.")
    channels_per_session: int = Field(
        default=256, ge=1, le=16384, description="Most channels that one session may have open."
    )
