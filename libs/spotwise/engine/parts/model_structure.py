"""Structure of a model, found once, before any of its matrices is loaded, for all parts that the process computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
import xxhash

from spotwise.engine.forward.fused_layer import LayerWeights, find_parts
from spotwise.engine.forward.fusion_trial import TRIAL_BLOCKS, FusionTrial, LayerCalls
from spotwise.engine.forward.native_attention import can_attend
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.native.build import variant_for_this_processor
from spotwise.engine.native.library import LANES, PANEL, Kernels, load_kernels
from spotwise.engine.parts.matrix_form import MatrixForm
from spotwise.engine.parts.model_matrices import ModelMatrices
from spotwise.engine.parts.sharding import find_layers
from spotwise.engine.parts.sketch import Sketch, sketch_model


@dataclass(frozen=True, slots=True)
class ModelStructure:
    """A model's sketch, and what follows from it.

    Attributes:
        sketch: the model without its large weights.
        matrices: matrices of the model.
        forms: form of each of these, by name.
        kernels: kernels that compute the model; `None`: torch.
        calls: how the model calls its layers.
        trial_cache: a small KV cache of the whole model.
        layout: a hash, 64 bits, of all that must be equal where bytes of panels go from one process to another: the model,
            its dtype, and the kernels that pack and read them.
    """

    sketch: Sketch
    matrices: ModelMatrices
    forms: Mapping[str, MatrixForm]
    kernels: Kernels | None
    calls: LayerCalls
    trial_cache: PagedKvCache
    layout: int

    @classmethod
    @torch.inference_mode()
    def of(cls, config: EngineConfig) -> Self:
        """Sketch the model of a folder; raises `ModelError` and `UnsupportedModelError` as `sketch_model`, or where there is no
        list of layers.

        transformers changes settings of the process meanwhile (the default dtype, its mask functions): no other thread may
        make or run a model.
        """
        sketch = sketch_model(config)
        facts = sketch.facts
        cache = PagedKvCache(facts.geometry, TRIAL_BLOCKS, config.block_size, facts.kv_dtype, torch.device("cpu"))
        is_native = config.native and can_attend(cache) and sketch.model.dtype is cache.dtype
        kernels = load_kernels() if is_native else None
        matrices = ModelMatrices.of(sketch, packs=kernels is not None)
        calls = LayerCalls.of(sketch.model, find_layers(sketch.model, facts)[1], facts)
        forms = {form.name: form for form in matrices.all()}
        return cls(sketch, matrices, forms, kernels, calls, cache, _layout_of(sketch, forms, kernels))

    def skeleton(self) -> Any:
        """Return a model of its own for a part: modules without matrices."""
        return self.sketch.copied(self.sketch.model)

    def tried_layer(self, index: int) -> LayerWeights | None:
        """Read a whole layer; return its packed weights where one native call computes it, `None` where its own modules do.

        Raises:
            ModelError: it cannot be read.
        """
        if self.kernels is None or self.matrices.common[index] is None:
            return None
        path = f"{self.matrices.layers_path}.{index}"
        layer = self.sketch.copied(self.sketch.model.get_submodule(path))
        self.sketch.tensors.fill(path, layer)
        parts = find_parts(layer)
        assert parts is not None  # the layer has the common form, as it has in the sketch
        return FusionTrial(self.kernels, self.sketch.facts, self.trial_cache, self.calls.kwargs).packed(layer, parts)


def _layout_of(sketch: Sketch, forms: Mapping[str, MatrixForm], kernels: Kernels | None) -> int:
    variant = "torch" if kernels is None else variant_for_this_processor().name
    facts = f"{sketch.facts.digest} {sketch.model.dtype} {variant} {PANEL} {LANES}"
    matrices = [(form.name, form.inputs, form.panels, form.is_packed) for form in forms.values()]
    return xxhash.xxh3_64_intdigest(f"{facts} {matrices}".encode())
