"""Backoff for offers that the provider refused and types that do not become ready.

Law: a refused offer rests for `shortest_s`, twice as long after each further refusal, `LONGEST` times as long at most; a
success ends that.
An answer with fewer instances than ordered is a success and a refusal.

Law: an instance that is given back, or ends, before it was ready has failed to start, unless the provider reclaimed it. Its
offer rests for as long as it was paid in vain, `shortest_s` at least; after each further failure of an instance that was
launched since, twice as long, up to `LONGEST_S`. `BREAKER` failures of a type in a row let all of its offers rest so, and then
one instance of it at a time is tried. An instance that becomes ready ends that for its type and its offer.
Source: the circuit breaker (M. Nygard, Release It!, 2007), here with one trial in the half-open state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotwise.core.fleet.keeper.kept import KeptFailedStart
from spotwise.core.messages.fleet import Market

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


#: Seconds of the longest rest that only the number of failures makes.
LONGEST_S = 3600.0
#: Failures of a type in a row after which one instance of it is tried at a time.
BREAKER = 3

_Place = tuple[str, Market | None, str]


@dataclass(slots=True)
class _Rest:
    """Failures of one place: in how many rounds, since when the last one rests and until when."""

    rounds: int
    began_s: float
    until_s: float
    age_s: float


class FailedStarts:
    """Failures by offer and by type; `kept`: those that an earlier keeper knew."""

    def __init__(self, shortest_s: float = SHORTEST_S, kept: Sequence[KeptFailedStart] = ()) -> None:
        self._shortest_s = shortest_s
        self._rests: dict[_Place, _Rest] = {}
        self._in_a_row: dict[str, int] = {}
        for each in kept:
            if each.in_a_row:
                self._in_a_row[each.type_name] = each.in_a_row
            if each.rounds:
                rest = _Rest(each.rounds, each.began_s, each.until_s, each.age_s)
                self._rests[each.type_name, each.market, each.zone] = rest

    def failed(self, type_name: str, market: Market, zone: str, launched_s: float, now: float) -> None:
        """Note that an instance did not become ready; `zone`: where it was, empty where that is not known."""
        self._in_a_row[type_name] = self.in_a_row(type_name) + 1
        self._rest((type_name, market, zone), launched_s, now)
        if self.in_a_row(type_name) >= BREAKER:
            self._rest((type_name, None, ""), launched_s, now)

    def started(self, type_name: str, market: Market, zone: str) -> None:
        """Note that an instance became ready."""
        self._in_a_row.pop(type_name, None)
        for place in ((type_name, market, zone), (type_name, market, ""), (type_name, None, "")):
            self._rests.pop(place, None)

    def in_a_row(self, type_name: str) -> int:
        """Return the failures of a type since the last of its instances became ready."""
        return self._in_a_row.get(type_name, 0)

    def is_open(self, type_name: str) -> bool:
        """Return whether one instance of a type is tried at a time."""
        return self.in_a_row(type_name) >= BREAKER

    def until(self, key: OfferKey, now: float) -> tuple[float, str]:
        """Return the Unix time until which an offer rests, and why; (0, "") where it does not."""
        type_name, market, zone = key
        found = [
            rest
            for place, rest in self._rests.items()
            if place[0] == type_name and place[1] in (None, market) and (not zone or place[2] in ("", zone))
        ]
        last = max(found, key=lambda rest: rest.until_s, default=None)
        if last is None or last.until_s <= now:
            return 0.0, ""
        count = self.in_a_row(type_name)
        what = f"late: {count} in a row were" if count > 1 else "late: the last one was"
        words = f"{what} not ready, after {last.age_s:.0f} s; check image, launch template or command, and its start_s"
        return last.until_s, words

    def kept(self) -> tuple[KeptFailedStart, ...]:
        """Return the failures for a successor."""
        counts = [KeptFailedStart(name, in_a_row=count) for name, count in self._in_a_row.items()]
        rests = [
            KeptFailedStart(*place, 0, rest.rounds, rest.began_s, rest.until_s, rest.age_s)
            for place, rest in self._rests.items()
        ]
        return (*counts, *rests)

    def _rest(self, place: _Place, launched_s: float, now: float) -> None:
        rest = self._rests.get(place)
        age_s = max(0.0, now - launched_s)
        # Those that were bought together fail together: they are one round.
        is_another = rest is not None and launched_s > rest.began_s
        rounds = 1 if rest is None else rest.rounds + is_another
        began_s = now if rest is None or is_another else rest.began_s
        pause_s = max(self._shortest_s, age_s)
        until_s = now + max(pause_s, min(LONGEST_S, pause_s * 2.0 ** min(rounds - 1, 20)))
        self._rests[place] = _Rest(rounds, began_s, until_s if rest is None else max(until_s, rest.until_s), age_s)
