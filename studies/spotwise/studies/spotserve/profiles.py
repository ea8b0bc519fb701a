"""The models of SpotServe's paper: measured layers (files of the artifact), required rates, and Table 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from spotwise.cli.plan.model_shapes import GPT_20B_SHAPE, LLAMA_30B_SHAPE, OPT_6_7B_SHAPE
from spotwise.core.parallel.layer_tables import LayerTables
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.files.tables import TraceError

#: T4 of one g4dn.12xlarge.
DEVICES_OF_AN_INSTANCE = 4
#: Dollars an hour of one, as the artifact has them.
SPOT_PER_H, ON_DEMAND_PER_H = 1.9046, 3.912


@dataclass(frozen=True, slots=True)
class LatencyClaim:
    """A line of the paper's Table 1: P, M, and l_exe of one request alone in seconds."""

    stages: int
    shards: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PaperModel:
    """A model of the paper.

    Attributes:
        shape: for mapping and migration.
        profile: file of the artifact's measurements, in its folder `profiles`.
        arrivals: file of the artifact's requests, in its folder `arrivals`.
        arrival_rate: requests a second in that file.
        required_rate: requests a second that the artifact's optimizer is configured for; somewhat above `arrival_rate`.
        least_devices: the paper's minimum to fit the model.
        alone: its line of Table 1.
    """

    name: str
    shape: ModelShape
    profile: str
    arrivals: str
    arrival_rate: float
    required_rate: float
    least_devices: int
    alone: LatencyClaim


OPT_6_7B = PaperModel(
    OPT_6_7B_SHAPE.name,
    OPT_6_7B_SHAPE,
    "megatron_6.7B_profile.json",
    "query6144_tpt1.5_cv6.txt",
    1.5,
    2.0,
    4,
    LatencyClaim(1, 4, 5.447),
)
GPT_20B = PaperModel(
    GPT_20B_SHAPE.name,
    GPT_20B_SHAPE,
    "megatron_h6144_profile.json",
    "query_tpt0.35_cv6.txt",
    0.35,
    0.4,
    12,
    LatencyClaim(3, 4, 14.373),
)
LLAMA_30B = PaperModel(
    LLAMA_30B_SHAPE.name,
    LLAMA_30B_SHAPE,
    "megatron_h7168_profile.json",
    "query_tpt0.2_cv6.txt",
    0.2,
    0.2,
    16,
    LatencyClaim(2, 8, 17.540),
)

PAPER_MODELS: Mapping[str, PaperModel] = MappingProxyType(
    {model.name: model for model in (OPT_6_7B, GPT_20B, LLAMA_30B)}
)


def read_layer_tables(
    path: Path, *, layers: int | None = None, padded_layers: int | None = None, whole_prompts: bool = False
) -> LayerTables:
    """Read one of the artifact's profiles.

    Args:
        layers, padded_layers: override the file's.
        whole_prompts: as in `LayerTables`.

    Raises:
        TraceError: it cannot be read, or a field is missing or wrong.
    """
    try:
        document: Any = orjson.loads(path.read_bytes())
        if not isinstance(document, dict):
            raise ValueError("it is no JSON object")
        return LayerTables.from_profile(
            document, layers=layers, padded_layers=padded_layers, whole_prompts=whole_prompts
        )
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TraceError(f"{path} is no profile of layers: {error}") from error


def read_model_tables(folder: Path, model: PaperModel, *, whole_prompts: bool = False) -> LayerTables:
    """Read a model's profile in the artifact's folder (with `profiles/`, `arrivals/` and `availability/`); raises TraceError as
    `read_layer_tables` does, or if it has another number of layers."""
    path = folder / "profiles" / model.profile
    tables = read_layer_tables(path, whole_prompts=whole_prompts)
    if tables.layers != model.shape.layers:
        raise TraceError(f"{path} is of {tables.layers} layers; {model.name} has {model.shape.layers}")
    return tables
