"""Tests of profiles: which of their rows are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.simulator.costs.profiles import ProfileError, measured, read_profile
from tests.unit.simulator.costs.profile_rows import HEADER, row, write

GOOD = "llama2-70b,a100-80gb,512,4,128,0.9,0.73,196.25,54.75,7168.9,2\n"


def test_rows_are_read_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + GOOD)
    (read,) = read_profile(path)
    assert (read.model, read.hardware, read.tensor_parallel) == ("llama2-70b", "a100-80gb", 2)
    assert (read.prompt_size, read.batch_size, read.prompt_tokens, read.token_size) == (512, 4, 2048, 128)
    assert (read.prompt_s, read.token_s) == (0.19625, 0.05475)


def test_rows_that_mislead_are_left_out_and_counted() -> None:
    good = [row(512, 1, 0.1, 0.04), row(512, 64, 9.0, 0.1)]
    bad = [
        row(512, 1, 0.13, 0.04, hardware="h100-80gb-pcap"),
        row(512, 64, 0.2, 0.1, tensor_parallel=2),
        row(512, 32, 0.2, 0.1, tensor_parallel=2),
        row(512, 1, 0.1, 0.04, token_size=8192),
        row(512, 1, 0.1, 0.04, token_size=256),
    ]
    kept, left_out = measured([good[0], *bad, good[1]])
    assert kept == good
    assert sorted(left_out.values()) == [1, 2, 2]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    """`write` and `read_profile` are inverses, which the other tests rely on."""
    rows = [row(512, 1, 0.1, 0.04), row(512, 64, 9.0, 0.1)]
    assert read_profile(write(rows, tmp_path / "profile.csv")) == rows


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model,hardware\n", "line 1: no column prompt_size"),
        (HEADER + GOOD + GOOD.replace("196.25", "fast"), "line 3: prompt_time is 'fast'"),
        (HEADER + GOOD.replace("196.25", "0"), "line 2: prompt_time is '0', not above 0"),
        (HEADER + "llama2-70b,a100-80gb\n", "line 2: prompt_size is None"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(text)
    with pytest.raises(ProfileError, match=why):
        read_profile(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"absent\.csv cannot be read"):
        read_profile(tmp_path / "absent.csv")
