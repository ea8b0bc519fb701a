"""Refusals of prompts before they are read, or before they are tokenized whole."""

from __future__ import annotations

from spotwise.gateway.errors import ApiError, bad_request


def require_choices(n: int | None, num_prompts: int, max_n: int, max_sequences: int) -> int:
    """Return how many choices each prompt gets.

    Args:
        n: as the client gave it.
        num_prompts: of the request.
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
