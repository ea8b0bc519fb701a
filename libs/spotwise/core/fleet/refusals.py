"""Which offers the provider refused, and when they are asked for again.

Law: a refused offer rests for `shortest_s`, twice as long after each further refusal, `LONGEST` times as long at most; a
success ends that.
An answer with fewer instances than ordered is a success and a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages.market import Market

#: Seconds of a refused offer's first rest.
SHORTEST_S = 30.0
LONGEST = 20

#: Type, market and zone.
OfferKey = tuple[str, Market, str]


@dataclass(slots=True)
class _Refused:
    until_s: float
    next_s: float
    words: str


class Refusals:
    """The provider's refusals, by offer."""

    def __init__(self, shortest_s: float = SHORTEST_S) -> None:
        self._shortest_s = shortest_s
        self._refused: dict[OfferKey, _Refused] = {}

    def refuse(self, key: OfferKey, words: str, now: float) -> None:
        """Note a refusal."""
        known = self._refused.get(key)
        rest_s = self._shortest_s if known is None else known.next_s
        self._refused[key] = _Refused(now + rest_s, min(2 * rest_s, LONGEST * self._shortest_s), words)

    def succeed(self, key: OfferKey) -> None:
        """Note that instances of an offer were bought."""
        self._refused.pop(key, None)

    def until(self, key: OfferKey, now: float) -> tuple[float, str]:
        """Return the Unix time until which an offer is not asked for, and the provider's words; (0, "") where it may be."""
        known = self._refused.get(key)
        return (0.0, "") if known is None or known.until_s <= now else (known.until_s, known.words)
