"""`spotwise bench dev simulator-speed`: simulated requests per second of processor time, beside the published simulator's.

Each case is a cluster near its limit, for two minutes of arrivals as the published simulator was timed on: it takes 52 to 115 s
for 17,000 requests on 40 to 51 machines. Processor time is this process's own, so that other programs count little. Runs are
repeated in alternating order, and the median counts.
"""

from __future__ import annotations

import functools
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from spotwise.benchmarks.rounds import in_order_of_round, row_of_rounds
from spotwise.cli.bench.report import Target, environment, progress_bar, report_console, require_writable, write_report
from spotwise.simulator.compiled.loading import is_compiled
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import DESIGNS, Split
from spotwise.simulator.runs.experiment import simulate

#: Of the published simulator, in the fastest of its timed cases.
REFERENCE_REQUESTS_PER_S = 17_000 / 52
_SPEED = Target(at_least=40.0)
#: Requests a second of processor time that any case should reach, and seconds that the command should start in.
_REQUESTS_PER_S, _START_S = 10_000.0, 1.0


@dataclass(frozen=True, slots=True)
class TimedCluster:
    """A cluster and its rate in requests a second."""

    design: str
    split: Split
    workload: str
    rate: float
    decode_model: DecodeModel

    def case(self, seconds: float) -> Case:
        """Return the run of so many seconds of arrivals."""
        workload = ClusterWorkload(self.workload)
        cluster = DESIGNS[self.design].cluster(self.split)
        return Case(cluster, workload, self.rate, seconds, decode_model=self.decode_model)

    @property
    def label(self) -> str:
        """Its name in the report."""
        return f"{self.case(0.0).label}, {self.workload}, {self.rate:g}/s, {self.decode_model.value} times"


CLUSTERS = (
    TimedCluster("Splitwise-HA", Split(25, 26), "conv", 140.0, DecodeModel.PUBLISHED),
    TimedCluster("Splitwise-HH", Split(25, 15), "conv", 120.0, DecodeModel.PUBLISHED),
    TimedCluster("Baseline-H100", Split(40), "conv", 110.0, DecodeModel.PUBLISHED),
    TimedCluster("Splitwise-HH", Split(35, 5), "code", 100.0, DecodeModel.PUBLISHED),
    TimedCluster("Splitwise-HH", Split(25, 15), "conv", 70.0, DecodeModel.HONEST),
    TimedCluster("Baseline-H100", Split(40), "conv", 80.0, DecodeModel.HONEST),
)


def simulator_speed(
    seconds: Annotated[float, typer.Option(min=1.0, help="Of arrivals, in each run.")] = 120.0,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each case.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One round of a few seconds: shows that it runs.")] = False,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure the simulator's speed; targets: 40 times the published one's, 10,000 requests a second, a start within 1 s."""
    seconds, rounds = (4.0, 1) if quick else (seconds, rounds)
    require_writable(json)
    console = report_console()
    speeds: dict[str, list[float]] = {cluster.label: [] for cluster in CLUSTERS}
    with progress_bar(console) as progress:
        task = progress.add_task("simulating", total=rounds * len(CLUSTERS))
        advance = functools.partial(progress.advance, task)
        for number in range(1, rounds + 1):
            for cluster in in_order_of_round(number, CLUSTERS):
                speeds[cluster.label].append(requests_per_s(cluster.case(seconds)))
                advance()
    rows = [
        row_of_rounds(f"{label}, requests/s", ours, [REFERENCE_REQUESTS_PER_S] * rounds, _SPEED)
        for label, ours in speeds.items()
    ]
    slowest = [min(each) for each in zip(*speeds.values(), strict=True)]
    rows += [
        row_of_rounds("slowest case, requests/s", slowest, [_REQUESTS_PER_S] * rounds, Target(at_least=1.0)),
        row_of_rounds("start of `spotwise simulate run`, CPU s", [start_s()], [_START_S], Target(at_most=1.0)),
    ]
    about = environment(seconds=seconds, rounds=rounds, compiled=is_compiled())
    write_report(rows, about, json, console, lambda figure: f"{figure:,.2f}" if figure < 10 else f"{figure:,.0f}")


def requests_per_s(case: Case) -> float:
    """Return how many requests are simulated in a second of this process's time."""
    began_s = time.process_time()
    completed = simulate(case).completed
    return completed / (time.process_time() - began_s)


def start_s() -> float:
    """Return the processor seconds of a run of the command with nearly nothing to simulate."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "spotwise.cli", "simulate", "run", "--design", "HH", "--machines", "1,1"]
    subprocess.run([*command, "--rates", "1", "--seconds", "1"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
