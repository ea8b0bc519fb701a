"""What a reader of a simulated run should know of it beside its figures."""

from __future__ import annotations

from spotwise.simulator.runs.experiment import RunSummary
from spotwise.simulator.runs.steady_state import STEADY_SHARE


def prefix_lines(run: RunSummary) -> list[str]:
    """Return what came of the prompts' contents, where the trace has them; raises TraceError if it cannot be read."""
    case = run.case
    if run.cached_share is not None:
        return [f"{run.cached_share:.1%} of the prompt tokens were found in prefix caches."]
    if not case.workload.has_hashes or not case.prefix_caching:
        return []
    if not case.workload.knows_contents:
        return [
            "Nothing was found in prefix caches: random arrivals are of sizes alone. The trace's hash_ids count with "
            "--arrivals trace, or drawn with their requests (--jointly)."
        ]
    return ["Nothing was found in prefix caches: the published simulator has none (--decode-model)."]


def steady_lines(run: RunSummary) -> list[str]:
    """Return that a run has reached no steady state, where it has none."""
    mean_s = run.latencies_s.get("e2e", {}).get("mean")
    if run.is_steady or mean_s is None:
        return []
    return [
        f"No steady state: a request takes {mean_s:,.1f} s in the mean, more than {STEADY_SHARE:g} of the "
        f"{run.case.seconds or run.ended_s:,.0f} s in which they arrive, so figures depend on how long that is (--seconds)."
    ]
