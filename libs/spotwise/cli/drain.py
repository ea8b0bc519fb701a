"""`spotwise drain`: an operator's eviction notice to a worker, or to a device of groups."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from typing import Annotated

import typer
from rich.console import Console

from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.mesh.access import connect_bus, connect_store
from spotwise.cli.mesh.options import MeshName, NatsUrl, RedisUrl
from spotwise.cli.mesh.running import MeshAddresses, find_broker, find_mesh
from spotwise.core.messages.members import Member, MemberState
from spotwise.core.messages.mesh import DrainReply
from spotwise.core.messages.worker import Drain
from spotwise.mesh.ports.ports import BusMessage, MeshError, NoResponderError
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.message_codec import MalformedMessageError

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400}
_REPLY_TIMEOUT_S = 3.0
_POLL_S = 0.2
#: Silence after which other members count a member as lost.
_SILENCE_S = 2.0


def drain(
    worker: Annotated[str, typer.Argument(help="Id of the worker or device, as `spotwise status` shows it.")],
    deadline: Annotated[str, typer.Option(help="Deadline of the worker, such as 30s or 2m.")] = "30s",
    wait: Annotated[bool, typer.Option(help="Wait until the worker has left.")] = False,
    name: MeshName = DEFAULT_NAME,
    nats_url: NatsUrl = None,
    redis_url: RedisUrl = None,
) -> None:
    """Let a worker finish its requests, take nothing new, and leave; requests left at the deadline continue elsewhere. A device
    leaves once its groups are formed anew without it."""
    seconds = parse_duration(deadline, "--deadline")
    mesh = find_mesh(name, nats_url, redis_url) if wait or redis_url is not None else None
    console = Console(highlight=False)
    asyncio.run(send_notice(mesh.nats_url if mesh else find_broker(name, nats_url), worker, seconds))
    console.print(f"{worker} takes no new requests and leaves within {deadline}")
    if mesh and wait:
        asyncio.run(_wait(mesh, worker, seconds))
        console.print(f"{worker} has left")


def parse_duration(text: str, option: str) -> float:
    """Return the seconds of a duration like `500ms`, `30s`, `2m`; raises `OptionError`, naming `option`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text.strip())
    if match is None:
        raise OptionError(f"{option} {text!r} is no duration; write it like 30s, 2m or 500ms")
    return float(match[1]) * _UNITS_S[match[2]]


async def send_notice(nats_url: str, worker: str, seconds: float) -> None:
    """Send a worker notice to leave in `seconds`; raises `CommandError` without a broker or for an unknown worker."""
    notice = Drain(worker, time.time() + seconds, reason="spotwise drain")
    try:
        bus = await connect_bus(nats_url, "spotwise-drain")
        try:
            reply = decode(await bus.request(subjects.DRAIN, encode(notice), _REPLY_TIMEOUT_S))
        finally:
            await bus.close()
    except NoResponderError as error:
        raise CommandError("no spot watcher is in the mesh; `spotwise status` shows the members") from error
    except MeshError as error:
        raise CommandError(str(error)) from error
    if not isinstance(reply, DrainReply) or not reply.accepted:
        raise CommandError(reply.detail if isinstance(reply, DrainReply) else "cannot read the spot watcher's answer")


async def _wait(mesh: MeshAddresses, worker: str, seconds: float) -> None:
    """Wait until the worker's farewell, or until both registration and heartbeat are missing: a store can lose its data."""
    try:
        async with contextlib.AsyncExitStack() as stack:
            store = await connect_store(mesh.redis_url)
            stack.push_async_callback(store.close)
            bus = await connect_bus(mesh.nats_url, "spotwise-drain-wait")
            stack.push_async_callback(bus.close)
            heartbeat = _LastHeartbeat()
            await bus.subscribe(subjects.heartbeats_of(worker), heartbeat.take)
            ends_s = time.monotonic() + seconds + 10.0
            while not heartbeat.goodbye and (
                heartbeat.lately() or any(member.id == worker for member in await store.members())
            ):
                if time.monotonic() > ends_s:
                    raise CommandError(f"{worker} is still there after its deadline")
                await asyncio.sleep(_POLL_S)
    except MeshError as error:
        raise CommandError(f"{worker} got its notice, but whether it has left is unknown: {error}") from error


class _LastHeartbeat:
    """The time of a worker's last heartbeat, and whether that was its farewell."""

    def __init__(self) -> None:
        self.goodbye = False
        self._heard_s = time.monotonic()  # silence is counted from here

    async def take(self, raw: BusMessage) -> None:
        with contextlib.suppress(MalformedMessageError):
            member = decode(raw.payload)
            if isinstance(member, Member):
                self._heard_s = time.monotonic()
                self.goodbye = member.state in (MemberState.LEFT, MemberState.LOST)

    def lately(self) -> bool:
        return time.monotonic() - self._heard_s < _SILENCE_S
