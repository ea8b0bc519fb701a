"""Tests with SpotServe's published files: `SPOTWISE_DATA` names a folder with spot-traces/."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotwise.core.parallel.layer_tables import LayerTables
from spotwise.files.spot_traces import SpotEventKind, read_spot_trace
from spotwise.studies.spotserve.arrivals import read_rates, read_spot_arrivals
from spotwise.studies.spotserve.golden import alone_answers, golden_answers, golden_cells, read_all_tables
from spotwise.studies.spotserve.profiles import PAPER_MODELS, PaperModel
from spotwise.studies.spotserve.studies import CHANGING, SEGMENTS


def published() -> Path | None:
    folder = Path(os.environ.get("SPOTWISE_DATA", "")) / "spot-traces"
    return folder if "SPOTWISE_DATA" in os.environ and folder.is_dir() else None


pytestmark = pytest.mark.skipif(published() is None, reason="SPOTWISE_DATA names no folder with spot-traces/")


@pytest.fixture(scope="module")
def data() -> Path:
    folder = published()
    assert folder is not None
    return folder


@pytest.fixture(scope="module")
def tables(data: Path) -> dict[str, LayerTables]:
    return read_all_tables(data / "spotserve")


def test_every_answer_of_the_optimizer_is_the_published_one(tables: dict[str, LayerTables]) -> None:
    """All 36, with the seconds and the rate to three digits."""
    answers = golden_answers(tables)
    assert len(answers) == len(golden_cells()) == 36
    assert [answer for answer in answers if not answer.is_exact] == []


def test_one_request_alone_takes_the_time_of_table_1(tables: dict[str, LayerTables]) -> None:
    assert [answer.is_exact for answer in alone_answers(tables)] == [True, True, True]


@pytest.mark.parametrize(
    ("file", "acquired", "preempted", "most", "node_minutes"),
    [
        (SEGMENTS["A_S"], 11, 3, 10, 195.0),
        (SEGMENTS["B_S"], 12, 3, 10, 133.0),
        (SEGMENTS["A_S+O"], 13, 3, 10, 219.5),
        (SEGMENTS["B_S+O"], 13, 3, 10, 115.5),
        (CHANGING["A'_S+O"], 12, 2, 12, 192.0),
        (CHANGING["B'_S+O"], 15, 5, 12, 190.5),
    ],
)
def test_segments_have_their_published_instances(
    data: Path, file: str, acquired: int, preempted: int, most: int, node_minutes: float
) -> None:
    trace = read_spot_trace(data / "spotserve" / "availability" / file)
    came = [len(event.nodes) for event in trace.events if event.kind is SpotEventKind.ADD]
    assert sum(came) == acquired
    assert sum(life.to_s is not None for life in trace.lives()) == preempted
    assert max(count for _, count in trace.counts()) == most
    stays_s = [(trace.end_s if life.to_s is None else life.to_s) - life.from_s for life in trace.lives()]
    assert sum(stays_s) / 60 == pytest.approx(node_minutes)


def test_loads_that_change_are_in_their_segments(data: Path) -> None:
    for file in CHANGING.values():
        trace = read_spot_trace(data / "spotserve" / "availability" / file)
        loads = [(event.time_s, event.required_rate) for event in trace.events if event.required_rate]
        assert loads == [(300.0, 0.8), (600.0, 0.6)]


def test_whole_traces_have_their_published_instances(data: Path) -> None:
    """One g4dn collection under two names, and p3."""
    g4dn = read_spot_trace(data / "bamboo" / "g4dn-trace.csv", "g4dn")
    again = read_spot_trace(data / "spotserve" / "availability" / "g4dn_full_12h.csv", "g4dn")
    assert g4dn == again
    assert (g4dn.end_s / 60, max(count for _, count in g4dn.counts())) == (646, 24)
    assert sum(life.to_s is not None for life in g4dn.lives()) == 74
    p3 = read_spot_trace(data / "bamboo" / "p3-trace.csv")
    assert sum(life.to_s is not None for life in p3.lives()) == 167


@pytest.mark.parametrize("model", PAPER_MODELS.values(), ids=list(PAPER_MODELS))
def test_requests_named_cv6_come_almost_evenly(data: Path, model: PaperModel) -> None:
    arrivals = read_spot_arrivals(data / "spotserve" / "arrivals" / model.arrivals)
    assert arrivals.rate == pytest.approx(model.arrival_rate, rel=0.01)
    assert arrivals.cv is not None
    assert arrivals.cv < 0.1


def test_rates_of_every_minute_are_read(data: Path) -> None:
    """19 of them, as long as the segments with a load that changes."""
    rates = read_rates(data / "spotserve" / "arrivals" / "arrival-rates.csv")
    assert len(rates) == 19
    assert min(rates) == pytest.approx(0.546, abs=1e-3)
    assert max(rates) == pytest.approx(0.703, abs=1e-3)
