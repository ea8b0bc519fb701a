"""The formats of journals: names of core's dataclasses and fields in earlier formats, each with today's name. A release that
renames one raises the format's number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = "spotwise-journal/2"


@dataclass(frozen=True, slots=True)
class OldNames:
    """Names of an earlier format, each with today's; `fields_of`, by a type's old name, has precedence over `fields`. `phrases`
    are parts of reasons and messages."""

    types: Mapping[str, str]
    fields: Mapping[str, str]
    fields_of: Mapping[str, Mapping[str, str]]
    phrases: Mapping[str, str]

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
        return {names.get(name, name): self._renamed(item) for name, item in value.items()}


_MAX_NEW_TOKENS = {"owed_tokens": "max_new_tokens"}

#: The formats that can be read; today's needs no names.
FORMATS: Mapping[str, OldNames | None] = {
    FORMAT: None,
    "spotwise-journal/1": OldNames(
        types={"ChangeHome": "ChangeHomePool", "TakeHome": "TakeHomePool"},
        fields={"request_id": "choice_id", "stream_id": "attempt_id", "owed_tokens": "remaining_tokens"},
        fields_of={"ReserveKv": _MAX_NEW_TOKENS, "StartPrefill": _MAX_NEW_TOKENS},
        phrases={
            "ended without a word": "ended without notice",
            "no room came free within": "no worker had free capacity within",
        },
    ),
}
