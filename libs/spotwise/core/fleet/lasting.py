"""For how long conditions have held without a break."""

from __future__ import annotations


class Lasting:
    """Conditions by name."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def lasts_s(self, name: str, is_so: bool, now: float) -> float | None:
        """Return the seconds since a condition began to hold; `None`: it does not."""
        if not is_so:
            self._since_s.pop(name, None)
            return None
        return now - self._since_s.setdefault(name, now)
