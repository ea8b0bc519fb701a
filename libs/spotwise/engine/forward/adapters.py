"""The adapters of an engine: checked against its model, installed beside its matrices, applied to the rows that name them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Rows
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from spotwise.core.requests.names import AdapterRef
from spotwise.engine.forward.fused_layer import FusedDecoderLayer
from spotwise.engine.forward.iteration import FlatBatch, SequenceRow
from spotwise.engine.forward.rewriting import linear_layers, linear_weight, probe_row
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.adapter_files import AdaptedModule, AdapterFiles, read_adapter
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.model.completeness import one_line
from spotwise.engine.model.errors import AdapterError
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.low_rank import AdaptedLinear, AdaptedTokens, FusedAdapter, LoadedAdapter, LowRank


class Adapters:
    """Adapters by name.

    Args:
        files: each adapter's files, read and checked against the model by `load`.
        matrices: each adapter's matrices, by path.
    """

    def __init__(self, files: Rows[AdapterFiles] = (), matrices: Rows[Mapping[str, LowRank]] = ()) -> None:
        self._files = files
        self._matrices = matrices
        self._by_name: dict[str, LoadedAdapter] = {}
        self._linears: dict[str, AdaptedLinear] = {}
        self._chosen = AdaptedTokens()

    @classmethod
    def load(cls, folders: Rows[tuple[str, Path]], model: Any) -> Self:
        """Read adapters, names and folders, for a model whose linear layers have not been replaced yet.

        Raises:
            AdapterError: one cannot be read, or does not fit the model.
        """
        files = [read_adapter(name, folder) for name, folder in folders]
        linears = {path: child for path, _, _, child in linear_layers(model)} if files else {}
        paths = {path for path, _ in model.named_modules()} if files else set()
        head = model.get_output_embeddings()
        for each in files:
            _check(each, linears, paths, head)
        return cls(files, [_matrices(each, model) for each in files])

    def install(self, model: Any, kernels: Kernels | None, num_layers: int) -> None:
        """Install them in the model once its layers are as they are to be; `kernels` multiply their matrices, or torch."""
        if not self._files:
            return
        fused = {path: module.index for path, module in model.named_modules() if isinstance(module, FusedDecoderLayer)}
        for number, (files, matrices) in enumerate(zip(self._files, self._matrices, strict=True), 1):
            in_fused: dict[int, dict[str, LowRank]] = {}
            others: dict[str, LowRank] = {}
            for path, pair in matrices.items():
                layer = next((layer for layer in fused if path.startswith(f"{layer}.")), None)
                if layer is None:
                    others[path] = pair
                else:
                    in_fused.setdefault(fused[layer], {})[path.removeprefix(f"{layer}.")] = pair
            in_kernels = FusedAdapter(kernels, num_layers, in_fused) if kernels is not None and fused else None
            adapter = LoadedAdapter(AdapterRef(files.name, files.digest), number, in_kernels)
            self._by_name[files.name] = adapter
            for path, pair in others.items():
                self._linear(model, path).add(adapter, pair, kernels)
        self._matrices = ()

    @property
    def refs(self) -> tuple[AdapterRef, ...]:
        """Their names and digests."""
        return tuple(adapter.ref for adapter in self._by_name.values())

    def of(self, ref: AdapterRef | None) -> LoadedAdapter | None:
        """Return the adapter that a sequence names, `None` for none; raises `ValueError` where it is not here, or differs."""
        if ref is None:
            return None
        adapter = self._by_name.get(ref.name)
        if adapter is None:
            raise ValueError(f"this worker does not have the adapter {ref.name!r}; give all workers the same adapters")
        if adapter.ref != ref:
            raise ValueError(
                f"the adapter {ref.name!r} has other weights at this worker than at the gateway; give both the same folder"
            )
        return adapter

    @contextlib.contextmanager
    def applied(self, rows: Rows[SequenceRow], flat: FlatBatch[Any]) -> Iterator[None]:
        """Apply the rows' adapters to the linear layers that are not fused, in the forward inside the block."""
        if not self._linears or all(sequence.adapter is None for _, sequence in rows):
            yield
            return
        tokens: dict[int, list[range]] = {}
        adapters: dict[int, LoadedAdapter] = {}
        for (row, sequence), last in zip(rows, flat.last_token, strict=True):
            if (adapter := sequence.adapter) is not None:
                adapters[adapter.number] = adapter
                tokens.setdefault(adapter.number, []).append(range(last - row.num_tokens + 1, last + 1))
        device = flat.token_ids.device
        self._chosen.by_adapter = [(adapters[number], _index(tokens[number], device)) for number in sorted(tokens)]
        self._chosen.tokens = flat.token_ids.shape[1]
        try:
            yield
        finally:
            self._chosen.tokens, self._chosen.by_adapter = 0, []

    def try_each(self, facts: ModelFacts, cache: PagedKvCache, forward: Callable[[SequenceRow], Any]) -> None:
        """Compute a short prompt with each, in the first blocks of a cache that is still free.

        Raises:
            AdapterError: a layer that an adapter adds to has not computed the prompt's tokens exactly once: the model reads its
                matrix in another way.
        """
        for adapter in self._by_name.values():
            try:
                forward(probe_row(facts, cache, adapter))
            except Exception as error:  # any model's code may raise anything
                raise AdapterError(adapter.ref.name, one_line(error)) from error
            for path, linear in self._linears.items():
                calls, linear.calls = linear.calls, 0
                if calls != 1 and linear.has(adapter):
                    raise AdapterError(adapter.ref.name, f"the model calls {path} {calls} times for a token, not once")

    def _linear(self, model: Any, path: str) -> AdaptedLinear:
        if path not in self._linears:
            parent, _, name = path.rpartition(".")
            self._linears[path] = AdaptedLinear(path, model.get_submodule(path), self._chosen)
            setattr(model.get_submodule(parent), name, self._linears[path])
        return self._linears[path]


