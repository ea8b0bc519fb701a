"""Wrong traces of `spotwise simulate run` are one line and exit status 2, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.cli.command_line import CommandLine

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def simulate(spotwise: CommandLine, trace: Path, kind: str) -> tuple[int, str]:
    """Exit status and errors of a short run of a small cluster."""
    ended = spotwise(
        *("simulate", "run", "--trace", str(trace), "--arrivals", kind, "--seconds", "0.5", "--rates", "2"),
        *("--machines", "1,1", "--jobs", "1"),
    )
    return ended.status, ended.stderr


@pytest.mark.parametrize("kind", ["trace", "poisson"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"{HEADER}0,100,10\n1,999999999999,10\n", "line 3: ContextTokens is 1e+12 tokens"),
        (f"{HEADER}0,100,10\n1,100,999999999999\n", "line 3: GeneratedTokens is 1e+12 tokens"),
        (f"{HEADER}0,100,10\n1,100,{'9' * 6000}\n", "line 3: GeneratedTokens is"),
        (HEADER, "has no requests"),
        ("TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n0,100,5,10\n", "ContextTokens is there twice"),
        ("", "no column TIMESTAMP"),
        (f"{HEADER}nan,1,1\n", "nan"),
        (f"{HEADER}0,-1,1\n", "ContextTokens is '-1'"),
        (f"{HEADER}0,0,20\n", "line 2: ContextTokens is '0'"),
    ],
    ids=["prompt", "answer", "digits", "empty", "twice", "nothing", "nan", "negative", "zero"],
)
def test_a_wrong_trace_is_one_line(spotwise: CommandLine, tmp_path: Path, content: str, words: str, kind: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(content)
    status, errors = simulate(spotwise, trace, kind)
    assert status == 2
    assert words in errors
    assert len(errors.splitlines()) == 1


CELLS = st.one_of(
    st.sampled_from(
        ["0", "1", "-1", "nan", "inf", "-inf", "1e308", "1e999", "", " 5 ", "0x10", "٣", "1_000", "9" * 5000]
    ),
    st.integers(-5, 2000).map(str),
    st.text(max_size=5),
)
TRACES = st.one_of(
    st.binary(max_size=60),
    st.tuples(
        st.sampled_from(["", "\ufeff"]),
        st.sampled_from([HEADER, "time,prompt_tokens,output_tokens\n", "a,b,c\n", ""]),
        st.lists(st.tuples(CELLS, CELLS, CELLS).map(",".join), max_size=4),
        st.sampled_from(["\n", "\r\n"]),
    ).map(lambda drawn: (drawn[0] + (drawn[1] + "\n".join(drawn[2])).replace("\n", drawn[3])).encode(errors="replace")),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(content=TRACES, kind=st.sampled_from(["trace", "poisson"]))
def test_no_trace_ends_in_a_traceback(spotwise: CommandLine, tmp_path: Path, content: bytes, kind: str) -> None:
    """It is simulated, or refused with the file's name; `spotwise` raises what would be a traceback."""
    trace = tmp_path / "trace.csv"
    trace.write_bytes(content)
    status, errors = simulate(spotwise, trace, kind)
    assert status in (0, 2), errors
    if status:
        assert "trace.csv" in errors
