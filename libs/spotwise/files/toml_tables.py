"""TOML files that users write, checked by pydantic models."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

#: Configuration of a dataclass that is a table of such a file: keys that it does not know are wrong.
KNOWN_KEYS = ConfigDict(extra="forbid")


class FileTable(BaseModel):
    """A table of such a file: keys that it does not know are wrong."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def read_tables(path: Path, kind: str, page: str, wrong: type[ValueError]) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        kind: what such a file is, for messages.
        page: page of the documentation that has an example.
        wrong: raised, with what to do, where the file cannot be read or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise wrong(f"{path} cannot be read: {error.strerror}; name an existing {kind} file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise wrong(f"{path} is no TOML file: {error}; {page} has an example") from error


def first_fault(error: ValidationError, page: str) -> str:
    """Return the key and the fault of the first error; `page` of the documentation lists the keys."""
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        message = f"there is no such key; {page} lists them"
    elif fault["type"] in ("missing", "missing_argument"):
        message = f"the key is missing; {page} says what it means"
    return f"{key}: {message}" if key else message
