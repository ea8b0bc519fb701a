"""Arrivals out of trace files of the published formats."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from spotwise.files.tables import TraceError
from spotwise.simulator.loads.trace_files import has_hashes, trace_rows
from spotwise.simulator.loads.traces import (
    TraceSizes,
    poisson_arrivals,
    read_sizes,
    trace_arrivals,
)
from spotwise.simulator.world.observation import Arrival, PromptBlocks

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = (
    HEADER
    + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:18:03.9799600,110,27"
)
#: The first two lines of the Mooncake trace's form; its last blocks are parts.
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 48]}\n'
    '{"timestamp": 3055, "input_length": 600, "output_length": 26, "hash_ids": [46, 49]}\n'
)


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,472,18,490,Conversation log\n6,ChatGPT,9,0,9,Conversation log\n45,GPT-4,1087,230,1317,API log\n",
            [Arrival(0.0, 472, 18), Arrival(40.0, 1087, 230)],
        ),
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,7,3\n0.75,8,4\n",
            [Arrival(0, 7, 3), Arrival(0.25, 8, 4)],
        ),
        (
            "request_id,arrival_timestamp,prompt_size,token_size\n0,1.0,7,3\n1,3.5,8,4\n",
            [Arrival(0.0, 7, 3), Arrival(2.5, 8, 4)],
        ),
        (
            "timestamp_ms,prompt_tokens,output_tokens\n1700000000000,7,3\n1700000000250,8,4\n",
            [Arrival(0, 7, 3), Arrival(0.25, 8, 4)],
        ),
        (
            '{"timestamp": 1.5, "prompt_tokens": 7, "completion_tokens": 3}\n\n'
            '{"timestamp": 2.0, "prompt_tokens": 8, "completion_tokens": 4}',
            [Arrival(0.0, 7, 3), Arrival(0.5, 8, 4)],
        ),
        (
            "TIMESTAMP,time,ContextTokens,GeneratedTokens\n4,9,7,3\n5,8,8,4\n",
            [Arrival(0.0, 7, 3), Arrival(1.0, 8, 4)],
        ),
        (GOOD, [Arrival(0.0, 4808, 10), Arrival(pytest.approx(0.052), 3180, 8), Arrival(60.0, 110, 27)]),  # type: ignore[arg-type]
        (
            "X,GeneratedTokens,TIMESTAMP,ContextTokens\n"
            "9,3,2024-05-12 00:00:00+00:00,7\n9,4,2024-05-12 00:00:00.25+00:00,8\n",
            [Arrival(0.0, 7, 3), Arrival(0.25, 8, 4)],
        ),
    ],
    ids=[
        "burstgpt",
        "vidur",
        "splitwise",
        "milliseconds",
        "json lines",
        "azure before others",
        "azure",
        "azure of 2024",
    ],
)
def test_published_forms_are_read(tmp_path: Path, text: str, arrivals: list[Arrival]) -> None:
    """The first request comes at 0. Numbers are seconds unless the column says milliseconds; BurstGPT's failed requests are
    left out.
    """
    path = write(tmp_path, text)
    assert list(trace_arrivals(path)) == arrivals
    assert not has_hashes(path)
    assert read_sizes(path).prompt_tokens.tolist() == [arrival.prompt_tokens for arrival in arrivals]


def test_mooncakes_blocks_come_along(tmp_path: Path) -> None:
    """Its time is in milliseconds, and its hashes name blocks of 512 tokens."""
    path = write(tmp_path, MOONCAKE)
    assert has_hashes(path)
    assert list(trace_arrivals(path)) == [
        Arrival(0.0, 1030, 52, PromptBlocks((46, 47, 48), 512)),
        Arrival(3.055, 600, 26, PromptBlocks((46, 49), 512)),
    ]


def test_json_lines_are_read_as_far_as_they_are_used(tmp_path: Path) -> None:
    arrivals = trace_arrivals(write(tmp_path, MOONCAKE + "nonsense"))
    assert len(list(islice(arrivals, 2))) == 2
    with pytest.raises(TraceError, match="line 3: no JSON"):
        next(arrivals)


def test_blocks_of_other_sizes_and_names_are_read(tmp_path: Path) -> None:
    """A block's name may be a text, which equal texts share; a part of a block need not be named."""
    lines = [
        {"timestamp": at, "input_length": 40, "output_length": 1, "hash_ids": ids}
        for at, ids in ((0, ["a", "b"]), (1, ["a", "c", "d"]))
    ]
    first, second = trace_rows(write(tmp_path, "\n".join(map(json.dumps, lines))), 16)
    assert first.blocks is not None
    assert second.blocks is not None
    assert (len(first.blocks.hashes), len(second.blocks.hashes)) == (2, 3)
    assert first.blocks.hashes[0] == second.blocks.hashes[0]
    assert len({*first.blocks.hashes, *second.blocks.hashes}) == 4


def test_equal_blocks_are_equal_tokens() -> None:
    """Tokens behind the last block are a request's own, and no token is an answer's."""
    first, second = PromptBlocks((3, 5), 4).token_ids(10, 0), PromptBlocks((3, 6), 4).token_ids(10, 1)
    assert first[:4] == second[:4]
    assert all(one != other for one, other in zip(first[4:], second[4:], strict=True))
    assert (len(first), 0 in first) == (10, False)
    assert PromptBlocks((3, 5), 4).token_ids(6, 0) == first[:6]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("timestamp,arrival_s,prompt_tokens,output_tokens\n", "line 1: timestamp and arrival_s may both be TIMESTAMP"),
        ("timestamp,prompt_tokens\n", "line 1: no column GeneratedTokens, and none that other traces have"),
        (
            "time,prompt_tokens,output_tokens\n1,2,3\n2024-05-12,2,3\n",
            "line 3: '2024-05-12'; the first line's time is 1.0",
        ),
        (
            "time,prompt_tokens,output_tokens\n1700000000000,2,3\n",
            "line 2: time .* too large for seconds; name the column",
        ),
        ("time,prompt_tokens,output_tokens\ninf,2,3\n", "line 2: 'inf' is no finite time"),
        ("time,prompt_tokens,output_tokens\n2,2,3\n1.5,2,3\n", "line 3: its time is earlier"),
        ('{"time": 1, "input_tokens": 2, "output_tokens": 3}\n{"time": 1}\n', "line 2: no input_tokens, output_tokens"),
        ('{"time": 1, "input_tokens": 2.5, "output_tokens": 3}\n', "line 1: input_tokens is 2.5, not a number"),
        ('{"time": 1, "input_tokens": 2, "output_tokens": 3}\n[1]\n', "line 2: no JSON object"),
        ('{"time": 1, "input_tokens": 2, "output_tokens": 3}\n{"time"\n', "line 2: no JSON: "),
        (
            MOONCAKE.replace("1030", "2100"),
            "line 1: 3 hash_ids are not the blocks of 2100 tokens, 512 each; .*--block-tokens",
        ),
        (MOONCAKE.replace("[46, 49]", "46"), "line 2: hash_ids is 46, not a list"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(TraceError, match=r"trace\.csv, " + why):
        list(trace_arrivals(write(tmp_path, text)))


def test_a_trace_is_read_as_far_as_it_is_used(tmp_path: Path) -> None:
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
