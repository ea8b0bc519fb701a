"""Runs one case and summarizes it; a case gives the same summary in every process, except for real time."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.machine_changes import lives_of
from spotwise.simulator.runs.metrics import RunMetrics, TimeBeyondProfiles
from spotwise.simulator.runs.request_rows import MetricsAndRows, RequestRows
from spotwise.simulator.runs.run_summary import RunSummary, summary_of
from spotwise.simulator.runs.setups import ClusterSetup, own_setup, paper_setup, world_of
from spotwise.simulator.runs.slo import AloneOn, LostObjectives, ObjectivesLostError

#: Allocations between garbage collections; Python's default of 700 takes a tenth of a run.
_COLLECT_AFTER = 100_000
#: Collections of the middle generation before one of the oldest.
_NEVER = 2**31 - 1


def require_runnable(case: Case) -> None:
    """Check all of a case but its load, of which only the trace's beginning is read, in no time; raises as `simulate`."""
    lives_of(case.cluster, case.changes)
    _setup(case)


def simulate(case: Case, rows: RequestRows | None = None) -> RunSummary:
    """Run a case until its last request ends.

    Args:
        rows: takes every request as it ends.

    Raises:
        ProfileError, TraceError: a file is wrong.
        ValueError: the model does not fit a machine; policies need what no machine has; or all machines leave.
    """
    lives = lives_of(case.cluster, case.changes)
    setup = _setup(case)
    names = case.cluster.group_names
    requests = sum(1 for _ in case.workload.arrivals(case.rate, case.seconds, case.seed)) if case.verdict_only else 0
    lost = LostObjectives(requests, case.objectives) if case.verdict_only else None
    reference = setup.reference if case.objectives.alone is None else AloneOn(case.objectives.alone)
    pool_of = {life.machine_id: names[life.group] for life in lives}
    metrics = RunMetrics(
        reference,
        pool_of,
        case.objectives,
        lost,
        has_priorities=case.workload.has_priorities,
        beyond=TimeBeyondProfiles({life.machine_id: case.cluster.groups[life.group].kind for life in lives}),
    )
    observer = metrics if rows is None else MetricsAndRows(metrics, rows)
    world = world_of(setup, lives, observer, reports_machines=rows is not None)
    began_s = time.perf_counter()
    with _collecting_rarely():
        try:
            result = world.run(case.workload.arrivals(case.rate, case.seconds, case.seed))
        except ObjectivesLostError:
            metrics.failed = requests - metrics.finishes.count
            result = replace(world.result(), failed=metrics.failed)
    return summary_of(case, metrics, result, lives, time.perf_counter() - began_s)


def _setup(case: Case) -> ClusterSetup:
    if case.cluster.own_kinds:
        return own_setup(case.cluster, case.policy, prefix_caching=case.caches_prefixes)
    return paper_setup(
        case.cluster, case.model, case.decode_model, case.profile, case.policy, prefix_caching=case.caches_prefixes
    )


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Collect garbage rarely, and not among what is there before: a run makes hardly any cycles.

    The oldest generation is left alone. To freeze it would do, too, but who asks whether it is frozen has it counted.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, before[1], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
