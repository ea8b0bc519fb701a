"""The time that a hand-off adds to a prompt on a live mesh, from the prompt worker's ledger.

Prompts are random, so that no prefix cache helps; one request at a time, so that none waits; the ledger's mode must be the
configured one.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spotwise.cli.bench.completion import random_prompt, run_completion
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError
from spotwise.cli.mesh.access import open_store
from spotwise.cli.profile import Ledger, whole_ledger
from spotwise.mesh.redis.store import RedisStore

#: The workers' setting for when to send.
MODE_VARIABLE = "SPOTWISE_KV_PUSH"
_STAGES = {"prefilled", "handed_off", "completed"}
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class HandOff:
    """One prompt's hand-off.

    Attributes:
        mode: how its KV was pushed.
        prefill_s: its computation.
        visible_s: from the end of that to its KV at the token worker.
        e2e_s: the whole request.
        transport: the transport that carried it.
    """

    prompt_tokens: int
    mode: str
    prefill_s: float
    visible_s: float
    e2e_s: float
    kv_bytes: int
    transport: str

    @property
    def until_there_s(self) -> float:
        """Seconds of the prompt and its hand-off."""
        return self.prefill_s + self.visible_s


async def measure_hand_offs(
    mesh: MeshEndpoint,
    lengths: Sequence[int],
    requests: int,
    output_tokens: int,
    seed: str,
    done: Callable[[], Any] = lambda: None,
) -> list[HandOff]:
    """Request answers to prompts of every length, one after the other, and read their hand-offs' times.

    Each length is warmed up with one uncounted request; lengths alternate, so that a mode that chooses by size sees both.

    Raises:
        CommandError: gateway or store do not answer, an answer is too short, or no KV was handed off.
    """
    rng = random.Random(seed)
    found = []
    async with GatewayClient(mesh.url) as client, open_store(mesh.redis_url) as store:
        for number in range(requests + 1):
            for length in lengths:
                request_id = await run_completion(client, mesh.model, random_prompt(rng, length), output_tokens)
                if number > 0:
                    found.append(_hand_off(length, await _ledger(store, request_id)))
                done()
    return found


def medians(hand_offs: Sequence[HandOff], prompt_tokens: int) -> HandOff:
    """The median figures of the hand-offs of this length; the mode is the commonest."""
    own = [each for each in hand_offs if each.prompt_tokens == prompt_tokens]
    return HandOff(
        prompt_tokens,
        statistics.mode(each.mode for each in own),
        statistics.median(each.prefill_s for each in own),
        statistics.median(each.visible_s for each in own),
        statistics.median(each.e2e_s for each in own),
        own[0].kv_bytes,
        own[0].transport,
    )


async def _ledger(store: RedisStore, request_id: str) -> Ledger:
    """A request's ledger once it has the hand-off."""
    ledger = await whole_ledger(store, request_id, _STAGES.issubset, _PATIENCE_S)
    if not _STAGES.issubset(ledger):
        raise CommandError(f"the ledger of {request_id} tells of no hand-off, only of: {', '.join(ledger)}")
    return ledger


def _hand_off(prompt_tokens: int, ledger: Ledger) -> HandOff:
    prefilled, handed_off, completed = (ledger[stage] for stage in ("prefilled", "handed_off", "completed"))
    return HandOff(
        prompt_tokens,
        handed_off["mode"],
        prefilled["prefill_s"],
        handed_off["visible_s"],
        completed["e2e_s"],
        handed_off["kv_bytes"],
        handed_off["transport"],
    )
