"""Sizes of requests like those of the Azure traces, for those who do not have the files.

Law: a size is drawn through its quantile function, which is log-linear between percentiles that were counted in the published
traces; so percentiles come out as published, the bend between short and long answers of the conversation trace included.
Prompt and output are independent; in the traces they nearly are (correlation 0.00 for code, -0.11 for conversation).

Source of the numbers: Azure LLM inference traces of 2023 (AzurePublicDataset, CC-BY 4.0; Patel et al., Splitwise, ISCA 2024),
linear-interpolated percentiles of their columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spotwise.simulator.runs.traces import IntArray

_PERCENTS = (
    0,
    1,
    2,
    5,
    10,
    15,
    20,
    25,
    30,
    35,
    40,
    45,
    50,
    55,
    60,
    65,
    70,
    75,
    80,
    85,
    90,
    95,
    98,
    99,
    99.5,
    99.9,
    100,
)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of sizes.

    Attributes:
        tokens: at each of the percentiles of this module, ascending.
    """

    tokens: tuple[float, ...]

    def at(self, shares: np.ndarray[tuple[int], np.dtype[np.float64]]) -> IntArray:
        """Return the sizes, whole tokens, below which these shares (0 to 1) of the requests are; [shares]."""
        logs = np.interp(100 * shares, _PERCENTS, np.log(self.tokens))
        return np.rint(np.exp(logs)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class SyntheticSizes:
    """Sizes of a kind of workload.

    Attributes:
        prompt_tokens, output_tokens: distributions.
    """

    prompt_tokens: Quantiles
    output_tokens: Quantiles

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw prompt and output tokens of so many requests, both [count]."""
        shares = rng.random((count, 2))
        return self.prompt_tokens.at(shares[:, 0]), self.output_tokens.at(shares[:, 1])


# fmt: off
SYNTHETIC = {
    "code": SyntheticSizes(
        Quantiles((
            3, 17, 35, 75, 147, 232, 385.6, 578, 770, 938.6, 1075, 1261.1, 1469, 1690, 1909, 2163.7, 2433, 2744.5,
            3192.4, 3920.2, 5187.6, 7303.3, 7436, 7436, 7436, 7437, 7437,
        )),
        Quantiles((
            6, 6, 6, 6, 7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 29, 39, 55, 90, 170.9, 251.5, 359.4, 825.3, 1899,
        )),
    ),
    "conv": SyntheticSizes(
        Quantiles((
            2, 29, 91, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020, 1045, 1071, 1097, 1130, 1189, 1315, 1876.2,
            2734.5, 4083, 4098, 4142, 4831, 6179.2, 14050,
        )),
        Quantiles((
            7, 16, 24, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400, 411, 424, 451, 540, 601,
            643.2, 954, 1000,
        )),
    ),
}
# fmt: on
