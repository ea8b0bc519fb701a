"""How often a cloud is asked, and for whom.

Law: who answers is asked once in `poll_s`, counted from the last question, and at once where the answer took longer than
that: it was held back until there is news. Who does not answer is asked ever more rarely, up to once in `backoff_s`: that much
of a notice may be missed, so it is a part of the shortest one.

Invariants: a pause is never negative, and never longer than the longer of `poll_s` and `backoff_s`.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages import Member, MemberKind

#: Beyond so many failures the pause is at its longest for any sensible pair of `poll_s` and `backoff_s`.
_MOST_DOUBLINGS = 16
_WORKERS = (MemberKind.PROMPT_WORKER, MemberKind.TOKEN_WORKER)


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """What a watcher does, and for whom.

    Attributes:
        host: name of the machine that it is on; workers there are beside it.
        workers: ids of the workers beside it; where empty `host` decides.
        backoff_s: between two questions to who does not answer, at most.
        member_timeout_s: silence after which a member counts as lost.
        acknowledge: tell the cloud when nothing is left on the machine.
    """

    host: str
    workers: tuple[str, ...] = ()
    backoff_s: float = 10.0
    member_timeout_s: float = 2.0
    acknowledge: bool = True

    def __post_init__(self) -> None:
        if not (self.backoff_s > 0 and self.member_timeout_s > 0):
            raise ValueError("backoff_s and member_timeout_s must be longer than nothing")

    def is_beside(self, member: Member) -> bool:
        """Tell whether a member is a worker of this machine."""
        if member.kind not in _WORKERS:
            return False
        return member.id in self.workers if self.workers else member.host == self.host

    def next_question_s(self, asked_s: float, now: float, poll_s: float, failures: int) -> float:
        """Return when to ask again, after an answer to a question of `asked_s`, with so many failures in a row."""
        if not failures:
            return max(now, asked_s + poll_s)
        longest_s = max(self.backoff_s, poll_s)
        return now + min(poll_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), longest_s)
