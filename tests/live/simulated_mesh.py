"""A mesh whose workers only take the time, for tests of everything around them: its answers depend on the seed alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spotwise.core.requests.sampling import counter_uniform
from spotwise.worker.simulated.serving import read_words
from tests.live.mesh import MODEL, LiveMesh

QUESTION = "Tell me what you see from where you are."


@dataclass
class SeededStream:
    """One stream of a test.

    Attributes:
        request_id: as the gateway named it.
        tokens: ids that came.
        gaps_s: seconds from each token to the next.
    """

    request_id: str = ""
    tokens: list[int] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)


class SimulatedMesh(LiveMesh):
    """A mesh of simulated workers."""

    def up(self) -> None:
        """Start the mesh."""
        done = self.command("up", "--detach", "--port", "0", "--engine", "simulated", *self.options)
        assert done.returncode == 0, done.stdout + done.stderr

    async def answers(self, count: int, tokens: int) -> list[str]:
        """Stream so many chats at once; the text of each."""
        async with self.async_client() as client:

            async def ask(seed: int) -> str:
                stream = await client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": f"{seed}: {QUESTION}"}],
                    max_tokens=tokens,
                    seed=seed,
                    stream=True,
                    stream_options={"include_usage": True},
                )
                text = ""
                usage = None
                async for chunk in stream:
                    text += "".join(choice.delta.content or "" for choice in chunk.choices)
                    usage = chunk.usage or usage
                assert usage is not None
                assert usage.completion_tokens == tokens
                return text

            return list(await asyncio.gather(*map(ask, range(count))))

    async def stream(
        self, client: Any, seed: int, tokens: int, seen: Callable[[SeededStream], None] = lambda _: None
    ) -> SeededStream:
        """Stream one completion; `seen` is called after every chunk."""
        result, last_s = SeededStream(), None
        chunks = await client.completions.create(
            model=MODEL,
            prompt=f"{seed}: {QUESTION}",
            max_tokens=tokens,
            seed=seed,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        async for chunk in chunks:
            now = time.monotonic()
            result.request_id = chunk.id
            result.tokens.extend(chunk.choices[0].token_ids or [])
            result.gaps_s.append(0.0 if last_s is None else now - last_s)
            last_s = now
            seen(result)
        return result

    def streams(
        self, seeds: range, tokens: int, after_tokens: int = 0, disturb: Callable[[], Any] | None = None
    ) -> list[SeededStream]:
        """Stream so many at once; run `disturb` in a thread once each has `after_tokens` tokens."""

        async def run() -> list[SeededStream]:
            begun: dict[int, int] = {}
            reached = asyncio.Event()

            def seen(seed: int, stream: SeededStream) -> None:
                begun[seed] = len(stream.tokens)
                if len(begun) == len(seeds) and min(begun.values()) >= after_tokens:
                    reached.set()

            async def disturbance() -> None:
                await reached.wait()
                if disturb is not None:
                    await asyncio.to_thread(disturb)

            async with self.async_client() as client:
                disturbing = asyncio.create_task(disturbance())
                done = await asyncio.gather(*(self.stream(client, seed, tokens, partial(seen, seed)) for seed in seeds))
                await disturbing
                return done

        return asyncio.run(run())

    def tokens_of(self, seed: int, tokens: int) -> list[int]:
        """The tokens that a request with a seed has to get."""
        words = read_words(self.state.options.model_folder)
        return [words[int(counter_uniform(seed, index) * len(words))] for index in range(tokens)]

    def losses(self, streams: Iterable[SeededStream]) -> list[str]:
        """The attempts of these streams' requests that were lost: after how many tokens, and why."""
        lost = []
        for stream in streams:
            self.ledger(stream.request_id, "completed")
            for entry in self.ledger_entries(stream.request_id):
                if entry.stage == "attempt_lost":
                    facts = dict(entry.facts)
                    lost.append(f"{stream.request_id} after {facts['tokens']} tokens: {facts['reason']}")
        return lost

    def attempts(self, stream: SeededStream) -> int:
        """How many attempts a stream's request took."""
        return int(self.ledger(stream.request_id, "completed")["completed"]["attempts"])
