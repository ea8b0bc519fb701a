"""Token ids to text, as the tokens come.

The pieces of a `Detokenizer`, joined, are the decoding of all its tokens. A character whose bytes come with several tokens is
returned whole, with the last of them; missing bytes never become a replacement character.

The incremental decoding itself is `tokenizers.decoders.DecodeStream`; this file adds what it lacks: the end of a
stream, a bound on what is held back, and recovery where byte-fallback tokens make an earlier decoding invalid (it
then raises).
"""

from __future__ import annotations

import functools
import json
import re

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

#: No character needs this many tokens: a longer wait means bytes that never become text, and costs time per token.
_MAX_HELD_TOKENS = 32
#: JSON has no infinity; OpenAI's API uses this value for "as good as impossible".
LEAST_LOGPROB = -9999.0
_BYTE_FALLBACK_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer:
    """Text of one sequence.

    Args:
        tokenizer: the model's.
        hidden_token_ids: ids that give no text, the special ones as a rule.
    """

    __slots__ = ("_group", "_hidden", "_pending", "_stream", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, hidden_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden_token_ids
        self._stream = DecodeStream(skip_special_tokens=False)
        self._group: list[int] = []  # tokens of the last piece: their decoding is the context of the next
        self._pending: list[int] = []  # tokens since then

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that it completes, often all of it, sometimes none."""
        if token_id in self._hidden:
            return ""
        self._pending.append(token_id)
        try:
            piece: str | None = self._stream.step(self._tokenizer, token_id)
        except Exception:
            # The library raises nothing narrower. It means that text already given would now decode differently.
            return self.flush()
        if piece is None:
            return self.flush() if len(self._pending) >= _MAX_HELD_TOKENS else ""
        self._group, self._pending = self._pending, []
        return piece

    def flush(self) -> str:
        """Return the text held back, with replacement characters for bytes that are no text; more tokens may follow."""
        if not self._pending:
            return ""
        context = self._tokenizer.decode(self._group, skip_special_tokens=False)
        both = self._tokenizer.decode(self._group + self._pending, skip_special_tokens=False)
        if both.startswith(context):
            piece = both[len(context) :]
        else:
            piece = self._tokenizer.decode(self._pending, skip_special_tokens=False)
        if piece:
            self._group = self._pending
        self._pending = []
        # A context that ends in a replacement character would be given again by the stream.
        seed = [] if piece.endswith("\ufffd") else self._group
        self._stream = DecodeStream(ids=seed, skip_special_tokens=False)
        return piece


class TokenBytes:
    """Exact bytes and a printable text of single tokens, for log-probabilities."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        kinds = set(re.findall(r'"type":\s*"(\w+)"', json.dumps(json.loads(tokenizer.to_str())["decoder"])))
        self._byte_of = _byte_level_alphabet() if "ByteLevel" in kinds else {}
        self._byte_fallback = "ByteFallback" in kinds
        self._tokenizer = tokenizer
        self._added = {token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()}
        self.bytes_of = functools.lru_cache(maxsize=1 << 16)(self._bytes_of)
        self.text_of = functools.lru_cache(maxsize=1 << 16)(self._text_of)

    def _bytes_of(self, token_id: int) -> bytes:
        """Bytes that the token stands for inside a text; empty for an id without a token."""
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if self._byte_of:
            return b"".join(bytes((self._byte_of[char],)) if char in self._byte_of else char.encode() for char in piece)
        if self._byte_fallback and (match := _BYTE_FALLBACK_PIECE.fullmatch(piece)):
            return bytes((int(match[1], 16),))
        return piece.replace("\u2581", " ").encode()

    def _text_of(self, token_id: int) -> str:
        """Text of the token; bytes that are not text alone are spelled `bytes:\\xf0\\x9f`, as OpenAI's API does."""
        raw = self._bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _byte_level_alphabet() -> dict[str, int]:
    """Characters by which byte-level BPE writes bytes (GPT-2's `bytes_to_unicode`, inverted)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}
