"""Execution cost from measured layers, by the formula of SpotServe's artifact.

Law: from the seconds of one layer by M and sequences, for a prompt of 512 tokens and for one token, with L = ceil(layers / P)
and B sequences in M1 micro-batches for prompts (B of them) and M2 for steps (1):

    t(S_in) = prompt_layer[M][B / M1] x S_in / 512 x L x (P + M1 - 1) / M1 + (P - 1) x prompt_hop / M1 + 2 x embedding[log2 B]
    t(1)    = step_layer[M][B / M2]                x L x (P + M2 - 1)      + (P - 1) x step_hop / M2

both times `factor`. With B of 1 this gives the paper's Table 1. (P + M1 - 1) / M1 is a micro-batch's time, not the batch's;
`whole_prompts` does not divide by M1.
A batch between two measured ones costs as the larger; beyond the largest, or with an unmeasured M, seconds are infinite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spotwise.core.parallel.config import ParallelConfig

#: Tokens of the prompts that the artifact measured.
MEASURED_PROMPT_TOKENS = 512

_MS = 1000.0

SecondsByShards = Mapping[int, Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class LayerTables:
    """Measured layers of one model on one type of device; an `ExecutionCost`.

    Attributes:
        padded_layers: a multiple of P in the artifact; at least `layers`.
        prompt_layer_s: seconds of a layer for prompts of 512 tokens, by M and by sequences.
        step_layer_s: seconds of a layer for one token of each, by M and by sequences.
        embedding_s: seconds before the first and again after the last layer, for 1, 2, 4, ... sequences.
        prompt_hop_s, step_hop_s: from a stage to the next, for prompts and for one token.
        max_tensor: the largest M to choose; the artifact measured some that it never chooses.
        prompt_micro_batches, step_micro_batches: M1 and M2, where there are as many sequences; `None` for one per sequence.
        whole_prompts: charges prompts for the time that their pipeline is busy.
    """

    layers: int
    padded_layers: int
    prompt_layer_s: SecondsByShards
    step_layer_s: SecondsByShards
    embedding_s: tuple[float, ...]
    prompt_hop_s: float
    step_hop_s: float
    factor: float = 1.0
    max_tensor: int = 8
    prompt_micro_batches: int | None = None
    step_micro_batches: int = 1
    whole_prompts: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.layers <= self.padded_layers:
            raise ValueError(f"there is at least 1 layer, and padding adds some: {self.layers} of {self.padded_layers}")
        if not self.prompt_layer_s or self.prompt_layer_s.keys() != self.step_layer_s.keys() or not self.embedding_s:
            raise ValueError("prompts and steps need measurements for the same tensor degrees, and embeddings some")
        if min(self.prompt_hop_s, self.step_hop_s, *self.embedding_s) < 0 or self.factor <= 0:
            raise ValueError("no part of an iteration may take less than 0 s")
        if min(self.step_micro_batches, self.prompt_micro_batches or 1, self.max_tensor) < 1:
            raise ValueError("there is at least 1 micro-batch and 1 shard")

    @classmethod
    def from_profile(
        cls,
        document: Mapping[str, object],
        *,
        layers: int | None = None,
        padded_layers: int | None = None,
        whole_prompts: bool = False,
    ) -> LayerTables:
        """Read a parsed profile of SpotServe's artifact, in which times are milliseconds.

        Args:
            document: `layer_num`, `padded_layer_num` and `max_tp` (optional), `final_fix_factor`, `pp_init_comm`,
                `pp_incr_comm`, `embed` (a list), and for each M `tp-M: {bsz-B: {init, incr}}`.
            layers, padded_layers: override the document's; without padding as many as layers.

        Raises:
            ValueError: a field, which it names, is missing or malformed.
        """
        counted = _count(document, "layer_num") if layers is None else layers
        if padded_layers is None:
            padded_layers = _count(document, "padded_layer_num") if "padded_layer_num" in document else counted
        prompts: dict[int, dict[int, float]] = {}
        steps: dict[int, dict[int, float]] = {}
        for tensor, by_batch in _numbered(document, "tp-", "the profile"):
            where = f"tp-{tensor}"
            rows = _numbered(_mapping(by_batch, where), "bsz-", where)
            named = [(batch, f"{where}.bsz-{batch}", _mapping(row, f"{where}.bsz-{batch}")) for batch, row in rows]
            prompts[tensor] = {batch: _number(row, "init", f"{at}.") / _MS for batch, at, row in named}
            steps[tensor] = {batch: _number(row, "incr", f"{at}.") / _MS for batch, at, row in named}
        embed = document.get("embed")
        if not isinstance(embed, list) or not embed:
            raise ValueError("`embed` must be a list of milliseconds for 1, 2, 4, ... sequences")
        return cls(
            layers=counted,
            padded_layers=padded_layers,
            prompt_layer_s=prompts,
            step_layer_s=steps,
            embedding_s=tuple(_checked(value, f"embed[{index}]") / _MS for index, value in enumerate(embed)),
            prompt_hop_s=_number(document, "pp_init_comm") / _MS,
            step_hop_s=_number(document, "pp_incr_comm") / _MS,
            factor=_number(document, "final_fix_factor"),
            max_tensor=_count(document, "max_tp") if "max_tp" in document else max(prompts),
            whole_prompts=whole_prompts,
        )

    def prompt_s(self, config: ParallelConfig, input_tokens: int) -> float:
        """Return the seconds of a full batch's prompts, embeddings included."""
        stages, batch = config.pipeline, config.max_batch
        parts = batch if self.prompt_micro_batches is None else min(self.prompt_micro_batches, batch)
        layer_s = self._layer_s(self.prompt_layer_s, config, parts) * input_tokens / MEASURED_PROMPT_TOKENS
        busy_s = layer_s * -(-self.layers // stages) * (stages + parts - 1) + (stages - 1) * self.prompt_hop_s
        doublings = (batch - 1).bit_length()
        embedding_s = self.embedding_s[doublings] if doublings < len(self.embedding_s) else math.inf
        return (busy_s / (1 if self.whole_prompts else parts) + 2 * embedding_s) * self.factor

    def step_s(self, config: ParallelConfig) -> float:
        """Return the seconds of one token of each sequence of a full batch."""
        stages = config.pipeline
        parts = min(self.step_micro_batches, config.max_batch)
        layer_s = self._layer_s(self.step_layer_s, config, parts)
        busy_s = layer_s * -(-self.layers // stages) * (stages + parts - 1)
        return (busy_s + (stages - 1) * self.step_hop_s / parts) * self.factor

    def execution_s(self, config: ParallelConfig, input_tokens: int, output_tokens: int) -> float:
        """Return l_exe, the seconds of a full batch from its start to its last token."""
        return self.prompt_s(config, input_tokens) + output_tokens * self.step_s(config)

    def _layer_s(self, table: SecondsByShards, config: ParallelConfig, parts: int) -> float:
        sequences = -(-config.max_batch // parts)
        if config.pipeline > self.layers:
            return math.inf  # a stage would have no layer
        measured = table.get(config.tensor, {}) if config.tensor <= self.max_tensor else {}
        return min(
            ((batch, seconds) for batch, seconds in measured.items() if batch >= sequences), default=(0, math.inf)
        )[1]


def _numbered(document: Mapping[str, object], prefix: str, where: str) -> list[tuple[int, object]]:
    found = [(key.removeprefix(prefix), value) for key, value in document.items() if key.startswith(prefix)]
    if wrong := [number for number, _ in found if not (number.isdecimal() and int(number) >= 1)]:
        raise ValueError(f"`{prefix}{wrong[0]}` in {where}: a count must follow `{prefix}`")
    if not found:
        raise ValueError(f"{where} has no `{prefix}N`; it should have one for each N that was measured")
    return sorted(((int(number), value) for number, value in found), key=lambda entry: entry[0])


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"`{where}` must be an object, not {value!r}")
    return value


def _number(document: Mapping[str, object], field: str, where: str = "") -> float:
    if field not in document:
        raise ValueError(f"`{where}{field}` is missing")
    return _checked(document[field], f"{where}{field}")


def _checked(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"`{where}` must be a number of at least 0, not {value!r}")
    return float(value)


def _count(document: Mapping[str, object], field: str) -> int:
    if field not in document:
        raise ValueError(f"`{field}` is missing, and no number of layers is given in its place")
    value = document[field]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"`{field}` must be a whole number of at least 1, not {value!r}")
    return value
