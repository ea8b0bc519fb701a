"""Embedding configuration of a model: from its folder, in the layout of sentence-transformers, or from the operator.

A folder that says nothing has none, for the head of a chat model reads hidden states that were trained for nothing else. One
that needs what is not computed here has none either, and a request is told what it is.
Source: sentence-transformers, `modules.json` and the modules' `config.json`; config.json's `is_matryoshka` and
`matryoshka_dimensions` are vLLM's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotwise.core.requests.sampling import Pooling

#: What says how to pool where the folder does not, or says otherwise.
POOLING_SETTING = "SPOTWISE_EMBEDDING_POOLING"
#: What lets embeddings be cut where the folder does not.
MATRYOSHKA_SETTING = "SPOTWISE_EMBEDDING_MATRYOSHKA"

_POOLINGS = {"lasttoken": Pooling.LAST, "mean": Pooling.MEAN, "mean_tokens": Pooling.MEAN}
_MODE_PREFIX = "pooling_mode_"
_SIZE_KEYS = ("word_embed_proj_dim", "hidden_size", "n_embd", "d_model")


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """What a model's embeddings are.

    Attributes:
        pooling: pooling of a prompt's hidden states; `None`: the model has no embeddings.
        reason: why it has none.
        normalizes: they have the length 1, unless a request says otherwise.
        size: numbers of one; `None` where the folder does not say.
        is_matryoshka: any number of the first of them is an embedding, too.
        sizes: where not any, but these.
        max_tokens: longest prompt; `None`: the context's.
    """

    pooling: Pooling | None = None
    reason: str = ""
    normalizes: bool = True
    size: int | None = None
    is_matryoshka: bool = False
    sizes: tuple[int, ...] = ()
    max_tokens: int | None = None


#: Of a model whose folder says nothing.
NO_EMBEDDINGS = EmbeddingModel(reason="its folder does not say how its hidden states are pooled")


class _UnsupportedError(Exception):
    """The folder asks for what is not computed here."""


def read_embedding_model(
    model_dir: Path, pooling: Pooling | None = None, *, is_matryoshka: bool = False
) -> EmbeddingModel:
    """Return how a model's prompts become embeddings.

    Args:
        model_dir: folder of the model.
        pooling: the operator's, which has precedence over the folder's; `None`: the folder's.
        is_matryoshka: the operator's word that embeddings may be cut.

    Raises:
        ValueError: a file is no JSON, or of another shape.
    """
    config = _read_json(model_dir / "config.json", dict, {})
    text_config: Mapping[str, Any] = config.get("text_config") or config
    try:
        if text_config.get("is_causal") is False or text_config.get("use_bidirectional_attention"):
            raise _UnsupportedError("its tokens attend to those after them, which is not computed here")
        of_folder = _of_modules(model_dir)
    except _UnsupportedError as unsupported:
        of_folder = EmbeddingModel(reason=str(unsupported))
    if pooling is None and of_folder.pooling is None:
        return of_folder
    sizes = config.get("matryoshka_dimensions") or ()
    if not isinstance(sizes, list | tuple) or not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(f"{model_dir / 'config.json'}: matryoshka_dimensions is no list of positive integers")
    return EmbeddingModel(
        pooling=pooling or of_folder.pooling,
        normalizes=of_folder.normalizes,
        size=next((text_config[key] for key in _SIZE_KEYS if isinstance(text_config.get(key), int)), None),
        is_matryoshka=is_matryoshka or config.get("is_matryoshka") is True or bool(sizes),
        sizes=() if is_matryoshka else tuple(sorted(sizes)),
        max_tokens=of_folder.max_tokens,
    )


def _of_modules(folder: Path) -> EmbeddingModel:
    modules = _read_json(folder / "modules.json", list, [])
    pooling: Pooling | None = None
    normalizes, max_tokens = False, None
    for module in modules:
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise ValueError(f"{folder / 'modules.json'}: a module has no type")
        # Its class, whose module has moved from release to release.
        kind, path = module["type"].rpartition(".")[2], folder / str(module.get("path", ""))
        match kind:
            case "Transformer":
                max_tokens = _longest(path)
            case "Pooling":
                pooling = _pooling(_read_json(path / "config.json", dict, {}))
            case "Normalize":
                normalizes = True
            case _:
                raise _UnsupportedError(f"its module '{kind}' is not computed here")
    if pooling is None:
        return NO_EMBEDDINGS
    return EmbeddingModel(pooling, normalizes=normalizes, max_tokens=max_tokens)


def _longest(transformer: Path) -> int | None:
    config = _read_json(transformer / "sentence_bert_config.json", dict, {})
    if config.get("do_lower_case"):
        raise _UnsupportedError("its texts are made lower case ('do_lower_case'), which is not done here")
    longest = config.get("max_seq_length")
    return longest if type(longest) is int and longest > 0 else None


def _pooling(config: Mapping[str, Any]) -> Pooling:
    """Return the pooling of a module's config, which names one mode, or has a flag for each."""
    given = config.get("pooling_mode")
    modes = [given] if isinstance(given, str) else list(given or ())
    modes += [
        name.removeprefix(_MODE_PREFIX)
        for name, is_on in config.items()
        if name.startswith(_MODE_PREFIX) and is_on is True
    ]
    if len(modes) == 1 and modes[0] in _POOLINGS:
        return _POOLINGS[modes[0]]
    named = " and ".join(f"'{mode}'" for mode in modes) or "of no mode"
    raise _UnsupportedError(f"its pooling {named} is not computed here, only 'lasttoken' or 'mean_tokens'")


def _read_json(path: Path, kind: type[Any], default: Any) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return default
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, kind):
        raise ValueError(f"{path} holds no JSON {'object' if kind is dict else 'list'}")
    return value
