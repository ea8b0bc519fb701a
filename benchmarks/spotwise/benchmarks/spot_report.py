"""Results of runs of `spotwise bench spot`: figures of each system, their ratios, and a plot over time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from spotwise.benchmarks.reshaped_streams import differences
from spotwise.benchmarks.spot_run import LostInstance, SpotAnswer, SpotRunResult
from spotwise.cli.bench.report import ReportRow, Target
from spotwise.core.percentile import percentile

#: A notice of so many T_mig is long enough that nothing need be computed again. T_mig: until new groups have their weights, by
#: the median, and the longest pause of a request that moves.
ENOUGH = 5
#: Tokens that are computed again within so long after a loss are computed again for it.
_AFTER_LOSS_S = 30.0
#: A loss is seen so much later at most.
_SAMPLED_S = 3.0


@dataclass(frozen=True, slots=True)
class Alone:
    """A prompt alone on a mesh at rest: its tokens, and the seconds from its sending to each of them."""

    token_ids: tuple[int, ...]
    arrival_s: tuple[float, ...]

    def latency_s(self, tokens: int) -> float:
        """Return the seconds to its token of this number, from 1."""
        return self.arrival_s[min(tokens, len(self.arrival_s)) - 1]


@dataclass(frozen=True, slots=True)
class SpotFigures:
    """The figures of one run; latencies and pauses in seconds.

    Attributes:
        in_time: answers within `objective` times their latency alone.
        recomputed_other: tokens computed again where an instance was lost whose notice was too short, or the last one;
            `recomputed_noticed`: all others.
        pause_median_s, pause_max_s: median and maximum of the longest gap of each stream that moved or was computed again.
        per_1000: dollars for 1,000 answers in time.
    """

    system: str
    requests: int
    lost: int
    wrong_tokens: int
    in_time: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    recomputed_noticed: int
    recomputed_other: int
    losses: int
    losses_noticed: int
    moves: int
    migration_s: float
    pause_median_s: float
    pause_max_s: float
    kv_bytes: int
    weights_bytes: int
    changes: int
    abandoned: int
    dollars: float
    per_1000: float

    @classmethod
    def of(cls, run: SpotRunResult, alone: Sequence[Alone], objective: float) -> SpotFigures:
        """Return the figures of a run."""
        whole = [each for each in run.answers if not each.failure]
        latencies = sorted(each.latency_s for each in whole) or [0.0]
        in_time = sum(_is_in_time(each, alone, objective) for each in whole)
        longest_move_s = max((each.move_s for each in run.answers), default=0.0)
        enough_s = ENOUGH * (run.forming_s + longest_move_s)
        noticed, other = 0, 0
        for answer in run.answers:
            for at_s, tokens in answer.recomputed:
                short = any(not _is_enough(loss, enough_s) and _is_of(at_s, loss) for loss in run.losses)
                noticed, other = (noticed, other + tokens) if short else (noticed + tokens, other)
        hit = [each.gap_s for each in whole if each.moves or each.recomputed]
        return cls(
            run.system,
            len(run.answers),
            len(run.answers) - len(whole),
            sum(_wrong_tokens(each, alone) for each in whole),
            in_time,
            statistics.fmean(latencies),
            percentile(latencies, 50),
            percentile(latencies, 90),
            percentile(latencies, 99),
            noticed,
            other,
            len(run.losses),
            sum(_is_enough(loss, enough_s) for loss in run.losses),
            sum(each.moves for each in run.answers),
            run.forming_s + longest_move_s,
            statistics.median(hit or [0.0]),
            max(hit, default=0.0),
            sum(each.kv_bytes for each in run.answers),
            run.weights_bytes,
            run.changes,
            run.abandoned,
            run.spent,
            1000 * run.spent / in_time if in_time else 0.0,
        )


def _is_enough(loss: LostInstance, enough_s: float) -> bool:
    """Tell whether nothing need be computed again: there was time to move, and an instance to move to."""
    return loss.notice_s >= enough_s and loss.left > 0


def _is_of(at_s: float, loss: LostInstance) -> bool:
    """Tell whether tokens may be computed again at a time because of a loss, or of its notice."""
    return loss.at_s - loss.notice_s - _SAMPLED_S <= at_s <= loss.at_s + _AFTER_LOSS_S


def _wrong_tokens(answer: SpotAnswer, alone: Sequence[Alone]) -> int:
    return differences(answer.token_ids, alone[answer.request.prompt].token_ids[: answer.request.tokens])


def _is_in_time(answer: SpotAnswer, alone: Sequence[Alone], objective: float) -> bool:
    return answer.latency_s <= objective * alone[answer.request.prompt].latency_s(answer.request.tokens)


_ROWS: tuple[tuple[str, str, str], ...] = (
    ("requests", "requests", ",.0f"),
    ("lost", "lost", ",.0f"),
    ("wrong tokens", "wrong_tokens", ",.0f"),
    ("answers in time", "in_time", ",.0f"),
    ("latency, mean s", "mean_s", ",.2f"),
    ("latency, p50 s", "p50_s", ",.2f"),
    ("latency, p90 s", "p90_s", ",.2f"),
    ("latency, p99 s", "p99_s", ",.2f"),
    ("instances lost", "losses", ",.0f"),
    ("of those, with notice enough", "losses_noticed", ",.0f"),
    ("tokens computed again, notice enough", "recomputed_noticed", ",.0f"),
    ("tokens computed again, other losses", "recomputed_other", ",.0f"),
    ("moves of requests", "moves", ",.0f"),
    ("T_mig, s", "migration_s", ",.3f"),
    ("longest gap of a stream that was hit, median s", "pause_median_s", ",.2f"),
    ("longest gap of a stream that was hit, max s", "pause_max_s", ",.2f"),
    ("KV moved, bytes", "kv_bytes", ",.0f"),
    ("weights that devices got, bytes", "weights_bytes", ",.0f"),
    ("re-shapes", "changes", ",.0f"),
    ("re-shapes abandoned", "abandoned", ",.0f"),
    ("dollars", "dollars", ",.4f"),
    ("dollars per 1,000 answers in time", "per_1000", ",.3f"),
)


def figures_table(figures: Sequence[SpotFigures], on_demand_per_1000: float | None) -> Table:
    """Return all figures, a column for each system; the last line is all on-demand, on paper, where that is sold."""
    table = Table(header_style="bold")
    table.add_column("figure")
    for each in figures:
        table.add_column(each.system, justify="right")
    for name, field, form in _ROWS:
        table.add_row(name, *(format(getattr(each, field), form) for each in figures))
    if on_demand_per_1000 is not None:
        table.add_row("the same, all on demand (on paper)", f"{on_demand_per_1000:,.3f}", *[""] * (len(figures) - 1))
    return table


def compared_rows(figures: Sequence[SpotFigures], on_demand_per_1000: float | None) -> list[ReportRow]:
    """Return what the first system promises, and how it compares with each of the others."""
    ours, *others = figures
    rows = [
        ReportRow("requests lost", ours.lost),
        ReportRow("wrong tokens", ours.wrong_tokens),
        ReportRow("tokens computed again where the notice was enough", ours.recomputed_noticed),
    ]
    for other in others:
        rows.append(ReportRow(f"p99 against {other.system}, s", ours.p99_s, other.p99_s, Target(at_most=1.0)))
        rows.append(
            ReportRow(
                f"answers in time per dollar against {other.system}",
                _per_dollar(ours),
                _per_dollar(other),
                Target(at_least=1.0),
            )
        )
        rows.append(
            ReportRow(
                f"longest gap of a stream that was hit against {other.system}, max s",
                ours.pause_max_s,
                other.pause_max_s,
            )
        )
    if on_demand_per_1000 is not None:
        rows.append(ReportRow("dollars per 1,000 in time against all on demand", ours.per_1000, on_demand_per_1000))
    return rows


def _per_dollar(figures: SpotFigures) -> float:
    return figures.in_time / figures.dollars if figures.dollars else 0.0


def plot_runs(runs: Sequence[SpotRunResult], path: Path) -> None:
    """Draw instances that run, the devices that serve and the open requests over time, a colour for each system."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    for number, run in enumerate(runs):
        times_s = [sample.at_s for sample in run.samples]
        series: Mapping[str, list[Any]] = {
            "instances that run": [sample.instances for sample in run.samples],
            "devices that serve (D x P x M)": [_devices(sample.serving) for sample in run.samples],
            "open requests": [sample.open_requests for sample in run.samples],
        }
        for axes, (label, values) in zip(panels, series.items(), strict=True):
            axes.step(times_s, values, where="post", color=f"C{number}", linewidth=1.2, label=run.system)
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
            axes.grid(visible=True, alpha=0.3)
        for loss in run.losses if number == 0 else ():
            panels[0].axvline(loss.at_s, color="#888888", linewidth=0.8, linestyle=":" if loss.notice_s else "-")
    panels[-1].set_xlabel("seconds of the load; vertical lines: instances lost, dotted with notice, solid without")
    panels[0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _devices(shapes: str) -> int:
    """Return the devices of shapes `D,P,M`, with plus signs between them; 0 of none."""
    return sum(math.prod(map(int, shape.split(","))) for shape in shapes.split("+") if shape)
