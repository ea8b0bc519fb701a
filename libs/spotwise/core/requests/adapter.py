"""Names of adapters: small sets of weights beside the model's, of which a request chooses one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """The adapter that a sequence is computed with.

    Attributes:
        name: as the client gave it for a model.
        digest: of its weights and scaling: a worker whose adapter of that name differs refuses the sequence.
    """

    name: str
    digest: str


def named_folders(listed: str) -> Iterator[tuple[str, str]]:
    """Yield names and folders of a comma-separated list of NAME=FOLDER.

    Raises:
        ValueError: an entry has another form, or a name occurs twice.
    """
    names: set[str] = set()
    for entry in filter(None, map(str.strip, listed.split(","))):
        name, equals, folder = entry.partition("=")
        if not (name and equals and folder):
            raise ValueError(f"{entry!r} is no adapter; write NAME=FOLDER, a folder whose name has no comma")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no adapter's name; use letters, digits, '.', '_', ':', '/' and '-', up to 128 of them"
            )
        if name in names:
            raise ValueError(f"the adapter {name!r} is named twice")
        names.add(name)
        yield name, folder
