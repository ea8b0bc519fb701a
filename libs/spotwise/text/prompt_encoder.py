"""Prompts to token ids, and the refusal of those that cannot fit before they are tokenized whole."""

from __future__ import annotations

from tokenizers import Tokenizer

from spotwise.text.truncation import Truncation

#: A longer prompt is counted in parts of so many characters first: tokenizing takes hundreds of bytes a character.
_PART_CHARACTERS = 1 << 16


class PromptTooLongError(Exception):
    """A text cannot fit into the context.

    Attributes:
        at_least_tokens: it has so many tokens or more.
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
