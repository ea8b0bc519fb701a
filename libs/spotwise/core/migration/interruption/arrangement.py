"""Arranges the requests of an instance under notice: finish, move KV just in time, or recompute.

Law: each request takes what costs its user least before the deadline: finishing costs nothing; moving costs the copy and the
wait for a slot; recomputing costs its queue and the prompt time of all its tokens, both for the tokens that exist now.
Where KV is copied while the request decodes on (pre-copy), a move costs its user the wait alone.
One copy runs at a time, so the requests to move are a knapsack of the link's seconds (`link_share.py`).
Copies end at the deadline and start as late as that allows; until then a request decodes and its KV grows.
Where an instance does not leave for a deadline (`at_once`), all requests with KV move now.

Without time left all requests are recomputed.

Source: SpotServe, section 4.1, stops a whole batch; the choice for each request is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.migration.interruption.link_share import Copy, Window, choose

#: Kept free before the deadline beside the margin: a wall-clock time is a float that is exact to a quarter of this.
_ROUNDING_S = 1e-6


class Disposition(StrEnum):
    """What happens to a request."""

    FINISH = "finish"  #: it decodes here to its end
    MOVE = "move"  #: it decodes some steps, then its KV is copied, and it resumes remotely
    RECOMPUTE = "recompute"  #: its tokens are recomputed remotely, where it resumes


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The arrangement of one request; times are absolute, those of the copy `None` without one.
    `steps`: tokens still to decode here; `wait_s`: expected, from its stop until it resumes remotely: the cost for its user.
    """

    choice_id: str
    disposition: Disposition
    steps: int
    stop_s: float
    copy_start_s: float | None = None
    copy_end_s: float | None = None
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DecodePace:
    """The instance's decoding speed: seconds until the current iteration ends (requests are given in their state then), and of
    an iteration; that it becomes shorter as requests leave is ignored.
    """

    until_boundary_s: float
    step_s: float

    def __post_init__(self) -> None:
        if self.until_boundary_s < 0 or self.step_s <= 0:
            raise ValueError(f"until_boundary_s must be at least 0 and step_s above 0: {self}")


@dataclass(frozen=True, slots=True)
class RemoteHolder:
    """The instance where a request resumes.

    Attributes:
        prompt_s: seconds to compute a number of tokens; must not fall as tokens rise.
        queue_s, resume_s: a prompt's wait before it is computed, and a request's once its KV has arrived.
        ready_s: when it first takes requests, absolute; `None`: it does already. Requests to recompute decode here until then.
    """

    prompt_s: Callable[[int], float]
    queue_s: float = 0.0
    resume_s: float = 0.0
    ready_s: float | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """An instance's notice; `deadline_s` is absolute, copies end `margin_s` before it, one at a time over `link`. `pre_copies`:
    requests decode while they are copied. `at_once`: every request with KV moves, and all copies begin now.
    """

    deadline_s: float
    pace: DecodePace
    link: LinkCost
    kv_token_bytes: int
    remote: RemoteHolder
    margin_s: float = 0.0
    pre_copies: bool = False
    at_once: bool = False

    def copy_s(self, tokens: int) -> float:
        """Return the seconds to copy the KV of so many tokens."""
        return self.link.transfer_s(tokens * self.kv_token_bytes)

    def saved_s(self, request: RunningRequest) -> float:
        """Return the seconds that a move saves a request's user over recomputing; may be below 0."""
        remote = self.remote
        recompute_s = remote.queue_s + remote.prompt_s(request.tokens)
        return recompute_s - remote.resume_s - (0.0 if self.pre_copies else self.copy_s(request.tokens))


def arrange(
    now_s: float, notice: Notice, requests: Sequence[RunningRequest], link_free_s: float | None = None
) -> tuple[Arrangement, ...]:
    """Return the arrangements of all requests of an instance under notice, in their order.
    `remaining` must be an upper bound, 0 where unknown; `tokens` 0: no KV to move; `link_free_s` is absolute, `None`: free now.
    """
    if len({request.id for request in requests}) != len(requests):
        raise ValueError("two requests have the same id; give each once")
    if notice.at_once:
        return tuple(_move_now(now_s, notice, request) for request in requests)
    boundary_s, step_s = notice.pace.until_boundary_s, notice.pace.step_s
    left_s = notice.deadline_s - now_s - notice.margin_s - _ROUNDING_S
    free_s = max(boundary_s, 0.0 if link_free_s is None else link_free_s - now_s)
    finishing = [request.remaining > 0 and boundary_s + request.remaining * step_s <= left_s for request in requests]
    movable = [
        request
        for request, finishes in zip(requests, finishing, strict=True)
        if not finishes and request.tokens > 0 and notice.saved_s(request) > 0
    ]
    moves = _moves(now_s, notice, movable, left_s, free_s)
    arranged = []
    for request, finishes in zip(requests, finishing, strict=True):
        if finishes:
            stop_s = now_s + boundary_s + request.remaining * step_s
            arranged.append(Arrangement(request.id, Disposition.FINISH, request.remaining, stop_s))
        else:
            arranged.append(moves.get(request.id) or _recompute(now_s, notice, request, left_s))
    return tuple(arranged)


