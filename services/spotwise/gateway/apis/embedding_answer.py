"""The response of `POST /v1/embeddings`.

A request with many inputs has a few of them in the mesh at a time, and so leaves room for others. Every generator that is
opened here is closed here: at its embedding, at an error of a sibling, or when the client leaves.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from spotwise.core.requests.request import FinishReason
from spotwise.gateway.access.quotas import Reservation
from spotwise.gateway.apis.embedding_request import PreparedEmbeddings
from spotwise.gateway.generate.generation import Generate
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.generate.prepared_request import PreparedSequence
from spotwise.http.errors import GenerationError
from spotwise.http.json_text import PartsResponse
from spotwise.http.sse import interleave, run_while_connected

#: Inputs of one request that the mesh has at a time.
AT_ONCE = 32
#: Below it a length counts as none, as in torch's `normalize`.
_LEAST_LENGTH = 1e-12
_FLOAT32 = np.dtype("<f4")


class EmbeddingResponse(Response):
    """The response of one request.

    Args:
        prepared: the sequences to compute.
        generate: gives the tokens of a sequence, the first with its prompt's embedding.
        metrics: the gateway's.
        arrived_s: `time.monotonic()` when the request came.
        reservation: what the request has taken of its key's limits; it is settled at the end.
    """

    def __init__(
        self,
        prepared: PreparedEmbeddings,
        generate: Generate,
        metrics: GatewayMetrics,
        arrived_s: float,
        reservation: Reservation,
    ) -> None:
        super().__init__()
        self._prepared = prepared
        self._generate = generate
        self._metrics = metrics
        self._arrived_s = arrived_s
        self._reservation = reservation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; see the ASGI specification."""
        self._metrics.count_prompt(self._prepared.prompt_tokens)
        error: BaseException | None = None
        try:
            await run_while_connected(receive, self._send(scope, receive, send))
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._reservation.settle(0, error)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        waiting = iter(enumerate(self._prepared.sequences))
        written = [b""] * len(self._prepared.sequences)
        lanes = [self._lane(waiting) for _ in range(min(AT_ONCE, len(written)))]
        async with aclosing(interleave(lanes)) as items:
            async for _, (index, item) in items:
                written[index] = item
        self._reservation.settle(0)  # before the client receives the end, and may send its next request
        tokens = self._prepared.prompt_tokens
        tail = {
            "id": self._prepared.request_id,
            "created": int(time.time()),
            "model": self._prepared.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        separated = [part for item in written for part in (b",", item)][1:]
        parts = [b'{"object":"list","data":[', *separated, b"],", orjson.dumps(tail)[1:]]
        headers = {"X-Request-Id": self._prepared.request_id, **self._reservation.headers}
        await PartsResponse(parts, headers)(scope, receive, send)

    async def _lane(self, waiting: Iterator[tuple[int, PreparedSequence]]) -> AsyncGenerator[tuple[int, bytes], None]:
        """Give the items of what waits, one after the other; other lanes take from the same."""
        for index, sequence in waiting:
            yield index, self._written(index, await self._embedding(sequence))

    async def _embedding(self, sequence: PreparedSequence) -> tuple[float, ...]:
        timeline = self._metrics.sequence(self._arrived_s, sequence.spec)
        ended = "error"
        embedding: tuple[float, ...] | None = None
        try:
            async with aclosing(self._generate(sequence.choice_id, sequence.spec)) as batches:
                async for batch in batches:
                    for token in batch.tokens:
                        embedding = embedding or token.embedding
                        timeline.received(0, batch.prefill_s)  # the token itself is no output
                    reason = batch.finish_reason
                    if reason is FinishReason.ERROR or reason is FinishReason.ABORT:
                        message = f"The mesh ended this sequence early ({reason.value})."
                        raise GenerationError(500, "generation_failed", message)
                    if reason is not None:
                        ended = reason.value
            if embedding is None:
                raise GenerationError(500, "embedding_missing", "The mesh returned no embedding.")
            return embedding
        except (GeneratorExit, asyncio.CancelledError):
            ended = "abort"
            raise
        finally:
            timeline.ended(ended)

    def _written(self, index: int, embedding: tuple[float, ...]) -> bytes:
        vector = finished(
            np.array(embedding, _FLOAT32), self._prepared.dimensions, normalizes=self._prepared.normalizes
        )
        item = {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector.tobytes()).decode() if self._prepared.is_base64 else vector,
        }
        return orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)


def finished(vector: NDArray[np.float32], dimensions: int | None, *, normalizes: bool) -> NDArray[np.float32]:
    """Return the first `dimensions` numbers of an embedding, of the length 1 where it `normalizes`, float32.

    Raises:
        GenerationError: a number is not finite: the model's number format is too small for its hidden states.
    """
    if not np.isfinite(vector).all():
        raise GenerationError(500, "embedding_not_finite", "The model's hidden states are not finite numbers.")
    vector = vector[:dimensions]
    if not normalizes:
        return vector
    exact = vector.astype(np.float64)
    return (exact / max(float(np.linalg.norm(exact)), _LEAST_LENGTH)).astype(_FLOAT32)
