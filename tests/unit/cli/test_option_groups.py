"""Options of a command that are the fields of a model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pydantic import BaseModel, field_validator
from typer.testing import CliRunner

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.given_options import size_option
from spotwise.cli.option_groups import OptionGroup, changed_flags, given_flags, with_option_groups


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Paint(BaseModel):
    colour: Annotated[Colour, typer.Option(help="Of the paint.")] = Colour.RED
    num_coats: Annotated[int, typer.Option("--coats", min=1, show_default=False)] = 2
    names: Annotated[list[str], typer.Option("--name", envvar="PAINT_NAMES")] = []
    pot_bytes: Annotated[int, size_option("--pot", show_default="4KiB")] = 4096

    @field_validator("num_coats")
    @classmethod
    def _few(cls, num_coats: int) -> int:
        if num_coats > 9:
            raise ValueError(f"--coats {num_coats}: too many")
        return num_coats


class Brush(BaseModel):
    brush: Annotated[Path | None, lambda: typer.Option(help="A tool.")] = None


class Painted:
    """A command, and what it got."""

    def __init__(self) -> None:
        self.got: dict[str, Any] = {}
        self.app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

        def paint(paint: Paint, brush: Brush, dry: Annotated[bool, typer.Option("--dry")] = False) -> None:
            """Paint it."""
            self.got = {"paint": paint, "brush": brush, "dry": dry}

        paint.__annotations__ |= {"paint": Paint, "brush": Brush}
        self.app.command()(with_option_groups(paint))

    def __call__(self, *arguments: str, **environ: str) -> Paint:
        done = CliRunner().invoke(self.app, list(arguments), env=environ, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        paint: Paint = self.got["paint"]
        return paint


def test_each_field_is_an_option_and_the_command_gets_the_model() -> None:
    painted = Painted()
    paint = painted("--colour", "blue", "--coats", "3", "--name", "a", "--name", "b", "--brush", "x/y", "--dry")
    assert paint == Paint(colour=Colour.BLUE, num_coats=3, names=["a", "b"])
    assert painted.got["brush"] == Brush(brush=Path("x/y"))
    assert painted.got["dry"] is True


def test_the_fields_that_are_set_are_those_that_were_given() -> None:
    painted = Painted()
    assert painted().model_fields_set == set()
    assert given_flags(painted("--coats", "2", "--pot", "4KiB", PAINT_NAMES="a b")) == ["--coats", "--name", "--pot"]
    assert given_flags(painted("--coats", "2", "--colour", "red"), ("colour",)) == ["--colour"]


def test_options_with_their_default_values_are_not_changed() -> None:
    painted = Painted()
    assert changed_flags(painted("--coats", "2", "--colour", "blue", "--pot", "4KiB")) == ["--colour"]
    assert changed_flags(painted("--coats", "3", "--colour", "blue"), ("num_coats",)) == ["--coats"]


def test_a_field_without_a_default_is_required_and_a_switch_is_named_without_its_opposite() -> None:
    class Wall(OptionGroup):
        side: Annotated[str, typer.Option()]
        dry: Annotated[bool, typer.Option("--dry/--wet")] = True

    got: list[Wall] = []

    def command(*, hurry: Annotated[bool, typer.Option("--hurry")] = False, wall: Wall) -> None:
        got.append(wall)

    command.__annotations__["wall"] = Wall
    app = typer.Typer(add_completion=False)
    app.command()(with_option_groups(command))
    assert CliRunner().invoke(app, ["--wet"]).exit_code == 2
    assert CliRunner().invoke(app, ["--side", "west", "--wet", "--hurry"]).exit_code == 0
    assert got == [Wall(side="west", dry=False)]
    assert given_flags(got[0]) == ["--side", "--dry"]


def test_help_is_of_the_fields_in_their_order() -> None:
    shown = CliRunner().invoke(Painted().app, ["--help"], env={"COLUMNS": "150"}).output
    places = [shown.index(text) for text in ("--colour", "Of the paint. [default: red]", "--coats", "--brush", "--dry")]
    assert places == sorted(places)
    assert "[default: 4KiB]" in shown and "[default: 2]" not in shown and "Paint it." in shown


def test_what_the_model_refuses_is_a_wrong_option() -> None:
    with pytest.raises(OptionError, match=r"^--coats 10: too many$"):
        Painted()("--coats", "10")
    assert CliRunner().invoke(Painted().app, ["--coats", "0"]).exit_code == 2


def test_a_field_that_is_no_option_is_a_mistake() -> None:
    class Bare(BaseModel):
        size: int = 1

    def command(bare: Bare) -> None:
        """Do nothing."""

    command.__annotations__["bare"] = Bare
    with pytest.raises(TypeError, match=r"no typer\.Option"):
        with_option_groups(command)
