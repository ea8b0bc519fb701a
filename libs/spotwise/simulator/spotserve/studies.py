"""What SpotServe's paper asks, as runs: which systems on which traces under which load.

Law: the lines of a study differ in the one thing that it is about; each is run with the requests that the artifact published,
which come almost evenly, and with requests as bursty as the paper says (a true CV of 6), over several seeds.

Source: SpotServe, sections 6.1 (systems, models, segments), 6.2 (figures 6 and 7), 6.3 (figure 8: load that changes) and 6.4
(figure 9: ablation). Whole traces, notices of no length, and phases apart are our own questions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.policy import Latency, Phases
from spotwise.simulator.spotserve.cases import Availability, Load, SpotCase
from spotwise.simulator.spotserve.golden import MAX_BATCH
from spotwise.simulator.spotserve.profiles import GPT_20B, LLAMA_30B, OPT_6_7B, PaperModel
from spotwise.simulator.spotserve.systems import (
    ABLATION,
    ON_DEMAND,
    REPARALLELIZATION,
    REROUTING,
    SPOTSERVE,
    BatchFormation,
    SpotSystem,
)

#: By the paper's names: files of the artifact's segments.
SEGMENTS = {
    "A_S": "trace_0304_real.txt",
    "B_S": "trace_0506_real.txt",
    "A_S+O": "trace_0304_ondemand.txt",
    "B_S+O": "trace_0506_ondemand.txt",
}
CHANGING = {"A'_S+O": "trace_0304_workload.txt", "B'_S+O": "trace_0506_workload.txt"}
#: Seconds for which the artifact runs fleets that stay: as long as B_S.
_FIXED_S = 1020.0
#: What the optimizer is told at first where load changes; the trace then says 0.8 and 0.6 again.
_CHANGING_RATE = 0.6
_FIXED_FLEETS = (3, 4, 6, 8)
_TRUE_CV = 6.0
_SYSTEMS = (SPOTSERVE, REPARALLELIZATION, REROUTING)
#: Loads: the artifact's own requests, and as bursty as the paper says.
AS_PUBLISHED, BURSTY = "as published", f"CV {_TRUE_CV:g}"
#: Every whole trace: file, when its first machines are all there, and requests a second.
_WHOLE = {"g4dn": ("g4dn-trace.csv", 600.0, (0.4, 0.8))}

#: What the paper has not: phases apart (Splitwise), batches made anew between iterations (Orca), and whichever has the least
#: latency with its wait reckoned in. P and M of what reroutes are those of the smallest fleet that serves.
APART = replace(SPOTSERVE, name="SpotServe, phases apart", phases=Phases.SPLIT)
JOINED = replace(SPOTSERVE, name="SpotServe, batches anew", batching=BatchFormation.ITERATION)
JOINED_APART = replace(APART, name="SpotServe, both", batching=BatchFormation.ITERATION)
EITHER = replace(SPOTSERVE, name="SpotServe, whichever", phases=Phases.EITHER, latency=Latency.REQUEST)
_REROUTING = replace(REROUTING, shape=ParallelConfig(1, 3, 4, MAX_BATCH))
_ON_WHOLE = (SPOTSERVE, REPARALLELIZATION, _REROUTING, APART, JOINED, JOINED_APART, EITHER)


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is run.

    Attributes:
        data: the artifact's folder, and beside it Bamboo's.
        seeds: with which bursty requests are drawn.
        hours: of whole traces; `None` for all.
    """

    data: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    hours: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One line of a study.

    Attributes:
        trace: on which.
        load: under which, for people.
        line: what is compared.
        cases: the same run with each seed.
    """

    trace: str
    load: str
    line: str
    cases: tuple[SpotCase, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """Lines that are compared.

    Attributes:
        name: short, of files and documents.
        title: for people.
        model: what is served.
        points: by trace and load, then by line.
    """

    name: str
    title: str
    model: str
    points: tuple[Point, ...]


def studies(scope: Scope) -> list[Study]:
    """Return all of them, in the order of the paper."""
    build = _Builder(scope)
    return [
        build.latency("gpt-20b", GPT_20B),
        build.latency("llama-30b", LLAMA_30B),
        build.latency("opt-6.7b", OPT_6_7B),
        build.fixed(),
        build.changing(),
        build.segments("ablation", "GPT-20B, one part after another taken away", GPT_20B, ("A_S", "B_S"), ABLATION),
        build.zero_notice(),
        build.whole(),
    ]


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes studies.

    Attributes:
        scope: of all of them.
    """

    scope: Scope

    def latency(self, name: str, model: PaperModel) -> Study:
        return self.segments(name, f"{model.name}, latency on segments of a trace", model, SEGMENTS, _SYSTEMS)

    def segments(
        self, name: str, title: str, model: PaperModel, traces: Iterable[str], systems: Iterable[SpotSystem]
    ) -> Study:
        points = [
            point
            for trace in traces
            for load in (AS_PUBLISHED, BURSTY)
            for system in systems
            for point in [self._point(trace, load, system, self._segment_case(model, trace, load, system))]
        ]
        return Study(name, title, model.name, tuple(points))

    def fixed(self) -> Study:
        """Fleets that stay."""
        points = []
        for load in (AS_PUBLISHED, BURSTY):
            for nodes in _FIXED_FLEETS:
                case = self._case(GPT_20B, Availability(fixed_nodes=nodes, fixed_s=_FIXED_S), load, ON_DEMAND)
                points.append(self._point(f"{nodes} on-demand", load, ON_DEMAND, case))
        return Study("on-demand", "GPT-20B on instances that stay", GPT_20B.name, tuple(points))

    def changing(self) -> Study:
        """Load that changes: a minute-by-minute shape that the artifact published, and the segments' own steps."""
        points = []
        for trace, file in CHANGING.items():
            for load in (AS_PUBLISHED, BURSTY):
                for system in _SYSTEMS:
                    requests = (
                        Load(file="query_realAr_cv6.txt")
                        if load == AS_PUBLISHED
                        else Load(rates_file="arrival-rates.csv", cv=_TRUE_CV)
                    )
                    case = SpotCase(
                        self.scope.data,
                        GPT_20B.name,
                        Availability(file=_segment(file)),
                        requests,
                        system,
                        required_rate=_CHANGING_RATE,
                    )
                    points.append(self._point(trace, load, system, case))
        return Study("changing-load", "GPT-20B, load that changes", GPT_20B.name, tuple(points))

    def zero_notice(self) -> Study:
        """The same traces without a notice."""
        points = []
        for trace in ("A_S", "B_S"):
            for system in _SYSTEMS:
                for grace_s in (30.0, 0.0):
                    case = self._segment_case(GPT_20B, trace, AS_PUBLISHED, system)
                    case = replace(case, surroundings=replace(case.surroundings, grace_s=grace_s))
                    named = replace(system, name=f"{system.name}, {grace_s:g} s")
                    points.append(self._point(trace, AS_PUBLISHED, named, case))
        return Study("zero-notice", "GPT-20B, with a notice and without", GPT_20B.name, tuple(points))

    def whole(self) -> Study:
        """Whole recordings, with phases together and apart."""
        points = []
        for trace, (file, from_s, rates) in _WHOLE.items():
            until_s = None if self.scope.hours is None else from_s + self.scope.hours * 3600.0
            for rate in rates:
                for system in _ON_WHOLE:
                    case = SpotCase(
                        self.scope.data,
                        GPT_20B.name,
                        Availability(file=f"bamboo/{file}", from_s=from_s, until_s=until_s),
                        Load(rate=rate, cv=1.0),
                        system,
                    )
                    points.append(self._point(trace, f"{rate:g}/s, Poisson", system, case, seeds=self.scope.seeds[:1]))
        return Study("whole", "GPT-20B, goodput per dollar on a whole trace", GPT_20B.name, tuple(points))

    def _segment_case(self, model: PaperModel, trace: str, load: str, system: SpotSystem) -> SpotCase:
        return self._case(model, Availability(file=_segment(SEGMENTS[trace])), load, system)

    def _case(self, model: PaperModel, availability: Availability, load: str, system: SpotSystem) -> SpotCase:
        requests = Load(file=model.arrivals) if load == AS_PUBLISHED else Load(rate=model.arrival_rate, cv=_TRUE_CV)
        return SpotCase(
            self.scope.data,
            model.name,
            availability,
            requests,
            system,
            required_rate=model.required_rate,
        )

    def _point(
        self, trace: str, load: str, system: SpotSystem, case: SpotCase, seeds: tuple[int, ...] | None = None
    ) -> Point:
        seeds = (self.scope.seeds if seeds is None else seeds) if case.load.file is None else (0,)
        cases = tuple(replace(case, load=replace(case.load, seed=seed)) for seed in seeds)
        return Point(trace, load, system.name, cases)


def _segment(file: str) -> str:
    return f"spotserve/availability/{file}"
