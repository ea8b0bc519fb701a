"""What came out of the FastServe paper's questions as tables, and as parts of a JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from spotwise.simulator.fastserve.engines import ENGINES, Scheduler
from spotwise.simulator.fastserve.findings import Finding, Findings, Headline, published_per_token_s
from spotwise.simulator.fastserve.job_runs import JobCase, JobSummary
from spotwise.simulator.fastserve.studies import sizes_name

_FCFS = Scheduler.FCFS.value

#: What the columns of a study are.
LEGEND = (
    "JCT: mean, median and percentiles, seconds; the same per output token. FCFS /: mean JCT of FCFS over this. busy: share of "
    "the time in which the engine computed. left: jobs not ended when the last one came. peak KV: tokens, device and host. GB: "
    "KV swapped, both ways. again: jobs computed again."
)


def study_table(found: Findings) -> Table:
    """A row for each line at each value: JCT and JCT per token, and what it took (`LEGEND`)."""
    has_published = any(_published(found, finding) is not None for finding in found.points)
    has_fcfs = _FCFS in found.study.lines
    title = f"{found.study.title} ({found.study.name})\n{parameters(found)}"
    table = Table(header_style="bold", title=title, title_justify="left", title_style="")
    table.add_column(found.study.axis, justify="right")
    table.add_column("", no_wrap=True)
    headings = ["JCT s", "p50", "p95", "p99", "s/token", "p95", "p99"]
    headings += ["published"] if has_published else []
    headings += ["FCFS /"] if has_fcfs else []
    for heading in (*headings, "busy", "left", "peak KV", "GB", "again"):
        table.add_column(heading, justify="right")
    previous: float | str | None = None
    for finding in found.points:
        if previous is not None and finding.at != previous:
            table.add_section()
        at, previous = "" if finding.at == previous else _value(finding.at), finding.at
        cells = [_seconds(value) for value in finding.jct_s.values()]
        cells += [f"{finding.jct_per_token_s[figure]:.3f}" for figure in ("mean", "p95", "p99")]
        if has_published:
            published = _published(found, finding)
            cells.append("" if published is None else f"{published:.3f}")
        if has_fcfs:
            fcfs = found.line(_FCFS)[finding.at]
            cells.append(f"{fcfs.jct_s['mean'] / finding.jct_s['mean']:.2f}x")
        table.add_row(at, finding.line, *cells, *_effort(finding))
    return table


def _effort(finding: Finding) -> list[str]:
    return [
        f"{finding.utilisation:.0%}",
        f"{finding.live_at_last_arrival:.0f}",
        f"{finding.peak_kv_tokens:,.0f}",
        f"{finding.swapped_bytes / 1e9:,.0f}",
        f"{finding.preemptions:.0f}",
    ]


def _published(found: Findings, finding: Finding) -> float | None:
    """Return the artifact's figure; its runs are of a fixed number of jobs."""
    return published_per_token_s(finding) if found.study.name == "artifact" else None


def parameters(found: Findings) -> str:
    """All that the first run of a study depends on, but for what varies."""
    case = found.points[0].runs[0].case
    engine = case.built_engine
    ranked = case.queues
    limit = "nobody is promoted" if ranked.starve_limit_s is None else f"promoted after {ranked.starve_limit_s:g} s"
    parts = (
        engine.name,
        f"batch {engine.batch}" + (f" in each of {engine.stages} stages" if engine.stages > 1 else ""),
        f"KV {engine.kv_tokens:,} tokens",
        sizes_name(case.sizes),
        f"{case.rate:g} jobs/s, CV {case.cv:g}",
        f"{case.jobs} jobs, {_plural(len(found.points[0].runs), 'seed')}",
        f"quantum ratio {ranked.quantum_ratio:g}, {limit}, {ranked.when_full.value}, K {ranked.spare_slots}",
    )
    return "; ".join(parts)


def headline_table(rows: Sequence[Headline]) -> Table:
    """The paper's range, ours, and why they differ."""
    table = Table(header_style="bold", show_lines=True)
    table.add_column("headline")
    table.add_column("paper", justify="right")
    table.add_column("ours", justify="right")
    table.add_column("where they differ, why", max_width=70)
    for row in rows:
        colour = "yellow" if row.is_close is False else "green"
        paper = "" if row.paper is None else _range(row.paper)
        table.add_row(row.name, paper, f"[{colour}]{_range(row.ours)}[/]", row.why)
    return table


def findings_document(found: Mapping[str, Findings], rows: Sequence[Headline]) -> dict[str, Any]:
    """All headlines, and the studies that they rest on, with every parameter."""
    return {
        "headlines": [
            {"name": row.name, "paper": row.paper, "ours": row.ours, "close": row.is_close, "why": row.why}
            for row in rows
        ],
        "engines": {
            name: asdict(engine) | {"kv_token_bytes": engine.model.kv_token_bytes} for name, engine in ENGINES.items()
        },
        "studies": [_study_document(findings) for findings in found.values()],
    }


def _study_document(found: Findings) -> dict[str, Any]:
    return {
        "name": found.study.name,
        "title": found.study.title,
        "axis": found.study.axis,
        "jobs_in_the_middle_only": found.study.is_steady,
        "points": [
            {
                "at": finding.at,
                "line": finding.line,
                "jct_s": finding.jct_s,
                "jct_per_token_s": finding.jct_per_token_s,
                "published_per_token_s": _published(found, finding),
                "utilisation": finding.utilisation,
                "live_at_last_arrival": finding.live_at_last_arrival,
                "peak_kv_tokens": finding.peak_kv_tokens,
                "swapped_bytes": finding.swapped_bytes,
                "preemptions": finding.preemptions,
                "runs": [_run_document(run) for run in finding.runs],
            }
            for finding in found.points
        ],
    }


def _run_document(run: JobSummary) -> dict[str, Any]:
    return asdict(run) | {"case": _case_document(run.case)}


def _case_document(case: JobCase) -> dict[str, Any]:
    described = asdict(case)
    path = described["sizes"].pop("path", None)
    return described | {"sizes": described["sizes"] | {"is": sizes_name(case.sizes), "trace": path and path.name}}


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _range(ends: tuple[float, float]) -> str:
    low, high = (f"{end:.2f}".rstrip("0").rstrip(".") if end < 100 else f"{end:.0f}" for end in ends)
    return low if low == high else f"{low} to {high}"


def _value(at: float | str) -> str:
    return at if isinstance(at, str) else f"{at:g}"
