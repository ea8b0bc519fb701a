"""Stop strings in a stream of text.

What `StopStringScanner` returns does not depend on how the text was cut into pieces. The text ends at the stop
string that is complete first; of several that are complete at the same character the longest counts. Held back is
exactly the longest end of the text that may still become a stop string.

Method: one Knuth-Morris-Pratt automaton a stop string, so that a character costs amortized constant time.
"""

from __future__ import annotations


class StopTables:
    """The automata of some stop strings: built once, however many texts are scanned for them.

    Args:
        stop_strings: none of them empty.
    """

    __slots__ = ("automata",)

    def __init__(self, stop_strings: tuple[str, ...] = ()) -> None:
        # Longest first: of two that end at the same character the longer one then wins.
        self.automata = tuple((stop, _borders(stop)) for stop in sorted(set(stop_strings), key=len, reverse=True))


class StopStringScanner:
    """Finds the end of one text.

    Args:
        tables: tables of the stop strings.
        include_stop_string: the stop string found stays in the text.

    Attributes:
        matched: the stop string found, `None` so far; after a match nothing more is given.
    """

    __slots__ = ("_automata", "_held", "_include", "_reached", "matched")

    def __init__(self, tables: StopTables, include_stop_string: bool = False) -> None:
        self._automata = tables.automata
        self._reached = [0] * len(self._automata)
        self._include = include_stop_string
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Take the next piece; return the text that can be given now."""
        if self.matched is not None:
            return ""
        if not self._automata:
            return piece
        text = self._held + piece
        position = len(self._held)
        for char in piece:
            position += 1
            for which, (stop, borders) in enumerate(self._automata):
                length = self._reached[which]
                while length and stop[length] != char:
                    length = borders[length - 1]
                if stop[length] == char:
                    length += 1
                if length == len(stop):
                    self.matched = stop
                    self._held = ""
                    return text[:position] if self._include else text[: position - length]
                self._reached[which] = length
        given = len(text) - max(self._reached)
        self._held = text[given:]
        return text[:given]

    def flush(self) -> str:
        """Return what is held back: the text is over, no stop string will come."""
        held, self._held = self._held, ""
        self._reached = [0] * len(self._automata)
        return held


def _borders(pattern: str) -> tuple[int, ...]:
    """Length of the longest proper prefix of `pattern[: i + 1]` that is also its suffix, for each i."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[length] != pattern[index]:
            length = borders[length - 1]
        if pattern[length] == pattern[index]:
            length += 1
        borders[index] = length
    return tuple(borders)
