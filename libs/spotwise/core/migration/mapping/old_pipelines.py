"""The state of each old pipeline.

Law: a pipeline is whole while every position of it with layers has a device; leaving devices count, as they can still send KV.
It is untouched while every position has a device that stays.
"""

from __future__ import annotations

from collections import defaultdict

from spotwise.core.migration.deployment import Deployment
from spotwise.core.parallel.config import Position
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.shares import share_of


class OldPipelines:
    """The pipelines of a deployment, by number."""

    def __init__(self, before: Deployment, model: ModelShape) -> None:
        self._before = before
        self._model = model
        leaving = {instance.id for instance in before.instances if instance.is_leaving}
        self._held: dict[int, list[Position]] = defaultdict(list)
        self._staying: dict[int, list[Position]] = defaultdict(list)
        for device, position in before.positions.items():
            self._held[position.pipeline].append(position)
            if device.instance not in leaving:
                self._staying[position.pipeline].append(position)

    def is_whole(self, number: int) -> bool:
        """Return whether all of the KV of a pipeline is on some device."""
        config = self._before.config
        with_layers = sum(bool(self._layers(stage)) for stage in range(config.pipeline)) * config.tensor
        return sum(bool(self._layers(position.stage)) for position in self._held[number]) == with_layers

    def is_untouched(self, number: int) -> bool:
        """Return whether a pipeline has all its devices, and all of them stay."""
        return len(self._staying[number]) == self._before.config.pipeline_devices

    def untouched(self) -> list[int]:
        """Return the untouched pipelines."""
        return [number for number in range(self._before.config.pipelines) if self.is_untouched(number)]

    def requests(self, number: int) -> int:
        """Return how many requests a pipeline has."""
        return len(self._before.running.get(number, ()))

    def staying_kv_token_bytes(self, number: int) -> int:
        """Return the bytes of a token's KV that are on devices that stay."""
        tensor, kv = self._before.config.tensor, self._model.kv_layer_token
        return sum(
            len(self._layers(position.stage)) * kv.of(share_of(position.shard, tensor))
            for position in self._staying[number]
        )

    def is_for_prompts(self, number: int) -> bool:
        """Return whether a pipeline computes prompts only."""
        return number < self._before.config.prompt_data

    def ordinal(self, number: int) -> int:
        """Return a pipeline's number among its kind."""
        return number if self.is_for_prompts(number) else number - self._before.config.prompt_data

    def _layers(self, stage: int) -> range:
        return self._model.stage_layers(stage, self._before.config.pipeline)
