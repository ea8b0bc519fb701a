"""What came out of the SpotServe paper's questions as tables, and as parts of a JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from spotwise.simulator.spotserve.cases import HISTOGRAM_S, SpotCase, SpotSummary
from spotwise.simulator.spotserve.findings import Finding, Findings, Headline, is_close, within
from spotwise.simulator.spotserve.golden import AloneAnswer, GoldenAnswer, GoldenCell
from spotwise.simulator.spotserve.studies import BURSTY

#: What the columns of a study are.
LEGEND = (
    "mean, p99: latency of all requests, seconds, from arrival to last token. paper: what it prints, and ours over it; green "
    "is within 15 %. counted: of those alone that were answered before the trace ended, as the artifact counts. cut: requests "
    "whose batch a change stopped. again: tokens computed more than once. changes: of the configuration. $: of machines until "
    "the trace ended. in time: answered within three times what one takes alone; the same for each dollar."
)


def golden_table(answers: Sequence[GoldenAnswer]) -> Table:
    """A row for each number of instances: D,P,M,B, l_exe and throughput for each model and rate."""
    exact = sum(answer.is_exact for answer in answers)
    columns = list(dict.fromkeys(_column(answer.cell) for answer in answers))
    title = f"the optimizer's answers: {exact} of {len(answers)} as published (golden)"
    table = Table(header_style="bold", title=title, title_justify="left", title_style="")
    table.add_column("instances", justify="right")
    for column in columns:
        table.add_column(column)
    for instances in sorted({answer.cell.instances for answer in answers}):
        row = {_column(answer.cell): answer for answer in answers if answer.cell.instances == instances}
        table.add_row(str(instances), *(_golden_cell(row[column]) if column in row else "" for column in columns))
    return table


def _column(cell: GoldenCell) -> str:
    return f"{cell.model.name}, {cell.required_rate:g}/s"


def _golden_cell(answer: GoldenAnswer) -> str:
    written = f"{answer.config}  {answer.execution_s:.3f} s  {answer.throughput:.3f}/s" if answer.config else "none"
    if answer.is_exact:
        return f"[green]{written}[/]"
    cell = answer.cell
    said = f"{cell.config}  {cell.execution_s:.3f} s  {cell.throughput:.3f}/s" if cell.config else "none"
    return f"[red]{written}[/] (published: {said})"


def alone_table(answers: Sequence[AloneAnswer]) -> Table:
    """The paper's Table 1 beside ours."""
    table = Table(header_style="bold", title="one request alone (Table 1)", title_justify="left", title_style="")
    for heading in ("model", "P", "M", "paper s", "ours s"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for answer in answers:
        claim = answer.model.alone
        colour = "green" if answer.is_exact else "red"
        ours = f"[{colour}]{answer.seconds:.3f}[/]"
        table.add_row(answer.model.name, str(claim.stages), str(claim.shards), f"{claim.seconds:.3f}", ours)
    return table


def study_table(found: Findings) -> Table:
    """A row for each line on each trace under each load (`LEGEND`)."""
    has_paper = any(finding.paper_s for finding in found.points)
    table = Table(
        header_style="bold",
        title=f"{found.study.title} ({found.study.name})",
        title_justify="left",
        title_style="",
    )
    table.add_column("trace", no_wrap=True)
    table.add_column("requests", no_wrap=True)
    table.add_column("", no_wrap=True)
    headings = ["mean", "p99"]
    headings += ["paper", "x", "p99", "x"] if has_paper else []
    headings += ["counted", "p99", "cut", "again", "changes", "$", "in time", "per $"]
    for heading in headings:
        table.add_column(heading, justify="right")
    previous: tuple[str, str] | None = None
    for finding in found.points:
        point = finding.point
        place = (point.trace, point.load)
        if previous is not None and place != previous:
            table.add_section()
        named = ("", "") if place == previous else place
        previous = place
        cells = [_seconds(finding.latency_s.get(figure)) for figure in ("mean", "p99")]
        if has_paper:
            for figure in ("mean", "p99"):
                cells += [_seconds(finding.paper_s.get(figure)), _ratio(finding.ratio(figure))]
        cells += [_seconds(finding.counted_latency_s.get(figure)) for figure in ("mean", "p99")]
        table.add_row(*named, point.line, *cells, *_effort(finding))
    return table


def _effort(finding: Finding) -> list[str]:
    goodput = finding.goodput_per_dollar
    requests = finding.mean_of("requests")
    return [
        f"{finding.mean_of('interrupted'):.0f}",
        f"{finding.mean_of('recomputed_tokens'):,.0f}",
        f"{finding.mean_changes:.0f}",
        f"{finding.mean_of('cost_usd'):.2f}",
        f"{finding.mean_of('in_time') / requests:.0%}" if requests else "",
        "" if goodput is None else f"{goodput:.1f}",
    ]


def within_line(found: Mapping[str, Findings]) -> str:
    """Say how many of the paper's latencies are found again; empty where none was looked at."""
    close, said = within(found)
    if not said:
        return ""
    counted, _ = within(found, counted=True)
    bursty, _ = within(found, BURSTY)
    return (
        f"Of the {said} latencies that the paper prints, {close} are within 15 % with the published requests, {counted} if "
        f"only those answered in time count, {bursty} with requests of the CV that the paper names."
    )


def headline_table(rows: Sequence[Headline]) -> Table:
    """The paper's range, ours, and why they differ."""
    table = Table(header_style="bold", show_lines=True)
    table.add_column("headline", max_width=50)
    table.add_column("paper", justify="right")
    table.add_column("ours", justify="right")
    table.add_column("where they differ, why", max_width=70)
    for row in rows:
        colour = "green" if row.is_close else "yellow"
        table.add_row(row.name, _range(row.paper), f"[{colour}]{_range(row.ours)}[/]", row.why)
    return table


def golden_document(answers: Sequence[GoldenAnswer], alone: Sequence[AloneAnswer]) -> dict[str, Any]:
    """All cells and Table 1."""
    return {
        "golden": [
            {
                "model": answer.cell.model.name,
                "required_rate": answer.cell.required_rate,
                "instances": answer.cell.instances,
                "published": None if answer.cell.config is None else str(answer.cell.config),
                "ours": None if answer.config is None else str(answer.config),
                "execution_s": {"published": answer.cell.execution_s, "ours": answer.execution_s},
                "throughput": {"published": answer.cell.throughput, "ours": answer.throughput},
                "exact": answer.is_exact,
            }
            for answer in answers
        ],
        "alone_s": {
            answer.model.name: {"paper": answer.model.alone.seconds, "ours": answer.seconds} for answer in alone
        },
    }


def findings_document(found: Mapping[str, Findings], rows: Sequence[Headline]) -> dict[str, Any]:
    """All headlines, and the studies that they rest on, with every parameter."""
    close, said = within(found)
    return {
        "headlines": [
            {"name": row.name, "paper": row.paper, "ours": row.ours, "close": row.is_close, "why": row.why}
            for row in rows
        ],
        "within_15_percent": {"latencies": said, "published_requests": close},
        "histogram_bounds_s": HISTOGRAM_S,
        "studies": [_study_document(findings) for findings in found.values()],
    }


def _study_document(found: Findings) -> dict[str, Any]:
    return {
        "name": found.study.name,
        "title": found.study.title,
        "model": found.study.model,
        "points": [
            {
                "trace": finding.point.trace,
                "requests": finding.point.load,
                "line": finding.point.line,
                "latency_s": finding.latency_s,
                "counted_latency_s": finding.counted_latency_s,
                "paper_s": finding.paper_s,
                "goodput_per_dollar": finding.goodput_per_dollar,
                "runs": [_run_document(run) for run in finding.runs],
            }
            for finding in found.points
        ],
    }


def _run_document(run: SpotSummary) -> dict[str, Any]:
    return {name: value for name, value in asdict(run).items() if name != "case"} | {"case": _case_document(run.case)}


def _case_document(case: SpotCase) -> dict[str, Any]:
    described = asdict(case)
    del described["data"]  # a path of this machine
    return described


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    return f"[{'green' if is_close(value) else 'yellow'}]{value:.2f}[/]"


def _range(ends: tuple[float, float]) -> str:
    low, high = (f"{end:.2f}".rstrip("0").rstrip(".") for end in ends)
    return low if low == high else f"{low} to {high}"
