"""Seconds that depend on a few counts, learned from each time that they were measured.

Law: a linear model, fitted by least squares to what was measured, of which older measurements count less (`REMEMBERS` each),
and to the coefficients that were assumed, which count `ASSUMED` measurements of each count: what was never measured stays as it
was assumed, and a first measurement already moves the expectation. No coefficient is below 0: more of a count takes no less
time, else what was quicker than assumed for few would be expected to take none for many.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

#: Weight of a measurement relative to the next one.
REMEMBERS = 0.99
#: Weight of what was assumed.
ASSUMED = 0.1


class LearnedSeconds:
    """One duration.

    Args:
        coefficients: seconds for one of each count, before anything was measured.
    """

    def __init__(self, *coefficients: float) -> None:
        size = len(coefficients)
        self._assumed = np.array(coefficients)
        self._counted = np.zeros((size, size))
        self._weighed = np.zeros(size)

    def expected(self, *counts: float) -> float:
        """Return the expected seconds for counts of at least 0."""
        counted = self._counted + ASSUMED * np.eye(len(self._assumed))
        root = np.linalg.cholesky(counted)  # so that the sum of squares is that of `root.T @ fitted - weighed`
        weighed = np.linalg.solve(root, self._weighed + ASSUMED * self._assumed)
        fitted, _ = nnls(root.T, weighed)
        return float(np.dot(fitted, counts))

    def learn(self, seconds: float, *counts: float) -> None:
        """Learn from one measurement."""
        given = np.array(counts)
        self._counted = REMEMBERS * self._counted + np.outer(given, given)
        self._weighed = REMEMBERS * self._weighed + seconds * given
