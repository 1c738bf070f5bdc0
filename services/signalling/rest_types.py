"""Types that the bodies of the REST API are made of.

Ranges that the domain checks are only stated here, so that REST and gRPC refuse with the same
reason.
"""

from __future__ import annotations

import base64
import binascii
from functools import cache
from typing import Annotated, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

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
MOST_FAULTS = 16
"""So many faults of one body are described, of which the first is answered."""
OnFullName = Literal["drop_oldest", "block"]


class Body(BaseModel):
    """A request's body or a part of it: unknown fields and near types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="wrap")
    @classmethod
    def _bounded(cls, value: object, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Name the first unknown field, and of many faults their number: a hostile body has a
        hundred thousand, each of which would be described.
        """
        if isinstance(value, dict):
            known = cls._known_names()
            for name in value:
                if name not in known:
                    fault = InitErrorDetails(type="extra_forbidden", loc=(name,), input=None)
                    raise ValidationError.from_exception_data(cls.__name__, [fault])
        try:
            return read(value)
        except ValidationError as error:
            if error.error_count() <= MOST_FAULTS:
                raise
            raise PydanticCustomError(
                "many_faults", "it has {count} faults", {"count": error.error_count()}
            ) from None

    @classmethod
    @cache
    def _known_names(cls) -> frozenset[str]:
        found = set(cls.model_fields)
        for each in cls.model_fields.values():
            match each.validation_alias:
                case str(name):
                    found.add(name)
                case AliasChoices(choices=names):
                    found.update(name for name in names if isinstance(name, str))
        return frozenset(found)


class Answer(BaseModel):
    """A part of an answer, read from the domain's values."""

    model_config = ConfigDict(from_attributes=True)
