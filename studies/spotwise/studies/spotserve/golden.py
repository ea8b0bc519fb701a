"""SpotServe's published optimizer answers beside ours: `core.parallel.optimizer.choose` with the paper's rules uses the fleet
it has, minimises l_exe alone, and bounds memory only by the least number of devices."""

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
from spotwise.simulator.packaged_data import read_packaged
from spotwise.simulator.spotserve.arrivals import INPUT_TOKENS, OUTPUT_TOKENS
from spotwise.studies.spotserve.profiles import DEVICES_OF_AN_INSTANCE, PAPER_MODELS, PaperModel, read_model_tables

#: Largest batch of the paper's runs.
MAX_BATCH = 4
#: The published answers' precision.
_DIGITS = 3
_T4_BYTES = 16 * 2**30


@dataclass(frozen=True, slots=True)
class OptimizerAnswer:
    """A configuration with its figures; without a configuration the model does not fit.

    Attributes:
        config: as `D,P,M,B`.
        execution_s: l_exe.
        throughput: requests a second.
    """

    config: str | None
    execution_s: float = 0.0
    throughput: float = 0.0


@dataclass(frozen=True, slots=True)
class GoldenCell:
    """A published answer for one number of instances with four T4.

    Attributes:
        required_rate: requests a second.
        published: to a millisecond and a thousandth of a request a second.
    """

    model: PaperModel
    required_rate: float
    instances: int
    published: OptimizerAnswer


@dataclass(frozen=True, slots=True)
class _GoldenRow:
    model: str
    required_rate: float
    instances: tuple[int, ...]
    config: str | None
    execution_s: float = 0.0
    throughput: float = 0.0


@dataclass(frozen=True, slots=True)
class _GoldenAnswers:
    source: str
    answers: tuple[_GoldenRow, ...]


def golden_cells() -> list[GoldenCell]:
    """Return the cells of `golden_answers.json`, by model and rate, then by instances."""
    rows = read_packaged("spotwise.studies.spotserve", "golden_answers.json", _GoldenAnswers).answers
    return [
        GoldenCell(
            PAPER_MODELS[row.model],
            row.required_rate,
            instances,
            OptimizerAnswer(row.config, row.execution_s, row.throughput),
        )
        for row in rows
        for instances in row.instances
    ]


@dataclass(frozen=True, slots=True)
class GoldenAnswer:
    """A published cell and our optimizer's answer."""

    cell: GoldenCell
    ours: OptimizerAnswer

    @property
    def is_exact(self) -> bool:
        """Whether ours equals the published one to the last digit."""
        ours = self.ours
        rounded = OptimizerAnswer(ours.config, round(ours.execution_s, _DIGITS), round(ours.throughput, _DIGITS))
        return rounded == self.cell.published


@dataclass(frozen=True, slots=True)
class AloneAnswer:
    """A line of the paper's Table 1 and our l_exe of one request on its P and M, in seconds."""

    model: PaperModel
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether ours equals the paper's to the millisecond."""
        return round(self.seconds, _DIGITS) == self.model.alone.seconds


def read_all_tables(folder: Path) -> dict[str, LayerTables]:
    """Read the profiles of all models of the paper, by name; raises TraceError if one cannot be read."""
    return {model.name: read_model_tables(folder, model) for model in PAPER_MODELS.values()}


def golden_answers(tables: Mapping[str, LayerTables]) -> list[GoldenAnswer]:
    """Run our optimizer for every cell; tables by model."""
    return [GoldenAnswer(cell, _answer(cell, tables[cell.model.name])) for cell in golden_cells()]


def alone_answers(tables: Mapping[str, LayerTables]) -> list[AloneAnswer]:
    """Return our Table 1 of the paper; tables by model."""
    return [
        AloneAnswer(
            model,
            tables[name].execution_s(
                ParallelConfig(1, model.alone.stages, model.alone.shards), INPUT_TOKENS, OUTPUT_TOKENS
            ),
        )
        for name, model in PAPER_MODELS.items()
    ]


def _answer(cell: GoldenCell, tables: LayerTables) -> OptimizerAnswer:
    held = cell.instances
    machine = InstanceType("g4dn.12xlarge", DEVICES_OF_AN_INSTANCE, _T4_BYTES, 1.0, None, tables)
    choice = choose(
        ServiceDemand(cell.required_rate, input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS),
        [Supply(machine, spot=held, held_spot=held)],
        LeastDevices(cell.model.least_devices),
        Policy.spotserve(tables.padded_layers, max_batch=MAX_BATCH),
    )
    if choice is None:
        return OptimizerAnswer(None)
    return OptimizerAnswer(str(choice.config), choice.execution_s, choice.throughput)
