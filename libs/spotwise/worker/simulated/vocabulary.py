"""Which tokens a simulated worker may answer with.

Law: words with a blank before them, of the served model's own tokenizer: whatever order they come in, the gateway makes
readable text of them, and each is text of its own, so that every token streams at once. A tokenizer that has none such gives
all its ids but the special ones. Of all files of the model only `tokenizer.json` and `config.json` are read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

#: A blank is spelled so by byte-level and by sentencepiece tokenizers.
_WORD = re.compile(r"[Ġ▁][a-z]{2,12}")
#: As many as make an answer look like one; of a tokenizer the first are the commonest.
_MOST = 4096


def read_words(model_dir: Path) -> tuple[int, ...]:
    """Return the ids to answer with, ascending; at least one.

    Raises:
        ValueError: the folder's tokenizer has no vocabulary.
    """
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
    """Return pieces and their ids: an object in most models, a list of pairs in Unigram ones."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, dict):
        return {str(piece): int(token_id) for piece, token_id in vocabulary.items()}
    return {str(pair[0]): token_id for token_id, pair in enumerate(vocabulary)}
