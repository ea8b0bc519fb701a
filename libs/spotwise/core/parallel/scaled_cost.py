"""Execution cost of a configuration, scaled from one worker's measured iterations.

Law: a worker's seconds (whole model on one device, `IterationCost`) are divided over stages in proportion to the weights that
each multiplies with; the embedding's lookup takes none.
Over M shards they are divided evenly, but for `unsharded_s`; each layer adds two ring all-reduces of its activations
(2 (M - 1) turns of 1 / M each).
Prompts pass the stages as one batch or one by one, whichever ends earlier; a hop separates two stages. Steps go as one batch.
With phases split, KV is sent layer by layer during the computation (Splitwise, section 4.2): only the last layer is awaited.
Sources: Megatron-LM (Shoeybi et al., 2019), section 3; Patarasuk and Yuan (2009). Link contention is not modelled; a measured
profile (`LayerTables`) is better where there is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spotwise.core.cost_model import BatchShape, IterationCost, LinkCost, pairs
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_shape import ModelShape


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
        at_once_s, _ = self._pass_s(config, _prompts(batch, input_tokens), batch * input_tokens)
        one_s, slowest_s = self._pass_s(config, _prompts(1, input_tokens), input_tokens)
        return min(at_once_s, one_s + (batch - 1) * slowest_s)

    def step_s(self, config: ParallelConfig) -> float:
        """Return the seconds of one token of each sequence of a full batch."""
        batch = config.max_batch
        return self._pass_s(config, BatchShape(decodes=batch, decode_context=batch * self.context_tokens), batch)[0]

    def execution_s(self, config: ParallelConfig, input_tokens: int, output_tokens: int) -> float:
        """Return l_exe, the seconds of a full batch from its start to its last token."""
        phases_s = self.prompt_s(config, input_tokens) + output_tokens * self.step_s(config)
        if not config.is_split:
            return phases_s
        kv_layer_bytes = config.max_batch * input_tokens * self.model.kv_layer_token_bytes
        return phases_s + self.stage_link.transfer_s(-(-kv_layer_bytes // config.tensor))

    def _pass_s(self, config: ParallelConfig, shape: BatchShape, tokens: int) -> tuple[float, float]:
        """Return the seconds of an iteration through all stages, and those in its slowest one."""
        stages, shards, model = config.pipeline, config.tensor, self.model
        most_layers = -(-model.layers // stages)
        last_layers = model.layers - (stages - 1) * most_layers
        if last_layers < 1:
            return math.inf, math.inf
        whole_s = self.worker.iteration_s(shape)
        unsharded_s = min(self.unsharded_s, whole_s)
        compute_s = (whole_s - unsharded_s) / shards + unsharded_s
        activation_bytes = tokens * model.hidden_size * model.value_bytes
        sums_s = 2 * self._all_reduce_s(activation_bytes, shards)
        hop_s = self.stage_link.transfer_s(-(-activation_bytes // shards)) if stages > 1 else 0.0
        multiplied_bytes = model.layers * model.layer_bytes + model.head_bytes
        layer_s = compute_s * model.layer_bytes / multiplied_bytes + sums_s
        head_s = compute_s * model.head_bytes / multiplied_bytes
        slowest_s = max(most_layers * layer_s, last_layers * layer_s + head_s)
        return model.layers * layer_s + head_s + (stages - 1) * hop_s, slowest_s

    def _all_reduce_s(self, num_bytes: int, shards: int) -> float:
        if shards == 1:
            return 0.0
        return 2 * (shards - 1) * self.shard_link.transfer_s(-(-num_bytes // shards))


def _prompts(sequences: int, input_tokens: int) -> BatchShape:
    return BatchShape(sequences * input_tokens, sequences * pairs(0, input_tokens))
