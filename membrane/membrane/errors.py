"""What can go wrong at the wall, each as a class with fields and a remedy in its text."""

from __future__ import annotations


class MembraneError(Exception):
    """Name any fault of the membrane itself, or what a child raised (`RemoteError`)."""


class IsolationWarning(UserWarning):
    """Warn that a child is not walled, since walls cannot be had and were not demanded.

    Given once in a process for each reason. `isolation="walled"` raises UnsupportedUse instead,
    `isolation="process"` says that no walls are wanted.
    """


class ModuleLeak(MembraneError):
    """Say that a protected module was found in the calling process.

    `modules` are the names found in `sys.modules`, `tree` is the protected package. The remedy is
    to import it only behind the wall: whoever imported it here must stop doing so, and the process
    must be started again.
    """

    def __init__(self, *, tree: str, modules: tuple[str, ...]) -> None:
        self.tree = tree
        self.modules = modules
        found = ", ".join(modules[:5]) + (", ..." if len(modules) > 5 else "")
        super().__init__(
            f"{found} is imported in the calling process though {tree} lives behind the wall; "
            "remove that import and start the process again"
        )


class ProtocolError(MembraneError):
    """Say that the other side sent what the protocol does not allow; its session is not used
    again.
    """


class UnsupportedUse(MembraneError, TypeError):
    """Say that an object of the membrane was used in a way that cannot work, such as pickling a
    proxy.
    """


class DeadlineExceeded(MembraneError, TimeoutError):
    """Say that a call was not answered within its deadline of `seconds`; the child was told to give
    it up.
    """

    def __init__(self, *, seconds: float, what: str = "the call") -> None:
        self.seconds = seconds
        super().__init__(
            f"{what} was not answered within {seconds:g} s; it was cancelled. "
            "Give a longer deadline to isolate(deadline=...) or with_options(deadline=...)"
        )


class ChildLost(MembraneError, ConnectionError):
    """Say that the child ended, was killed or was replaced; its objects are gone.

    A class made by `isolate` can be used again at once: its next construction gets a fresh child.
    """


class SessionConflict(MembraneError, ValueError):
    """Say that a share key is in use with other settings; `setting` is the first that differs."""

    def __init__(self, *, share_key: str, setting: str, held: object, wanted: object) -> None:
        self.share_key = share_key
        self.setting = setting
        super().__init__(
            f"the session {share_key!r} is open with {setting}={held!r}, not {wanted!r}; "
            "use the same settings, another share_key, or close_session first"
        )


class AccessRefused(MembraneError, PermissionError):
    """Say that a child asked for what it was not given; `operation` and `name` are what it asked
    for.
    """

    def __init__(self, *, operation: str, name: str, remedy: str) -> None:
        self.operation = operation
        self.name = name
        super().__init__(f"the child may not {operation} {name!r}: {remedy}")


class GrowthRefused(MembraneError, MemoryError):
    """Say that a child asked for more of the caller's memory than it may have: by `operation` on
    an object of `kind`, beyond `limit` bytes.
    """

    def __init__(self, *, operation: str, kind: str, limit: int) -> None:
        self.operation = operation
        self.kind = kind
        self.limit = limit
        super().__init__(
            f"{operation} of a {kind} of the caller would take more than the {limit >> 20} MiB of "
            "its memory that a child may fill; return what is large as a result, in parts, or "
            "declare the child trusted"
        )


class RemoteError(MembraneError):
    """Carry an exception of the other side: its type, message and traceback, as text.

    What is raised is also of the nearest built-in type of the original, so that `except KeyError`
    finds a remote KeyError. `remote_type` is "module.qualname", `remote_traceback` is empty where
    the other side does not tell it.
    """

    remote_type: str = ""
    remote_message: str = ""
    remote_traceback: str = ""

    def __str__(self) -> str:
        return self.remote_message


class ModuleUnreachable(RemoteError, ImportError):
    """Say that the child may not enter or read where a module could be; see its text for where."""


class MemoryExceeded(RemoteError, MemoryError):
    """Say that the child had no more memory for what it was doing; it lives on."""

    def __str__(self) -> str:
        return (
            f"{self.remote_message or 'the child has no more memory'}; give it more with "
            "isolate(memory_bytes=...), or hand it less at one time"
        )
