"""What the objects of the API's bodies have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from spotwise.http.errors import from_validation

#: A word of how to answer, of which this server may not know what to make.
Wish = Annotated[str, Field(max_length=64)]


def _fail_fast(schema: Any) -> None:
    waiting = [schema]
    while waiting:
        match waiting.pop():
            case dict() as each:
                if each.get("type") == "list":
                    each["fail_fast"] = True
                waiting += each.values()
            case list() | tuple() as several:
                waiting += several


class StrictBody(BaseModel):
    """An object of the API: no coercion of types, unknown members ignored.

    A list is wrong by its first wrong item, since a body may have a million.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return pydantic's schema of the class, whose lists fail fast."""
        schema = handler(source)
        _fail_fast(schema)
        return schema


Parsed = TypeVar("Parsed", bound=StrictBody)


def parse_body(kind: type[Parsed], body: Mapping[str, Any]) -> Parsed:
    """Check a body against its schema.

    Raises:
        ApiError: 400, naming the first parameter that is wrong.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        refused = from_validation(error)
    # Not there: a new error's context would be pydantic's, which keeps the frames of all callers, unseen by the collector.
    raise refused
