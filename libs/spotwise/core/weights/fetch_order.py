"""Orders the requests of a process for the panels that it lacks, and chooses the holder of each.

Law: panels are asked for in the model's order, so that the first layers are whole first. What is asked for and not here yet is
at most U_max bytes (SpotServe, section 4.2), unless a single panel is larger. Each panel is asked of the holder that the plan
names; where it names none, or several, of the one with the least under way; of the next one where that fails. A panel of which
no holder is left is put off: its process reads it from storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from spotwise.core.weights.inventory import PanelRange, Panels


@dataclass(frozen=True, slots=True)
class PanelRequest:
    """One request to one holder."""

    holder: str
    range: PanelRange


class FetchOrder:
    """What to ask for next.

    Args:
        missing: panels, in the model's order.
        holders: what each holder has, the preferred ones first.
        buffer_bytes: U_max.
        piece_bytes: bytes of a request, at most, unless a panel is larger.
        planned: the holders that the plan names, by matrix.
    """

    def __init__(
        self,
        missing: Iterable[PanelRange],
        holders: Mapping[str, Panels],
        buffer_bytes: int,
        piece_bytes: int,
        planned: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        self._holders = dict(holders)
        self._planned = planned
        self._buffer_bytes = buffer_bytes
        self._waiting = [piece for each in missing for piece in _pieces(each, min(piece_bytes, buffer_bytes))]
        self._waiting.reverse()  # the next is the last
        self._refused: dict[tuple[str, int], set[str]] = {}
        self._under_way: dict[str, int] = dict.fromkeys(self._holders, 0)
        self._asked: set[PanelRequest] = set()
        self._put_off: list[PanelRange] = []

    @property
    def under_way_bytes(self) -> int:
        """Bytes that are asked for."""
        return sum(self._under_way.values())

    @property
    def is_done(self) -> bool:
        """Whether nothing is to be asked, or under way."""
        return not self._waiting and not self._asked

    @property
    def put_off(self) -> tuple[PanelRange, ...]:
        """Panels that no holder gave."""
        return tuple(self._put_off)

    def next_requests(self) -> list[PanelRequest]:
        """Return what to ask for now; what is returned is under way."""
        requests = []
        while self._waiting:
            piece = self._waiting[-1]
            if self._asked and self.under_way_bytes + piece.byte_count > self._buffer_bytes:
                break
            self._waiting.pop()
            requests += self._ask(piece)
        return requests

    def arrived(self, request: PanelRequest) -> None:
        """Note that a request was answered with its panels."""
        self._end(request)

    def failed(self, request: PanelRequest, *, holder_is_lost: bool) -> None:
        """Note that a request was not; a lost holder is asked for nothing any more."""
        if request not in self._asked:
            return
        self._end(request)
        if holder_is_lost:
            self.lost(request.holder)
        self._refused.setdefault(_key(request.range), set()).add(request.holder)
        self._waiting.append(request.range)

    def lost(self, holder: str) -> None:
        """Ask a holder for nothing any more; its requests under way fail one by one."""
        self._holders.pop(holder, None)

    def _end(self, request: PanelRequest) -> None:
        self._asked.discard(request)
        self._under_way[request.holder] -= request.range.byte_count

    def _ask(self, piece: PanelRange) -> list[PanelRequest]:
        """Ask for a piece; where no holder has all of it, for the parts that some holder has."""
        refused = self._refused.get(_key(piece), set())
        able = [name for name in self._holders if name not in refused]
        holders = [name for name in able if _has(self._holders[name], piece.matrix, piece.panels)]
        if holders:
            named = [name for name in holders if name in self._planned.get(piece.matrix, ())]
            return [self._request(min(named or holders, key=self._under_way.__getitem__), piece)]
        if len(piece.panels) > 1 and (cut := self._cut(piece, able)) is not None:
            self._refused |= {_key(part): set(refused) for part in cut}
            self._waiting += reversed(cut)
        else:
            self._put_off.append(piece)
        return []

    def _cut(self, piece: PanelRange, able: Sequence[str]) -> list[PanelRange] | None:
        """Cut a piece where some holder's panels begin or end; `None`: no holder has a part of it."""
        inner = set(piece.panels[1:])
        held = [each for name in able for each in self._holders[name].get(piece.matrix, ())]
        bounds = sorted({bound for each in held for bound in (each.start, each.stop) if bound in inner})
        if not bounds:
            return None
        edges = [piece.panels.start, *bounds, piece.panels.stop]
        return [
            PanelRange(piece.matrix, range(start, stop), piece.panel_bytes) for start, stop in itertools.pairwise(edges)
        ]

    def _request(self, holder: str, piece: PanelRange) -> PanelRequest:
        request = PanelRequest(holder, piece)
        self._asked.add(request)
        self._under_way[holder] += piece.byte_count
        return request


def _key(piece: PanelRange) -> tuple[str, int]:
    return piece.matrix, piece.panels.start


def _has(panels: Panels, matrix: str, wanted: range) -> bool:
    return any(each.start <= wanted.start and wanted.stop <= each.stop for each in panels.get(matrix, ()))


def _pieces(missing: PanelRange, piece_bytes: int) -> Iterable[PanelRange]:
    """Cut panels into requests."""
    step = max(1, piece_bytes // missing.panel_bytes)
    for start in range(missing.panels.start, missing.panels.stop, step):
        panels = range(start, min(start + step, missing.panels.stop))
        yield PanelRange(missing.matrix, panels, missing.panel_bytes)
