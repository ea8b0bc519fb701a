"""The vocabulary of a simulated worker: words with a leading blank, from the served model's `tokenizer.json` and `config.json`.
In any order they are readable text, and each streams at once. A tokenizer without such words gives all ids but special ones.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

#: The blank in byte-level and in sentencepiece tokenizers.
_WORD = re.compile(r"[Ġ▁][a-z]{2,12}")
#: Enough for varied text; a tokenizer's first tokens are the most frequent.
_MOST = 4096


def read_words(model_dir: Path) -> tuple[int, ...]:
    """Return the ids to sample from, ascending, at least one; raises `ValueError` for a tokenizer without vocabulary."""
    try:
        tokenizer = json.loads((model_dir / "tokenizer.json").read_text(encoding="utf-8"))
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{model_dir} cannot be read: {error}") from error
    spelled = _vocabulary(tokenizer)
    size = (config.get("text_config") or config).get("vocab_size") or len(spelled)
    hidden = {token["id"] for token in tokenizer.get("added_tokens") or () if token.get("special")}
    usable = {piece: token_id for piece, token_id in spelled.items() if token_id < size and token_id not in hidden}
    words = sorted(token_id for piece, token_id in usable.items() if _WORD.fullmatch(piece))
    found = tuple((words or sorted(usable.values()))[:_MOST])
    if not found:
        raise ValueError(f"{model_dir / 'tokenizer.json'} has no tokens to answer with")
    return found


def _vocabulary(tokenizer: dict[str, Any]) -> dict[str, int]:
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, dict):
        return {str(piece): int(token_id) for piece, token_id in vocabulary.items()}
    return {str(pair[0]): token_id for token_id, pair in enumerate(vocabulary)}
