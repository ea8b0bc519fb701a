"""`spotwise bench dev weights`: a device's weights from another one, beside raw messages and beside storage.

A giving process has a model of random weights. Receiving processes, one after the other and each a new one, get all of it: as
devices do; by the same messages at once, without checksums and without account; and from the model's folder, throttled as a
storage that many share. Memory that was not written before is part of each way.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from spotwise.benchmarks.large_model import make_model
from spotwise.benchmarks.rounds import in_order_of_round, row_of_rounds
from spotwise.benchmarks.weights_end import EndOptions, Way
from spotwise.cli.bench.report import (
    ReportRow,
    Target,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.errors import CommandError
from spotwise.cli.launch.given_options import parse_size

_END_S = 10.0
_RAW_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Got:
    """What a receiving process says."""

    seconds: float
    held_bytes: int
    peak_bytes: int


def weights(
    size: Annotated[str, typer.Option(help="Bytes of the model's weights.")] = "2.4GiB",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each of all ways in alternating order.")] = 3,
    buffer: Annotated[str, typer.Option(help="U_max: bytes asked for and not there yet.")] = "64MiB",
    storage: Annotated[str, typer.Option(help="Bytes a second of the model folder.")] = "400MiB",
    seed: Annotated[int, typer.Option(min=0, help="Of the weights.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure weights from a peer: rate beside raw messages and storage, and memory beyond the weights."""
    require_writable(json)
    model_bytes, buffer_bytes = int(parse_size(size, "--size")), int(parse_size(buffer, "--buffer"))
    storage_bytes_per_s = parse_size(storage, "--storage")
    ways = (Way.PEERS, Way.RAW, Way.STORAGE)
    got: dict[Way, list[Got]] = {way: [] for way in ways}
    console = report_console()
    with progress_bar(console) as progress, tempfile.TemporaryDirectory(prefix="spotwise-weights-") as parent:
        task = progress.add_task("making the model", total=1 + rounds * len(ways))
        folder = str(Path(parent) / "model")
        make_model(Path(folder), model_bytes, seed)
        progress.advance(task)
        with _end(EndOptions(Way.GIVE, folder, "", buffer_bytes)) as giving:
            addresses: list[str] = giving["addresses"]
            for number in range(1, rounds + 1):
                for way in in_order_of_round(number, ways):
                    progress.update(task, description=f"round {number}, {way}")
                    rate = storage_bytes_per_s if way is Way.STORAGE else None
                    options = EndOptions(way, folder, addresses[way is Way.RAW], buffer_bytes, rate)
                    with _end(options) as said:
                        got[way].append(Got(**said))
                    progress.advance(task)
    rows = rows_of(got, giving["weight_bytes"], buffer_bytes)
    about = environment(size=size, rounds=rounds, buffer=buffer, storage=storage, seed=seed)
    write_report(rows, about, json, console, lambda figure: f"{figure:,.2f}")


def rows_of(got: dict[Way, list[Got]], weight_bytes: int, buffer_bytes: int) -> list[ReportRow]:
    """Rates beside each other, and memory beyond the weights beside U_max; raises `CommandError` where weights are missing."""
    for way, own in got.items():
        if way is not Way.RAW and any(each.held_bytes != weight_bytes for each in own):
            raise CommandError(f"a process that got the weights from {way} does not have all of them")
    rate = {way: [weight_bytes / each.seconds / 1e9 for each in own] for way, own in got.items()}
    beyond = [(each.peak_bytes - each.held_bytes) / 2**20 for each in got[Way.PEERS]]
    bounds = [buffer_bytes / 2**20] * len(beyond)
    return [
        ReportRow("weights, GiB", weight_bytes / 2**30),
        row_of_rounds(
            "from a peer beside raw messages, GB/s", rate[Way.PEERS], rate[Way.RAW], Target(at_least=_RAW_SHARE)
        ),
        row_of_rounds("from a peer beside storage, GB/s", rate[Way.PEERS], rate[Way.STORAGE]),
        row_of_rounds("most memory beyond the weights beside U_max, MiB", beyond, bounds, Target(at_most=1.0)),
    ]


@contextlib.contextmanager
def _end(options: EndOptions) -> Iterator[Any]:
    """Run an end, and yield what it says once it is ready, or done."""
    argv = [sys.executable, "-P", "-m", "spotwise.benchmarks.weights_end", orjson.dumps(asdict(options)).decode()]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            line = next((line for line in process.stdout if line.startswith("{")), None)  # the others are logged
            if line is None:
                raise CommandError(f"the process that was to {options.way} weights failed; its error is above")
            yield orjson.loads(line)
        finally:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            process.kill()
