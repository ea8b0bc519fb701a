"""Tests of liveness: which processes count as hung."""

from __future__ import annotations

from spotwise.cli.launch.supervision.liveness import SignsOfLife

LIMIT_S = 15.0


def silent_for(
    seconds: int, *, others: bool | None, gap_at: int | None = None, unknown_at: int | None = None
) -> dict[str, int]:
    """Return what counts as hung after one process was silent for so long, checked every second."""
    signs = SignsOfLife(LIMIT_S)
    signs.look({"token-0": (7, True), "prompt-0": (8, True)}, 0.0)
    now_s = 0.0
    for second in range(1, seconds + 1):
        now_s += 20.0 if second == gap_at else 1.0
        sign = None if second == unknown_at else False
        signs.look({"token-0": (7, sign), "prompt-0": (8, others)}, now_s)
    return signs.hung(now_s)


def test_silence_beside_others_that_live_is_a_hang() -> None:
    assert silent_for(14, others=True) == {}
    assert silent_for(15, others=True) == {"token-0": 7}


def test_all_silent_is_no_hang() -> None:
    """The machine is overloaded, or what all talk through is away."""
    assert silent_for(40, others=False) == {}
    assert silent_for(40, others=None) == {}


def test_a_pause_of_the_supervisor_starts_the_wait_anew() -> None:
    assert silent_for(20, others=True, gap_at=10) == {}
    assert silent_for(26, others=True, gap_at=10) == {"token-0": 7}


def test_an_unknown_state_restarts_the_wait() -> None:
    assert silent_for(20, others=True, unknown_at=10) == {}
    assert silent_for(25, others=True, unknown_at=10) == {"token-0": 7}


def test_a_new_process_has_its_own_time() -> None:
    signs = SignsOfLife(LIMIT_S)
    signs.look({"token-0": (7, True), "prompt-0": (8, True)}, 0.0)
    for second in range(1, 16):
        signs.look({"token-0": (7, False), "prompt-0": (8, True)}, float(second))
    assert signs.hung(15.0) == {"token-0": 7}
    signs.look({"token-0": (9, False), "prompt-0": (8, True)}, 16.0)
    assert signs.hung(16.0) == {}
    signs.look({"prompt-0": (8, True)}, 17.0)
    assert signs.hung(17.0) == {}
