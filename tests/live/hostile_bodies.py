"""Bodies that would stop a gateway, each below the 8 MiB that a body may have."""

from __future__ import annotations

import json
from typing import Any

from tests.live.mesh import MODEL

COMPLETIONS, CHATS, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
WORDS = "the quick brown fox jumps over the lazy dog. "


def nested(levels: int) -> Any:
    """A list in a list in a list."""
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def chat(*messages: Any, **others: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": list(messages), **others}


def user(content: str, **others: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **others}


def calling(arguments: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": arguments}}],
    }


def completion(**others: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Hi", "max_tokens": 4, **others}


def echo(prompts: int, tokens: int, logprobs: int | None = 10, **others: Any) -> dict[str, Any]:
    """Prompts whose log-probabilities are the answer."""
    given = [[300 + (prompt + index) % 500 for index in range(tokens)] for prompt in range(prompts)]
    return completion(prompt=given, max_tokens=0, echo=True, logprobs=logprobs, **others)


#: Built where they are used, as together they are large.
HOSTILE: dict[str, tuple[str, Any]] = {
    "many prompts": (COMPLETIONS, lambda: completion(prompt=["a"] * 1_900_000)),
    "many empty prompts": (COMPLETIONS, lambda: completion(prompt=[[]] * 2_600_000)),
    "a long prompt": (COMPLETIONS, lambda: completion(prompt=WORDS * 166_000)),
    "a long prompt of one letter": (COMPLETIONS, lambda: completion(prompt="a" * 7_500_000)),
    "long stop strings": (COMPLETIONS, lambda: completion(stop=["ab" * 240_000] * 16, n=16)),
    "many stop tokens": (COMPLETIONS, lambda: completion(prompt=["a"] * 16, n=16, stop_token_ids=[7] * 3_500_000)),
    "many biases": (COMPLETIONS, lambda: completion(logit_bias={str(token_id): 1 for token_id in range(600_000)})),
    "many wrong biases": (COMPLETIONS, lambda: completion(logit_bias=dict.fromkeys(map(str, range(600_000)), "x"))),
    "a long message": (CHATS, lambda: chat(user(WORDS * 166_000))),
    "many messages": (CHATS, lambda: chat(*[user("")] * 200_000)),
    "many wrong messages": (CHATS, lambda: chat(*[{"role": "x", "content": 5}] * 16_000)),
    "many wrong calls": (CHATS, lambda: chat({"role": "assistant", "tool_calls": [1] * 1_400_000})),
    "nested levels in a message": (CHATS, lambda: chat(user("Hi", more=nested(400)))),
    "nested levels in arguments": (CHATS, lambda: chat(user("Hi"), calling("[" * 400 + "]" * 400))),
    "many lists in arguments": (CHATS, lambda: chat(user("Hi"), calling("[" + "[]," * 2_500_000 + "[]]"))),
    "a long model name": (CHATS, lambda: chat(user("Hi")) | {"model": "m" * 7_500_000}),
    "many log-probabilities": (COMPLETIONS, lambda: echo(128, 5000)),
    "many alternatives": (CHATS, lambda: chat(user("Hi"), n=16, max_tokens=4000, logprobs=True, top_logprobs=20)),
}
#: As many log-probabilities as one answer may have, or nearly.
SCORED: dict[str, tuple[str, Any]] = {
    "of few long prompts": (COMPLETIONS, lambda: echo(18, 5000)),
    "of many short prompts": (COMPLETIONS, lambda: echo(240, 370)),
    "of prompts alone": (COMPLETIONS, lambda: completion(prompt=[[500] * 4000] * 11, prompt_logprobs=20, max_tokens=1)),
    "of many choices": (CHATS, lambda: chat(user("Hi"), n=16, max_tokens=300, logprobs=True, top_logprobs=20)),
    "of none, with the ids": (COMPLETIONS, lambda: echo(64, 1000, None, n=4, return_token_ids=True)),
}


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
