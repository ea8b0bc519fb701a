"""Shapes and lost processes as `bench dev groups` reads and reports them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotwise.benchmarks import group_faults
from spotwise.benchmarks.group_faults import Fault, fault_rows, prompts_of
from spotwise.benchmarks.groups import parse_shapes
from spotwise.cli.errors import OptionError


def _fault(**changes: Any) -> Fault:
    usual: dict[str, Any] = {"free_s": 0.7, "whole_s": 8.0, "gap_s": 9.0}
    usual |= dict.fromkeys(("lost", "doubled", "wrong", "blocks", "sequences"), 0)
    return Fault(1, 2, "SIGSTOP", **{**usual, **changes})


def test_shapes_are_stages_by_shards() -> None:
    assert parse_shapes("1x3, 2x1", "--shapes") == [(1, 3), (2, 1)]
    assert parse_shapes("", "--faults") == []


@pytest.mark.parametrize("text", ["1x1", "3", "0x3", "2x-1", "axb"])
def test_what_is_no_group_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--shapes"):
        parse_shapes(text, "--shapes")


def test_survivors_have_a_second() -> None:
    """The target is met by 700 ms and missed by 1,300; a fault whose end no process logged has no row."""
    fast, slow, unknown = (fault_rows("2x3", [_fault(free_s=free_s)]) for free_s in (0.7, 1.3, None))
    assert fast[0].name == "2x3: SIGSTOP of stage 1, shard 2: survivors free after ms"
    assert fast[0].holds and not slow[0].holds
    assert len(unknown) == len(fast) - 1


def test_losses_of_all_faults_add_up() -> None:
    rows = {row.name: row.ours for row in fault_rows("2x3", [_fault(lost=2, blocks=1), _fault(wrong=3, sequences=4)])}
    assert rows["2x3: tokens lost, all faults"] == 2
    assert rows["2x3: tokens wrong, all faults"] == 3
    assert rows["2x3: tokens doubled, all faults"] == 0
    assert rows["2x3: KV blocks and reservations left"] == 1
    assert rows["2x3: sequences left in engines"] == 4


def test_prompts_are_the_same_for_every_shape_and_differ_by_seed() -> None:
    assert prompts_of(2, 8, 1) == prompts_of(2, 8, 1) != prompts_of(2, 8, 2)


def test_the_end_of_a_group_is_read_from_a_members_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one after the loss; an earlier one was of another group."""
    log = tmp_path / "w.log"
    lines = [
        "12:00:00.000000Z [info] group_left",
        "12:00:05.250000Z [info] group_left",
        "12:00:09.000000Z [info] group_left",
    ]
    log.write_text("".join(f"2026-11-20T{line}\n" for line in lines))
    monkeypatch.setattr(group_faults, "run_folder", lambda _: SimpleNamespace(log_path=lambda _: log))
    lost_s = 1795176000.0 + 1.0  # 2026-11-20 12:00:01
    at_s = group_faults.left_at("mesh", "w", lost_s)
    assert at_s is not None and at_s - lost_s == pytest.approx(4.25)
    assert group_faults.left_at("mesh", "w", lost_s + 60.0) is None
