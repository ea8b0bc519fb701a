"""Names of adapters, and further names of a served model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """The adapter that a sequence is computed with.

    Attributes:
        name: as the client gave it for a model.
        digest: digest of its weights and scaling: a worker whose adapter of that name differs refuses the sequence.
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


#: Stands for every name that is none of another model, adapter or alias.
ANY_NAME = "*"
_ALIAS = re.compile(r"[^\s,=]{1,256}")


def model_aliases(listed: str) -> dict[str, str]:
    """Return what each alias stands for, of a comma-separated list of NAME=MODEL.

    Raises:
        ValueError: an entry has another form, or a name occurs twice.
    """
    aliases: dict[str, str] = {}
    for entry in filter(None, map(str.strip, listed.split(","))):
        name, _, model = entry.partition("=")
        if not _ALIAS.fullmatch(name) or not model:
            raise ValueError(f"{entry!r} is no alias; write NAME=MODEL, or *=MODEL for any name that is not known")
        if name in aliases:
            raise ValueError(f"the alias {name!r} is given twice")
        aliases[name] = model
    return aliases


def require_aliases_of(served: Collection[str], aliases: Mapping[str, str]) -> None:
    """Check aliases against the names of the model and its adapters.

    Raises:
        ValueError: one stands for something else, or hides one of them.
    """
    names = ", ".join(map(repr, served))
    for name, model in aliases.items():
        if model not in served:
            raise ValueError(f"the alias {name!r} stands for {model!r}, which is not served; served are {names}")
        if name in served:
            raise ValueError(f"{name!r} is served under this name itself; leave out its alias")
