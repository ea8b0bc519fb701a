"""The kept requests that this gateway owns: performs what `core/gateway/keeping.py` decides of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from spotwise.core.access.store_budget import Kind, RoomVerdict
from spotwise.core.gateway import keeping as k
from spotwise.core.gateway.commands import FAIL_TAKEN, TAKEN
from spotwise.core.gateway.kept_request import CANCELLED, FINISHED, KeptEnding, KeptRequest, KeptState
from spotwise.gateway.access.quotas import Reservation
from spotwise.gateway.generate.generation import GeneratedTokens, SequenceSpec
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.generate.prepared_request import PreparedRequest
from spotwise.gateway.resume.ports import KeepingGeneration, KeepingLimits, KeepingStore
from spotwise.gateway.resume.request_log import RequestLog
from spotwise.gateway.resume.store_turns import StoreTurns
from spotwise.http.errors import GenerationError, describe
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.role_loop import RoleLoop

#: Makes the role and its loop, of the performers of its commands.
NewLoop = Callable[[Mapping[type, Callable[[Any], None]]], tuple[k.KeepingRole, RoleLoop]]


def journaled_loop(host: ServiceHost, limits: KeepingLimits) -> NewLoop:
    """Return what makes the role's loop in a service, with a journal of its own, if any."""

    def new_loop(performers: Mapping[type, Callable[[Any], None]]) -> tuple[k.KeepingRole, RoleLoop]:
        role, journal = host.make_further_role("-kept", k.KeepingRole, limits.resume_s, limits.answer_kept_s)
        return role, RoleLoop(role, host.clock, performers, journal, host.count_failure)

    return new_loop


@dataclass(slots=True, eq=False)
class OwnedRequest:
    """A request in one turn of this gateway.

    Attributes:
        prepared: as its owner runs it.
        log: its tokens, where it is resumable and runs.
        wait: the time in which a reader has to come, while there is none.
        over: set once the turn is over, and the store has what it is to have of it.
    """

    form: KeptRequest
    prepared: PreparedRequest
    reservation: Reservation
    log: RequestLog | None = None
    wait: asyncio.TimerHandle | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def turn(self) -> k.Turn:
        """Request and owner."""
        return k.Turn(self.form.request_id, self.prepared.sequences[0].spec.owner)

    @property
    def choice_ids(self) -> list[str]:
        """Ids of its choices."""
        return [sequence.choice_id for sequence in self.prepared.sequences]


