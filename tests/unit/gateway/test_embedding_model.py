"""How a model's folder says what its embeddings are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotwise.core.requests.sampling import Pooling
from spotwise.gateway.generate.embedding_model import NO_EMBEDDINGS, EmbeddingModel, read_embedding_model
from tests.unit.gateway.apps import Json

TRANSFORMER = ("", "sentence_transformers.models.Transformer")
POOLING = ("1_Pooling", "sentence_transformers.models.Pooling")
NORMALIZE = ("2_Normalize", "sentence_transformers.models.Normalize")
#: As Qwen3-Embedding is published.
LAST_TOKEN = {
    "word_embedding_dimension": 1024,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
    "pooling_mode_weightedmean_tokens": False,
    "pooling_mode_lasttoken": True,
    "include_prompt": True,
}


def folder_of(
    folder: Path, modules: list[tuple[str, str]], pooling: Json | None = None, config: Json | None = None
) -> Path:
    """Write a model's folder as far as it says something of embeddings."""
    (folder / "config.json").write_text(json.dumps({"hidden_size": 1024, **(config or {})}))
    if modules:
        listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)]
        (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(LAST_TOKEN if pooling is None else pooling))
    return folder


def test_a_published_model_says_how_it_pools(tmp_path: Path) -> None:
    found = read_embedding_model(folder_of(tmp_path, [TRANSFORMER, POOLING, NORMALIZE]))
    assert found == EmbeddingModel(Pooling.LAST, normalizes=True, size=1024)


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_mean_tokens": True},
        {"pooling_mode": "mean", "embedding_dimension": 9},
        {"pooling_mode": ["mean"]},
    ],
)
def test_modes_are_named_in_several_ways(tmp_path: Path, pooling: Json) -> None:
    """By a flag each, or by one name; classes lie in other modules in other releases. Without the module, lengths stay."""
    moved = ("1_Pooling", "sentence_transformers.sentence_transformer.modules.pooling.Pooling")
    found = read_embedding_model(folder_of(tmp_path, [TRANSFORMER, moved], pooling))
    assert found == EmbeddingModel(Pooling.MEAN, normalizes=False, size=1024)


def test_a_model_that_says_nothing_has_none(tmp_path: Path) -> None:
    """Unless its operator says so."""
    folder = folder_of(tmp_path, [])
    assert read_embedding_model(folder) == NO_EMBEDDINGS
    assert read_embedding_model(folder, Pooling.MEAN) == EmbeddingModel(Pooling.MEAN, normalizes=True, size=1024)


def test_the_operator_has_precedence_for_the_pooling_alone(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, [TRANSFORMER, POOLING])
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 512, "do_lower_case": False}))
    found = read_embedding_model(folder, Pooling.MEAN)
    assert found == EmbeddingModel(Pooling.MEAN, normalizes=False, size=1024, max_tokens=512)


@pytest.mark.parametrize(
    ("config", "by_operator", "sizes", "is_matryoshka"),
    [
        ({}, False, (), False),
        ({"is_matryoshka": True}, False, (), True),
        ({"matryoshka_dimensions": [512, 64]}, False, (64, 512), True),
        ({}, True, (), True),
        ({"matryoshka_dimensions": [512, 64]}, True, (), True),
    ],
)
def test_whether_embeddings_may_be_cut(
    tmp_path: Path, config: Json, by_operator: bool, sizes: tuple[int, ...], is_matryoshka: bool
) -> None:
    folder = folder_of(tmp_path, [TRANSFORMER, POOLING], config=config)
    found = read_embedding_model(folder, is_matryoshka=by_operator)
    assert (found.sizes, found.is_matryoshka) == (sizes, is_matryoshka)


@pytest.mark.parametrize(
    ("modules", "pooling", "config", "reason"),
    [
        ([TRANSFORMER, POOLING], {"pooling_mode_cls_token": True}, {}, "pooling 'cls_token' is not computed"),
        ([TRANSFORMER, POOLING], {"pooling_mode": "weightedmean"}, {}, "pooling 'weightedmean' is not computed"),
        ([TRANSFORMER, POOLING], {"pooling_mode_max_tokens": True}, {}, "pooling 'max_tokens' is not computed"),
        ([TRANSFORMER, POOLING], LAST_TOKEN | {"pooling_mode_mean_tokens": True}, {}, "'mean_tokens' and 'lasttoken'"),
        ([TRANSFORMER, POOLING], {}, {}, "of no mode"),
        ([TRANSFORMER, POOLING, ("2_Dense", "sentence_transformers.models.Dense")], None, {}, "module 'Dense'"),
        ([TRANSFORMER, POOLING], None, {"is_causal": False}, "attend to those after them"),
        ([TRANSFORMER, POOLING], None, {"use_bidirectional_attention": True}, "attend to those after them"),
    ],
)
def test_what_is_not_computed_is_named(
    tmp_path: Path, modules: list[tuple[str, str]], pooling: Json | None, config: Json, reason: str
) -> None:
    """The model generates all the same, and an operator may pool otherwise."""
    folder = folder_of(tmp_path, modules, pooling, config)
    found = read_embedding_model(folder)
    assert found.pooling is None and reason in found.reason
    assert read_embedding_model(folder, Pooling.LAST).pooling is Pooling.LAST


def test_lower_case_is_named_too(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, [TRANSFORMER, POOLING])
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    assert "do_lower_case" in read_embedding_model(folder).reason


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", "{"),
        ("modules.json", "{}"),
        ("modules.json", "[1]"),
        ("1_Pooling/config.json", "[]"),
        ("config.json", '{"matryoshka_dimensions": ["all"]}'),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    """The gateway does not start with it."""
    folder = folder_of(tmp_path, [TRANSFORMER, POOLING])
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=name):
        read_embedding_model(folder)
