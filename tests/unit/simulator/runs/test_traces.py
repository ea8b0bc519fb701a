"""Arrivals out of trace files."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotwise.files.tables import TraceError
from spotwise.simulator.loads.traces import (
    TraceSizes,
    poisson_arrivals,
    read_sizes,
    trace_arrivals,
)
from spotwise.simulator.world.observation import Arrival

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = (
    HEADER
    + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:18:03.9799600,110,27"
)


#: A figure of a record that is compared.
approx: Any = pytest.approx


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_a_trace_keeps_its_own_times(tmp_path: Path) -> None:
    """The first request comes at 0; the last line needs no end of line."""
    arrivals = list(trace_arrivals(write(tmp_path, GOOD)))
    assert arrivals == [Arrival(0.0, 4808, 10), Arrival(approx(0.052), 3180, 8), Arrival(60.0, 110, 27)]


def test_later_traces_are_read_too(tmp_path: Path) -> None:
    """Traces of 2024 have a time zone, any number of digits and further columns."""
    text = "X,GeneratedTokens,TIMESTAMP,ContextTokens\n9,3,2024-05-12 00:00:00+00:00,7\n9,4,2024-05-12 00:00:00.25+00:00,8\n"
    assert list(trace_arrivals(write(tmp_path, text))) == [Arrival(0.0, 7, 3), Arrival(0.25, 8, 4)]


def test_a_trace_is_read_as_far_as_it_is_used(tmp_path: Path) -> None:
    """A trace is read lazily: an error in a later line is raised when the line is reached."""
    arrivals = trace_arrivals(write(tmp_path, GOOD + "\nnonsense"))
    assert len(list(islice(arrivals, 3))) == 3
    with pytest.raises(TraceError, match="line 5"):
        next(arrivals)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1: no column TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("TIMESTAMP,ContextTokens\n", "line 1: no column GeneratedTokens"),
        (HEADER + "2023-11-16 18:17:03,5\n", "line 2: 2 fields where the header has 3"),
        (HEADER + "yesterday,5,5\n", "line 2: 'yesterday' is no time"),
        (HEADER + "2023-11-16 18:17:03,5,5\n2023-11-16 18:17:02,5,5\n", "line 3: .* earlier"),
        (HEADER + "2023-11-16 18:17:03,0,5\n", "line 2: ContextTokens is '0'"),
        (HEADER + "2023-11-16 18:17:03,5,many\n", "line 2: GeneratedTokens is 'many'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        list(trace_arrivals(write(tmp_path, text)))


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    """An absent file, a binary file and a file without requests are refused."""
    with pytest.raises(TraceError, match=r"absent\.csv cannot be read: No such file"):
        list(trace_arrivals(tmp_path / "absent.csv"))
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="no CSV file"):
        list(trace_arrivals(binary))
    with pytest.raises(TraceError, match="no requests"):
        read_sizes(write(tmp_path, HEADER))


def test_sizes_are_drawn_from_the_lines(tmp_path: Path) -> None:
    """Jointly a line's prompt keeps its output; independently any prompt meets any output."""
    path = write(tmp_path, GOOD)
    lines = {(4808, 10), (3180, 8), (110, 27)}
    joint = zip(*read_sizes(path, jointly=True).draw(200, np.random.default_rng(1)), strict=True)
    assert {(int(prompt), int(output)) for prompt, output in joint} == lines
    alone = zip(*read_sizes(path).draw(200, np.random.default_rng(1)), strict=True)
    assert {(int(p), int(o)) for p, o in alone} == {(p, o) for p, _ in lines for _, o in lines}


SIZES = TraceSizes(np.arange(1, 100), np.arange(1, 100))


def test_poisson_arrivals_come_at_their_rate() -> None:
    """Poisson arrivals are sorted, within the time, at the rate and with exponential gaps."""
    arrivals = list(poisson_arrivals(SIZES, 50.0, 200.0, seed=3))
    times = np.array([arrival.at_s for arrival in arrivals])
    gaps = np.diff(times)
    assert (gaps >= 0).all()
    assert times[-1] < 200.0
    assert len(arrivals) == pytest.approx(10_000, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.05)


def test_another_rate_brings_the_same_requests() -> None:
    slow = list(poisson_arrivals(SIZES, 50.0, 200.0, seed=3))
    fast = list(poisson_arrivals(SIZES, 100.0, 100.0, seed=3))
    assert [(a.prompt_tokens, a.output_tokens) for a in slow] == [(a.prompt_tokens, a.output_tokens) for a in fast]
    assert fast[-1].at_s == pytest.approx(slow[-1].at_s / 2)


def test_another_seed_brings_other_requests() -> None:
    first, again, other = (list(poisson_arrivals(SIZES, 5.0, 20.0, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_there_is_always_a_request() -> None:
    assert len(list(poisson_arrivals(SIZES, 1e-6, 1.0, seed=1))) == 1
