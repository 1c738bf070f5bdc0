"""The class that is isolated: small calls, payloads, callbacks, a native module with state of the
process (`readline`), and computation. Whoever compares must never import this module, but for the
direct call.
"""

from __future__ import annotations

import hashlib
import readline
from collections.abc import Callable, Mapping, Sequence

MODULUS = 1_000_000_007
_CALLBACKS_AT_ONCE = 64


class Workload:
    """Work with results that depend on nothing but its arguments; `rounds` of PBKDF2 a score."""

    def __init__(self, seed: str, rounds: int) -> None:
        self._salt = seed.encode()
        self._rounds = rounds
        self._value = 0

    def ping(self) -> int:
        """Return a number that needs no work."""
        return len(self._salt)

    def set_value(self, value: int) -> int:
        """Replace the state."""
        self._value = value
        return value

    def increment(self, delta: int) -> int:
        """Add to the state and return it."""
        self._value += delta
        return self._value

    def payload_checksum(self, payload: Mapping[str, object]) -> int:
        """Hash each pair of a mapping, in the order of its keys."""
        checksum = 0
        for key in sorted(payload):
            digest = hashlib.sha256(f"{key}={payload[key]}".encode()).digest()
            checksum = (checksum + int.from_bytes(digest[:8], "big")) % MODULUS
        return checksum

    def sum_values(self, values: Sequence[int]) -> int:
        """Add numbers one by one, in Python."""
        total = 0
        for value in values:
            total += value
        return total

    def echo_bytes(self, payload: bytes) -> bytes:
        """Return what came."""
        return payload

    def callback_accumulate(self, callback: Callable[[int], int], count: int) -> int:
        """Add up what a callback answers to 0 up to `count`, many at once where it has `batch`."""
        batch = getattr(callback, "batch", None)
        if batch is None:
            return self.callback_each(callback, count)
        total = 0
        for start in range(0, count, _CALLBACKS_AT_ONCE):
            end = min(start + _CALLBACKS_AT_ONCE, count)
            answered = batch([([index], {}) for index in range(start, end)])
            total += sum(answered if isinstance(answered, list) else answered.values())
        return total

    def callback_each(self, callback: Callable[[int], int], count: int) -> int:
        """Add up what a callback answers to 0 up to `count`, one call at a time."""
        total = 0
        for index in range(count):
            total += callback(index)
        return total

    def compute_checksum(self, label: str, start: int, count: int) -> int:
        """Add up `count` scores, each of them PBKDF2."""
        checksum = 0
        for index in range(start, start + count):
            key = hashlib.pbkdf2_hmac(
                "sha256", f"{label}:{index}".encode(), self._salt, self._rounds
            )
            score = int.from_bytes(key[:8], "big") ^ int.from_bytes(key[8:16], "big")
            checksum = (checksum + score) % MODULUS
        return checksum

    def readline_digest(self, label: str, start: int, count: int) -> str:
        """Fill readline's history with `count` items, and hash what it then says."""
        before = readline.get_completer_delims()
        readline.set_completer_delims(f"{before}|")
        readline.parse_and_bind("tab: complete")
        readline.clear_history()
        try:
            for index in range(start, start + count):
                readline.add_history(f"{label}:{index}")
            length = readline.get_current_history_length()
            first, last = readline.get_history_item(1), readline.get_history_item(length)
            said = f"{length}|{first}|{last}|{readline.get_completer_delims()}"
            return hashlib.sha256(said.encode()).hexdigest()
        finally:
            readline.set_completer_delims(before)
            readline.clear_history()

    def mixed_pipeline(
        self, label: str, start: int, count: int, values: Sequence[int]
    ) -> dict[str, int | str]:
        """Do some of everything in one call."""
        return {
            "checksum": self.compute_checksum(label, start, count),
            "payload_sum": self.sum_values(values),
            "readline_digest": self.readline_digest(label, start, count),
            "value": self.increment(count),
        }
