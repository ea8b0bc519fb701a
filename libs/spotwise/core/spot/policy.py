"""Intervals at which a cloud's metadata is queried, and the workers and devices that it is queried for.

Law: a cloud that answers is queried every `poll_s`, counted from the last query, or at once after a longer answer (a hanging
GET). One that does not answer is queried with exponential backoff, at most `backoff_s` apart: that much of a notice may be
missed, so it must be a part of the shortest notice.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages.members import Member, MemberKind

#: Beyond so many failures the pause is at its longest for any sensible pair of `poll_s` and `backoff_s`.
_MOST_DOUBLINGS = 16
#: What computes: workers, and the devices of those that are groups.
COMPUTING = (MemberKind.PROMPT_WORKER, MemberKind.TOKEN_WORKER, MemberKind.DEVICE)


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """A watcher's configuration; `workers` are the ids of this machine's workers and devices: where empty, `host` decides.

    Attributes:
        backoff_s: longest pause between queries that fail.
        member_timeout_s: silence after which a member counts as lost.
        acknowledge: let the cloud know when the machine has been drained.
    """

    host: str
    workers: tuple[str, ...] = ()
    backoff_s: float = 10.0
    member_timeout_s: float = 2.0
    acknowledge: bool = True

    def __post_init__(self) -> None:
        if not (self.backoff_s > 0 and self.member_timeout_s > 0):
            raise ValueError("backoff_s and member_timeout_s must be above 0")

    def is_beside(self, member: Member) -> bool:
        """Tell whether a member is a worker or a device of this machine."""
        if member.kind not in COMPUTING:
            return False
        return member.id in self.workers if self.workers else member.host == self.host

    def next_query_s(self, queried_s: float, now: float, poll_s: float, failures: int) -> float:
        """Return when to query again after a query at `queried_s`, with so many failures in a row."""
        if not failures:
            return max(now, queried_s + poll_s)
        longest_s = max(self.backoff_s, poll_s)
        return now + min(poll_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), longest_s)
