"""Remarks on a simulated run that its reader should know beside its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from spotwise.cli.profile_files import extrapolation_lines, kinds_line, says_its_range, unknown_range_line
from spotwise.simulator.runs.intervals import MeanInterval, SeedMeans
from spotwise.simulator.runs.metrics import BeyondProfiles
from spotwise.simulator.runs.run_summary import STEADY_SHARE, RunSummary


def mark_lines(run: RunSummary) -> list[str]:
    """Return all marks of a run; raises TraceError if its trace cannot be read."""
    found = [] if run.cached_share is None else [_found(f"{run.cached_share:.1%}")]
    steady = [f"No steady state: {words}" for words in _why_unsteady(run)]
    return [*steady, *found, *_no_prefix_lines(run), *_beyond_lines(run), *_unknown_lines(run)]


def beyond_marks(runs: Mapping[str, Sequence[RunSummary]]) -> tuple[list[str], dict[str, Any]]:
    """Return, of designs by their names, in words and for JSON, what part of the time their profiles did not measure in the run
    that goes farthest; and in words which profiles do not say how far they were measured."""
    farthest = {name: max(own, key=_beyond) for name, own in runs.items() if own}
    lines = [f"{name}: {line}" for name, run in farthest.items() for line in _beyond_lines(run)]
    unknown = dict.fromkeys(line for run in farthest.values() for line in _unknown_lines(run, is_one_of_several=True))
    return [*lines, *unknown], {name: beyond_document(run.beyond_profile) for name, run in farthest.items()}


def mean_mark_lines(means: SeedMeans) -> list[str]:
    """Return the marks of runs with several seeds: how many are marked, and why the one that is farthest off."""
    runs, lines = means.runs, []
    unsteady = [run for run in runs if not run.is_steady]
    slowest = max(unsteady, key=lambda run: run.latencies_s.get("e2e", {}).get("mean", 0.0), default=None)
    if slowest is not None:
        of = f"No steady state with {len(unsteady)} of {len(runs)} seeds: with seed {slowest.case.seed} "
        lines += [f"{of}{words}" for words in _why_unsteady(slowest)]
    if (found := means.over(lambda run: run.cached_share)) is not None:
        lines.append(_found(_percent(found)))
    lines += _no_prefix_lines(runs[0])
    farthest = max(runs, key=_beyond)
    lines += [f"With seed {farthest.case.seed}, where it is most, {line}" for line in _beyond_lines(farthest)]
    return lines + _unknown_lines(farthest)


def beyond_document(beyond: BeyondProfiles | None) -> dict[str, Any] | None:
    """Return the shares for JSON: of all machines, and of each kind."""
    if beyond is None:
        return None
    return {"share": beyond.share, "machines": [{"kind": each.kind, **asdict(each.beyond)} for each in beyond.kinds]}


def _beyond_lines(run: RunSummary) -> list[str]:
    beyond, kinds = run.beyond_profile, run.case.cluster.own_kinds
    if beyond is None:
        return []
    if len(kinds) == 1:
        return extrapolation_lines(kinds[0].profile, beyond.kinds[0].beyond)
    return kinds_line([(each.kind, each.beyond) for each in beyond.kinds], beyond.share)


def _unknown_lines(run: RunSummary, *, is_one_of_several: bool = False) -> list[str]:
    kinds = run.case.cluster.own_kinds
    return [
        unknown_range_line(f" of {kind.name}" if is_one_of_several or len(kinds) > 1 else "")
        for kind in kinds
        if not (kind.has_paper_costs or says_its_range(kind.profile))
    ]


def _beyond(run: RunSummary) -> float:
    return 0.0 if run.beyond_profile is None else run.beyond_profile.share


def _found(share: str) -> str:
    return f"{share} of the prompt tokens were found in prefix caches."


def _percent(value: MeanInterval) -> str:
    return f"{value.mean:.1%}" if value.half_width is None else f"{value.mean:.1%} ± {value.half_width:.1%}"


def _no_prefix_lines(run: RunSummary) -> list[str]:
    case = run.case
    if run.cached_share is not None or not case.workload.has_hashes or not case.prefix_caching:
        return []
    if not case.workload.knows_contents:
        return [
            "Nothing was found in prefix caches: random arrivals are of sizes alone. The trace's hash_ids count with "
            "--arrivals trace, or drawn with their requests (--jointly)."
        ]
    return ["Nothing was found in prefix caches: the published simulator has none (--decode-model)."]


def _why_unsteady(run: RunSummary) -> list[str]:
    mean_s = run.latencies_s.get("e2e", {}).get("mean")
    if run.is_steady or mean_s is None:
        return []
    return [
        f"a request takes {mean_s:,.1f} s in the mean, more than {STEADY_SHARE:g} of the "
        f"{run.case.seconds or run.ended_s:,.0f} s in which they arrive, so figures depend on how long that is (--seconds)."
    ]
