"""Simulated runs as JSON documents."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from spotwise.cli.simulate.run_marks import beyond_document
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.intervals import SeedMeans
from spotwise.simulator.runs.metrics import Judged
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.runs.slo import MEASURED, METRICS, PERCENTS

_MOST_POINTS = 100


def run_document(run: RunSummary) -> dict[str, Any]:
    """Return all of a run's figures, its pools' curves thinned to a hundred points."""
    return {
        **case_document(run.case),
        "requests": {"completed": run.completed, "failed": run.failed, "first_failure": run.first_failure},
        "ended_s": run.ended_s,
        "requests_per_s": run.requests_per_s,
        "output_tokens_per_s": run.output_tokens_per_s,
        "latencies_s": run.latencies_s,
        "latencies_s_by_priority": run.by_priority,
        "slowdowns": {metric: _judged(figures) for metric, figures in run.verdict.slowdowns.items()},
        "objectives_s": {metric: _judged(figures) for metric, figures in run.verdict.seconds.items()},
        "objectives_hold": run.verdict.holds,
        "steady_state": run.is_steady,
        "pools": {
            name: {
                "machines": pool.machines,
                "utilisation": pool.utilisation,
                "iterations": pool.iterations,
                "mean_decodes": pool.mean_decodes,
                "busy_time_by_tokens": _thinned(list(zip(pool.tokens, pool.time_shares, strict=True))),
            }
            for name, pool in run.pools.items()
        },
        "price_per_hour": run.price_per_hour,
        "spent_usd": run.spent_usd,
        "power_dgx_a100": run.power,
        "machines_joined": run.joined,
        "machines_left": run.left,
        "moved": run.moved,
        "recomputed": run.recomputed,
        "restarted": run.restarted,
        "handoffs": run.handoffs,
        "handoff_bytes": run.handoff_bytes,
        "preemptions": run.preemptions,
        "cached_prompt_share": run.cached_share,
        "beyond_profile": beyond_document(run.beyond_profile),
        "wall_s": run.wall_s,
    }


def means_document(means: SeedMeans) -> dict[str, Any]:
    """Return means over seeds, each with half of its 95 % interval, as far as all runs have the figure."""
    case = means.runs[0].case
    names = ("mean", *(f"p{percent}" for percent in PERCENTS))
    return {
        "rate": case.rate,
        "seeds": [run.case.seed for run in means.runs],
        "seeds_that_hold": means.holding,
        "seeds_in_steady_state": sum(run.is_steady for run in means.runs),
        "requests_per_s": means.over(lambda run: run.requests_per_s),
        "output_tokens_per_s": means.over(lambda run: run.output_tokens_per_s),
        "dollars_per_1000_requests": means.over(lambda run: run.dollars_per_1000_requests),
        "latencies_s": {metric: {name: means.latency_s(metric, name) for name in names} for metric in MEASURED},
        "slowdowns": {
            metric: {f"p{percent}": means.slowdown(metric, percent) for percent in PERCENTS} for metric in METRICS
        },
        "cached_prompt_share": means.over(lambda run: run.cached_share),
        "beyond_profile": means.over(lambda run: None if run.beyond_profile is None else run.beyond_profile.share),
    }


def case_document(case: Case) -> dict[str, Any]:
    """Return what a run depends on."""
    own = case.cluster.own_kinds
    return {
        "design": case.cluster.name,
        "prompt_machines": case.split.prompt,
        "token_machines": case.split.token,
        "workload": case.workload.name,
        "arrivals": case.workload.kind.value,
        "rate": case.rate,
        "seconds": case.seconds,
        "seed": case.seed,
        "model": own[0].profile.name if own else case.model,
        "decode_model": None if own else case.decode_model.value,
        "machines": [
            {"kind": group.kind.name, "count": group.count, "pool": group.pool.value} for group in case.cluster.groups
        ],
        "policy": dataclasses.asdict(case.policy),
        "priorities": [dataclasses.asdict(each) for each in case.workload.priorities],
        "changes": [dataclasses.asdict(each) for each in case.changes],
        "chunk_tokens": case.policy.chunk_tokens,
    }


def write_document(document: dict[str, Any], path: Path | None, console: Console) -> None:
    """Write a document if a path is given."""
    if path is not None:
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
        console.print(f"written to {path}", style="dim")


def _judged(figures: Judged) -> dict[str, Any]:
    return {
        f"p{percent}": {"ours": ours, "bound": bound} for percent, (ours, bound) in zip(PERCENTS, figures, strict=True)
    }


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    stride = -(-len(points) // _MOST_POINTS)
    kept = list(points[::stride]) if stride else []
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]
