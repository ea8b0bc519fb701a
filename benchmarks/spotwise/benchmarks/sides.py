"""The sides of `spotwise bench peer`: a program, the weights that it serves, and how it is set up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from spotwise.benchmarks.interference import Interference
from spotwise.benchmarks.workloads import PeerWorkload
from spotwise.cli.errors import OptionError


class Program(StrEnum):
    """A server."""

    SPOTWISE = "spotwise"
    VLLM = "vllm"
    LLAMA = "llama.cpp"


#: Of `Side.setup`: a mesh of a process for each phase; vLLM with small prompt batches.
SPLIT, TUNED = "split", "tuned"

YARDSTICKS = (Program.VLLM, Program.LLAMA)


@dataclass(frozen=True, slots=True)
class Side:
    """A side of the comparison.

    Attributes:
        weights: their dtype, or the type of a quantised file.
        setup: `SPLIT`, `TUNED`; empty: as the program is recommended.
    """

    program: Program
    weights: str
    setup: str = ""

    @property
    def is_yardstick(self) -> bool:
        """Whether it is another program than ours."""
        return self.program is not Program.SPOTWISE

    def __str__(self) -> str:
        return " ".join(filter(None, (self.program, self.weights, self.setup)))

    @classmethod
    def parse(cls, name: str) -> Self:
        """The side of this name; raises `ValueError` where it is none."""
        program, weights, *setup = name.split(" ")
        return cls(Program(program), weights, *setup[:1])


@dataclass(frozen=True, slots=True)
class ComparedSides:
    """What a run compares.

    Attributes:
        dtype: the mesh's and llama.cpp's.
        vllm_dtypes: those in which vLLM is measured.
        split: true to measure a mesh of two workers, too.
    """

    dtype: str
    vllm_dtypes: Sequence[str]
    yardsticks: Collection[Program]
    split: bool

    def sides_of(self, workload: PeerWorkload) -> list[Side]:
        """The sides that run a workload.

        vLLM reads no quantised files, and is tuned, too, where that helps it; further shapes are without the split mesh.
        """
        weights = workload.weights or self.dtype
        sides = [Side(Program.SPOTWISE, weights)]
        if workload.weights is None:
            sides += [Side(Program.SPOTWISE, weights, SPLIT)] if self.split and not workload.further else []
            if Program.VLLM in self.yardsticks:
                setups = ("", TUNED) if isinstance(workload.load, Interference) else ("",)
                sides += [Side(Program.VLLM, dtype, setup) for dtype in self.vllm_dtypes for setup in setups]
        return [*sides, *([Side(Program.LLAMA, weights)] if Program.LLAMA in self.yardsticks else [])]

    def sides(self, workloads: Sequence[PeerWorkload]) -> list[Side]:
        """All sides of these workloads, each once."""
        return list(dict.fromkeys(side for workload in workloads for side in self.sides_of(workload)))


def parse_yardsticks(text: str) -> tuple[Program, ...]:
    """The programs of a list like `vllm,llama.cpp`; raises `OptionError` where one is unknown, or none is named."""
    wanted = {name.strip().lower() for name in text.split(",") if name.strip()}
    if not wanted or not wanted <= set(YARDSTICKS):
        raise OptionError(f"--yardsticks {text!r}: write some of {','.join(YARDSTICKS)}")
    return tuple(program for program in YARDSTICKS if program in wanted)