class OwnedRequests:
    """Runs the requests that this gateway owns.

    Args:
        generation: the mesh.
        store: keeps them.
        metrics: the gateway's.
        limits: this process and its patience.
        new_loop: makes the role's loop.

    Attributes:
        generation, store, limits: as given.
        role: decides.
        turns: for calls of the store that requests wait for.
    """

    def __init__(
        self,
        generation: KeepingGeneration,
        store: KeepingStore,
        metrics: GatewayMetrics,
        limits: KeepingLimits,
        new_loop: NewLoop,
    ) -> None:
        self.generation = generation
        self.store = store
        self.limits = limits
        self.turns = StoreTurns(limits.store_timeout_s)
        self._metrics = metrics
        self._owned: dict[k.Turn, OwnedRequest] = {}
        self._tasks = set[asyncio.Task[None]]()
        self.role, self._loop = new_loop(
            {
                k.AwaitReader: self._await_reader,
                k.CancelChoices: self._cancel_choices,
                k.StoreEnding: lambda command: self._spawn(self._store_ending(self._owned[command.turn], command)),
                k.SaveTokens: lambda command: self._spawn(self._hand_on(self._owned.pop(command.turn))),
                k.StepDown: self._step_down,
                k.Forget: lambda command: self._forget(self._owned.pop(command.turn)),
            }
        )
        generation.saver.when_forgotten(self._keep_again)

    def begin(self, form: KeptRequest, prepared: PreparedRequest, reservation: Reservation) -> OwnedRequest:
        """Run a request of which this gateway has become the owner."""
        owned = OwnedRequest(form, prepared, reservation)
        self._owned[owned.turn] = owned
        self._loop.feed(k.RequestOwned(owned.turn, form.is_resumable))
        if form.is_resumable and self._is_current(owned):
            owned.log = RequestLog(
                self.generation.generate,
                prepared.sequences,
                lambda: self._joined(owned),
                lambda: self._feed(owned, k.ReaderLeft(owned.turn)),
                lambda output_tokens, error: self._log_ended(owned, output_tokens, error),
            )
        return owned

    def joinable(self, kept: KeptState) -> OwnedRequest | None:
        """Return a request that more connections may read here; `None` where it runs elsewhere, or for one connection."""
        turn = k.Turn(kept.request.request_id, kept.owner)
        return self._owned.get(turn) if self.role.can_join(turn) else None

    def generate(
        self, owned: OwnedRequest, choice_id: str, spec: SequenceSpec
    ) -> AsyncGenerator[GeneratedTokens, None]:
        """Read a choice of a request, as `Generation.generate`."""
        if owned.log is not None:
            return owned.log.generate(choice_id, spec)
        return self.generation.generate(choice_id, spec) if self._is_current(owned) else _taken()

    def connection_ended(self, owned: OwnedRequest, error: BaseException | None) -> None:
        """Take note that a connection has ended, and its choices with it unless the request is resumable."""
        if owned.log is None:
            ending = ending_of(error)
            if ending == CANCELLED:
                self._feed(owned, k.ReaderLeft(owned.turn))
            self._feed(owned, k.ChoicesEnded(owned.turn, ending, self.generation.is_leaving))

    def lose(self, request_id: str) -> None:
        """End a request here, if it runs here: it has another owner."""
        if (turn := self.role.turn_of(request_id)) is not None:
            self._loop.feed(k.RequestLost(turn))

    async def cancel(self, owned: OwnedRequest) -> None:
        """Cancel a request that connections may join, and wait until the store knows."""
        self._feed(owned, k.CancelRequested(owned.turn))
        await owned.over.wait()

    async def save(self, request_id: str) -> None:
        """Save the tokens of a request that runs here; raises `GenerationError` where the store is away."""
        if (turn := self.role.turn_of(request_id)) is not None:
            await self.turns.result(self.generation.saver.save(*self._owned[turn].choice_ids))

    def _is_current(self, owned: OwnedRequest) -> bool:
        return self._owned.get(owned.turn) is owned

    def _feed(self, owned: OwnedRequest, event: k.KeepingEvent) -> None:
        """Feed an event of a turn, unless that is over: a store that lost some gives the same turn again."""
        if self._is_current(owned):
            self._loop.feed(event)

    def _joined(self, owned: OwnedRequest) -> None:
        if owned.wait is not None:
            owned.wait.cancel()
        self._feed(owned, k.ReaderJoined(owned.turn))

    def _log_ended(self, owned: OwnedRequest, output_tokens: int, error: Exception | None) -> None:
        owned.reservation.settle(output_tokens, error)
        self._feed(owned, k.ChoicesEnded(owned.turn, ending_of(error), self.generation.is_leaving))

    async def _keep_again(self, request_id: str) -> bool:
        """Keep a request that the store has forgotten; return whether its tokens may follow. Raises `MeshError`."""
        if (turn := self.role.turn_of(request_id)) is None:
            return True  # it ends
        owned = self._owned[turn]
        known = await self.store.keep_request(owned.form, turn.owner, self.generation.attempts(owned.choice_ids))
        if isinstance(known, KeptState) or known is RoomVerdict.KEPT:
            return True
        self._metrics.count_not_kept(Kind.REQUESTS)
        return False

    def _await_reader(self, command: k.AwaitReader) -> None:
        owned = self._owned[command.turn]
        ended = k.WaitEnded(command.turn, command.wait)
        owned.wait = asyncio.get_running_loop().call_later(command.seconds, self._feed, owned, ended)

    def _cancel_choices(self, command: k.CancelChoices) -> None:
        if (log := self._owned[command.turn].log) is not None:
            log.cancel()

    def _step_down(self, command: k.StepDown) -> None:
        for choice_id in self._owned[command.turn].choice_ids:
            self.generation.step_down(choice_id)

    async def _store_ending(self, owned: OwnedRequest, command: k.StoreEnding) -> None:
        is_owner = True  # as far as is known where the store does not answer
        try:
            await self.turns.result(self.generation.saver.save(*owned.choice_ids))
            ending = self.store.end_request(owned.form, owned.turn.owner, command.ending, command.kept_s)
            is_owner = await self.turns.result(ending)
        except GenerationError:
            pass  # it expires
        finally:
            self._feed(owned, k.EndingStored(owned.turn) if is_owner else k.RequestLost(owned.turn))

    async def _hand_on(self, owned: OwnedRequest) -> None:
        try:
            await self.turns.result(self.generation.saver.save(*owned.choice_ids))
        except GenerationError:
            pass  # what is not saved is computed again
        finally:
            self._forget(owned)

    def _forget(self, owned: OwnedRequest) -> None:
        if owned.wait is not None:
            owned.wait.cancel()
        for choice_id in owned.choice_ids:
            self.generation.saver.forget(choice_id, owned.turn.owner)
        owned.over.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _taken() -> AsyncGenerator[GeneratedTokens, None]:
    raise GenerationError(409, FAIL_TAKEN, TAKEN)
    yield


def ending_of(error: BaseException | None) -> KeptEnding:
    """Return the ending that an error is; none is the good one, and what is no `Exception` a cancellation."""
    if error is None:
        return FINISHED
    if not isinstance(error, Exception):
        return CANCELLED
    described = describe(error, "")
    return KeptEnding("failed", described.status, described.code or "", described.message)
