"""Runs one model's iterations over batches of rows.

The scheduler decides which rows run, and in which blocks. An iteration is one forward over all rows (Orca's selective
batching); a row that reaches the end of its known tokens is sampled. All methods are called from one thread. When an
iteration returns, the device has finished it: any thread may copy its KV. One that raises has appended nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

import torch
from llguidance import LLMatcher

from spotwise.core.costs.batching import Batch
from spotwise.core.messages.numerics import Numerics
from spotwise.core.parallel.model_partition import ModelShare
from spotwise.core.requests.names import AdapterRef
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.engine.forward.adapters import Adapters
from spotwise.engine.forward.cuda_attention import FlashInferBackend, TorchBackend, choose_attention, torch_attention
from spotwise.engine.forward.decode_graphs import Capture, CudaCapture, DecodeGraphs
from spotwise.engine.forward.fused_decoder import FusedDecoder, ModelDecoder
from spotwise.engine.forward.iteration import FlatBatch, SequenceRow
from spotwise.engine.forward.native_attention import NativeAttention, NativeLayout, can_attend
from spotwise.engine.forward.pooling import HeadInput, needs_all_tokens
from spotwise.engine.forward.rewriting import SketchWeights, probe_row, rewrite
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.attention_interface import LayersWritten, reporting_layers, set_attention_context
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.model.kv_size import AutoKvSize, named_memory_errors
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.native.library import Kernels, load_kernels
from spotwise.engine.native.numerics import numerics_of
from spotwise.engine.native.weight_memory import PRIVATE, WeightMemory, open_memory
from spotwise.engine.parts.group_place import GroupPlace, part_cache, require_cpu
from spotwise.engine.parts.stage import PipelineStage
from spotwise.engine.parts.stage_loading import load_stage
from spotwise.engine.parts.weight_flow import WeightFlow
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.engine.parts.whole_loading import load_whole
from spotwise.engine.sampling.grammars import Grammars
from spotwise.engine.sampling.held_sequences import HeldSequences
from spotwise.engine.sampling.sampler import note_prompt_logprobs, sample_sequences, split_prompt_scoring

#: Loads a member's part, given attention and kernels: the stage, and how many of its layers one native call computes.
LoadStage = Callable[[Any, Kernels | None], tuple[PipelineStage, int]]


class Engine:
    """Runs iterations of one model over its sequences and KV cache."""

    def __init__(
        self,
        model: Any,
        facts: ModelFacts,
        cache: PagedKvCache,
        kernels: Kernels | None = None,
        backend: TorchBackend | FlashInferBackend | None = None,
        capture: Capture | None = None,
        memory: WeightMemory = PRIVATE,
        source: SketchWeights | None = None,
        part: LoadStage | None = None,
        grammars: Grammars | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        """Install the model's attention.

        Args:
            model: from `load_whole`.
            facts: the model's properties.
            cache: for its KV.
            kernels: native ones, which replace what they can compute; `backend` and `capture` are then ignored.
            backend: attention without kernels; `None`: torch.
            capture: records decodes, for which the cache needs a scratch block; `None`: no recording.
            memory: holds the kernels' weights.
            source: weights that `model` lacks; `None`: it has all.
            part: loads the part of the model that this member of a group computes; `None`: the model is whole and loaded.
            grammars: follow the grammars of its sequences; `None`: sequences that have one are refused.
            adapters: the adapters of its sequences, loaded for `model`; `None`: sequences that have one are refused.

        Raises:
            AdapterError: an adapter cannot be applied to the model."""
        self._model = model
        self._facts = facts
        self.kv = cache  #: the paged KV cache; the transfer reads and writes its blocks
        self.fused_layers = 0  #: decoder layers that one native call computes
        self.graphs: DecodeGraphs | None = None  #: recorded decodes; `None` where decodes are not recorded
        self.attention_name = "native attention"  #: name of the attention backend
        self._kernels = kernels
        self._grammars = grammars
        self._adapters = adapters or Adapters()
        self._attention: Any
        self._layout: Any
        self._stage: PipelineStage | None = None
        if kernels is not None:
            self._attention, self._layout = NativeAttention(kernels, cache, facts.layers), NativeLayout(cache)
        else:
            chosen = backend or torch_attention(cache, facts)
            self._attention, self._layout, self.attention_name = chosen.attention, chosen.layout, chosen.name
        if part is not None:
            self._stage, self.fused_layers = part(self._attention, kernels)
        else:
            set_attention_context(model, self._attention)
            if kernels is not None:
                self.fused_layers = rewrite(model, facts, kernels, self._attention, self._layout, memory, source)
        self._head_input = HeadInput(model)
        self._decoder: ModelDecoder | FusedDecoder = (own := ModelDecoder(model, self._head_input))
        limits, is_readable = (facts.context_length, facts.vocab_size), self._head_input.is_readable
        self._sequences = HeldSequences(*limits, self._adapters, grammars, gives_embeddings=is_readable)
        if part is not None:
            return
        self._adapters.install(model, kernels, len(facts.layers))
        self._adapters.try_each(facts, cache, self._probe)
        if self.fused_layers:
            probe = self._layout.lay_out([probe_row(facts, cache)], last_only=False)
            self._decoder = FusedDecoder.of(own, self._attention, probe) or own
        if kernels is None and capture is not None:
            self.graphs = DecodeGraphs(cache, self._attention, self._compute, capture, facts.context_length)

    @classmethod
    def load(cls, config: EngineConfig) -> Self:
        """Load the model of `config.model_dir` and allocate its KV cache.

        Raises:
            ModelError: the folder cannot be loaded.
            UnsupportedModelError: the model would not be computed exactly.
            AdapterError: an adapter cannot be read, or applied to the model.
            ValueError: the configuration is wrong, or `kv_cache_bytes` too small for one block."""
        with named_memory_errors(f"the model in {config.model_dir}"):
            model, facts, weights = load_whole(config)
            adapters = Adapters.load(config.adapters, model)
        bytes_per_block = facts.geometry.elements_per_token * facts.kv_dtype.itemsize * config.block_size
        kv_bytes = config.kv_cache_bytes
        if isinstance(kv_bytes, AutoKvSize):
            kv_bytes = kv_bytes.measured(facts, model.device, config.block_size, weights)
        if (num_blocks := kv_bytes // bytes_per_block) < 1:
            raise ValueError(
                f"kv_cache_bytes is {kv_bytes}, and one block of this model takes {bytes_per_block}: more memory has to be "
                "free, or SPOTWISE_KV_CACHE_BYTES (--kv-cache) larger"
            )
        records = config.decode_graphs and model.device.type == "cuda"
        sizes = facts.geometry, num_blocks, config.block_size
        with named_memory_errors(f"a KV cache of {kv_bytes} bytes"):
            cache = PagedKvCache(*sizes, facts.kv_dtype, model.device, scratch=records)
        kernels = load_kernels() if config.native and can_attend(cache) and model.dtype is cache.dtype else None
        if kernels is None and weights is not None:
            weights.fill("", model)
        grammars = Grammars(config.model_dir, facts.vocab_size)
        if kernels is None:
            capture, backend = CudaCapture(model.device) if records else None, choose_attention(cache, facts)
            return cls(model, facts, cache, None, backend, capture, grammars=grammars, adapters=adapters)
        # the kernels have their own threads; torch's, with little left to compute, would spin beside them
        kernels.set_threads(config.threads or torch.get_num_threads())
        torch.set_num_threads(1)
        with open_memory(config.shared_weights, config.model_dir, model, facts.digest, config.weights) as memory:
            return cls(
                model, facts, cache, kernels, memory=memory, source=weights, grammars=grammars, adapters=adapters
            )

    @classmethod
    def load_part(
        cls, store: WeightStore, place: GroupPlace, num_blocks: int | None = None, flow: WeightFlow | None = None
    ) -> Self:
        """Load what one member of a group computes with and the process lacks, and allocate its part of the KV cache.

        The calling thread is the one that computes, with threads of its own.

        Args:
            store: the process's weights; its config is the whole model's, `kv_cache_bytes` is this member's.
            place: the member's place, in which it joins the group's exchange.
            num_blocks: blocks of the KV cache, the same for all members; `None`: as many as this member can hold.
            flow: weights that other processes send while it computes already, as in `load_stage`.

        Raises:
            ModelError: the folder cannot be loaded.
            UnsupportedModelError: the model would not be computed exactly, or cannot be cut like this.
            ValueError: the configuration is wrong, or `kv_cache_bytes` too small.
        """
        require_cpu(store.config)
        structure = store.structure
        share = place.share_of(structure.sketch)
        facts = structure.sketch.facts.of_heads(slice(share.query_heads.start, share.query_heads.stop))
        cache = part_cache(store.config, structure.sketch.facts, share, num_blocks)
        if structure.kernels is not None:
            structure.kernels.set_threads(store.threads)
            torch.set_num_threads(1)
        model = structure.skeleton()
        part = partial(load_stage, store, model, share, place.shard, flow=flow)
        grammars = Grammars(store.config.model_dir, facts.vocab_size)
        return cls(model, facts, cache, structure.kernels, part=part, grammars=grammars)

    @property
    def is_native(self) -> bool:
        """Whether the native kernels compute attention and linear layers."""
        return isinstance(self._attention, NativeAttention)

    @property
    def samples(self) -> bool:
        """Whether iterations return tokens here: not in all members of a group."""
        return self._stage is None or self._stage.samples

    @property
    def share(self) -> ModelShare | None:
        """The part of the model that it computes, in a group; `None`: all of it, in none."""
        return None if self._stage is None else self._stage.share

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self.kv.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""
        return self.kv.block_size

    @property
    def context_length(self) -> int:
        """Tokens that a sequence may have, prompt and output."""
        return self._facts.context_length

    @property
    def context_parity(self) -> float:
        """Context length at which a token's attention costs as much as the rest of the model."""
        return self._facts.context_parity

    @property
    def model_digest(self) -> str | None:
        """Digest of the model's weights and structure; `None`: it was not loaded from a folder."""
        return self._facts.digest

    @property
    def numerics(self) -> Numerics:
        """What the bits of its tokens depend on beside weights and tokens."""
        fused = self.fused_layers if self.is_native else None
        return numerics_of(self._model, fused, self.kv.num_layers, self._facts.quantisation)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._facts.vocab_size

    @property
    def adapters(self) -> tuple[AdapterRef, ...]:
        """Those that its sequences may have."""
        return self._adapters.refs

    @property
    def dtype(self) -> str:
        """Type of weights and activations, e.g. `bfloat16`."""
        return str(self._model.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """Device of the model, e.g. `cpu`, `cuda:0`."""
        return str(self._model.device)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV per token, all layers."""
        return self._facts.geometry.elements_per_token * self.kv.dtype.itemsize

    @property
    def num_sequences(self) -> int:
        """Sequences added and not dropped."""
        return len(self._sequences)

    def add_sequence(self, record: RequestRecord, prepared: Future[LLMatcher] | None = None) -> None:
        """Add a sequence: its prompt and the output tokens committed so far.

        Args:
            record: the sequence's.
            prepared: what `prepare` returned; without it that is begun now, and iterations with the sequence wait for it.

        Raises:
            ValueError: the id is known, the prompt is empty, the tokens exceed the context, one is not in the vocabulary, or
                the record has a grammar or an adapter that this engine does not have, or an embedding that the model does
                not give.
        """
        sequence = self._sequences.add(record)
        compiling = prepared or self.prepare(record)
        if compiling is not None and self._grammars is not None:
            self._grammars.follow(sequence, compiling)

    def prepare(self, record: RequestRecord) -> Future[LLMatcher] | None:
        """Begin what a sequence needs before it is added and may take seconds, on other threads: its grammar is compiled.
        `None`: nothing. The future's error is a `GrammarError`: the sequence can be served nowhere. Any thread may call this.
        """
        if not record.sampling.grammar or self._grammars is None or not self.samples:
            return None
        return self._grammars.compile(record.sampling.grammar, record.tenant)

    def append_token(self, sequence_id: str, token_id: int) -> None:
        """Add an output token that was sampled elsewhere (the first token of a hand-off).

        Raises:
            ValueError: the sequence is unknown, or the token is not in the vocabulary.
        """
        self._sequences.append(sequence_id, token_id)

    def drop_sequence(self, sequence_id: str) -> None:
        """Forget a sequence; idempotent."""
        self._sequences.drop(sequence_id)

    def drop_all(self) -> None:
        """Forget all sequences."""
        self._sequences.clear()

    @torch.inference_mode()
    def run_iteration(self, batch: Batch, on_layers: LayersWritten | None = None) -> tuple[SampledToken, ...]:
        """Compute all rows and return, in their order, a token for each that reached the end of its known tokens; in a group,
        the member that samples returns them and appends them to its sequences, the others return none.

        Args:
            batch: the rows.
            on_layers: called, in this thread, with the number of layers that have written the KV of all rows.

        Raises:
            ValueError: a row names a sequence, tokens or blocks that do not exist; nothing was appended.
            GroupBrokenError: a member of the group is gone; nothing was appended.
        """
        rows = [(row, self._sequences.checked(row, self.block_size)) for row in batch.rows]
        scoring, rows = split_prompt_scoring(rows)
        for pieces in scoring:
            self._score_prompts(pieces)
        if not rows:
            return ()
        sampled = [
            index
            for index, (row, sequence) in enumerate(rows)
            if row.first_position + row.num_tokens == sequence.num_tokens
        ]
        sequences = [rows[index][1] for index in sampled]
        # computed beside the forward pass
        allowed = self._grammars.begin(sequences) if self._grammars is not None and self.samples else None
        logits = None if self.graphs is None else self.graphs.run(rows)
        if logits is None:
            pooled = [(row, sequence.pooling) for row, sequence in rows]
            flat = self._layout.lay_out(rows, last_only=not needs_all_tokens(pooled))
            positions = [flat.last_token[index] for index in sampled]
            pooling = self._head_input.pooling(pooled, flat.last_token, positions)
            with reporting_layers(self._attention, self.kv, on_layers), pooling:
                logits = self._forward(rows, flat, positions)
        elif len(sampled) < len(rows):
            logits = logits[sampled]
        if not sampled or logits is None:
            if self._model.device.type == "cuda":  # reading logits would wait
                torch.cuda.current_stream(self._model.device).synchronize()
            return ()
        results = sample_sequences(logits, sequences, self._kernels, None if allowed is None else allowed.result())
        for index, sequence, result in zip(sampled, sequences, results, strict=True):
            if result.failure is None:
                sequence.append(result.token_id)
            elif result.may_be_ill:
                self.kv.clear_not_finite(rows[index][0].block_ids)
        return results

    def _forward(self, rows: Rows[SequenceRow], flat: FlatBatch[Any], positions: Rows[int]) -> torch.Tensor | None:
        """Compute the flat batch of `rows` and return logits `[positions, vocab_size]` at these flat positions; `None` in a
        member of a group that does not sample.
        """
        keep = torch.tensor(positions, dtype=torch.int64, device=self._model.device)
        forward = partial(self._compute, flat.token_ids, flat.position_ids, flat.plan, keep)
        if self._stage is not None:
            return self._stage.run(forward)
        with self._adapters.applied(rows, flat):
            return forward()

    def _compute(
        self, token_ids: torch.Tensor, position_ids: torch.Tensor, plan: Any, keep: torch.Tensor
    ) -> torch.Tensor:
        """Run the model over `[1, tokens]` and return logits `[kept, vocab_size]` at the flat positions `keep`."""
        self._attention.plan = plan
        try:
            return self._decoder(token_ids, position_ids, keep)
        finally:
            self._attention.plan = None

    def _score_prompts(self, rows: Rows[SequenceRow]) -> None:
        """Compute pieces of prompts and store the log-probability of each following token."""
        flat = self._layout.lay_out(rows, last_only=False)
        positions = [
            last - row.num_tokens + 1 + offset
            for last, (row, _) in zip(flat.last_token, rows, strict=True)
            for offset in range(row.num_tokens)
        ]
        logits = self._forward(rows, flat, positions)
        if logits is not None:
            note_prompt_logprobs(logits, rows)

    @torch.inference_mode()
    def _probe(self, row: SequenceRow) -> None:
        flat = self._layout.lay_out([row], last_only=False)
        self._forward([row], flat, flat.last_token)
