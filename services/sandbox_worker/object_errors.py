"""The errors of objects that live in sandboxes."""

from __future__ import annotations

from chassis.errors import InvalidArgument, ResourceExhausted


class ObjectsFrameInvalid(InvalidArgument):
    """A frame of an attachment is malformed or out of its order."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            sentence,
            reason="objects_frame_invalid",
            remedy="Send `open` first and once; then content of at most 1 MiB each.",
        )


class ObjectsBusy(ResourceExhausted):
    """The sandbox has as many Pythons that hold objects as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The sandbox has {most} Pythons that hold objects, which is its limit.",
            reason="objects_busy",
            remedy="Close classes that are isolated there, or let them share one: share_key.",
            fields={"limit": str(most)},
        )
