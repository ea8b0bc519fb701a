"""One timed completion from the client's side, of any OpenAI-compatible server.

Prompts are random token ids, so that every server gets the same work and no prefix cache helps; outputs run to their full
length (`ignore_eos`).
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from spotwise.cli.client.gateway_access import client_options
from spotwise.cli.client.resumable_stream import decode_event
from spotwise.cli.errors import CommandError

#: Ids that every tokenizer has beyond its special tokens.
_TOKEN_IDS = range(100, 10_000)
_TIMEOUT_S = 600.0


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


def open_client(url: str, ca_file: Path | None = None) -> httpx.AsyncClient:
    """An HTTP client with unlimited connections and a long timeout."""
    return httpx.AsyncClient(
        **client_options(url, ca_file), timeout=_TIMEOUT_S, limits=httpx.Limits(max_connections=None)
    )


async def stream_completion(
    client: httpx.AsyncClient,
    model: str,
    prompt: list[int],
    output_tokens: int,
    arrived: Callable[[], Any] = lambda: None,
    options: Mapping[str, object] | None = None,
) -> Answer:
    """Stream one completion, with further parameters, to its end; calls `arrived` at each chunk with output.

    Raises:
        CommandError: the stream carried an error, or not `output_tokens` tokens.
        httpx.HTTPError: the server did not answer, or answered with an error.
    """
    body = completion_body(model, prompt, output_tokens, stream=True) | dict(options or {})
    sent_s = time.perf_counter()
    arrivals_s: list[float] = []
    produced = 0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.is_error:
            await response.aread()
            response.raise_for_status()
        async for line in response.aiter_lines():
            event = decode_event(line)
            if event is None:
                continue
            if "error" in event:
                raise CommandError(f"a stream failed: {event['error']['message']}")
            if event["choices"]:
                arrivals_s.append(time.perf_counter())
                arrived()
            elif event["usage"]:
                produced = event["usage"]["completion_tokens"]
    if not arrivals_s or produced != output_tokens:
        raise CommandError(f"a stream brought {produced} tokens where {output_tokens} were requested")
    return Answer(sent_s, tuple(arrivals_s), produced)


async def run_completion(client: httpx.AsyncClient, model: str, prompt: list[int], output_tokens: int) -> str:
    """Request one completion without streaming, and return the request's id.

    Raises:
        CommandError: not `output_tokens` tokens.
        httpx.HTTPError: the server did not answer, or answered with an error.
    """
    response = await client.post("/v1/completions", json=completion_body(model, prompt, output_tokens, stream=False))
    answer = response.raise_for_status().json()
    produced = answer["usage"]["completion_tokens"]
    if produced != output_tokens:
        raise CommandError(f"an answer brought {produced} tokens where {output_tokens} were requested")
    return str(answer["id"])


@contextmanager
def http_errors_as_command_errors(url: str) -> Iterator[None]:
    """Convert any `httpx.HTTPError` to `CommandError`."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        raise CommandError(f"{url} answers {error.response.status_code}: {error.response.text}") from error
    except httpx.HTTPError as error:
        raise CommandError(f"{url} does not answer: {str(error) or type(error).__name__}") from error
