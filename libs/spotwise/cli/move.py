"""`spotwise move`: an operator moves a running request to another worker, with its KV."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.mesh.access import connect_bus, connect_store
from spotwise.cli.mesh.options import MeshName, NatsUrl, RedisUrl
from spotwise.cli.mesh.running import MeshAddresses, find_mesh
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.core.messages.worker import MoveEnded, MoveOutcome, MoveRequest
from spotwise.mesh.ports.ports import BusMessage, MeshError, MeshStore, MessageBus
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.message_codec import MalformedMessageError
from spotwise.wire.roles import MeshRole

#: The source has answered by then, whatever becomes of the move: a reservation, a copy, an acknowledgement.
_ANSWER_TIMEOUT_S = 60.0
#: Members write ledgers once a heartbeat: a request that has just begun, or lost its attempt, is in them after so long.
_LEDGER_DELAY_S = 1.0
#: By a choice's id, its epoch and the worker that it runs on.
Holders = dict[str, tuple[int, str]]


def move(
    request_id: Annotated[str, typer.Argument(help="Id of the answer; all its running choices move.")],
    worker: Annotated[str, typer.Argument(help="Id of the worker to move it to, as `spotwise status` shows it.")],
    name: MeshName = DEFAULT_NAME,
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
) -> None:
    """Move a running request to another worker, with its KV: it goes on there at its next token."""
    mesh = find_mesh(name, nats_url, redis_url)
    console = Console(highlight=False)
    ended = asyncio.run(move_request(mesh, request_id, worker))
    for each in ended:
        if each.outcome is MoveOutcome.MOVED:
            console.print(f"{each.choice_id} has moved from {each.worker_id} to {worker}")
        else:
            console.print(f"{each.choice_id} stays at {each.worker_id}: {each.reason or 'it ended first'}")
    if not any(each.outcome is MoveOutcome.MOVED for each in ended):
        raise CommandError("nothing was moved")


async def move_request(mesh: MeshAddresses, request_id: str, worker: str) -> list[MoveEnded]:
    """Move all running choices of a request, and return how each move ended; raises `CommandError` where none runs, the worker
    is unknown, or a worker does not answer.
    """
    try:
        async with contextlib.AsyncExitStack() as stack:
            store = await connect_store(mesh.redis_url)
            stack.push_async_callback(store.close)
            if worker not in {member.id for member in await store.members() if member.pool is not None}:
                raise CommandError(f"no worker {worker!r} is in the mesh; `spotwise status` shows them")
            holders = await choices_to_move(store, request_id)
            if not holders:
                raise CommandError(f"no choice of {request_id!r} runs on a worker; only running requests can be moved")
            bus = await connect_bus(mesh.nats_url, "spotwise-move")
            stack.push_async_callback(bus.close)
            return await move_choices(store, bus, request_id, holders, worker)
    except MeshError as error:
        raise CommandError(str(error)) from error


async def choices_to_move(store: MeshStore, request_id: str) -> Holders:
    """Return `running_choices` of a request, once its ledger has any, or says that it ended; empty where it never does."""

    def found(ledger: list[LedgerEntry]) -> Holders | None:
        holders = running_choices(ledger)
        return holders if holders or any(entry.stage == "completed" for entry in ledger) else None

    return await _once_shown(store, request_id, found)


async def _once_shown(
    store: MeshStore, request_id: str, found: Callable[[list[LedgerEntry]], Holders | None]
) -> Holders:
    """Return what `found` finds in a request's ledger, as soon as it is not `None`; empty after `_LEDGER_DELAY_S`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LEDGER_DELAY_S):
            while True:
                if (holders := found(await store.get_ledger(request_id))) is not None:
                    return holders
                await asyncio.sleep(0.05)
    return {}


def running_choices(ledger: list[LedgerEntry]) -> Holders:
    """Return, by id, the epoch and the worker of each choice that has neither ended nor lost its attempt."""
    holders: Holders = {}
    for entry in ledger:
        facts = dict(entry.facts)
        if entry.stage == "assigned":
            holders[entry.choice_id] = (entry.epoch, str(facts["token_worker"]))
        elif entry.stage == "kv_received":
            holders[entry.choice_id] = (entry.epoch, entry.member_id)
        elif entry.stage in ("completed", "attempt_lost"):
            holders.pop(entry.choice_id, None)
    return holders


async def move_choices(
    store: MeshStore, bus: MessageBus, request_id: str, holders: Holders, worker: str
) -> list[MoveEnded]:
    """`order_moves`, and once more for those refused that have moved on: the ledger was behind when their order was sent."""
    ended = {each.choice_id: each for each in await order_moves(bus, holders, worker)}
    refused = {each: holders[each] for each in ended if ended[each].outcome is MoveOutcome.REFUSED}

    def moved_on(ledger: list[LedgerEntry]) -> Holders | None:
        running = running_choices(ledger)
        return {each: running[each] for each in refused if running.get(each, refused[each]) != refused[each]} or None

    if refused and (elsewhere := await _once_shown(store, request_id, moved_on)):
        ended |= {each.choice_id: each for each in await order_moves(bus, elsewhere, worker)}
    return [*ended.values()]


async def order_moves(bus: MessageBus, holders: Holders, worker: str) -> list[MoveEnded]:
    """Order the moves of choices, by id with epoch and worker, and return how each ended; see `move_request`."""
    own_id = subjects.operator_id(os.getpid())
    answers: asyncio.Queue[MoveEnded] = asyncio.Queue()

    async def take(raw: BusMessage) -> None:
        with contextlib.suppress(MalformedMessageError):
            message = decode(raw.payload)
            if isinstance(message, MoveEnded) and message.choice_id in holders:  # the pid may be another machine's, too
                answers.put_nowait(message)

    await bus.subscribe(subjects.inbox_from(MeshRole.WORKER, own_id), take)
    for choice_id, (epoch, holder) in holders.items():
        order = MoveRequest(choice_id, epoch, own_id, worker)
        await bus.publish(subjects.inbox_from(MeshRole.OPERATOR, holder), encode(order))
    ended: dict[str, MoveEnded] = {}
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            while len(ended) < len(holders):
                answer = await answers.get()
                ended[answer.choice_id] = answer
    except TimeoutError:
        silent = ", ".join(sorted({holders[each][1] for each in holders if each not in ended}))
        raise CommandError(f"no answer of {silent} within {_ANSWER_TIMEOUT_S:g} s") from None
    return [ended[choice_id] for choice_id in holders]
