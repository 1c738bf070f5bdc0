"""What travels between the two sides of a membrane: kinds, operations and the layout of a message.

A lane is a stream socket. A frame on it is a 4-byte little-endian length and so many bytes, the
MessagePack array of one message. On one lane the two sides speak in turns: a request is answered by
a reply or an error with its id, before which the other side may make requests of its own, nested.

    REQUEST  [0, id, operation, releases, target, name, extra, returns, values]
    REPLY    [1, id, releases, extra, values]
    ERROR    [2, id, releases, payload, values]
    REGION   [3, size, []]      asks the parent for shared memory, or announces some

After a REGION of the child the parent sends one byte with a descriptor, or without one where it
refuses. The child answers one of the parent with the same message, and gets the byte then.

Only `values`, a flat list, holds what belongs to users; all before it is plain. `releases` is None
or [handle, count, handle, count, ...]: handles of the reader that the writer holds no longer.
`returns` says how what comes back travels: 0 as the session has it, else a sum of the bits below.

Control, a SEQPACKET socket beside the lanes, carries one array in each packet:

    parent to child   [LANE, number] with the child's end; [CANCEL, number]; [PROBE, number]
    child to parent   [FREED, number]; [RUNS, number], which answers a PROBE;
                      [WANTED, ticket], answered by [LENT, ticket] with an end
"""

from __future__ import annotations

from typing import Final

REQUEST: Final = 0
REPLY: Final = 1
ERROR: Final = 2
REGION: Final = 3

HEADER_BYTES: Final = 4
LARGEST_FRAME: Final = 64 << 20
"""Bytes; what is larger travels through shared memory or not at all."""

MOST_SHARED: Final = 512 << 20
"""Bytes of shared memory that one child may have its parent map at one time."""

DEEPEST: Final = 64
"""Calls of one side that may be under way on one lane, each inside of a callback of the last."""

CALL: Final = 1
CALL_BATCH: Final = 2
GET: Final = 3
GET_MANY: Final = 4
SET: Final = 5
DELETE: Final = 6
OPERATE: Final = 7
AWAIT: Final = 9
LOAD: Final = 10
CONSTRUCT: Final = 11
DESCRIBE: Final = 12
"""Asks for the signature and the docstring of a callable, from the parent; `extra` of the reply is
what `callables.told` gives."""

CONFIGURE: Final = 14
"""The first request on a fresh link, from the parent; `extra` is the settings of the session."""

RETURNS_AS_SESSION: Final = 0
RETURNS_VALUE: Final = 1
RETURNS_REFERENCE: Final = 2
RETURNS_VIEWS: Final = 4

LANE: Final = 0
CANCEL: Final = 1
FREED: Final = 2
WANTED: Final = 3
LENT: Final = 4
PROBE: Final = 5
RUNS: Final = 6
