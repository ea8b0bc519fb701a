"""`spotwise bench`: the load benchmark, and in a checkout more of them (`benchmarks/`)."""

from __future__ import annotations

import importlib
import importlib.util
import signal
from types import FrameType

import typer

from spotwise.cli.lazy_group import lazy_group

_ABOUT = "Measure a mesh; every benchmark takes --json FILE."
_CHECKOUT_ONLY = "More benchmarks (peer, moves, ...) need a checkout."
_IN_CHECKOUT = importlib.util.find_spec("spotwise.benchmarks") is not None
_OF_CHECKOUT = importlib.import_module("spotwise.benchmarks.commands").COMMANDS if _IN_CHECKOUT else {}
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)

bench = typer.Typer(
    help=_ABOUT,
    epilog=None if _IN_CHECKOUT else _CHECKOUT_ONLY,
    no_args_is_help=True,
    add_completion=False,
    cls=lazy_group({"load": "spotwise.cli.bench.load:load", **_OF_CHECKOUT}),
)


@bench.callback(help=_ABOUT)
def _group() -> None:
    """Keep `load` a subcommand where it is the only one; end as by Ctrl-C, with all that was started, however one is ended."""
    for number in _ENDINGS:
        signal.signal(number, _end_once)


def _end_once(number: int, frame: FrameType | None) -> None:
    """End as by Ctrl-C; the same signal again, as `timeout` and `make` both pass it on, does not disturb the end."""
    for each in _ENDINGS:
        signal.signal(each, signal.SIG_IGN)
    signal.default_int_handler(number, frame)
