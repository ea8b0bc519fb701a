"""Groups that import only the command that is run: all of them, with what they simulate, take two seconds to import."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class _Commands(MutableMapping[str, Any]):
    """Commands by name, imported when they are looked up; those that typer adds stay as they are."""

    def __init__(self, places: Mapping[str, str], before: Callable[[str], object]) -> None:
        self._places = dict(places)
        self._before = before
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            place = self._places[name]
            self._before(name)
            self._loaded[name] = _load(name, place)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._places.setdefault(name, "")
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _load(name: str, place: str) -> Any:
    module, attribute = place.split(":")
    loaded: typer.Typer | Callable[..., None] = getattr(importlib.import_module(module), attribute)
    if not isinstance(loaded, typer.Typer):
        function, loaded = loaded, typer.Typer(add_completion=False)
        loaded.command(name)(function)
    command = get_command(loaded)
    command.name = name
    return command


def lazy_group(
    places: Mapping[str, str],
    before: Callable[[str], object] = lambda name: None,
    texts: Mapping[str, str] | None = None,
) -> type[TyperGroup]:
    """Return a group class for `typer.Typer(cls=...)`.

    Args:
        places: function or `typer.Typer` of each command, as `module:attribute`, in the order of `--help`.
        before: called with a command's name before its module is imported.
        texts: what each command does, for `--help` of the group, which then imports none of them.
    """

    class LazyGroup(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = _Commands(places, before)
            self._is_listing = False

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if self._is_listing and texts is not None and cmd_name in texts:
                return TyperCommand(cmd_name, help=texts[cmd_name], rich_markup_mode=self.rich_markup_mode)
            return super().get_command(ctx, cmd_name)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            self._is_listing = True
            try:
                super().format_help(ctx, formatter)
            finally:
                self._is_listing = False

    return LazyGroup
