"""Options of a command that are declared once: as the fields of a model, which the command gets as a whole."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import BaseModel, ConfigDict, ValidationError
from typer.models import OptionInfo

from spotwise.cli.errors import OptionError


class OptionGroup(BaseModel):
    """Some of a command's options: one for each field, which is declared like a command's parameter."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def with_option_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: a parameter whose type is a model stands for one option for each field of it, at its place.

    A field is declared like a command's parameter: `Annotated[T, typer.Option(...)] = default`. A function that returns the
    `typer.Option` may stand in its place, for an option whose declaration imports what only the command needs. The model that
    the command gets has those fields set (`model_fields_set`) that the user gave, on the command line or in the environment.
    What the model refuses is raised as `OptionError`.
    """
    hints = get_type_hints(function, include_extras=True)
    names = list(inspect.signature(function).parameters)
    groups: dict[str, type[BaseModel]] = {
        name: hints[name] for name in names if isinstance(hints[name], type) and issubclass(hints[name], BaseModel)
    }

    @functools.wraps(function)
    def command(context: typer.Context, **values: Any) -> None:
        def given(group: type[BaseModel]) -> BaseModel:
            with refused_options():
                return group(**{name: values[name] for name in group.model_fields if _is_given(context, name)})

        function(**{name: given(groups[name]) if name in groups else values[name] for name in names})

    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            parameters += _options_of(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def given_flags(group: BaseModel, among: Collection[str] | None = None) -> list[str]:
    """Return the options of a group that the user gave, as they are written; of these fields alone, where they are named."""
    fields = type(group).model_fields
    return [
        _flag(name, _option_of(fields[name].metadata))
        for name in fields
        if name in group.model_fields_set and (among is None or name in among)
    ]


def changed_flags(group: BaseModel, among: Collection[str] | None = None) -> list[str]:
    """Return what `given_flags` does, without the options that were given the values that they have anyway."""
    fields = type(group).model_fields
    changed = [name for name in fields if getattr(group, name) != fields[name].default]
    return given_flags(group, [name for name in changed if among is None or name in among])


def one_of(text: str, names: Collection[str]) -> str:
    """Return `text` if it is among these names; raises `BadParameter` otherwise."""
    if text not in names:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(repr(str(name)) for name in names)}.")
    return text


@contextmanager
def refused_options() -> Iterator[None]:
    """Convert a model's `ValidationError` to `OptionError`; its validators' messages name the options."""
    try:
        yield
    except ValidationError as error:
        raise OptionError(
            "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
        ) from error


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _options_of(group: type[BaseModel]) -> list[inspect.Parameter]:
    options = []
    for name, field in group.model_fields.items():
        info = copy.copy(_option_of(field.metadata))
        default = inspect.Parameter.empty if field.is_required() else field.default
        if isinstance(info.show_default, str):  # which Typer would put in parentheses
            info.show_default, default = True, info.show_default
        options.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[field.annotation, info],
            )
        )
    return options


def _option_of(metadata: Collection[Any]) -> OptionInfo:
    for each in metadata:
        declared = each() if inspect.isfunction(each) else each
        if isinstance(declared, OptionInfo):
            return declared
    raise TypeError("a field of a group of options is annotated with no typer.Option")


def _flag(name: str, info: OptionInfo) -> str:
    """Return the name that Typer gives an option: where it is annotated, its `default` is the first one declared; that of a
    switch has its opposite behind a slash."""
    return info.default.partition("/")[0] if isinstance(info.default, str) else f"--{name.replace('_', '-')}"
