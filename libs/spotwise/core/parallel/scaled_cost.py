"""Execution cost of a configuration, scaled from one worker's measured iterations.

Law: a worker's seconds (whole model on one device, `IterationCost`) are divided over stages in proportion to the weights that
each multiplies with; the embedding's lookup takes none. Over M shards they are divided evenly, but for `unsharded_s`.
Prompts pass the stages as one batch or one by one, whichever ends earlier; a hop separates two stages. Steps go as one batch.
With phases split, KV is sent layer by layer during the computation (Splitwise, section 4.2): only the last layer is awaited.

The exchange between shards comes on top. As in the engine: each layer gathers the matrices that `model.partition` names and the
head its logits (M - 1 turns of 1 / M each), and a hop carries whole activations. As in the papers: each layer adds two ring
all-reduces (2 (M - 1) turns of 1 / M each), and a hop carries a share.

Sources: Megatron-LM (Shoeybi et al., 2019), section 3; Patarasuk and Yuan (2009). Link contention is not modelled; a measured
profile (`LayerTables`) is better where there is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spotwise.core.costs.cost_model import BatchShape, IterationCost, LinkCost, pairs
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_shape import ModelShape

_LOGIT_BYTES = 4  # float32, whatever the weights are


@dataclass(frozen=True, slots=True)
class ScaledCost:
    """One worker's measurements on more devices; an `ExecutionCost`. Infinite where a stage would have no layer.

    Attributes:
        worker: seconds of an iteration of the whole model on one device.
        shard_link, stage_link: between two shards of a stage; between two stages, and between two pipelines.
        context_tokens: tokens that a step's sequence attends to, on average: input and half of the output.
        unsharded_s: seconds of a whole model's iteration that more shards do not shorten (kernel launches).
    """

    worker: IterationCost
    model: ModelShape
    shard_link: LinkCost
    stage_link: LinkCost
    context_tokens: int
    unsharded_s: float = 0.0

    def __post_init__(self) -> None:
        if self.context_tokens < 1 or self.unsharded_s < 0:
            raise ValueError(
                "a sequence attends to at least 1 token, and no part of an iteration may take less than 0 s"
            )

    def prompt_s(self, config: ParallelConfig, input_tokens: int) -> float:
        """Return the seconds of a full batch's prompts."""
        batch = config.max_batch
        at_once_s, _ = self._pass_s(config, _prompts(batch, input_tokens), batch * input_tokens, batch)
        one_s, slowest_s = self._pass_s(config, _prompts(1, input_tokens), input_tokens, 1)
        return min(at_once_s, one_s + (batch - 1) * slowest_s)

    def step_s(self, config: ParallelConfig) -> float:
        """Return the seconds of one token of each sequence of a full batch."""
        batch = config.max_batch
        shape = BatchShape(decodes=batch, decode_context=batch * self.context_tokens)
        return self._pass_s(config, shape, batch, batch)[0]

    def execution_s(self, config: ParallelConfig, input_tokens: int, output_tokens: int) -> float:
        """Return l_exe, the seconds of a full batch from its start to its last token."""
        phases_s = self.prompt_s(config, input_tokens) + output_tokens * self.step_s(config)
        if not config.is_split:
            return phases_s
        kv_layer_bytes = config.max_batch * input_tokens * self.model.kv_layer_token_bytes
        return phases_s + self.stage_link.transfer_s(-(-kv_layer_bytes // config.tensor))

    def iteration_s(self, config: ParallelConfig, shape: BatchShape) -> float:
        """Return the seconds of one iteration, whatever is in it."""
        sequences = shape.decodes + (1 if shape.prompt_tokens else 0)
        return self._pass_s(config, shape, shape.prompt_tokens + shape.decodes, sequences)[0]

    def _pass_s(self, config: ParallelConfig, shape: BatchShape, tokens: int, sequences: int) -> tuple[float, float]:
        """Return the seconds of an iteration through all stages, and those in its slowest one."""
        stages, shards, model = config.pipeline, config.tensor, self.model
        if model.why_not(stages, shards) is not None or model.last_stage(stages) < stages - 1:
            return math.inf, math.inf
        most_layers, last_layers = (len(model.stage_layers(stage, stages)) for stage in (0, stages - 1))
        whole_s = self.worker.iteration_s(shape)
        unsharded_s = min(self.unsharded_s, whole_s)
        compute_s = (whole_s - unsharded_s) / shards + unsharded_s
        activation_bytes = tokens * model.hidden_size * model.value_bytes
        hop_bytes = activation_bytes if model.partition is not None else -(-activation_bytes // shards)
        hop_s = self.stage_link.transfer_s(hop_bytes) if stages > 1 else 0.0
        multiplied_bytes = model.layers * model.layer_bytes + model.head_bytes
        layer_s = compute_s * model.layer_bytes / multiplied_bytes + self._layer_exchange_s(tokens, shards)
        head_s = compute_s * model.head_bytes / multiplied_bytes + self._head_exchange_s(sequences, shards)
        slowest_s = max(most_layers * layer_s, last_layers * layer_s + head_s)
        return model.layers * layer_s + head_s + (stages - 1) * hop_s, slowest_s

    def _layer_exchange_s(self, tokens: int, shards: int) -> float:
        partition, value_bytes = self.model.partition, self.model.value_bytes
        if partition is None:
            return 4 * self._turns_s(tokens * self.model.hidden_size * value_bytes, shards)
        return sum(self._turns_s(tokens * columns * value_bytes, shards) for columns in partition.gathered_columns)

    def _head_exchange_s(self, sequences: int, shards: int) -> float:
        partition = self.model.partition
        return 0.0 if partition is None else self._turns_s(sequences * partition.vocab_size * _LOGIT_BYTES, shards)

    def _turns_s(self, num_bytes: int, shards: int) -> float:
        """Return the seconds in which every shard receives what the others have of so many bytes."""
        return (shards - 1) * self.shard_link.transfer_s(-(-num_bytes // shards)) if shards > 1 else 0.0


@dataclass(frozen=True, slots=True)
class GroupCost:
    """One worker's measurements on a group of a shape, at `speed` times the speed; an `IterationCost`."""

    scaled: ScaledCost
    config: ParallelConfig
    speed: float = 1.0

    def iteration_s(self, shape: BatchShape) -> float:
        """Return the seconds of one iteration."""
        return self.scaled.iteration_s(self.config, shape) / self.speed


def _prompts(sequences: int, input_tokens: int) -> BatchShape:
    return BatchShape(sequences * input_tokens, sequences * pairs(0, input_tokens))
