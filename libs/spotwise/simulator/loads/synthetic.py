"""Request sizes distributed like the Azure traces', without their files: quantile functions log-linear between the published
percentiles (`azure_percentiles.json`). Prompt and output are independent; in the traces nearly so (correlation 0.00 for
code, -0.11 for conversation)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spotwise.simulator.loads.traces import IntArray
from spotwise.simulator.packaged_data import read_packaged


@dataclass(frozen=True, slots=True)
class _Percentiles:
    prompt_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _AzurePercentiles:
    source: str
    percents: tuple[float, ...]
    workloads: dict[str, _Percentiles]


@dataclass(frozen=True, slots=True)
class SyntheticSizes:
    """Sizes of a kind of workload; tokens at each of `percents`, ascending."""

    percents: tuple[float, ...]
    prompt_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw prompt and output tokens of so many requests, both [count]."""
        shares = 100 * rng.random((count, 2))
        return self._at(shares[:, 0], self.prompt_tokens), self._at(shares[:, 1], self.output_tokens)

    def _at(self, percents: npt.NDArray[np.float64], tokens: tuple[float, ...]) -> IntArray:
        return np.rint(np.exp(np.interp(percents, self.percents, np.log(tokens)))).astype(np.int64)


_AZURE = read_packaged("spotwise.simulator.loads", "azure_percentiles.json", _AzurePercentiles)
#: By workload.
SYNTHETIC = {
    name: SyntheticSizes(_AZURE.percents, sizes.prompt_tokens, sizes.output_tokens)
    for name, sizes in _AZURE.workloads.items()
}
