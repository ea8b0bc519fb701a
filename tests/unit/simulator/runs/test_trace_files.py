"""Formats of published traces."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from spotwise.files.tables import TraceError
from spotwise.simulator.loads.trace_files import has_hashes, trace_rows
from spotwise.simulator.loads.traces import read_sizes, trace_arrivals
from spotwise.simulator.world.observation import Arrival, PromptBlocks

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
    ],
    ids=["burstgpt", "vidur", "splitwise", "milliseconds", "json lines"],
)
def test_published_forms_are_read(tmp_path: Path, text: str, arrivals: list[Arrival]) -> None:
    """Numbers are seconds unless the column says milliseconds; BurstGPT's failed requests are left out."""
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
    """As CSV is: an error in a later line is raised when the line is reached."""
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


def test_the_azure_name_decides(tmp_path: Path) -> None:
    """Where a column has the name of the Azure traces, another that might be meant is ignored."""
    path = write(tmp_path, "TIMESTAMP,time,ContextTokens,GeneratedTokens\n4,9,7,3\n5,8,8,4\n")
    assert list(trace_arrivals(path)) == [Arrival(0.0, 7, 3), Arrival(1.0, 8, 4)]
