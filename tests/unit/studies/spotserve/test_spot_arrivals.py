"""SpotServe's artifact: arrivals, drawn ones with a given CV, profiles, published answers."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.parallel.config import ParallelConfig
from spotwise.files.tables import TraceError
from spotwise.simulator.spotserve.arrivals import SpotArrivals
from spotwise.studies.spotserve.arrivals import changing_arrivals, gamma_spot_arrivals, read_rates, read_spot_arrivals
from spotwise.studies.spotserve.golden import golden_cells
from spotwise.studies.spotserve.profiles import GPT_20B, read_layer_tables, read_model_tables
from tests.unit.studies.spotserve.spot_artifact import profile_document


def written(folder: Path, text: str) -> Path:
    path = folder / "queries.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_list_of_the_artifact_is_read(tmp_path: Path) -> None:
    """Times and sizes; offsets into a file of tokens are left."""
    arrivals = read_spot_arrivals(written(tmp_path, "0,0.5,512,0\n1,2.5,512,2944\n2,4.0,512,5901\n"))
    assert arrivals == SpotArrivals("queries", (0.5, 2.5, 4.0), 512, 128)
    assert len(arrivals) == 3
    assert arrivals.rate == 0.75
    assert arrivals.cv == pytest.approx(0.25 / 1.75)
    assert arrivals.until(4.0).times_s == (0.5, 2.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("0,1\n", "line 1"),
        ("0,1,512,0\n1,x,512,0\n", "line 2"),
        ("0,1,0,0\n", "line 1"),
        ("0,inf,512,0\n", "line 1"),
        ("0,2,512,0\n1,1,512,0\n", "line 2: 1 s is earlier"),
        ("0,1,512,0\n1,2,256,0\n", "line 2: 256 input tokens, where line 1 has 512"),
    ],
)
def test_a_malformed_list_is_an_error_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_spot_arrivals(written(tmp_path, text))


def test_rates_are_read(tmp_path: Path) -> None:
    """A line with commas; what is none is refused."""
    assert read_rates(written(tmp_path, "0.5,0.25\n")) == (0.5, 0.25)
    with pytest.raises(TraceError, match="line 1: 'x' is no rate"):
        read_rates(written(tmp_path, "0.5,x\n"))


@pytest.mark.parametrize("cv", [0.1, 1.0, 6.0])
def test_gaps_have_the_requested_cv(cv: float) -> None:
    arrivals = gamma_spot_arrivals(2.0, cv, 60_000.0, np.random.default_rng(3))
    assert arrivals.cv == pytest.approx(cv, rel=0.1)
    assert arrivals.rate == pytest.approx(2.0, rel=0.1)


def test_the_same_seed_brings_the_same_arrivals() -> None:
    def drawn(seed: int) -> SpotArrivals:
        return gamma_spot_arrivals(0.5, 6.0, 2000.0, np.random.default_rng(seed))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.floats(1, 50), st.floats(0, 3)), min_size=1, max_size=5),
    st.floats(0.2, 4),
    st.floats(1, 200),
    st.integers(0, 5),
)
def test_no_request_arrives_while_the_rate_is_zero_or_after_the_end(
    pieces: list[tuple[float, float]], cv: float, until_s: float, seed: int
) -> None:
    start, rates = 0.0, []
    for length, rate in pieces:
        rates.append((start, rate))
        start += length
    rates.append((start, 1.0))
    times = changing_arrivals(rates, cv, until_s, np.random.default_rng(seed)).times_s
    assert list(times) == sorted(times)
    for time_s in times:
        assert 0 <= time_s <= until_s
        assert [rate for from_s, rate in rates if from_s <= time_s + 1e-9][-1] > 0


def test_each_interval_has_as_many_arrivals_as_its_rate() -> None:
    rates = [(0.0, 1.0), (10_000.0, 4.0), (20_000.0, 0.5)]
    times = np.array(changing_arrivals(rates, 1.0, 40_000.0, np.random.default_rng(0)).times_s)
    counts, _ = np.histogram(times, [0, 10_000, 20_000, 40_000])
    assert counts == pytest.approx([10_000, 40_000, 10_000], rel=0.05)


@pytest.mark.parametrize(
    ("rates", "cv", "until_s"),
    [
        ([], 1.0, 1.0),
        ([(1.0, 1.0)], 1.0, 1.0),
        ([(0.0, 1.0), (0.0, 2.0)], 1.0, 1.0),
        ([(0.0, 0.0)], 1.0, 1.0),
        ([(0.0, -1.0)], 1.0, 1.0),
        ([(0.0, 1.0)], 0.0, 1.0),
        ([(0.0, 1.0)], 1.0, 0.0),
    ],
)
def test_rates_that_make_no_sense_are_refused(rates: list[tuple[float, float]], cv: float, until_s: float) -> None:
    with pytest.raises(ValueError, match=r"rates begin|arrivals need"):
        changing_arrivals(rates, cv, until_s, np.random.default_rng(0))


def written_profile(folder: Path, content: bytes) -> Path:
    (folder / "profiles").mkdir()
    path = folder / "profiles" / GPT_20B.profile
    path.write_bytes(content)
    return path


def test_a_profile_becomes_tables_in_seconds(tmp_path: Path) -> None:
    path = written_profile(tmp_path, orjson.dumps(profile_document(layers=44, prompt_ms=20.0, step_ms=1.0)))
    tables = read_model_tables(tmp_path, GPT_20B)
    assert tables == read_layer_tables(path)
    assert tables.layers == 44
    assert tables.step_s(ParallelConfig(1, 1, 4, 1)) == pytest.approx(44 * 0.001)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is no profile"),
        (b"[]", "no JSON object"),
        (b"{}", "layer_num"),
        (orjson.dumps(profile_document(layers=44) | {"embed": []}), "embed"),
        (orjson.dumps(profile_document(layers=32)), "is of 32 layers; GPT-20B has 44"),
    ],
)
def test_what_is_no_profile_is_refused_with_its_file(tmp_path: Path, content: bytes, said: str) -> None:
    path = written_profile(tmp_path, content)
    with pytest.raises(TraceError, match=said) as refused:
        read_model_tables(tmp_path, GPT_20B)
    assert str(path) in str(refused.value)


def test_a_profile_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_model_tables(tmp_path, GPT_20B)


def test_the_published_answers_name_their_source() -> None:
    data = (resources.files("spotwise.studies.spotserve") / "golden_answers.json").read_bytes()
    assert len(orjson.loads(data)["source"]) > 20
    assert len(golden_cells()) == 36
