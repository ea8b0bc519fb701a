"""`spotwise reshape`: an operator changes how many groups of devices serve, and of which shape, while they serve."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.mesh.access import connect_bus, connect_store
from spotwise.cli.mesh.options import MeshName, NatsUrl, RedisUrl
from spotwise.cli.mesh.running import MeshAddresses, find_mesh
from spotwise.cli.reshape_view import ReshapeProgress, plan_table
from spotwise.core.messages.members import Member, MemberState
from spotwise.core.messages.reshape import ReshapeMesh, ReshapeReply
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner.plan import Plan, ReshapeStage
from spotwise.mesh.ports.ports import BusMessage, MeshError, MeshStore, MessageBus, NoResponderError, ReplyTimeoutError
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.message_codec import MalformedMessageError

#: A planner surveys silent devices for less than two seconds; another one may take over before.
_REPLY_TIMEOUT_S = 10.0
_POLL_S = 0.2
#: Silence after which a worker counts as gone.
_SILENCE_S = 2.0
_PIPE_WIDTH = 160


def reshape(
    config: Annotated[
        str,
        typer.Argument(help="D,P,M: groups, stages of each, shards of each stage; Dprompt+Dtoken,P,M splits phases."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and do nothing.")] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds to wait for the end; the re-shape goes on after.")
    ] = 300.0,
    name: MeshName = DEFAULT_NAME,
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
) -> None:
    """Change how the devices of a mesh are grouped, while it serves: new groups form, and running requests move to them."""
    _order_reshape(ReshapeMesh(parse_shape(config), dry_run), find_mesh(name, nats_url, redis_url), timeout)


def show_live_plan(config: str, name: str) -> None:
    """Show what a re-shape of one of this machine's meshes would do; raises `OptionError` where `config` is none, and
    `CommandError` as `reshape_mesh`.
    """
    _order_reshape(ReshapeMesh(parse_shape(config), dry_run=True), find_mesh(name, None, None), _REPLY_TIMEOUT_S)


def _order_reshape(order: ReshapeMesh, mesh: MeshAddresses, timeout_s: float) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    asyncio.run(_reshape(mesh, order, console, timeout_s))


def parse_shape(text: str) -> ParallelConfig:
    """Read `D,P,M` or `Dprompt+Dtoken,P,M`; raises `OptionError` for another form."""
    try:
        config = ParallelConfig.parse(text)
    except ValueError as error:
        raise OptionError(f"CONFIG: {error}") from error
    if text.count(",") != 2:
        raise OptionError(f"CONFIG: {text!r} names a batch size, which SPOTWISE_MAX_NUM_SEQS of workers is for")
    return config


async def _reshape(mesh: MeshAddresses, order: ReshapeMesh, console: Console, timeout_s: float) -> None:
    try:
        async with contextlib.AsyncExitStack() as stack:
            bus = await connect_bus(mesh.nats_url, "spotwise-reshape")
            stack.push_async_callback(bus.close)
            store = await connect_store(mesh.redis_url)
            stack.push_async_callback(store.close)
            await reshape_mesh(bus, store, order, console, timeout_s)
    except MeshError as error:
        raise CommandError(str(error)) from error


async def reshape_mesh(
    bus: MessageBus, store: MeshStore, order: ReshapeMesh, console: Console, timeout_s: float
) -> None:
    """Order a re-shape, show its plan, and follow it to its end.

    Raises:
        CommandError: it was refused or abandoned, no planner answers, or it has not ended in time.
        MeshError: broker or store do not answer.
    """
    workers = _Workers()
    await bus.subscribe(subjects.HEARTBEATS, workers.take)
    reply = await _order(bus, order)
    if not reply.accepted:
        raise CommandError(f"not re-shaped: {reply.detail}")
    console.print(reply.detail)
    if reply.prediction is not None:
        console.print(plan_table(str(order.config).rpartition(",")[0], reply.prediction))
    if order.dry_run:
        console.print("nothing was changed")
        return
    progress = await _follow(store, workers, reply.change, console, timeout_s)
    deployment = progress.deployment
    if deployment.stage is ReshapeStage.ABANDONED:
        raise CommandError(f"the re-shape was abandoned: {deployment.reason}; the old groups serve on")
    console.print(progress.summary(reply.prediction))


async def _order(bus: MessageBus, order: ReshapeMesh) -> ReshapeReply:
    try:
        reply = decode(await bus.request(subjects.RESHAPE, encode(order), _REPLY_TIMEOUT_S))
    except NoResponderError as error:
        raise CommandError("no migration planner is in the mesh; `spotwise status` shows the members") from error
    except ReplyTimeoutError as error:
        raise CommandError(
            f"no planner has answered within {_REPLY_TIMEOUT_S:g} s; see whether the store answers (`spotwise status`), and "
            "order it again"
        ) from error
    if not isinstance(reply, ReshapeReply):
        raise CommandError("cannot read the planner's answer; is it of another version?")
    return reply


async def _follow(
    store: MeshStore, workers: _Workers, change: int, console: Console, timeout_s: float
) -> ReshapeProgress:
    """Show how far the re-shape is until it has ended; return its last state."""
    began_s = time.monotonic()
    shown = ""
    with contextlib.ExitStack() as stack:
        live = None
        if console.is_terminal:
            live = stack.enter_context(Live(console=console, auto_refresh=False, transient=True))
        while True:
            waited_s = time.monotonic() - began_s
            progress = _progress(await store.get_plan(), workers, change, waited_s)
            if live is not None:
                live.update(progress.table(), refresh=True)
            elif (line := progress.line()) != shown:
                console.print(line)
                shown = line
            if progress.deployment.stage.is_over:
                return progress
            if waited_s > timeout_s:
                raise CommandError(
                    f"the re-shape has not ended within {timeout_s:g} s, and goes on ({progress.line()}); "
                    "`spotwise status` shows its workers"
                )
            await asyncio.sleep(_POLL_S)


def _progress(plan: Plan | None, workers: _Workers, change: int, seconds: float) -> ReshapeProgress:
    deployment = None if plan is None else plan.deployment
    if deployment is None or deployment.change != change:
        raise CommandError(
            f"the plan of change {change} is not in the store any more; `spotwise status` shows the workers"
        )
    return ReshapeProgress(deployment, workers.present(), seconds)


class _Workers:
    """The workers by their last heartbeats."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[Member, float]] = {}

    async def take(self, raw: BusMessage) -> None:
        with contextlib.suppress(MalformedMessageError):
            member = decode(raw.payload)
            if isinstance(member, Member) and member.pool is not None:
                self._members[member.id] = member, time.monotonic()

    def present(self) -> dict[str, Member]:
        now = time.monotonic()
        return {
            id_: member
            for id_, (member, received_s) in self._members.items()
            if now - received_s < _SILENCE_S and member.state not in (MemberState.LEFT, MemberState.LOST)
        }
