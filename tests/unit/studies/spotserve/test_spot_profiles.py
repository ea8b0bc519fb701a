"""Profiles of SpotServe's artifact become tables of layers, or are refused with what is wrong."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from spotwise.core.parallel.config import ParallelConfig
from spotwise.files.tables import TraceError
from spotwise.studies.spotserve.profiles import GPT_20B, read_layer_tables, read_model_tables
from tests.unit.studies.spotserve.spot_artifact import profile_document


def written(folder: Path, content: bytes) -> Path:
    (folder / "profiles").mkdir()
    path = folder / "profiles" / GPT_20B.profile
    path.write_bytes(content)
    return path


def test_a_profile_becomes_tables_in_seconds(tmp_path: Path) -> None:
    path = written(tmp_path, orjson.dumps(profile_document(layers=44, prompt_ms=20.0, step_ms=1.0)))
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
    """A file that is no profile, or one of another model, is refused by its path."""
    path = written(tmp_path, content)
    with pytest.raises(TraceError, match=said) as refused:
        read_model_tables(tmp_path, GPT_20B)
    assert str(path) in str(refused.value)


def test_a_profile_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_model_tables(tmp_path, GPT_20B)
