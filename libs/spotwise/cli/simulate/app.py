"""The simulations as a group of commands; the papers' figures, measured again, are in a checkout only (`studies/`)."""

from __future__ import annotations

import importlib.util

import typer

from spotwise.cli.lazy_group import lazy_group
from spotwise.simulator.compiled.loading import use_compiled

_ABOUT = "Simulate a cluster with the mesh's own scheduler and workers; every command takes --json FILE."
_CHECKOUT_ONLY = "The papers' figures (paper) need a checkout."
_IN_CHECKOUT = importlib.util.find_spec("spotwise.studies") is not None
_OF_STUDIES = {"paper": "spotwise.studies.app:paper"} if _IN_CHECKOUT else {}

simulate = typer.Typer(
    help=_ABOUT,
    epilog=None if _IN_CHECKOUT else _CHECKOUT_ONLY,
    no_args_is_help=True,
    add_completion=False,
    cls=lazy_group(
        {
            "run": "spotwise.cli.simulate.run:run",
            "spot": "spotwise.cli.simulate.spot:spot",
            "provision": "spotwise.cli.simulate.provision:provision",
            **_OF_STUDIES,
            "compile": "spotwise.cli.simulate.compiling:compile_simulator",
        },
        before=lambda name: use_compiled(),
    ),
)


@simulate.callback(help=_ABOUT)
def _group() -> None:
    """The group has no options of its own."""