def _check(files: AdapterFiles, linears: Mapping[str, Any], paths: set[str], head: Any) -> None:
    for target in files.targets:
        if not any(path == target or path.endswith(f".{target}") for path in paths):
            raise AdapterError(files.name, f"the model has no module {target!r}, which its target_modules name")
    for module in files.modules:
        if module.path not in linears:
            kind = "is no linear layer of the model" if module.path in paths else "is no module of the model"
            raise AdapterError(files.name, f"{module.path} {kind}")
        if linears[module.path] is head:
            raise AdapterError(files.name, f"it adds to {module.path}, the output embedding, which is not supported")
        weight = linear_weight(linears[module.path])
        assert weight is not None  # it is a linear layer
        outputs, inputs = weight.shape
        if (module.up.shape[0], module.down.shape[1]) != (outputs, inputs):
            raise AdapterError(
                files.name,
                f"{module.path} is {outputs} x {inputs} in the model, and lora_B @ lora_A is "
                f"{module.up.shape[0]} x {module.down.shape[1]}; it was made for another model",
            )
    adapted = {module.path for module in files.modules}
    for path in linears:
        named = any(path == target or path.endswith(f".{target}") for target in files.targets)
        if named and path not in adapted and not files.is_partial:
            raise AdapterError(files.name, f"it has no matrices for {path}, which its target_modules name")


def _matrices(files: AdapterFiles, model: Any) -> dict[str, LowRank]:
    return {module.path: _read(files.name, module, model.dtype, model.device) for module in files.modules}


def _read(name: str, module: AdaptedModule, dtype: torch.dtype, device: torch.device) -> LowRank:
    try:
        with safe_open(module.down.file, framework="pt") as file:
            down, up = (file.get_tensor(tensor.name) for tensor in (module.down, module.up))
    except (OSError, SafetensorError) as error:
        raise AdapterError(name, f"{module.down.file} cannot be read: {error}") from error
    scaled = up.float() * module.scale
    for matrix in (down, scaled):
        if not torch.isfinite(matrix.to(dtype)).all():
            raise AdapterError(name, f"{module.path} has numbers that are not finite in {dtype}")
    return LowRank(down.to(device, dtype), scaled.to(device, dtype))


def _index(spans: list[range], device: torch.device) -> slice | torch.Tensor:
    """Return flat indices of spans of tokens; a slice where they follow one another, which needs no copy."""
    spans = sorted(spans, key=lambda span: span.start)
    if all(span.stop == following.start for span, following in itertools.pairwise(spans)):
        return slice(spans[0].start, spans[-1].stop)
    return torch.tensor([token for span in spans for token in span], dtype=torch.int64, device=device)
