"""The weights of one model that a process keeps through groups, by panel.

A process may compute several parts of a model at a time, and other parts later. Its matrices lie in the address space of the
whole model, of which only the panels take memory that some part needs; parts compute from views, so that what two of them have
in common is there once, and a new part loads what the others lack.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
import xxhash

from spotwise.core.parallel.model_partition import ModelShare
from spotwise.core.weights.inventory import PanelRange, Panels
from spotwise.engine.forward.fused_layer import LayerWeights, find_parts
from spotwise.engine.forward.native_attention import can_attend
from spotwise.engine.forward.rewriting import TRIAL_BLOCKS, FusionTrial, LayerCalls
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.loading import EngineConfig, resolve
from spotwise.engine.native.build import sources_fingerprint
from spotwise.engine.native.library import LANES, PANEL, Kernels, load_kernels
from spotwise.engine.native.packed import PackedWeight
from spotwise.engine.parts.matrix_form import FolderPanels, MatrixForm
from spotwise.engine.parts.model_matrices import ModelMatrices
from spotwise.engine.parts.sharding import find_layers
from spotwise.engine.parts.sketch import Sketch, sketch_model
from spotwise.engine.parts.weight_matrix import WeightMatrix


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
        keeps: weights that are stored in blocks stay so.
        layout: a hash, 64 bits, of all that must be equal where bytes of panels go from one process to another: the model,
            its dtype, and the kernels that pack and read them.
    """

    sketch: Sketch
    matrices: ModelMatrices
    forms: Mapping[str, MatrixForm]
    kernels: Kernels | None
    calls: LayerCalls
    trial_cache: PagedKvCache
    keeps: bool
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
        keeps = config.weights == "keep"
        matrices = ModelMatrices.of(sketch, packs=kernels is not None, keeps=keeps)
        calls = LayerCalls.of(sketch.model, find_layers(sketch.model, facts)[1], facts)
        forms = {form.name: form for form in matrices.all()}
        return cls(sketch, matrices, forms, kernels, calls, cache, keeps, _layout_of(sketch, forms, kernels))

    def skeleton(self) -> Any:
        """Return a model of its own for a part: modules without matrices."""
        return self.sketch.copied(self.sketch.model)

    def kept_bytes(self) -> Mapping[torch.nn.Parameter, int]:
        """Return the bytes of each parameter of the sketch that stays quantised."""
        model, found = self.sketch.model, {}
        for form in self.forms.values():
            for rows, kind in zip(form.parameters, form.kinds, strict=False):
                found[model.get_parameter(rows.name)] = kind.panel_bytes(form.inputs) * rows.count // PANEL
        return found

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
        source = self.sketch.tensors if self.keeps else None
        trial = FusionTrial(self.kernels, self.sketch.facts, self.trial_cache, self.calls.kwargs)
        return trial.packed(layer, parts, path, source)


def _layout_of(sketch: Sketch, forms: Mapping[str, MatrixForm], kernels: Kernels | None) -> int:
    form = "torch" if kernels is None else f"panels {sources_fingerprint()}"  # the same for all kinds of processor
    facts = f"{sketch.facts.digest} {sketch.model.dtype} {form} {PANEL} {LANES}"
    matrices = [(form.name, form.inputs, form.panels, form.is_packed, form.kinds) for form in forms.values()]
    return xxhash.xxh3_64_intdigest(f"{facts} {matrices}".encode())


