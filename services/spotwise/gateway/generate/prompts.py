"""Prompts before they are tokenized: which are refused, and how one of text or of token ids becomes what the model reads."""

from __future__ import annotations

from spotwise.gateway.generate.sampling import check_token_ids
from spotwise.gateway.schema.completions import Prompt
from spotwise.gateway.schema.shared import PromptOptions
from spotwise.http.errors import ApiError, bad_request
from spotwise.text.chat_text import ChatText
from spotwise.text.prompt_encoder import PromptTooLongError, Truncation


def require_choices(n: int | None, num_prompts: int, max_n: int, max_sequences: int) -> int:
    """Return how many choices each prompt gets.

    Args:
        n: as the client gave it.
        num_prompts: prompts of the request.
        max_n: most choices a prompt.
        max_sequences: most sequences a request, prompts times choices.

    Raises:
        ApiError: 400, more than the limits.
    """
    choices = n or 1
    if choices > max_n:
        raise bad_request(f"Invalid value for 'n': at most {max_n} choices are supported.", "n", "invalid_value")
    if choices * num_prompts > max_sequences:
        raise bad_request(
            f"Too many choices: {num_prompts} prompts times n={choices} exceed {max_sequences}.",
            "prompt",
            "invalid_value",
        )
    return choices


def prompt_too_long(param: str, context_length: int, at_least_tokens: int) -> ApiError:
    """Return the 400 for a prompt that was not tokenized to its end, because it cannot fit."""
    message = (
        f"This model's maximum context length is {context_length} tokens. However, you requested at least "
        f"{at_least_tokens} tokens in the {param}. Please reduce them."
    )
    return bad_request(message, param.split(".")[0], "context_length_exceeded")


def truncation_of(request: PromptOptions, max_tokens: int | None, context_length: int) -> Truncation | None:
    """Return how a request's prompts are cut; `None` where they are not.

    Args:
        request: the checked parameters.
        max_tokens: output tokens that the prompt has to leave room for; `None` for one.
        context_length: tokens that prompt and output may have together.

    Raises:
        ApiError: 400, more than the context.
    """
    most_tokens = request.truncate_prompt_tokens
    if most_tokens is None:
        return None
    if most_tokens > context_length:
        raise bad_request(
            f"Invalid value for 'truncate_prompt_tokens': this model's context has {context_length} tokens.",
            "truncate_prompt_tokens",
            "invalid_value",
        )
    if most_tokens < 0:
        most_tokens = max(1, context_length - max(1, max_tokens or 1))
    return Truncation(most_tokens, keeps_end=request.truncation_side != "right")


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
