"""The workloads that compare a mesh with other servers; a workload fixes its load except for the seed."""

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
        more_is_better: the better of two is the larger one.
    """

    key: str
    title: str
    target: Target | None = None
    more_is_better: bool = False


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`streams` closed-loop streams, driven by vLLM's own client.

    Attributes:
        input_tokens: a prompt's own, beyond its prefix.
        prefix_tokens: beginning that all prompts of a run have in common.
    """

    streams: int
    input_tokens: int
    output_tokens: int
    requests: int
    prefix_tokens: int = 0

    @property
    def streams_at_once(self) -> int:
        """The most requests that run at the same time."""
        return self.streams

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of the longest request."""
        return self.prefix_tokens + self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class PeerWorkload:
    """One load and its figures, the most important first.

    Attributes:
        weights: quantised ones, of one GGUF file that both sides load; None: in the machine's dtype.
        further: part of a whole run, not of a quick one.
    """

    name: str
    load: ClosedLoop | Interference
    figures: tuple[Figure, ...]
    weights: str | None = None
    further: bool = False

    @property
    def shape(self) -> str:
        """The load as text."""
        load = self.load
        if isinstance(load, ClosedLoop):
            prefix = f"{load.prefix_tokens} shared + " if load.prefix_tokens else ""
            weights = f", {self.weights}" if self.weights else ""
            tokens = f"{prefix}{load.input_tokens}→{load.output_tokens}"
            return f"{load.streams} streams, {tokens}, {load.requests} requests{weights}"
        return (
            f"{load.steady_streams} streams, {load.steady_input_tokens}→{load.steady_output_tokens}, beside "
            f"{load.long_input_tokens}→{load.long_output_tokens} every {load.every_s:g} s for {load.seconds:g} s"
        )


_TTFT = Figure("median_ttft_ms", "TTFT p50, ms")
_TPOT = Figure("median_tpot_ms", "TPOT p50, ms")
_OUTPUT = Figure("output_throughput", "output tokens/s", more_is_better=True)
_TOTAL = Figure("total_token_throughput", "total tokens/s", more_is_better=True)


def _with_target(figure: Figure, *, at_most: float | None = None, at_least: float | None = None) -> Figure:
    return dataclasses.replace(figure, target=Target(at_most, at_least))


def _quantised(weights: str) -> tuple[PeerWorkload, PeerWorkload]:
    return (
        PeerWorkload(
            f"w6-{weights}",
            ClosedLoop(streams=1, input_tokens=128, output_tokens=64, requests=16),
            (_with_target(_TPOT, at_most=1.0), _TTFT),
            weights,
        ),
        PeerWorkload(
            f"w6-{weights}-16",
            ClosedLoop(streams=16, input_tokens=128, output_tokens=64, requests=64),
            (_with_target(_OUTPUT, at_least=1.5), _TTFT, _TPOT),
            weights,
        ),
    )


#: w5 is Orca's load, which has a command of its own, `spotwise bench dev batching`.
WORKLOADS = (
    PeerWorkload(
        "w1",
        ClosedLoop(streams=1, input_tokens=128, output_tokens=64, requests=16),
        (_with_target(_TPOT, at_most=0.8), _with_target(_TTFT, at_most=0.8)),
    ),
    PeerWorkload(
        "w2",
        ClosedLoop(streams=16, input_tokens=256, output_tokens=64, requests=64),
        (_with_target(_OUTPUT, at_least=1.3), _TTFT, _TPOT),
    ),
    PeerWorkload(
        "w3",
        ClosedLoop(streams=4, input_tokens=1024, output_tokens=16, requests=24),
        (_with_target(_TOTAL, at_least=1.2), _TTFT, _TPOT),
    ),
    PeerWorkload(
        "w4",
        Interference(),
        (
            Figure("itl_p99_ms", "ITL p99 of steady streams, ms", Target(at_most=0.15)),
            Figure("long_ttft_p50_ms", "TTFT p50 of long prompts, ms", Target(at_most=0.7)),
            Figure("itl_p50_ms", "ITL p50 of steady streams, ms"),
        ),
    ),
    *_quantised("q4_1"),
    *_quantised("q8_0"),
    PeerWorkload(
        "w7",
        ClosedLoop(streams=1, input_tokens=32, output_tokens=256, requests=8),
        (_TPOT, _TTFT),
        further=True,
    ),
    PeerWorkload(
        "w8",
        ClosedLoop(streams=8, input_tokens=512, output_tokens=128, requests=24),
        (_OUTPUT, _TTFT, _TPOT),
        further=True,
    ),
    PeerWorkload(
        "w9",
        ClosedLoop(streams=8, input_tokens=64, output_tokens=64, requests=32, prefix_tokens=1024),
        (_OUTPUT, _TTFT, _TPOT),
        further=True,
    ),
    PeerWorkload(
        "w10",
        ClosedLoop(streams=32, input_tokens=64, output_tokens=32, requests=128),
        (_OUTPUT, _TTFT, _TPOT),
        further=True,
    ),
)


def choose_workloads(names: str | None, *, quick: bool, quantised: bool = True) -> tuple[PeerWorkload, ...]:
    """The workloads of a list like `w1,w6`; quick ones are as short as their shape allows.

    Args:
        names: workloads or groups (`w6`), comma-separated; None: all, without the further shapes where `quick`.
        quantised: true where a yardstick serves quantised weights.

    Raises:
        OptionError: one does not exist or has no yardstick, or none is named.
    """
    if names is None:
        chosen = [
            workload
            for workload in WORKLOADS
            if not (quick and workload.further) and (quantised or workload.weights is None)
        ]
    else:
        wanted = {name.strip().lower() for name in names.split(",") if name.strip()}
        chosen = [each for each in WORKLOADS if wanted & {each.name, group_of(each)}]
        known = {name for workload in WORKLOADS for name in (workload.name, group_of(workload))}
        if not wanted or not wanted <= known:
            groups = ",".join(dict.fromkeys(map(group_of, WORKLOADS)))
            raise OptionError(f"--workloads {names!r}: write some of {groups}")
        if not quantised and (without := [each.name for each in chosen if each.weights]):
            raise OptionError(f"--workloads {names!r}: {', '.join(without)} need llama.cpp among the --yardsticks")
    return tuple(map(_shortened, chosen)) if quick else tuple(chosen)


def group_of(workload: PeerWorkload) -> str:
    """The name under which a workload is chosen together with those beside it."""
    return workload.name.partition("-")[0]


def _shortened(workload: PeerWorkload) -> PeerWorkload:
    load = workload.load
    if isinstance(load, ClosedLoop):
        return dataclasses.replace(workload, load=dataclasses.replace(load, requests=max(4, load.streams)))
    return dataclasses.replace(workload, load=dataclasses.replace(load, seconds=6.0))
