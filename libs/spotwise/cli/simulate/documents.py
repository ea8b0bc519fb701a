"""Simulated runs as JSON documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from spotwise.cli.profile_reach import extrapolation_document
from spotwise.simulator.runs.experiment import Case, RunSummary
from spotwise.simulator.runs.slo import PERCENTS

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
        "slowdowns": {
            metric: {
                f"p{percent}": {"ours": ours, "bound": bound}
                for percent, (ours, bound) in zip(PERCENTS, figures, strict=True)
            }
            for metric, figures in run.verdict.slowdowns.items()
        },
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
        "power_dgx_a100": run.power,
        "moved": run.moved,
        "recomputed": run.recomputed,
        "handoffs": run.handoffs,
        "handoff_bytes": run.handoff_bytes,
        "preemptions": run.preemptions,
        "cached_prompt_share": run.cached_share,
        "beyond_profile": extrapolation_document(run.beyond_profile),
        "wall_s": run.wall_s,
    }


def case_document(case: Case) -> dict[str, Any]:
    """Return everything that a run depends on."""
    return {
        "design": case.design,
        "prompt_machines": case.split.prompt,
        "token_machines": case.split.token,
        "workload": case.workload.name,
        "arrivals": case.workload.kind.value,
        "rate": case.rate,
        "seconds": case.seconds,
        "seed": case.seed,
        "model": case.model if case.recorded is None else case.recorded.name,
        "decode_model": case.decode_model.value if case.recorded is None else None,
        "chunk_tokens": case.chunk_tokens,
    }


def write_document(document: dict[str, Any], path: Path | None, console: Console) -> None:
    """Write a document if a path is given."""
    if path is not None:
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
        console.print(f"written to {path}", style="dim")


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    stride = -(-len(points) // _MOST_POINTS)
    kept = list(points[::stride]) if stride else []
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]
