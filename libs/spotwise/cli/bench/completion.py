"""One timed completion from the client's side, of any OpenAI-compatible server.

Prompts are random token ids, so that every server gets the same work and no prefix cache helps; outputs run to their full
length (`ignore_eos`).
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError

#: Ids that every tokenizer has beyond its special tokens.
_TOKEN_IDS = range(100, 10_000)


@dataclass(frozen=True, slots=True)
class Answer:
    """The measured answer to one streamed completion.

    Attributes:
        sent_s: when the request was sent, on this process's monotonic clock.
        arrivals_s: when each chunk with output arrived; at least one.
        output_tokens: from the answer's usage.
    """

    sent_s: float
    arrivals_s: tuple[float, ...]
    output_tokens: int

    @property
    def ttft_s(self) -> float:
        """From sending to the first chunk."""
        return self.arrivals_s[0] - self.sent_s

    @property
    def tpot_s(self) -> float:
        """Mean time of each further token (the papers' TBT)."""
        return (self.arrivals_s[-1] - self.arrivals_s[0]) / max(1, self.output_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Gaps between chunks."""
        return [later - earlier for earlier, later in itertools.pairwise(self.arrivals_s)]


def random_prompt(rng: random.Random, tokens: int) -> list[int]:
    """A prompt of `tokens` random token ids."""
    return [rng.choice(_TOKEN_IDS) for _ in range(tokens)]


def completion_body(model: str, prompt: list[int], output_tokens: int, *, stream: bool) -> dict[str, object]:
    """A greedy completion of exactly `output_tokens`; a stream ends with its usage."""
    whole = {"model": model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    return whole | {"stream": True, "stream_options": {"include_usage": True}} if stream else whole


async def stream_completion(
    client: GatewayClient,
    model: str,
    prompt: list[int],
    output_tokens: int,
    arrived: Callable[[], Any] = lambda: None,
    options: Mapping[str, object] | None = None,
) -> Answer:
    """Stream one completion, with further parameters, to its end; calls `arrived` at each chunk with output.

    Raises:
        CommandError: the server did not answer, or answered with an error; the stream had not `output_tokens` tokens.
    """
    body = completion_body(model, prompt, output_tokens, stream=True) | dict(options or {})
    sent_s = time.perf_counter()
    arrivals_s: list[float] = []
    produced = 0
    async with client.events("/v1/completions", body) as events:
        async for event in events:
            if event.get("choices"):
                arrivals_s.append(time.perf_counter())
                arrived()
            if usage := event.get("usage"):  # llama.cpp's comes with the last choice
                produced = usage["completion_tokens"]
    if not arrivals_s or produced != output_tokens:
        raise CommandError(f"a stream brought {produced} tokens where {output_tokens} were requested")
    return Answer(sent_s, tuple(arrivals_s), produced)


async def run_completion(client: GatewayClient, model: str, prompt: list[int], output_tokens: int) -> str:
    """Request one completion without streaming, and return the request's id.

    Raises:
        CommandError: the server did not answer, or answered with an error, or not with `output_tokens` tokens.
    """
    answer = await client.post("/v1/completions", completion_body(model, prompt, output_tokens, stream=False))
    produced = answer["usage"]["completion_tokens"]
    if produced != output_tokens:
        raise CommandError(f"an answer brought {produced} tokens where {output_tokens} were requested")
    return str(answer["id"])
