"""`spotwise bench`: the users' load benchmark, and in a checkout the developers' benchmarks (`benchmarks/`)."""

from __future__ import annotations

import importlib
import importlib.util

import typer

from spotwise.cli.bench.load import load

_ABOUT = "Measure a mesh; every benchmark takes --json FILE."
_CHECKOUT_ONLY = "Developer benchmarks (control-plane, peer, ...) need a checkout."
_IN_CHECKOUT = importlib.util.find_spec("spotwise.benchmarks") is not None

bench = typer.Typer(help=_ABOUT, epilog=None if _IN_CHECKOUT else _CHECKOUT_ONLY, no_args_is_help=True)
bench.command()(load)
if _IN_CHECKOUT:
    importlib.import_module("spotwise.benchmarks.app").add_commands(bench)


@bench.callback(help=_ABOUT)
def _group() -> None:
    """Keep `load` a subcommand where it is the only one."""
