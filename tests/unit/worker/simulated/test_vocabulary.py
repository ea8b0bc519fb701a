"""Words to answer with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotwise.worker.simulated.serving import read_words


def model(folder: Path, tokenizer: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    """A folder with just what is read."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config or {}), encoding="utf-8")
    return folder


def test_words_behind_a_blank_are_taken(tmp_path: Path) -> None:
    """Only whole words after a blank are taken from a byte-level vocabulary, without special or unreachable tokens."""
    vocabulary = {"<s>": 0, "Ġthe": 1, "ing": 2, "Ġcat": 3, "ĠX9": 4, "Ġbeyond": 9, "Ġspecial": 5}
    special = [{"id": 5, "content": " special", "special": True}]
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": special}
    assert read_words(model(tmp_path, tokenizer, {"vocab_size": 9})) == (1, 3)


def test_a_unigram_vocabulary_is_a_list(tmp_path: Path) -> None:
    """A unigram vocabulary lists pieces and scores in the order of their ids; a text model's size may be nested."""
    tokenizer = {"model": {"vocab": [["<unk>", 0.0], ["▁hello", -1.0], ["▁world", -2.0], ["s", -3.0]]}}
    assert read_words(model(tmp_path, tokenizer, {"text_config": {"vocab_size": 4}})) == (1, 2)


def test_a_tokenizer_without_words_gives_all_it_has(tmp_path: Path) -> None:
    """Without words every token but the special ones is used."""
    tokenizer = {"model": {"vocab": {"a": 0, "b": 1, "</s>": 2}}, "added_tokens": [{"id": 2, "special": True}]}
    assert read_words(model(tmp_path, tokenizer)) == (0, 1)


def test_a_folder_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_words(tmp_path)
    with pytest.raises(ValueError, match=r"tokenizer\.json has no tokens"):
        read_words(model(tmp_path, {"model": {"vocab": {}}}))
