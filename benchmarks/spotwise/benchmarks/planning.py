"""`spotwise bench dev planning`: the time to choose a configuration, to map devices to it, and to plan the migration.

Runs the planning functions alone in this process, on fleets of many devices; times are this thread's processor time, so that
other programs do not count, and the median of several rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from spotwise.cli.bench.report import (
    ReportRow,
    Target,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.plan.model_shapes import named_shapes
from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost
from spotwise.core.migration.deployment import Deployment, Instance, RunningRequest
from spotwise.core.migration.mapping.mapper import map_devices
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.plan import PlanPolicy
from spotwise.core.migration.planning.planner import plan_migration
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import InstanceType, Supply
from spotwise.core.parallel.memory import RealMemory
from spotwise.core.parallel.optimizer import choose
from spotwise.core.parallel.policy import Phases, Policy, ServiceDemand
from spotwise.core.parallel.scaled_cost import ScaledCost

#: Target for a decision about 1,024 devices.
DECISION_S = 1.0
_MODEL = "bloom-176b"
_PROMPT_TOKENS, _NEW_TOKENS, _BATCH = 1024, 256, 8
_LINKS = Links(within_bytes_per_s=300e9, between_bytes_per_s=25e9, storage_bytes_per_s=2e9, groups_s=0.5)
#: The time of a device relative to an A100's, for a model of 13 billion parameters.
_SPEEDS = {"h100": 0.5, "a100": 1.0, "t4": 6.0}
_PRICES = {"h100": (20.0, 38.0), "a100": (11.0, 17.6), "t4": (1.9, 3.9)}
_GIB = 2**30
_MEMORY = {"h100": 80 * _GIB, "a100": 80 * _GIB, "t4": 16 * _GIB}
_Result = TypeVar("_Result")


def planning(
    devices: Annotated[int, typer.Option(min=64, help="Of the fleet; rounded down to a multiple of 64.")] = 1024,
    rounds: Annotated[int, typer.Option(min=1, help="Of each; the median counts.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="64 devices, once: shows that it runs.")] = False,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure how long decisions about a changing fleet take: configuration, device map, migration plan."""
    devices, rounds = (64, 1) if quick else (devices // 64 * 64, rounds)
    require_writable(json)
    console = report_console()
    rows: list[ReportRow] = []
    with progress_bar(console) as progress:
        cases = [*choices(devices), *changes(devices)]
        task = progress.add_task("deciding", total=len(cases))
        for case in cases:
            rows += case(rounds)
            progress.advance(task)
    about = environment(devices=devices, rounds=rounds, model=_MODEL, clock="processor time of one thread")
    write_report(rows, about, json, console, lambda figure: f"{figure:,.3f}")


def choices(devices: int) -> Iterator[Callable[[int], list[ReportRow]]]:
    """Yield measurements of the choice of a configuration: with one device type and three, phases together or either way."""
    for names in (("a100",), ("h100", "a100", "t4")):
        for phases in (Phases.TOGETHER, Phases.EITHER):
            yield partial(_chosen, devices, names, phases)


def _chosen(devices: int, names: tuple[str, ...], phases: Phases, rounds: int) -> list[ReportRow]:
    shape = named_shapes()[_MODEL]
    supplies = []
    for name in names:
        slower = _SPEEDS[name] * shape.weight_bytes / 26e9
        worker = LinearIterationCost(0.0181 * slower, 1.02e-4 * slower, 7.1e-9, 3.85e-5 * slower, 6.3e-7)
        cost = ScaledCost(worker, shape, LinkCost(1e-5, 300e9), LinkCost(1e-4, 25e9), _PROMPT_TOKENS + _NEW_TOKENS // 2)
        spot, on_demand = _PRICES[name]
        count = devices // len(names) // 8
        type_ = InstanceType(name, 8, _MEMORY[name], spot, on_demand, cost)
        supplies.append(Supply(type_, spot=count - count // 4, on_demand=count // 4))
    memory = RealMemory(shape, _PROMPT_TOKENS + _NEW_TOKENS, buffer_bytes=2 * _GIB, prompt_tokens=_PROMPT_TOKENS)
    demand = ServiceDemand(devices / 512, 2.0, _PROMPT_TOKENS, _NEW_TOKENS)
    policy = Policy.of_model(shape, phases)
    seconds, choice = _median(rounds, lambda: choose(demand, supplies, memory, policy))
    kinds = "one type" if len(names) == 1 else f"{len(names)} types"
    chosen = "nothing fits" if choice is None else str(choice.config)
    name = f"configuration: {kinds}, phases {phases.value} ({chosen}), s"
    return [ReportRow(name, seconds, DECISION_S, Target(at_most=1.0))]


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a fleet of equal instances, of which one in sixteen is under notice.

    Attributes:
        devices: devices of an instance.
        old, new: configurations for 64 devices; a larger fleet has as many times the pipelines.
    """

    devices: int
    old: tuple[int, int, int]
    new: tuple[int, int, int]


_CHANGES = (
    _Change(8, (1, 8, 8), (1, 7, 8)),
    _Change(8, (2, 8, 4), (1, 7, 8)),
    _Change(8, (1, 8, 8), (2, 7, 4)),
    _Change(4, (2, 8, 4), (2, 7, 4)),
    _Change(4, (2, 8, 4), (1, 7, 8)),
    _Change(1, (2, 8, 4), (2, 7, 4)),
)


def changes(devices: int) -> Iterator[Callable[[int], list[ReportRow]]]:
    """Yield measurements of a change: the device map and the plan."""
    for change in _CHANGES:
        yield partial(_planned, devices, change)


def _planned(devices: int, change: _Change, rounds: int) -> list[ReportRow]:
    shape = named_shapes()[_MODEL]
    times = devices // 64
    old, new = (ParallelConfig(d * times, p, m, _BATCH) for d, p, m in (change.old, change.new))
    count = devices // change.devices
    whole = Deployment.in_order(old, tuple(Instance(f"i{number}", change.devices) for number in range(count)))
    leaving = tuple(
        Instance(instance.id, instance.devices, 30.0 if number % 16 == 0 else None)
        for number, instance in enumerate(whole.instances)
    )
    running = {
        pipeline: tuple(
            RunningRequest(f"r{pipeline}.{number}", _PROMPT_TOKENS + 10 * number, 10 * number)
            for number in range(_BATCH)
        )
        for pipeline in range(old.pipelines)
    }
    before = Deployment(old, leaving, whole.positions, running)
    map_s, device_map = _median(rounds, lambda: map_devices(before, new, shape))
    policy = PlanPolicy(buffer_bytes=8 * _GIB)
    plan_s, plan = _median(rounds, lambda: plan_migration(device_map, shape, _LINKS, policy))
    name = f"{count} x {change.devices}, {old} to {new}"
    return [
        ReportRow(f"{name}: device map, s", map_s, DECISION_S, Target(at_most=1.0)),
        ReportRow(f"{name}: plan of {len(plan.transfers):,} transfers, s", plan_s),
    ]


def _median(rounds: int, decide: Callable[[], _Result]) -> tuple[float, _Result]:
    taken: list[float] = []
    results: list[Any] = []
    for _ in range(rounds):
        started_s = time.thread_time()
        results[:] = [decide()]
        taken.append(time.thread_time() - started_s)
    return statistics.median(taken), results[0]
