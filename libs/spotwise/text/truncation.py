"""Prompts that are cut to a number of tokens: vLLM's `truncate_prompt_tokens` and `truncation_side`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

#: Of a long text its kept end is tokenized alone, from so many characters on, and from so many for each token.
_LEAST_CHARACTERS, _CHARACTERS_A_TOKEN = 1 << 16, 8
#: Where a text was cut within a word, tokens beside the cut are not the whole text's: so many more are tokenized.
_BESIDE_THE_CUT = 1024


@dataclass(frozen=True, slots=True)
class Truncation:
    """How prompts are cut.

    Attributes:
        most_tokens: that a prompt keeps, special ones included.
        keeps_end: its last tokens, and not its first.
    """

    most_tokens: int
    keeps_end: bool = True

    def of_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return what is kept of a prompt in tokens."""
        return tuple(token_ids[-self.most_tokens :] if self.keeps_end else token_ids[: self.most_tokens])

    def of_text(self, text: str, tokenizer: Tokenizer, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Return what is kept of a text's tokens; special ones are added to what is kept of the others."""
        special_tokens = tokenizer.num_special_tokens_to_add(False) if add_special_tokens else 0
        kept_tokens = max(0, self.most_tokens - special_tokens)
        encoding = self._encoded(text, tokenizer, kept_tokens + _BESIDE_THE_CUT)
        encoding.truncate(kept_tokens, direction="left" if self.keeps_end else "right")
        token_ids = tokenizer.post_process(encoding, add_special_tokens=add_special_tokens).ids
        return self.of_ids(token_ids)  # there may be room for special tokens only

    def _encoded(self, text: str, tokenizer: Tokenizer, enough_tokens: int) -> Encoding:
        """Tokenize a text, or so much of its kept end that it has enough tokens."""
        characters = max(_LEAST_CHARACTERS, _CHARACTERS_A_TOKEN * enough_tokens)
        while True:
            part = text[-characters:] if self.keeps_end else text[:characters]
            # encode_batch releases the interpreter lock
            encoding = tokenizer.encode_batch([part], add_special_tokens=False)[0]
            if len(part) == len(text) or len(encoding) >= enough_tokens:
                return encoding
            characters *= 2
