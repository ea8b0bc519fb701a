"""From one prompt, as text or as token ids, to what the model reads."""

from __future__ import annotations

from spotwise.gateway.generate.plan_sampling import check_token_ids
from spotwise.gateway.generate.prompt_limits import prompt_too_long
from spotwise.gateway.schema.prompts import Prompt
from spotwise.text.prompt_encoder import PromptTooLongError
from spotwise.text.text import ChatText
from spotwise.text.truncation import Truncation


def prompt_tokens(
    prompt: Prompt, param: str, text: ChatText, truncation: Truncation | None, *, add_special_tokens: bool = True
) -> tuple[int, ...]:
    """Return a prompt's token ids; work for a thread where the text is long.

    Args:
        prompt: a text, or token ids, to which nothing is added.
        param: the parameter that holds it.
        text: tokenizer of the model.
        truncation: cuts it; `None` does not.
        add_special_tokens: the tokenizer's, to a text.

    Raises:
        ApiError: 400, a text is longer than the context, or a token id is none of the model's.
    """
    if isinstance(prompt, str):
        try:
            return text.encode(prompt, add_special_tokens, truncation)
        except PromptTooLongError as error:
            raise prompt_too_long(param, text.context_length, error.at_least_tokens) from error
    check_token_ids(param, prompt, text.vocab_size)
    return tuple(prompt) if truncation is None else truncation.of_ids(prompt)
