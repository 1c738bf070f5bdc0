"""Classes that live behind the wall in tests: one of everything that a proxy forwards."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import ClassVar


class ShopError(KeyError):
    """An exception of the protected module."""


class Shelf:
    """A container of items."""

    def __init__(self, *items: object) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __bool__(self) -> bool:
        return bool(self.items)

    def __iter__(self) -> Iterator[object]:
        return iter(self.items)

    def __getitem__(self, place: int) -> object:
        return self.items[place]

    def __setitem__(self, place: int, item: object) -> None:
        self.items[place] = item

    def __delitem__(self, place: int) -> None:
        del self.items[place]

    def __contains__(self, item: object) -> bool:
        return item in self.items

    def __reversed__(self) -> Iterator[object]:
        return reversed(self.items)

    def __repr__(self) -> str:
        return f"Shelf({self.items})"

    def __str__(self) -> str:
        return f"a shelf of {len(self.items)}"

    def __bytes__(self) -> bytes:
        return bytes(len(self.items))

    def __format__(self, specification: str) -> str:
        return f"shelf:{specification}"


class Money:
    """An amount with all of arithmetic."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __add__(self, other: object) -> Money:
        if isinstance(other, Money):
            return Money(self.amount + other.amount)
        if isinstance(other, int):
            return Money(self.amount + other)
        return NotImplemented

    def __radd__(self, other: object) -> Money:
        if isinstance(other, int):
            return Money(1000 + other + self.amount)
        return NotImplemented

    def __iadd__(self, other: int) -> Money:  # type: ignore[misc]
        self.amount += other
        return self

    def __sub__(self, other: Money) -> Money:
        return Money(self.amount - other.amount)

    def __mul__(self, other: int) -> Money:
        return Money(self.amount * other)

    def __divmod__(self, other: int) -> tuple[int, int]:
        return divmod(self.amount, other)

    def __neg__(self) -> Money:
        return Money(-self.amount)

    def __abs__(self) -> Money:
        return Money(abs(self.amount))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.amount == self.amount

    def __hash__(self) -> int:
        return hash(("money", self.amount))

    def __lt__(self, other: Money) -> bool:
        return self.amount < other.amount

    def __int__(self) -> int:
        return self.amount

    def __float__(self) -> float:
        return float(self.amount)

    def __index__(self) -> int:
        return self.amount

    def __round__(self, digits: int = 0) -> int:
        return round(self.amount, digits)


class Listed:
    """Equal by value, and so without a hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listed)


class Item:
    """What a shop makes; factories return it."""

    def __init__(self, name: str, owner: object = None) -> None:
        self.name = name
        self.owner = owner

    def label(self) -> str:
        return f"item {self.name}"

    def kind(self) -> str:
        return "item"


class RareItem(Item):
    """An item of a derived class."""

    label_count: ClassVar[int] = 1

    def kind(self) -> str:
        return "rare"


class Shop:
    """A shop behind the wall."""

    limit = 10
    made: ClassVar[list[str]] = []

    class Till:
        """A nested class."""

        def ring(self) -> str:
            return "ring"

    def __init__(self, name: str = "corner", *, stock: int = 0) -> None:
        self.name = name
        self.stock = stock
        self._secret = "below the counter"
        self.kept: object = None
        self._lock = threading.Lock()

    @property
    def title(self) -> str:
        """The name in capitals."""
        return self.name.upper()

    @title.setter
    def title(self, title: str) -> None:
        self.name = title.lower()

    @title.deleter
    def title(self) -> None:
        self.name = ""

    @classmethod
    def open_default(cls, name: str) -> Shop:
        return cls(name, stock=1)

    @staticmethod
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    def ping(self) -> int:
        return 1

    def add(self, number: int, *, times: int = 1) -> int:
        self.stock += number * times
        return self.stock

    def locked_add(self, number: int) -> None:
        with self._lock:
            self.stock += number

    def echo(self, value: object) -> object:
        return value

    def keep(self, value: object) -> None:
        self.kept = value

    def given(self) -> object:
        return self.kept

    def is_kept(self, value: object) -> bool:
        return value is self.kept

    def item(self, name: str) -> Item:
        return Item(name, self)

    def rare(self, name: str) -> RareItem:
        return RareItem(name)

    def items(self, count: int) -> list[Item]:
        return [Item(str(number)) for number in range(count)]

    def same(self) -> Shop:
        return self

    def owner_of(self, item: Item) -> object:
        return item.owner

    def label_of(self, item: Item) -> str:
        return item.label()

    def fail(self, kind: str) -> None:
        match kind:
            case "key":
                raise KeyError("no such thing", 3)
            case "own":
                raise ShopError("out of stock")
            case "exit":
                sys.exit(3)
            case "file":
                open("/nonexistent/file").close()
            case "unicode":
                b"\xff".decode()
            case "cause":
                try:
                    raise KeyError("deep")
                except KeyError as lower:
                    raise ValueError("on top") from lower
            case "note":
                noted = ValueError("noted")
                noted.add_note("a note")
                raise noted
            case "unprintable":
                raise _Unprintable
        raise AssertionError(kind)

    def fail_if_odd(self, number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number

    def count_to(self, end: int) -> Iterator[int]:
        """Count, as a generator."""
        yield from range(1, end + 1)
        return end  # type: ignore[return-value]

    def talk(self) -> Iterator[object]:
        heard = yield "hello"
        while True:
            heard = yield f"heard {heard}"

    def apply(self, callback: Callable[..., object], *args: object, **kwargs: object) -> object:
        return callback(*args, **kwargs)

    def apply_batch(self, callback: object, count: int, on_error: str = "stop") -> object:
        outcomes = callback.batch([((n,), {}) for n in range(count)], on_error=on_error)  # type: ignore[attr-defined]
        return [outcome.value if outcome.ok else str(outcome.error) for outcome in outcomes]

    def apply_safely(self, callback: Callable[..., object], *args: object) -> str:
        try:
            callback(*args)
        except KeyError as error:
            return f"caught {type(error).__name__}: {error}"
        return "nothing"

    def see(self, expression: str, **names: object) -> object:
        """Evaluate an expression in the child, with what it was passed."""
        return eval(expression, {"shop": self, "sys": sys}, names)  # noqa: S307

    def run(self, code: str, **names: object) -> object:
        """Run code in the child; what it binds to `result` comes back."""
        space: dict[str, object] = {"shop": self, "sys": sys, **names}
        exec(code, space)  # noqa: S102
        return space.get("result")

    async def wait(self, number: int) -> int:
        import asyncio

        await asyncio.sleep(0)
        return number + 1

    async def await_it(self, awaitable: Awaitable[object]) -> object:
        return await awaitable

    def later(self, number: int) -> Awaitable[int]:
        return self.wait(number)

    async def stream(self, end: int) -> AsyncIterator[int]:
        for number in range(end):
            yield number

    def door(self, *, forgives: bool = False) -> Door:
        return Door(forgives)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Door:
    """A context manager, of both kinds."""

    def __init__(self, forgives: bool = False) -> None:
        self.forgives = forgives
        self.seen: list[str] = []

    def __enter__(self) -> Door:
        self.seen.append("enter")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        self.seen.append(f"exit {type(error).__name__} {isinstance(error, KeyError)}")
        return self.forgives

    async def __aenter__(self) -> Door:
        self.seen.append("aenter")
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> bool:
        self.seen.append(f"aexit {isinstance(error, KeyError)}")
        return self.forgives

    def __call__(self, *args: object, **kwargs: object) -> tuple[object, object]:
        return args, kwargs
