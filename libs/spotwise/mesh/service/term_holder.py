"""Competes for the lease of a service's active process; the policy is `core/membership/term.py`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from spotwise.core.membership.term import TermLease
from spotwise.core.messages.members import Member, MemberState
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.host import ServiceHost

_log = structlog.get_logger(__name__)


class TermHolder:
    """One process of a service, active or standby.

    Args:
        service: whose lease it is.
        held: called with the term and the Unix time at which it ends, whenever that is extended.
        lost: called when the term has ended.
        begun: awaited when the store has given a term, before `held`; `MeshError` gives it up for now.
    """

    def __init__(
        self,
        host: ServiceHost,
        service: str,
        lease: TermLease,
        held: Callable[[int, float], None],
        lost: Callable[[], None],
        begun: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._host = host
        self._service = service
        self._lease = lease
        self._held, self._lost, self._begun = held, lost, begun
        self.holder = f"{host.id}/{host.member.incarnation}"
        self._ask_now = asyncio.Event()
        self._ended: str | None = None
        self._is_closing = False

    @property
    def term(self) -> int | None:
        """The term that this process holds; `None` while it stands by."""
        return self._lease.term

    async def start(self) -> None:
        """Ask for the lease once, and go on in the background."""
        await self._compete()
        self._host.spawn(self._keep(), "term")

    async def close(self) -> None:
        """Give the lease back, so that a standby need not wait for its end."""
        self._is_closing = True
        if self._lease.refused():
            self._lost()
            await self._end(self.holder)

    def saw(self, term: int) -> None:
        """Note a term that a member has seen: a higher one than this process's has replaced it."""
        if self._lease.saw(term):
            self._tell_lost(f"term {term} has begun elsewhere")
            self._ended = self.holder  # a store that has forgotten terms may have given it one that is over
            self._ask_now.set()

    def member_reported(self, member: Member) -> None:
        """Take over at once where the member with the lease has left, or its machine's watcher reports its end."""
        if member.term is not None:
            self.saw(member.term)
        has_ended = member.state in (MemberState.LEFT, MemberState.LOST)
        if (
            has_ended
            and member.kind is self._host.member.kind
            and self._lease.term is None
            and member.id != self._host.id
        ):
            self._ended = f"{member.id}/{member.incarnation}"
            self._lease.holder_ended()
            self._ask_now.set()

    async def _keep(self) -> None:
        while not self._is_closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease.pause_s):
                    await self._ask_now.wait()
            self._ask_now.clear()
            if not self._is_closing:
                await self._compete()

    async def _compete(self) -> None:
        asked_s = self._host.clock.now()  # the lease is counted from before the store was asked
        if not self._lease.may_ask(asked_s, receives=self._host.receives):
            return
        ended, self._ended = self._ended, None
        try:
            async with asyncio.timeout(self._lease.answer_within_s):
                if ended is not None:
                    await self._host.store.end_term(self._service, ended)
                term = await self._host.store.hold_term(
                    self._service, self.holder, self._lease.least_term(asked_s), self._lease.lease_s
                )
                if term is not None and term != self._lease.term and self._begun is not None:
                    await self._begun(term)
        except (MeshError, TimeoutError) as error:
            _log.warning("store_unavailable", error=str(error) or type(error).__name__)
            self._ended = ended
            if self._lease.store_is_away(self._host.clock.now()):
                self._tell_lost("the store is away")
            elif self._lease.term is not None:
                self._held(self._lease.term, self._lease.until_s)
            return
        if self._is_closing:
            if term is not None:
                await self._end(self.holder)
        elif term is None:
            if self._lease.refused():
                self._tell_lost("another process holds the lease")
        else:
            self._tell_held(term, asked_s)

    def _tell_held(self, term: int, asked_s: float) -> None:
        has_begun = self._lease.held(term, asked_s)
        if has_begun:
            _log.info("term_began", service=self._service, term=term)
        self._held(term, self._lease.until_s)
        if has_begun:
            self._host.beat_soon()

    def _tell_lost(self, reason: str) -> None:
        _log.warning("term_lost", service=self._service, reason=reason)
        self._lost()
        self._host.beat_soon()

    async def _end(self, holder: str) -> None:
        try:
            await self._host.store.end_term(self._service, holder)
        except MeshError as error:
            _log.warning("term_not_ended", error=str(error))
