"""The formats of journals: names of core's dataclasses and fields in earlier formats, each with today's name. A release that
renames one raises the format's number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = "spotwise-journal/6"


@dataclass(frozen=True, slots=True)
class OldNames:
    """Names of an earlier format, each with today's; `fields_of`, by a type's old name, has precedence over `fields`. `phrases`
    are parts of reasons and messages. `beside`: new fields with their values of then, by a field that stands beside them."""

    types: Mapping[str, str]
    fields: Mapping[str, str]
    fields_of: Mapping[str, Mapping[str, str]]
    phrases: Mapping[str, str]
    beside: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def event(self, name: str, fields: Any) -> tuple[str, Any]:
        """Return an event's type and fields by today's names."""
        return self.types.get(name, name), self._renamed(fields, name)

    def command(self, command: list[Any]) -> list[Any]:
        """Return a command, as `journal.encoded` writes it, by today's names."""
        *before, name, fields = command
        return [*before, *self.event(name, fields)]

    def parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return a role's parameters by today's names."""
        renamed: dict[str, Any] = self._renamed(parameters)
        return renamed

    def _renamed(self, value: Any, type_name: str = "") -> Any:
        if isinstance(value, list):
            return [self._renamed(item) for item in value]
        if isinstance(value, str):
            for phrase, today in self.phrases.items():
                value = value.replace(phrase, today)
            return value
        if not isinstance(value, dict):
            return value
        names = {**self.fields, **self.fields_of.get(type_name, {})}
        for known, new in self.beside.items():
            value = {**new, **value} if known in value else value
        return {names.get(name, name): self._renamed(item) for name, item in value.items()}


#: Failed starts of instances came with format 3.
_NO_FAILED_STARTS: Mapping[str, Mapping[str, Any]] = {
    "refused_until_s": {"failed_starts": 0},
    "settled": {"failed_starts": []},
}
_MAX_NEW_TOKENS = {"owed_tokens": "max_new_tokens"}

#: The formats that can be read; today's needs no names.
FORMATS: Mapping[str, OldNames | None] = {
    FORMAT: None,
    "spotwise-journal/5": OldNames(types={}, fields={}, fields_of={}, phrases={}),  # submissions had no open bound
    "spotwise-journal/4": OldNames(types={}, fields={}, fields_of={}, phrases={}),  # members had no trouble
    "spotwise-journal/3": OldNames(types={}, fields={}, fields_of={}, phrases={}),  # pushes of moves had no number
    "spotwise-journal/2": OldNames(types={}, fields={}, fields_of={}, phrases={}, beside=_NO_FAILED_STARTS),
    "spotwise-journal/1": OldNames(
        types={"ChangeHome": "ChangeHomePool", "TakeHome": "TakeHomePool"},
        fields={"request_id": "choice_id", "stream_id": "attempt_id", "owed_tokens": "remaining_tokens"},
        fields_of={"ReserveKv": _MAX_NEW_TOKENS, "StartPrefill": _MAX_NEW_TOKENS},
        phrases={
            "ended without a word": "ended without notice",
            "no room came free within": "no worker had free capacity within",
        },
        beside=_NO_FAILED_STARTS,
    ),
}