class WeightStore:
    """Keeps panels of a model's matrices; there is one of a process.

    The first part makes the model's sketch and finds its facts (`ModelStructure`), which must not happen beside other models. A
    further part costs a copy of the modules without their parameters (milliseconds), and the panels that are missing: those of
    tried layers are read, and packed, alone; an untried layer is read, tried and packed whole, beside what is kept.

    Threads compute from panels while others add some; one adds or drops at a time.

    Args:
        config: configuration of the whole model. Threads that are not set are counted now: the first part takes torch's.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        #: Threads that compute a part.
        self.threads = config.threads or torch.get_num_threads()
        self._one_at_a_time = threading.RLock()
        self._structure: ModelStructure | None = None
        self._matrices: dict[str, WeightMatrix] = {}
        self._is_fused: dict[int, bool] = {}

    @property
    def config(self) -> EngineConfig:
        """How it loads."""
        return self._config

    def adopt(self, dtype: str, block_size: int) -> None:
        """Load in a group's dtype, for KV blocks of its size. After a change all panels are loaded anew; parts keep what they
        compute with, and must not compute while the next one is loaded. Raises `ValueError` where there is no such device.
        """
        with self._one_at_a_time:
            _, own = resolve(self._config)
            if (dtype, block_size) != (str(own).removeprefix("torch."), self._config.block_size):
                self._config = replace(self._config, dtype=dtype, block_size=block_size)
                self._structure, self._matrices, self._is_fused = None, {}, {}

    @property
    def structure(self) -> ModelStructure:
        """The model's structure, found on first use; raises `ModelError`, `UnsupportedModelError`."""
        if (found := self._structure) is not None:  # an event loop that asks does not wait for a part that is loaded
            return found
        with self._one_at_a_time:
            if self._structure is None:
                if self._config.threads is not None:
                    torch.set_num_threads(self._config.threads)
                self._structure = ModelStructure.of(self._config)
            return self._structure

    @property
    def is_known(self) -> bool:
        """Whether the structure has been found."""
        return self._structure is not None

    @property
    def fused_layers(self) -> Mapping[int, bool]:
        """By tried layer, whether one native call computes it."""
        return dict(self._is_fused)

    def learn(self, fused_layers: Mapping[int, bool]) -> None:
        """Take another process's word for layers that are not tried here; it has the same model, and kernels as this one."""
        with self._one_at_a_time:
            common = self.structure.matrices.common
            possible = {index: is_fused and common[index] is not None for index, is_fused in fused_layers.items()}
            self._is_fused = {**possible, **self._is_fused}

    @property
    def held(self) -> Panels:
        """The panels that are present."""
        return {name: held for name, matrix in list(self._matrices.items()) if (held := matrix.held)}

    @property
    def held_bytes(self) -> int:
        """Bytes of these."""
        return sum(matrix.held_bytes for matrix in list(self._matrices.values()))

    def needed(self, share: ModelShare) -> Panels:
        """Return the panels of a share; a layer that was not tried is taken for a fused one if it has the form."""
        return {form.name: form.panels_of(share) for form in self._forms_of(share)}

    def missing(self, share: ModelShare) -> list[PanelRange]:
        """Return which of these are not present, in the order in which the model computes with them."""
        return [
            PanelRange(form.name, panels, form.panel_bytes)
            for form in self._forms_of(share)
            for panels in self._lacks(form, form.panels_of(share))
        ]

    def layer_numbers(self, share: ModelShare) -> dict[str, int]:
        """Return the layer of each matrix of a share, by name; the embedding's is -1, the head's one more than there are."""
        matrices = self.structure.matrices
        numbers = dict.fromkeys((form.name for form in self._forms_of(share)), -1)
        for index in share.layers:
            forms = matrices.layer(index, is_fused=self._is_fused.get(index, True))
            numbers |= dict.fromkeys((form.name for form in forms), index)
        if share.is_last:
            numbers |= dict.fromkeys((form.name for form in matrices.head), len(matrices.common))
        return numbers

    @property
    def layout(self) -> int:
        """See `ModelStructure`."""
        return self.structure.layout

    def export_panels(self, name: str, panels: range) -> memoryview:
        """Return the bytes of panels, not to be written; raises `ValueError` where one is not present."""
        matrix = self._matrices.get(name)
        if matrix is None or matrix.lacks([panels]):
            raise ValueError(f"panels {panels} of {name} are not here")
        return matrix.bytes(panels).toreadonly()

    def times_dropped(self, name: str, panels: range) -> int:
        """Return how often one of some panels was given back (`WeightMatrix.times_dropped`)."""
        matrix = self._matrices.get(name)
        return 0 if matrix is None else matrix.times_dropped(panels)

    def expect_panels(self, missing: PanelRange) -> memoryview:
        """Return the memory where missing panels are due from another process; `panels_arrived` or `give_up_panels` follows.
        Waits for a part that is being loaded; that of these panels must not be.
        """
        with self._one_at_a_time:
            return self._matrix(self.structure.forms[missing.matrix]).expect(missing.panels)

    def panels_arrived(self, missing: PanelRange) -> None:
        """Keep panels that were due, which are what another process exported."""
        with self._one_at_a_time:
            self._matrices[missing.matrix].arrived(missing.panels)

    def give_up_panels(self, missing: PanelRange) -> None:
        """Expect panels no more."""
        with self._one_at_a_time:
            self._matrices[missing.matrix].give_up(missing.panels)

    @torch.inference_mode()
    def load(self, share: ModelShare) -> None:
        """Load what is missing for a share from the model's folder, layer by layer.

        Raises:
            ModelError: it cannot be read.
        """
        with self._one_at_a_time:
            structure = self.structure
            write = FolderPanels(structure.sketch.tensors, structure.kernels).write
            for index in share.layers:
                if index not in self._is_fused:
                    self._try_layer(index, share)
                for form in structure.matrices.layer(index, is_fused=self._is_fused[index]):
                    self._matrix(form).fill(form.panels_of(share), write)
            for form in structure.matrices.ends(share):
                self._matrix(form).fill(form.panels_of(share), write)

    def keep_only(self, shares: Iterable[ModelShare]) -> None:
        """Give back the memory of the panels that none of these shares needs: those of all parts, also of such as are about to
        be loaded. Waits for a part that is being loaded.
        """
        with self._one_at_a_time:
            kept: dict[str, list[range]] = {}
            for share in shares:
                for name, panels in self.needed(share).items():
                    kept.setdefault(name, []).extend(panels)
            for name, matrix in self._matrices.items():
                matrix.drop_all_but(kept.get(name, ()))

    def packed(self, form: MatrixForm, share: ModelShare, *, is_due: bool = False) -> PackedWeight:
        """Return a share's columns of a packed matrix, without a copy; they are loaded, or due from other processes."""
        return self._matrix(form).packed(form.columns(share), is_due=is_due)

    def plain(self, form: MatrixForm, share: ModelShare, *, is_due: bool = False) -> torch.Tensor:
        """Return a share's columns of a matrix that is not packed, `[columns, inputs]`, likewise."""
        return self._matrix(form).plain(form.columns(share), is_due=is_due)

    def has(self, forms: Iterable[MatrixForm], share: ModelShare) -> bool:
        """Whether a share's panels of some matrices are all present."""
        return not any(self._lacks(form, form.panels_of(share)) for form in forms)

    def _try_layer(self, index: int, share: ModelShare) -> None:
        """Find out whether a layer is fused; keep what a share needs of one that is, which has been packed for that."""
        weights = self.structure.tried_layer(index)
        self._is_fused[index] = weights is not None
        if weights is not None:
            forms = self.structure.matrices.layer(index, is_fused=True)
            whole = (weights.qkv, weights.output, weights.gate_up, weights.down)
            for form, weight in zip(forms, whole, strict=True):
                self._matrix(form).fill(form.panels_of(share), partial(_copy_panels, weight))

    def _forms_of(self, share: ModelShare) -> list[MatrixForm]:
        """Return the matrices of a share in the order in which the model computes with them."""
        matrices = self.structure.matrices
        layers = [matrices.layer(index, is_fused=self._is_fused.get(index, True)) for index in share.layers]
        first = [*(matrices.embedding if share.is_first else ()), *matrices.other]
        return [*first, *(form for layer in layers for form in layer), *(matrices.head if share.is_last else ())]

    def _lacks(self, form: MatrixForm, panels: tuple[range, ...]) -> tuple[range, ...]:
        matrix = self._matrices.get(form.name)
        return panels if matrix is None else matrix.lacks(panels)

    def _matrix(self, form: MatrixForm) -> WeightMatrix:
        if form.name not in self._matrices:
            # Torch chooses among kernels, which round differently, by the place of a matrix that is not packed.
            offset = 0 if form.is_packed else self.structure.sketch.tensors.alignment(form.parameters[0].name)
            self._matrices[form.name] = WeightMatrix(form, offset)
        return self._matrices[form.name]


def _copy_panels(weight: PackedWeight, form: MatrixForm, panels: range, into: torch.Tensor) -> None:
    """Write panels of a whole packed weight."""
    into.copy_(weight.data.view(form.panels, -1)[panels.start : panels.stop])
