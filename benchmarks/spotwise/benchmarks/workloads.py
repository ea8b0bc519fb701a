"""The workloads that compare a mesh with its peer; a workload fixes its load except for the seed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from spotwise.benchmarks.interference import Interference
from spotwise.cli.bench.report import Target
from spotwise.cli.errors import OptionError


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a workload.

    Attributes:
        key: its name among the readings.
        title: its name in the report, with its unit.
        target: bound on its ratio; None without a target.
    """

    key: str
    title: str
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`streams` closed-loop streams, driven by vLLM's own client."""

    streams: int
    input_tokens: int
    output_tokens: int
    requests: int


@dataclass(frozen=True, slots=True)
class PeerWorkload:
    """One load and its figures."""

    name: str
    load: ClosedLoop | Interference
    figures: tuple[Figure, ...]

    @property
    def shape(self) -> str:
        """The load as text."""
        load = self.load
        if isinstance(load, ClosedLoop):
            return f"{load.streams} streams, {load.input_tokens}→{load.output_tokens}, {load.requests} requests"
        return (
            f"{load.steady_streams} streams, {load.steady_input_tokens}→{load.steady_output_tokens}, beside "
            f"{load.long_input_tokens}→{load.long_output_tokens} every {load.every_s:g} s for {load.seconds:g} s"
        )


_TTFT = Figure("median_ttft_ms", "TTFT p50, ms")
_TPOT = Figure("median_tpot_ms", "TPOT p50, ms")

WORKLOADS = (
    PeerWorkload(
        "w1",
        ClosedLoop(streams=1, input_tokens=128, output_tokens=64, requests=16),
        (
            dataclasses.replace(_TPOT, target=Target(at_most=1.0)),
            dataclasses.replace(_TTFT, target=Target(at_most=1.0)),
        ),
    ),
    PeerWorkload(
        "w2",
        ClosedLoop(streams=16, input_tokens=256, output_tokens=64, requests=64),
        (Figure("output_throughput", "output tokens/s", Target(at_least=1.3)), _TTFT, _TPOT),
    ),
    PeerWorkload(
        "w3",
        ClosedLoop(streams=4, input_tokens=1024, output_tokens=16, requests=24),
        (Figure("total_token_throughput", "total tokens/s", Target(at_least=1.2)), _TTFT, _TPOT),
    ),
    PeerWorkload(
        "w4",
        Interference(),
        (
            Figure("itl_p99_ms", "ITL p99 of steady streams, ms", Target(at_most=0.2)),
            Figure("long_ttft_p50_ms", "TTFT p50 of long prompts, ms", Target(at_most=1.3)),
            Figure("itl_p50_ms", "ITL p50 of steady streams, ms"),
        ),
    ),
)


def choose_workloads(names: str, *, quick: bool) -> tuple[PeerWorkload, ...]:
    """The workloads of a list like `w1,w4`; quick ones are as short as their shape allows.

    Raises:
        OptionError: one does not exist, or none is named.
    """
    by_name = {workload.name: workload for workload in WORKLOADS}
    wanted = [name.strip().lower() for name in names.split(",") if name.strip()]
    if not wanted or not set(wanted) <= set(by_name):
        raise OptionError(f"--workloads {names!r}: write some of {','.join(by_name)}")
    chosen = tuple(workload for workload in WORKLOADS if workload.name in wanted)
    return tuple(map(_shortened, chosen)) if quick else chosen


def _shortened(workload: PeerWorkload) -> PeerWorkload:
    load = workload.load
    if isinstance(load, ClosedLoop):
        return dataclasses.replace(workload, load=dataclasses.replace(load, requests=max(4, load.streams)))
    return dataclasses.replace(workload, load=dataclasses.replace(load, seconds=6.0))
