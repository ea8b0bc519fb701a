"""How far simulations are, where there is no terminal for a bar."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from spotwise.cli.simulate.progress import runs_bar


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the test lets pass."""
    now = [0.0]
    monkeypatch.setattr("spotwise.cli.simulate.progress.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("total", [40, None])
def test_a_plain_output_has_a_line_now_and_then(
    clock: list[float], capsys: pytest.CaptureFixture[str], total: int | None
) -> None:
    """On stderr, so that what is printed stays the report; nothing where it is over before."""
    out = StringIO()
    with runs_bar(Console(file=out), "clusters", str, total) as finished:
        for run in range(40):
            clock[0] += 1.0
            finished(run)
    shown = capsys.readouterr()
    of = "" if total is None else " of 40"
    assert shown.err.splitlines() == [
        f"clusters: 15{of} runs after 15 s, last 14",
        f"clusters: 30{of} runs after 30 s, last 29",
    ]
    assert (shown.out, out.getvalue()) == ("", "")


def test_a_terminal_has_the_bar(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    out = StringIO()
    with runs_bar(Console(file=out, force_terminal=True), "clusters", str, 2) as finished:
        for run in range(2):
            clock[0] += 60.0
            finished(run)
    assert capsys.readouterr().err == "" and "2 of 2 runs" in out.getvalue()
