"""Small worlds of machines that come and go."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.memory import LeastDevices
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.files.spot_traces import SpotEvent, SpotEventKind, SpotTrace
from spotwise.simulator.spotserve.arrivals import SpotArrivals
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.spotserve.systems import SPOTSERVE, SpotModel, SpotSurroundings, SpotSystem

#: Prompt and answer of every request here.
INPUT_TOKENS, OUTPUT_TOKENS = 10, 60
#: The messages of a request between the mesh's roles take less.
MESSAGES_S = 0.005


@dataclass(frozen=True, slots=True)
class SimpleCost:
    """A prompt token costs a millisecond of one device, a step a tenth of a second of one; wider batches little more."""

    def prompt_s(self, config: ParallelConfig, input_tokens: int) -> float:
        return 0.1 * input_tokens * (3 + config.max_batch) / 4 / config.tensor

    def step_s(self, config: ParallelConfig) -> float:
        return 0.1 * (9 + config.max_batch) / 10 / config.tensor

    def execution_s(self, config: ParallelConfig, input_tokens: int, output_tokens: int) -> float:
        return self.prompt_s(config, input_tokens) + output_tokens * self.step_s(config)


#: 4 layers of 1 MB, 1 kB of KV a token and layer.
SHAPE = ModelShape("tiny", 4, 64, 1_000_000, 100_000, 100_000, 1000)
MODEL = SpotModel(SHAPE, SimpleCost(), LeastDevices(4), max_batch=4, devices=2)
#: Weights from storage take seconds, KV a fraction of one.
SURROUNDINGS = SpotSurroundings(
    grace_s=5.0,
    announced_s=5.0,
    restart_s=3.0,
    switch_s=0.2,
    network_bytes_per_s=5e6,
    local_bytes_per_s=5e7,
    storage_bytes_per_s=1e6,
    buffer_bytes=1 << 30,
)


def trace(*events: tuple[float, str, str], end_s: float = 100.0) -> SpotTrace:
    """A trace of `(time, "add" or "remove", names with blanks between)`."""
    written = [SpotEvent(at_s, SpotEventKind(kind), tuple(names.split())) for at_s, kind, names in events]
    return SpotTrace("tiny", (*written, SpotEvent(end_s, SpotEventKind.DONE)))


def run(
    trace: SpotTrace,
    times_s: tuple[float, ...],
    system: SpotSystem = SPOTSERVE,
    surroundings: SpotSurroundings = SURROUNDINGS,
    required_rate: float | None = 0.5,
    model: SpotModel = MODEL,
) -> SpotRun:
    arrivals = SpotArrivals("tiny", times_s, INPUT_TOKENS, OUTPUT_TOKENS)
    return SpotRun(trace, arrivals, model, system, surroundings, required_rate)


def lone_s(config: ParallelConfig) -> float:
    return SimpleCost().execution_s(replace(config, max_batch=1), INPUT_TOKENS, OUTPUT_TOKENS)
