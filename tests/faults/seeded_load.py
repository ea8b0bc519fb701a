"""Requests of all sizes that arrive without end, on simulated workers, whose every token is known beforehand.

A simulated token is a function of the request's seed and the token's index: what a client got is compared with what is due.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from spotwise.core.requests.sampling import counter_uniform
from tests.live.mesh import MODEL

#: A client repeats what was refused or broke off, as OpenAI's does, until nothing has come for so long.
_PATIENCE_S = 60.0
#: Between two tries where the answer says nothing.
_RETRY_S = 0.25
_REFUSED = (429, 503)
#: Every other request names a deadline, which none of them should meet.
_DEADLINE_S = 300
#: Every third request wants so many choices, each with a share of its tokens, and every fifth log-probabilities.
_CHOICES = 4


@dataclass(frozen=True, slots=True)
class LoadShape:
    """What arrives: requests per second, and bounds of their sizes in tokens."""

    requests_per_s: float = 1.6
    prompt_tokens: tuple[int, int] = (100, 600)
    new_tokens: tuple[int, int] = (20, 160)


@dataclass(slots=True)
class SeededAnswer:
    """One request, and what its client got.

    Attributes:
        event_id: of the last event that it got, after which any gateway goes on.
        tokens: of each choice.
        refused: times that it was not accepted.
        broken: times that its connection broke, once it had been accepted.
        errors: that ended it, once it had been accepted.
        longest_gap_s: the longest wait for the next token after the first, and `last_s` when that came.
        finished: choices of which it got the finish reason.
    """

    seed: int
    prompt_tokens: int
    new_tokens: int
    request_id: str = ""
    event_id: str = ""
    tokens: dict[int, list[int]] = field(default_factory=dict)
    refused: int = 0
    broken: int = 0
    errors: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0
    last_s: float | None = None
    finished: set[int] = field(default_factory=set)

    @property
    def choices(self) -> int:
        """Return how many there are."""
        return 1 if self.seed % 3 else _CHOICES

    @property
    def has_logprobs(self) -> bool:
        """Tell whether it asks for log-probabilities."""
        return self.seed % 5 == 0

    @property
    def done(self) -> bool:
        """Tell whether all its choices have finished."""
        return len(self.finished) == self.choices

    @property
    def has_ended(self) -> bool:
        """Tell whether its client has its answer, or an error."""
        return self.done or bool(self.errors)

    def expected(self, words: Sequence[int]) -> list[list[int]]:
        """Return the tokens that each choice has to get, of a vocabulary."""
        seeds = range(self.seed, self.seed + self.choices)
        count = self.new_tokens // self.choices
        return [[words[int(counter_uniform(seed, index) * len(words))] for index in range(count)] for seed in seeds]

    def body(self) -> dict[str, Any]:
        """Return the request."""
        rng = random.Random(self.seed)
        prompt = [rng.randrange(1000, 40000) for _ in range(self.prompt_tokens)]
        return {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": self.new_tokens // self.choices,
            "seed": self.seed,
            "n": self.choices,
            "logprobs": 0 if self.has_logprobs else None,
            "stream": True,
            "ignore_eos": True,
            "return_token_ids": True,
        }


class SeededLoad:
    """Clients of a mesh's gateways; `run` starts them, `stop` lets no further one start."""

    def __init__(
        self, urls: Callable[[], Sequence[str]], shape: LoadShape, seed: int, headers: Mapping[str, str] | None = None
    ) -> None:
        """`urls`: of the gateways, without `/v1`; `headers`: of each request."""
        self.answers: list[SeededAnswer] = []
        self._urls = urls
        self._headers = headers or {}
        self._shape = shape
        self._rng = random.Random(seed)
        self._gateways = itertools.count()
        self._stopped = asyncio.Event()

    def take_ended(self) -> list[SeededAnswer]:
        """Return the answers that have ended, and forget them."""
        ended = [answer for answer in self.answers if answer.has_ended]
        self.answers = [answer for answer in self.answers if not answer.has_ended]
        return ended

    def stop(self) -> None:
        """Let those that run end, and no further one start."""
        self._stopped.set()

    async def run(self) -> None:
        """Start clients until `stop`; return when all have ended."""
        async with (
            httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(120.0, connect=5.0),
                limits=httpx.Limits(max_connections=None),
            ) as http,
            asyncio.TaskGroup() as clients,
        ):
            while not self._stopped.is_set():
                answer = self._next()
                self.answers.append(answer)
                clients.create_task(self._client(http, answer))
                pause_s = self._rng.expovariate(self._shape.requests_per_s)
                try:
                    async with asyncio.timeout(pause_s):
                        await self._stopped.wait()
                except TimeoutError:
                    continue

    def _next(self) -> SeededAnswer:
        shape = self._shape
        seed = self._rng.randrange(1 << 40)
        return SeededAnswer(seed, self._rng.randint(*shape.prompt_tokens), self._rng.randint(*shape.new_tokens))

    async def _client(self, http: httpx.AsyncClient, answer: SeededAnswer) -> None:
        """Send a request until it was accepted; what broke off goes on at any gateway, after the last event."""
        began_s = time.monotonic()
        while not answer.has_ended:
            urls = self._urls()
            url = urls[next(self._gateways) % len(urls)]
            try:
                retry_s = await self._stream(http, url, answer)
            except httpx.TransportError:
                retry_s = _RETRY_S
                if answer.event_id:
                    answer.broken += 1
                else:
                    answer.refused += 1
            if answer.has_ended:
                return
            if time.monotonic() > max(began_s, answer.last_s or 0.0) + _PATIENCE_S:
                answer.errors.append("not served in time")
                return
            await asyncio.sleep(retry_s)

    async def _stream(self, http: httpx.AsyncClient, url: str, answer: SeededAnswer) -> float:
        """Return the seconds after which to try again, where it has not ended."""
        headers = {"X-Resume": "true"} | ({"Last-Event-ID": answer.event_id} if answer.event_id else {})
        if answer.seed % 2:
            headers["X-Request-Timeout"] = str(_DEADLINE_S)
        async with http.stream("POST", f"{url}/v1/completions", json=answer.body(), headers=headers) as response:
            if response.status_code in _REFUSED:
                answer.refused += 1
                return float(response.headers.get("retry-after", _RETRY_S))
            if response.status_code != 200:
                answer.errors.append(f"{response.status_code}: {(await response.aread())[:300]!r}")
                return 0.0
            event_id = answer.event_id
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    event_id = line.removeprefix("id: ")
                elif line.startswith("data: ") and line != "data: [DONE]":
                    self._event(json.loads(line.removeprefix("data: ")), answer)
                    answer.event_id = event_id
        return _RETRY_S

    def _event(self, event: dict[str, Any], answer: SeededAnswer) -> None:
        if (error := event.get("error")) is not None:
            if error.get("code") != "resumed_elsewhere":
                answer.errors.append(str(error))
            return
        answer.request_id = event["id"]
        for choice in event["choices"]:
            if token_ids := choice.get("token_ids"):
                now_s = time.monotonic()
                if answer.last_s is not None:
                    answer.longest_gap_s = max(answer.longest_gap_s, now_s - answer.last_s)
                answer.last_s = now_s
                answer.tokens.setdefault(choice["index"], []).extend(token_ids)
                scores = (choice["logprobs"] or {}).get("token_logprobs", [])
                if scores != [0.0] * len(token_ids) * answer.has_logprobs:  # simulated tokens are certain
                    answer.errors.append(f"log-probabilities {scores} of {len(token_ids)} tokens")
            if choice.get("finish_reason") is not None:
                answer.finished.add(choice["index"])
