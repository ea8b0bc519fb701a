"""A model's tokens as grammars see them: text is written in tokens of text, whatever it looks like.

llguidance forces the bytes that a grammar prescribes by the tokenizer's own tokens for them. A tokenizer reads control tokens
in any text, so that a schema with `<|im_end|>` in it would be forced to write the control token, which is none of these bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from llguidance import LLTokenizer
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from llguidance._tokenizer import TokenizerWrapper


class _TextTokens:
    """What llguidance asks of a tokenizer: its tokens' bytes, and the tokens of a text."""

    #: By which llguidance knows that this is one.
    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, known: LLTokenizer) -> None:
        self.eos_token_id: int = known.eos_token
        self.tokens: Sequence[bytes] = [known.decode_bytes([token_id]) for token_id in range(known.vocab_size)]
        self.special_token_ids: Sequence[int] = [
            token_id for token_id in range(known.vocab_size) if known.is_special_token(token_id)
        ]
        self._special_ids = frozenset(self.special_token_ids)
        self._tokenizer = tokenizer
        self._known = known

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text, which have its bytes exactly: llguidance could follow no others."""
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        written = b"".join(self.tokens[token_id] for token_id in token_ids)
        if written == text.encode() and self._special_ids.isdisjoint(token_ids):
            return token_ids
        return self._known.greedy_tokenize(text)


def grammar_tokenizer(tokenizer_json: str, vocab_size: int) -> LLTokenizer:
    """Return a model's tokens for grammars.

    Args:
        tokenizer_json: what its `tokenizer.json` holds.
        vocab_size: columns of the logits.

    Raises:
        Exception: of a Rust library, whose errors have no common class: it is no tokenizer, or none that llguidance knows.
    """
    known = LLTokenizer(tokenizer_json, n_vocab=vocab_size)
    tokenizer = Tokenizer.from_str(_without_prefixes(tokenizer_json))
    tokenizer.encode_special_tokens = True
    return LLTokenizer(cast("TokenizerWrapper", _TextTokens(tokenizer, known)), eos_token=known.eos_tokens)


def _without_prefixes(tokenizer_json: str) -> str:
    """Return a tokenizer that adds no blank before a text: a grammar's text goes on from another."""

    def plain(part: dict[str, Any]) -> dict[str, Any]:
        kind = part.get("type")
        if kind == "Prepend":
            return {"type": "Sequence", "normalizers": []}
        if kind == "Metaspace" and "replacement" in part:
            return {**{key: part[key] for key in part if key != "add_prefix_space"}, "prepend_scheme": "never"}
        if kind == "ByteLevel" and "add_prefix_space" in part:
            return part | {"add_prefix_space": False}
        return part

    parts = json.loads(tokenizer_json)
    for name in ("normalizer", "pre_tokenizer"):
        if parts.get(name) is not None:
            parts[name] = json.loads(json.dumps(parts[name]), object_hook=plain)
    return json.dumps(parts, ensure_ascii=False)
