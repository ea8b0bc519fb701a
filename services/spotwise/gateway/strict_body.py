"""What the objects of the API's bodies have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spotwise.gateway.errors import from_validation

#: A word of how to answer, of which this server may not know what to make.
Wish = Annotated[str, Field(max_length=64)]


class StrictBody(BaseModel):
    """An object of the API: no coercion of types, unknown members ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


Parsed = TypeVar("Parsed", bound=StrictBody)


def parse_body(kind: type[Parsed], body: Mapping[str, Any]) -> Parsed:
    """Check a body against its schema.

    Raises:
        ApiError: 400, naming the first parameter that is wrong.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise from_validation(error) from None
