"""The command's side of the agent: hand the command line over, write what comes back, and take the
launch up again where the agent left it when it dies.

It uses the C modules below `socket` and `signal`, and no others: the whole launch is to cost little
more than Python's own start.

A frame is one byte of kind, four bytes of length and the content. From the agent: `e` an event
(launch id, cursor, and what to write, whole or not at all), `b` the key and the body that are sent,
`x` the exit status, `y` that the command shall do it itself. To the agent: `i`, an interrupt.
"""

from __future__ import annotations

import _socket
import os
import sys

from fairlead_sdk.agent_place import agent_environment, agent_socket_path, agent_token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INTERRUPTED = 130
READER_GONE = 141
_RECEIVED_BYTES = 256 * 1024


class Takeover:
    """A launch that an agent began and did not see to its end; what is not known is empty."""

    def __init__(self) -> None:
        self.key = ""
        self.body = b""
        self.launch_id = ""
        self.cursor = ""


def frame(kind: bytes, content: bytes = b"") -> bytes:
    """Make a frame."""
    return kind + len(content).to_bytes(4, "big") + content


def dial(environment: Mapping[str, str], verb: str, argument: str = "") -> _socket.socket | None:
    """Connect to the agent and say what is wanted; `None` when there is none of this user."""
    path = agent_socket_path(environment)
    if path is None:
        return None
    plug = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        plug.connect(path)
        if peer_user(plug) != os.geteuid():
            raise OSError
        words = ["fairlead-agent", agent_token(environment), verb]
        plug.sendall(" ".join([*words, argument] if argument else words).encode() + b"\n")
    except OSError:
        plug.close()
        return None
    return plug


def peer_user(plug: _socket.socket) -> int:
    """Give the user at the other end (unix(7), SO_PEERCRED), or one's own where that is not said
    and the directory's mode alone protects.
    """
    option = getattr(_socket, "SO_PEERCRED", None)
    if option is None:
        return os.geteuid()
    found = plug.getsockopt(_socket.SOL_SOCKET, option, 12)
    return int.from_bytes(found[4:8], sys.byteorder)


def launch_by_agent(arguments: Sequence[str], command: Sequence[str]) -> int | Takeover | None:
    """Launch by the agent and give the exit status; `None` when there is none, or it declines."""
    plug = dial(os.environ, "launch")
    if plug is None:
        return None
    try:
        return _followed(plug, _request(arguments, command))
    finally:
        plug.close()


def _request(arguments: Sequence[str], command: Sequence[str]) -> bytes:
    try:
        columns = os.get_terminal_size(2).columns
    except OSError:
        columns = 0
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not os.isatty(2)
    fields = (
        agent_environment(os.environ),
        os.getcwd(),
        os.environ.get("PWD", ""),
        "" if plain else "live",
        str(columns),
        str(len(arguments)),
        *arguments,
        *command,
    )
    return frame(b"l", "\0".join(fields).encode("utf-8", "surrogateescape"))


def _followed(plug: _socket.socket, request: bytes) -> int | Takeover | None:
    takeover = Takeover()
    frames = _Frames(plug)
    is_interrupted = False
    try:
        plug.sendall(request)
    except OSError:
        return None
    while True:
        try:
            kind, content = frames.take()
            match kind:
                case b"e":
                    _take_event(content, takeover)
                case b"b":
                    key, _, takeover.body = content.partition(b"\0")
                    takeover.key = key.decode("ascii")
                case b"x":
                    return content[0]
                case _:
                    break
        except KeyboardInterrupt:
            if is_interrupted:
                return INTERRUPTED
            is_interrupted = True
            try:
                plug.sendall(frame(b"i"))
            except OSError:
                break
        except BrokenPipeError:
            return READER_GONE
        except OSError:
            break
    if is_interrupted:
        return INTERRUPTED
    return takeover if takeover.key else None


class _Frames:
    """The frames of an agent, after its line `ok`; it keeps what an interrupt leaves half read."""

    def __init__(self, plug: _socket.socket) -> None:
        self._plug = plug
        self._kept = b""
        self._is_ours = False

    def take(self) -> tuple[bytes, bytes]:
        """Give the next whole frame; an empty kind once the agent is gone, or does not want us."""
        while not self._is_ours:
            line, newline, rest = self._kept.partition(b"\n")
            if newline and line != b"ok":
                return b"", b""
            if newline:
                self._is_ours, self._kept = True, rest
            elif not self._receive():
                return b"", b""
        while True:
            end = 5 + int.from_bytes(self._kept[1:5], "big")
            if len(self._kept) >= max(5, end):
                kind, content = self._kept[:1], self._kept[5:end]
                self._kept = self._kept[end:]
                return kind, content
            if not self._receive():
                return b"", b""

    def _receive(self) -> bool:
        received = self._plug.recv(_RECEIVED_BYTES)
        self._kept += received
        return bool(received)


def _take_event(content: bytes, takeover: Takeover) -> None:
    """Write what an event brings; from now on it counts as seen."""
    launch_id, cursor, rest = content.split(b"\0", 2)
    takeover.launch_id, takeover.cursor = launch_id.decode("ascii"), cursor.decode("ascii")
    while rest:
        size = int.from_bytes(rest[1:5], "big")
        _write_all(rest[0], rest[5 : 5 + size])
        rest = rest[5 + size :]


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
