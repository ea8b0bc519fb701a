"""Prompts to token ids, cut to a number of tokens or refused before they are tokenized whole."""

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
        most_tokens: tokens that a prompt keeps at most, special ones included.
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


#: A longer prompt is counted in parts of so many characters first: tokenizing takes hundreds of bytes a character.
_PART_CHARACTERS = 1 << 16


class PromptTooLongError(Exception):
    """A text cannot fit into the context.

    Attributes:
        at_least_tokens: it has this many tokens or more.
    """

    def __init__(self, at_least_tokens: int) -> None:
        super().__init__(f"at least {at_least_tokens} tokens")
        self.at_least_tokens = at_least_tokens


class PromptEncoder:
    """Tokenizes prompts with one tokenizer, which neither truncates nor pads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._longest_token_characters = max(map(len, tokenizer.get_vocab()), default=1)

    def encode(
        self, prompt: str, context_length: int, truncation: Truncation | None, *, add_special_tokens: bool
    ) -> tuple[int, ...]:
        """Tokenize; work for a thread where the text is long.

        Args:
            prompt: the text.
            context_length: tokens that fit.
            truncation: how it is cut; `None`: it is not.
            add_special_tokens: add the tokenizer's.

        Raises:
            PromptTooLongError: it cannot fit into the context, and is not cut; found before all of it is tokenized.
        """
        if truncation is not None:
            return truncation.of_text(prompt, self._tokenizer, add_special_tokens=add_special_tokens)
        self._refuse_overlong(prompt, context_length)
        return self._encode(prompt, add_special_tokens)

    def _refuse_overlong(self, prompt: str, context_length: int) -> None:
        """Refuse by characters, then by counting parts until the context is full.

        A part that is cut within a token may count that token's characters singly, and no more: so much is allowed for.
        """
        # Every character belongs to a token, as in all tokenizers of language models that fall back to bytes.
        fits_at_most = context_length * self._longest_token_characters
        if len(prompt) > fits_at_most:
            raise PromptTooLongError(-(-len(prompt) // self._longest_token_characters))
        if len(prompt) <= _PART_CHARACTERS:
            return
        tokens = 0
        for start in range(0, len(prompt), _PART_CHARACTERS):
            tokens += len(self._encode(prompt[start : start + _PART_CHARACTERS], add_special_tokens=False))
            tokens -= 2 * self._longest_token_characters
            if tokens > context_length:
                raise PromptTooLongError(tokens)

    def _encode(self, prompt: str, add_special_tokens: bool) -> tuple[int, ...]:
        # encode_batch releases the interpreter lock; encode holds it, which would stall the loop from any thread.
        return tuple(self._tokenizer.encode_batch([prompt], add_special_tokens=add_special_tokens)[0].ids)
