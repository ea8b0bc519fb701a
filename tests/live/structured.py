"""Structured answers, streamed, of which several choices run at once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from tests.live.mesh import MODEL, LiveMesh

CHOICES = 3
SCHEMA = {
    "type": "object",
    "properties": {
        "days": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "day": {"enum": ["Monday", "Tuesday", "Sunday"]},
                    "degrees": {"type": "integer", "minimum": -40, "maximum": 60},
                },
                "required": ["day", "degrees"],
                "additionalProperties": False,
            },
            "minItems": 5,
            "maxItems": 5,
        },
        "is_cold": {"type": "boolean"},
    },
    "required": ["days", "is_cold"],
    "additionalProperties": False,
}
REGEX = "([a-z]{3,8} ){20}end\\."
_LAYOUT = {"json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}, "type": "json_schema"}
ASKED: dict[str, dict[str, Any]] = {
    "schema": {"response_format": _LAYOUT},
    "compact": {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
    "regex": {"structured_outputs": {"regex": REGEX}},
}

#: By kind and choice: text, and its tokens with their log-probabilities.
Answers = dict[tuple[str, int], tuple[str, tuple[tuple[str, float], ...]]]


def require_fitting(answers: Answers) -> None:
    """Every answer is what was asked for."""
    for (kind, _), (text, _) in answers.items():
        if kind == "regex":
            assert re.fullmatch(REGEX, text)
        else:
            value = json.loads(text)
            assert len(value["days"]) == 5 and set(value) == {"days", "is_cold"}
        assert kind != "compact" or " " not in text.replace('" "', "")


def structured_answers(mesh: LiveMesh, after_tokens: int = 0, disturb: Callable[[], Any] = lambda: None) -> Answers:
    """Ask for all kinds at once, drawn with seeds; `disturb` once `after_tokens` tokens have come."""
    return asyncio.run(_answers(mesh, after_tokens, disturb))


async def _answers(mesh: LiveMesh, after_tokens: int, disturb: Callable[[], Any]) -> Answers:
    texts: dict[tuple[str, int], str] = {}
    tokens: dict[tuple[str, int], list[tuple[str, float]]] = {}
    reached = asyncio.Event()

    async def ask(kind: str) -> None:
        chunks = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What will the weather be like this week?"}],
            n=CHOICES,
            seed=17,
            temperature=1.0,
            logprobs=True,
            max_completion_tokens=400,
            stream=True,
            extra_body=ASKED[kind],
        )
        async for chunk in chunks:
            for choice in chunk.choices:
                at = kind, choice.index
                texts[at] = texts.get(at, "") + (choice.delta.content or "")
                scored = choice.logprobs.content if choice.logprobs else None
                tokens.setdefault(at, []).extend((each.token, each.logprob) for each in scored or ())
                assert choice.finish_reason in (None, "stop")
            if sum(map(len, tokens.values())) >= after_tokens:
                reached.set()

    async def disturbance() -> None:
        await reached.wait()
        await asyncio.to_thread(disturb)

    async with mesh.async_client() as client:
        await asyncio.gather(disturbance(), *map(ask, ASKED))
    return {at: (text, tuple(tokens[at])) for at, text in texts.items()}