def rearrange(
    now_s: float, notice: Notice, arranged: Iterable[Arrangement], requests: Sequence[RunningRequest]
) -> tuple[Arrangement, ...]:
    """Return new arrangements after the deadline has moved or requests have ended or decode longer than expected.

    A stopped request keeps its arrangement: a recomputed one, and one whose copy runs if that ends by the deadline; else the
    copy is abandoned and the request recomputed. The other `requests` (not ended, in their present state) are arranged anew.
    """
    before = {arrangement.choice_id: arrangement for arrangement in arranged}
    settled: dict[str, Arrangement] = {}
    link_free_s = now_s
    for request in requests:
        old = before.get(request.id)
        if old is None or old.stop_s > now_s:
            continue
        if old.disposition is Disposition.RECOMPUTE:
            settled[request.id] = old
        elif old.copy_start_s is not None and old.copy_end_s is not None and old.copy_start_s <= now_s:
            if old.copy_end_s <= notice.deadline_s:
                settled[request.id] = old
                link_free_s = max(link_free_s, old.copy_end_s)
            else:
                wait_s = now_s - old.stop_s + _recompute_s(notice, request.tokens, now_s)
                settled[request.id] = Arrangement(request.id, Disposition.RECOMPUTE, 0, old.stop_s, wait_s=wait_s)
    open_requests = [request for request in requests if request.id not in settled]
    anew = {each.choice_id: each for each in arrange(now_s, notice, open_requests, link_free_s)}
    return tuple(settled.get(request.id) or anew[request.id] for request in requests)


def _moves(
    now_s: float, notice: Notice, movable: Sequence[RunningRequest], left_s: float, free_s: float
) -> dict[str, Arrangement]:
    boundary_s, step_s = notice.pace.until_boundary_s, notice.pace.step_s
    window = Window(boundary_s, free_s, left_s, notice.kv_token_bytes / notice.link.bytes_per_s / step_s)
    by_size = sorted(movable, key=lambda request: request.tokens)  # of equals the earlier is copied first
    copies = [Copy(notice.copy_s(request.tokens), notice.saved_s(request)) for request in by_size]
    chosen = choose(copies, window)
    latest = window.starts([copies[index].copy_s for index in chosen]) or ()
    moves = {}
    for index, latest_s in zip(chosen, latest, strict=True):
        request = by_size[index]
        steps = math.floor((latest_s - boundary_s) / step_s)
        stop_s = boundary_s + steps * step_s
        start_s = max(stop_s, free_s)
        free_s = start_s + notice.copy_s(request.tokens + steps)
        ready_s = max(now_s + free_s, notice.remote.ready_s or 0.0)
        wait_s = notice.remote.resume_s + max(ready_s - now_s - (free_s if notice.pre_copies else stop_s), 0.0)
        moves[request.id] = Arrangement(
            request.id, Disposition.MOVE, steps, now_s + stop_s, now_s + start_s, now_s + free_s, wait_s
        )
    return moves


def _move_now(now_s: float, notice: Notice, request: RunningRequest) -> Arrangement:
    end_s = now_s + notice.copy_s(request.tokens)
    return Arrangement(request.id, Disposition.MOVE, 0, now_s, now_s, end_s, notice.remote.resume_s)


def _recompute(now_s: float, notice: Notice, request: RunningRequest, left_s: float) -> Arrangement:
    boundary_s, step_s = notice.pace.until_boundary_s, notice.pace.step_s
    if request.tokens == 0 or boundary_s > left_s:
        return Arrangement(
            request.id, Disposition.RECOMPUTE, 0, now_s, wait_s=_recompute_s(notice, request.tokens, now_s)
        )
    until_s = min(left_s, (notice.remote.ready_s or 0.0) - now_s)
    steps = max(0, math.floor((until_s - boundary_s) / step_s))
    stop_s = now_s + boundary_s + steps * step_s
    wait_s = _recompute_s(notice, request.tokens + steps, stop_s)
    return Arrangement(request.id, Disposition.RECOMPUTE, steps, stop_s, wait_s=wait_s)


def _recompute_s(notice: Notice, tokens: int, from_s: float) -> float:
    ready_s = max(from_s, notice.remote.ready_s or 0.0)
    return ready_s - from_s + notice.remote.queue_s + notice.remote.prompt_s(tokens)
