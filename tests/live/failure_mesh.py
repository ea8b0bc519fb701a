"""A mesh of simulated workers with its members, and streams whose tokens are compared."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import openai

from tests.live.mesh import MODEL, LiveMesh, wait_for
from tests.live.simulated_mesh import SimulatedMesh

#: Not a token id of the tests' prompts: ids that mean something to a failing worker.
_FIRST = 100


class FailureMesh(SimulatedMesh):
    """Simulated workers, some of which fail."""

    def wait_for_workers(self, *ids: str, seconds: float = 60.0) -> None:
        """Wait until these and no others serve."""
        wait_for(lambda: self.workers() == set(ids), lambda: f"{ids}, of {self.workers()}", seconds)


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a stream.

    Attributes:
        tokens: that came.
        code: of the error that ended it; `None` where none did.
        request_id: empty where it never began.
    """

    tokens: tuple[int, ...]
    code: str | None
    request_id: str


async def streams(mesh: LiveMesh, *first_tokens: int, new_tokens: int) -> list[Ended]:
    """Run streams at once, one for each prompt's first token; prompts differ in their second."""
    async with mesh.async_client() as client:

        async def one(number: int, first: int) -> Ended:
            tokens: list[int] = []
            request_id = ""
            try:
                chunks = await client.completions.create(
                    model=MODEL,
                    prompt=[first, 200 + number, *range(300, 320)],
                    max_tokens=new_tokens,
                    seed=number,
                    stream=True,
                    extra_body={"ignore_eos": True, "return_token_ids": True},
                )
                async for chunk in chunks:
                    request_id = chunk.id
                    tokens.extend(getattr(chunk.choices[0], "token_ids", None) or [])
            except openai.APIError as error:
                return Ended(tuple(tokens), str(error.code), request_id)
            return Ended(tuple(tokens), None, request_id)

        return list(await asyncio.gather(*(one(number, first) for number, first in enumerate(first_tokens))))


def run(mesh: LiveMesh, *first_tokens: int, new_tokens: int) -> list[Ended]:
    """The same, from a test."""
    return asyncio.run(streams(mesh, *first_tokens, new_tokens=new_tokens))


def innocent(count: int) -> tuple[int, ...]:
    """First tokens of prompts with which nothing is wrong."""
    return (_FIRST,) * count
