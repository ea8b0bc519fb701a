"""What SpotServe's optimizer answers for its paper's models, and whether ours answers the same.

Law: an answer is a configuration with its l_exe and its throughput, for so many instances of four T4 and a rate that is needed;
or none, where the model does not fit. Ours is `core.parallel.optimizer.choose` with the paper's rules: it uses what is held,
minimises l_exe alone, and knows of memory no more than the least number of devices.

Source: the published optimizer, run on the published profiles; the configurations are those that the paper names in sections
6.2 and 6.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import InstanceType, Supply
from spotwise.core.parallel.layer_tables import LayerTables
from spotwise.core.parallel.memory import LeastDevices
from spotwise.core.parallel.optimizer import choose
from spotwise.core.parallel.policy import Policy, ServiceDemand
from spotwise.simulator.spotserve.arrivals import INPUT_TOKENS, OUTPUT_TOKENS
from spotwise.simulator.spotserve.profiles import (
    DEVICES_OF_AN_INSTANCE,
    GPT_20B,
    LLAMA_30B,
    OPT_6_7B,
    PAPER_MODELS,
    PaperModel,
    read_model_tables,
)

#: The largest batch of the paper's runs.
MAX_BATCH = 4
#: What the published answers are rounded to.
_DIGITS = 3
_T4_BYTES = 16 * 2**30

_Answers = tuple[tuple[tuple[int, ...], tuple[str, float, float] | None], ...]


@dataclass(frozen=True, slots=True)
class GoldenCell:
    """An answer.

    Attributes:
        model: whose.
        required_rate: requests a second that are needed.
        instances: that there are.
        config: the answer; `None`: the model does not fit.
        execution_s: l_exe, to a millisecond; 0 without an answer.
        throughput: requests a second, to a thousandth; 0 without an answer.
    """

    model: PaperModel
    required_rate: float
    instances: int
    config: ParallelConfig | None
    execution_s: float = 0.0
    throughput: float = 0.0


_20B_ALIKE: _Answers = (
    ((3,), ("1,3,4,4", 14.459, 0.277)),
    ((4, 5), ("1,2,8,4", 12.961, 0.309)),
    ((6, 7), ("2,3,4,4", 14.459, 0.553)),
    ((8,), ("2,2,8,4", 12.961, 0.617)),
)
_ANSWERS: tuple[tuple[PaperModel, float, _Answers], ...] = (
    (GPT_20B, 0.4, (*_20B_ALIKE, ((9, 10), ("2,2,8,4", 12.961, 0.617)), ((12,), ("3,2,8,2", 12.116, 0.495)))),
    (GPT_20B, 0.8, (*_20B_ALIKE, ((9, 10), ("3,3,4,4", 14.459, 0.830)), ((12,), ("3,2,8,4", 12.961, 0.926)))),
    (
        LLAMA_30B,
        0.2,
        (
            ((3,), None),
            ((4, 5), ("1,2,8,4", 17.751, 0.225)),
            ((6, 7), ("1,3,8,4", 17.498, 0.229)),
            ((8, 9, 10), ("1,4,8,4", 17.383, 0.230)),
            ((12,), ("1,6,8,4", 17.291, 0.231)),
        ),
    ),
    (
        OPT_6_7B,
        2.0,
        (
            ((3,), ("3,1,4,4", 5.290, 2.268)),
            ((4,), ("4,1,4,4", 5.290, 3.025)),
            ((5,), ("5,1,4,2", 4.889, 2.045)),
            ((6,), ("6,1,4,2", 4.889, 2.455)),
            ((7,), ("7,1,4,2", 4.889, 2.864)),
            ((8,), ("8,1,4,2", 4.889, 3.273)),
            ((9,), ("9,1,4,2", 4.889, 3.682)),
            ((10,), ("5,2,4,2", 4.729, 2.114)),
            ((12,), ("6,2,4,2", 4.729, 2.537)),
        ),
    ),
)

#: All cells, by model and rate, then by instances.
GOLDEN_CELLS: tuple[GoldenCell, ...] = tuple(
    GoldenCell(model, rate, instances, None)
    if answer is None
    else GoldenCell(model, rate, instances, ParallelConfig.parse(answer[0]), answer[1], answer[2])
    for model, rate, answers in _ANSWERS
    for counts, answer in answers
    for instances in counts
)


@dataclass(frozen=True, slots=True)
class GoldenAnswer:
    """A cell and what ours answers.

    Attributes:
        cell: as published.
        config: ours; `None`: the model does not fit.
        execution_s: our l_exe; 0 without an answer.
        throughput: of ours, requests a second; 0 without an answer.
    """

    cell: GoldenCell
    config: ParallelConfig | None
    execution_s: float = 0.0
    throughput: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether it is the published one, to the last digit."""
        said = (self.cell.config, self.cell.execution_s, self.cell.throughput)
        return (self.config, round(self.execution_s, _DIGITS), round(self.throughput, _DIGITS)) == said


@dataclass(frozen=True, slots=True)
class AloneAnswer:
    """A line of Table 1 and ours.

    Attributes:
        model: whose.
        seconds: our l_exe of one request on its P and M.
    """

    model: PaperModel
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether it is the paper's, to the millisecond."""
        return round(self.seconds, _DIGITS) == self.model.alone.seconds


def read_all_tables(folder: Path) -> dict[str, LayerTables]:
    """Read the profiles of all models of the paper, by their names.

    Raises:
        TraceError: one cannot be read.
    """
    return {model.name: read_model_tables(folder, model) for model in PAPER_MODELS.values()}


def golden_answers(tables: Mapping[str, LayerTables]) -> list[GoldenAnswer]:
    """Ask our optimizer for every cell; tables by model."""
    return [_answer(cell, tables[cell.model.name]) for cell in GOLDEN_CELLS]


def alone_answers(tables: Mapping[str, LayerTables]) -> list[AloneAnswer]:
    """Return our Table 1; tables by model."""
    return [
        AloneAnswer(
            model,
            tables[name].execution_s(
                ParallelConfig(1, model.alone.stages, model.alone.shards), INPUT_TOKENS, OUTPUT_TOKENS
            ),
        )
        for name, model in PAPER_MODELS.items()
    ]


def _answer(cell: GoldenCell, tables: LayerTables) -> GoldenAnswer:
    held = cell.instances
    machine = InstanceType("g4dn.12xlarge", DEVICES_OF_AN_INSTANCE, _T4_BYTES, 1.0, None, tables)
    choice = choose(
        ServiceDemand(cell.required_rate, input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS),
        [Supply(machine, spot=held, held_spot=held)],
        LeastDevices(cell.model.least_devices),
        Policy.spotserve(tables.padded_layers, max_batch=MAX_BATCH),
    )
    if choice is None:
        return GoldenAnswer(cell, None)
    return GoldenAnswer(cell, choice.config, choice.execution_s, choice.throughput)
