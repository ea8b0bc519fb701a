"""Further names of a served model or adapter, which requests may give instead of its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

#: Stands for every name that is none of another model, adapter or alias.
ANY_NAME = "*"
_NAME = re.compile(r"[^\s,=]{1,256}")


def model_aliases(listed: str) -> dict[str, str]:
    """Return what each alias stands for, of a comma-separated list of NAME=MODEL.

    Raises:
        ValueError: an entry has another form, or a name occurs twice.
    """
    aliases: dict[str, str] = {}
    for entry in filter(None, map(str.strip, listed.split(","))):
        name, _, model = entry.partition("=")
        if not _NAME.fullmatch(name) or not model:
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
