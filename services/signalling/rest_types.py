"""Types that the bodies of the REST API are made of.

Ranges that the domain checks are only stated here, so that REST and gRPC refuse with the same
reason.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from fairlead_limits import table


def _decoded(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("not base64") from error


_ENCODED = WithJsonSchema({"type": "string", "contentEncoding": "base64"})
EncodedBytes = Annotated[
    bytes,
    BeforeValidator(_decoded),
    PlainSerializer(lambda value: base64.b64encode(value).decode("ascii"), return_type=str),
    _ENCODED,
]
LeaseSeconds = Annotated[
    float,
    Field(ge=-1e9, le=1e9, allow_inf_nan=False),
    WithJsonSchema({"type": "number", **table.LEASE.schema}),
]
AgeSeconds = Annotated[
    float,
    Field(ge=-1e9, le=1e9, allow_inf_nan=False),
    WithJsonSchema({"type": "number", **table.MAX_AGE.schema}),
]
TimeoutSeconds = Annotated[
    float,
    Field(ge=-1e9, le=1e9, allow_inf_nan=False),
    WithJsonSchema({"type": "number", **table.TIMEOUT.schema}),
]
GraceSeconds = Annotated[
    float,
    Field(ge=-1e9, le=1e9, allow_inf_nan=False),
    WithJsonSchema({"type": "number", **table.GRACE.schema}),
]
OnFullName = Literal["drop_oldest", "block"]


class Body(BaseModel):
    """A request's body or a part of it: unknown fields and near types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """A part of an answer, read from the domain's values."""

    model_config = ConfigDict(from_attributes=True)
