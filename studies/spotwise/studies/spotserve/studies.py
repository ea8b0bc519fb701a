"""The SpotServe paper's questions as runs (sections 6.1 to 6.4, figures 6 to 9), over several seeds, with the artifact's nearly
even arrivals and with a true CV of 6. Lines of a study differ in one thing. Whole traces, zero-length notices and
disaggregated phases are our own questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.policy import Latency, Phases
from spotwise.simulator.spotserve.systems import (
    REPARALLELIZATION,
    REROUTING,
    SPOTSERVE,
    BatchFormation,
    SpotSystem,
)
from spotwise.studies.spotserve.cases import Availability, Load, SpotCase
from spotwise.studies.spotserve.golden import MAX_BATCH
from spotwise.studies.spotserve.profiles import GPT_20B, LLAMA_30B, OPT_6_7B, PaperModel
from spotwise.studies.study import Study, StudyPoint

SpotStudy = Study[SpotCase]

#: On a fixed fleet without events.
ON_DEMAND = SpotSystem("on-demand")
#: The paper's ablation, one part after another removed.
ABLATION = (
    SPOTSERVE,
    SpotSystem("without controller", adapts=False),
    SpotSystem("without planner", adapts=False, progressive=False),
    SpotSystem("without arranger", adapts=False, progressive=False, recovers=False),
    SpotSystem("without mapper", adapts=False, progressive=False, recovers=False, matches=False),
)

#: By the paper's names: files of the artifact's segments.
SEGMENTS = {
    "A_S": "trace_0304_real.txt",
    "B_S": "trace_0506_real.txt",
    "A_S+O": "trace_0304_ondemand.txt",
    "B_S+O": "trace_0506_ondemand.txt",
}
CHANGING = {"A'_S+O": "trace_0304_workload.txt", "B'_S+O": "trace_0506_workload.txt"}
#: Seconds of the artifact's runs on fixed fleets: as long as B_S.
_FIXED_S = 1020.0
#: Initial required rate where load changes, requests a second; the trace then has 0.8 and 0.6 again.
_CHANGING_RATE = 0.6
_FIXED_FLEETS = (3, 4, 6, 8)
_TRUE_CV = 6.0
_SYSTEMS = (SPOTSERVE, REPARALLELIZATION, REROUTING)
#: Loads: the artifact's own requests, and the burstiness the paper prints.
AS_PUBLISHED, BURSTY = "as published", f"CV {_TRUE_CV:g}"
#: Every whole trace: file, seconds until its first machines are all up, and rates, requests a second.
_WHOLE = {"g4dn": ("g4dn-trace.csv", 600.0, (0.4, 0.8))}

#: Ours beyond the paper: disaggregated phases (Splitwise), iteration-level batching (Orca), and the arrangement with the
#: least latency, queueing included. Rerouting has P and M of the smallest fleet that serves.
APART = replace(SPOTSERVE, name="SpotServe, disaggregated", phases=Phases.SPLIT)
JOINED = replace(SPOTSERVE, name="SpotServe, iteration-level", batching=BatchFormation.ITERATION)
EITHER = replace(SPOTSERVE, name="SpotServe, least latency", phases=Phases.EITHER, latency=Latency.REQUEST)
_REROUTING = replace(REROUTING, shape=ParallelConfig(1, 3, 4, MAX_BATCH))
WHOLE = "whole"
_ON_WHOLE = (SPOTSERVE, REPARALLELIZATION, _REROUTING, APART, JOINED, EITHER)
#: Configurations that are chosen anew with each load, and those that are kept by the planner's rule, on every trace at hand:
#: file, first second, and rates of a moderate and of a heavy load (of p3 the moderate one), requests a second.
HYSTERESIS = "hysteresis"
KEPT = replace(SPOTSERVE, name="SpotServe, with hysteresis", keeps=True)
_EVERY_TRACE = {
    **{trace: (f"spotserve/availability/{file}", 0.0, (0.35, 0.6)) for trace, file in SEGMENTS.items()},
    "g4dn": ("bamboo/g4dn-trace.csv", 600.0, (0.4, 0.8)),
    "p3": ("bamboo/p3-trace.csv", 600.0, (0.8,)),
    "parcae, hh": ("parcae/gpt-6.7b_trace_hh_55_65.txt", 0.0, (1.0, 2.0)),
    "parcae, hl": ("parcae/gpt-6.7b_trace_hl_15_25.txt", 0.0, (1.0, 2.0)),
    "parcae, lh": ("parcae/gpt-6.7b_trace_lh_80_90.txt", 0.0, (0.7, 1.3)),
    "parcae, ll": ("parcae/gpt-6.7b_trace_ll_10_11.txt", 0.0, (0.6, 1.2)),
}


@dataclass(frozen=True, slots=True)
class SpotScope:
    """Size of the studies.

    Attributes:
        data: the artifact's folder, beside Bamboo's.
        seeds: seeds of bursty arrivals.
        hours: hours of whole traces; `None` for all.
    """

    data: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    hours: float | None = None


_AXES = ("trace", "requests")


def studies(scope: SpotScope) -> list[SpotStudy]:
    """Return all studies in the paper's order; a point's place is its trace and load."""

    def segments(
        name: str,
        title: str,
        model: PaperModel,
        traces: Iterable[str] = SEGMENTS,
        systems: Iterable[SpotSystem] = _SYSTEMS,
    ) -> SpotStudy:
        return Study(
            name,
            title,
            _AXES,
            tuple(
                _point(trace, load, system.name, _segment_case(scope, model, trace, load, system), scope.seeds)
                for trace in traces
                for load in (AS_PUBLISHED, BURSTY)
                for system in systems
            ),
        )

    def latency(name: str, model: PaperModel) -> SpotStudy:
        return segments(name, f"{model.name}, latency on segments of a trace", model)

    ablation = "GPT-20B, one part after another taken away"
    return [
        latency("gpt-20b", GPT_20B),
        latency("llama-30b", LLAMA_30B),
        latency("opt-6.7b", OPT_6_7B),
        Study("on-demand", "GPT-20B on instances that stay", _AXES, tuple(_fixed(scope))),
        Study("changing-load", "GPT-20B, load that changes", _AXES, tuple(_changing(scope))),
        segments("ablation", ablation, GPT_20B, ("A_S", "B_S"), ABLATION),
        Study("zero-notice", "GPT-20B, with a notice and without", _AXES, tuple(_zero_notice(scope))),
        Study(WHOLE, "GPT-20B, goodput per dollar on a whole trace", _AXES, tuple(_whole(scope))),
        Study(HYSTERESIS, "GPT-20B, configurations chosen anew and kept", _AXES, tuple(_hysteresis(scope))),
    ]


def _fixed(scope: SpotScope) -> Iterator[StudyPoint[SpotCase]]:
    for load in (AS_PUBLISHED, BURSTY):
        for nodes in _FIXED_FLEETS:
            case = _case(scope, GPT_20B, Availability(fixed_nodes=nodes, fixed_s=_FIXED_S), load, ON_DEMAND)
            yield _point(f"{nodes} on-demand", load, ON_DEMAND.name, case, scope.seeds)


def _changing(scope: SpotScope) -> Iterator[StudyPoint[SpotCase]]:
    loads = {AS_PUBLISHED: Load(file="query_realAr_cv6.txt"), BURSTY: Load(rates_file="arrival-rates.csv", cv=_TRUE_CV)}
    for trace, file in CHANGING.items():
        for name, load in loads.items():
            for system in _SYSTEMS:
                availability = Availability(file=_segment(file))
                case = SpotCase(scope.data, GPT_20B.name, availability, load, system, _CHANGING_RATE)
                yield _point(trace, name, system.name, case, scope.seeds)


def _zero_notice(scope: SpotScope) -> Iterator[StudyPoint[SpotCase]]:
    for trace in ("A_S", "B_S"):
        for system in _SYSTEMS:
            for grace_s in (30.0, 0.0):
                case = _segment_case(scope, GPT_20B, trace, AS_PUBLISHED, system)
                case = replace(case, surroundings=replace(case.surroundings, grace_s=grace_s))
                yield _point(trace, AS_PUBLISHED, f"{system.name}, {grace_s:g} s", case, scope.seeds)


def _whole(scope: SpotScope) -> Iterator[StudyPoint[SpotCase]]:
    for trace, (file, from_s, rates) in _WHOLE.items():
        until_s = None if scope.hours is None else from_s + scope.hours * 3600.0
        availability = Availability(file=f"bamboo/{file}", from_s=from_s, until_s=until_s)
        for rate in rates:
            for system in _ON_WHOLE:
                case = SpotCase(scope.data, GPT_20B.name, availability, Load(rate=rate, cv=1.0), system)
                yield _point(trace, f"{rate:g}/s, Poisson", system.name, case, scope.seeds[:1])


def _hysteresis(scope: SpotScope) -> Iterator[StudyPoint[SpotCase]]:
    for trace, (file, from_s, rates) in _EVERY_TRACE.items():
        until_s = None if scope.hours is None else from_s + scope.hours * 3600.0
        availability = Availability(file=file, from_s=from_s, until_s=until_s)
        seeds = scope.seeds[:1] if file.startswith("bamboo/") else scope.seeds  # of ten hours one is enough
        for rate in rates:
            for system in (SPOTSERVE, KEPT, _REROUTING):
                case = SpotCase(scope.data, GPT_20B.name, availability, Load(rate=rate, cv=1.0), system)
                yield _point(trace, f"{rate:g}/s, Poisson", system.name, case, seeds)


def _segment_case(scope: SpotScope, model: PaperModel, trace: str, load: str, system: SpotSystem) -> SpotCase:
    return _case(scope, model, Availability(file=_segment(SEGMENTS[trace])), load, system)


def _case(scope: SpotScope, model: PaperModel, availability: Availability, load: str, system: SpotSystem) -> SpotCase:
    requests = Load(file=model.arrivals) if load == AS_PUBLISHED else Load(rate=model.arrival_rate, cv=_TRUE_CV)
    return SpotCase(scope.data, model.name, availability, requests, system, model.required_rate)


def _point(trace: str, load: str, line: str, case: SpotCase, seeds: tuple[int, ...]) -> StudyPoint[SpotCase]:
    drawn = seeds if case.load.file is None else (0,)
    cases = tuple(replace(case, load=replace(case.load, seed=seed)) for seed in drawn)
    return StudyPoint((trace, load), line, cases)


def _segment(file: str) -> str:
    return f"spotserve/availability/{file}"
