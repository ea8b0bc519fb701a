"""Adapters of an engine: their folders, which models and sequences can have them, and that no other row notices."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, MixtralConfig
from transformers.models.llama import modeling_llama

from spotwise.core.requests.names import AdapterRef
from spotwise.core.requests.sampling import SamplingParams
from spotwise.engine.engine import Engine
from spotwise.engine.forward.adapters import Adapters
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.adapter_files import CONFIG_FILE, WEIGHTS_FILE, read_adapter
from spotwise.engine.model.errors import AdapterError
from spotwise.engine.model.loading import EngineConfig, load_model
from spotwise.engine.native.library import Kernels
from tests.adapters import ATTENTION, base_model, greedy, merged, save_adapter
from tests.unit.engine.tape_capture import TapeCapture
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, llama_config, record, save_model
from tests.unit.engine.watched_engine import Logits, Watch

NEW_TOKENS = 6
SEEDED = SamplingParams(temperature=0.8, seed=11, logprobs=2)
#: Longer than what is added before an activation is kept for, within a block, and between.
LENGTHS = (300, 3, 40, 290, 17, 130)
NO_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


@pytest.fixture(scope="module")
def folders(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    model, home = base_model(llama_folder), tmp_path_factory.mktemp("adapters")
    return {
        "all": save_adapter(home / "all", model, seed=1, rank=8),
        "some": save_adapter(home / "some", model, seed=2, rank=3, targets=("v_proj", "gate_proj")),
    }


def load(model: Path, folders: dict[str, Path], dtype: str = "float32", *, native: bool = True) -> Engine:
    config = EngineConfig(model, dtype, "cpu", 4 << 20, threads=1, native=native, adapters=tuple(folders.items()))
    return Engine.load(config)


def ref(folders: dict[str, Path], name: str) -> AdapterRef:
    return AdapterRef(name, read_adapter(name, folders[name]).digest)


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(salt + 7 * place * place) % VOCAB_SIZE for place in range(length)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_neighbours_with_other_adapters_change_no_bit(
    llama_folder: Path,
    folders: dict[str, Path],
    best_kernels: Kernels,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither for rows without an adapter nor for rows with one, prefilled whole or in chunks, on one thread or two."""
    engine = load(llama_folder, folders, dtype)
    refs = [None, ref(folders, "all"), ref(folders, "some")]

    def run(numbers: Sequence[int], chunk_tokens: int) -> Logits:
        with monkeypatch.context() as patched:
            watch = Watch(engine, patched, chunk_tokens)
            for number in numbers:
                request = record(str(number), prompt(LENGTHS[number], number), SEEDED, max_new_tokens=NEW_TOKENS)
                watch.add(replace(request, adapter=refs[number % 3]))
                watch.step()
            watch.finish()
            engine.drop_all()
        return watch.logits

    alone: Logits = {}
    for number in range(len(LENGTHS)):
        alone |= run([number], 1 << 30)
    for threads, chunk_tokens in ((1, 1 << 30), (1, 29), (2, 1 << 30)):
        best_kernels.set_threads(threads)
        together = run(range(len(LENGTHS)), chunk_tokens)
        assert together.keys() == alone.keys()
        assert [key for key, logits in together.items() if not torch.equal(logits, alone[key])] == []
    plain = load(llama_folder, {}, dtype)
    watch = Watch(plain, monkeypatch)
    watch.add(record("0", prompt(LENGTHS[0]), SEEDED, max_new_tokens=NEW_TOKENS))
    watch.finish()
    assert all(torch.equal(logits, alone[key]) for key, logits in watch.logits.items())


def test_every_kind_of_processor(
    llama_folder: Path, folders: dict[str, Path], kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each computes what the merged model gives, for tiles that are whole and those that are not."""
    monkeypatch.setattr("spotwise.engine.engine.load_kernels", lambda: kernels)
    driver = Driver(load(llama_folder, folders))
    names = (None, "all", "some", "all")
    for index, name in enumerate(names):
        request = record(str(index), prompt(35, index), max_new_tokens=NEW_TOKENS)
        driver.add(replace(request, adapter=None if name is None else ref(folders, name)))
    found = driver.finish()
    model = base_model(llama_folder)
    for index, name in enumerate(names):
        with merged(model, None if name is None else folders[name]):
            assert found[f"{index}@1"] == greedy(model, prompt(35, index), NEW_TOKENS), name


def test_recorded_decodes_are_those_without_an_adapter(llama_folder: Path, folders: dict[str, Path]) -> None:
    model, facts = load_model(EngineConfig(llama_folder, "float32", "cpu", threads=1))
    adapters = Adapters.load(tuple(folders.items()), model)
    cache = PagedKvCache(facts.geometry, 300, 16, torch.float32, torch.device("cpu"), scratch=True)
    capture = TapeCapture()
    driver = Driver(Engine(model, facts, cache, capture=capture, adapters=adapters))
    chosen = {"0": (None, 12), "1": ("all", 4), "2": (None, 12)}
    for index, (name, new_tokens) in chosen.items():
        request = record(index, prompt(20, int(index)), max_new_tokens=new_tokens)
        driver.add(replace(request, adapter=None if name is None else ref(folders, name)))
    replays = []
    while driver.step():
        replays.append(capture.replays)
    assert replays[3] == 0 < replays[-1]  # the adapter's four tokens come first
    oracle = base_model(llama_folder)
    for index, (name, new_tokens) in chosen.items():
        with merged(oracle, None if name is None else folders[name]):
            tokens = [token.token_id for token in driver.results[f"{index}@1"]]
            assert tokens == greedy(oracle, prompt(20, int(index)), new_tokens)


def test_prompts_are_scored_with_their_adapter(llama_folder: Path, folders: dict[str, Path]) -> None:
    engine = load(llama_folder, folders)
    driver = Driver(engine)
    tokens = prompt(20)
    request = record("r", tokens, SamplingParams(temperature=0.0, prompt_logprobs=0), max_new_tokens=1)
    driver.add(replace(request, adapter=ref(folders, "all")))
    driver.finish()
    found = driver.results["r@1"][0].prompt_logprobs
    assert found is not None
    model = base_model(llama_folder)
    with merged(model, folders["all"]), torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
    scores = [each.logprob for each in found[1:] if each is not None]
    wanted = [float(expected[place, token]) for place, token in enumerate(tokens[1:])]
    assert scores == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
def test_layers_of_another_form_have_adapters_too(tmp_path: Path, native: bool) -> None:
    """GPT-2's, whose linear layers keep the transpose, and Mixtral's attention beside its experts."""
    sizes = {"vocab_size": VOCAB_SIZE, **NO_TOKENS}
    gpt2 = GPT2Config(n_embd=48, n_layer=2, n_head=3, n_positions=128, initializer_range=0.2, **sizes)
    mixtral = MixtralConfig(
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        num_local_experts=4,
        initializer_range=0.2,
        **sizes,
    )
    for name, config, targets in (("gpt2", gpt2, ("c_attn", "c_proj", "c_fc")), ("mixtral", mixtral, ATTENTION)):
        folder = save_model(config, tmp_path / name)
        model = base_model(folder)
        adapter = {"style": save_adapter(tmp_path / f"{name}-style", model, seed=3, targets=targets)}
        driver = Driver(load(folder, adapter, native=native), chunk_tokens=7)
        for index, chosen in enumerate((None, ref(adapter, "style"), None, ref(adapter, "style"))):
            request = record(str(index), prompt(20, index), max_new_tokens=NEW_TOKENS)
            driver.add(replace(request, adapter=chosen))
            driver.step()
        found = driver.finish()
        for index in range(4):
            with merged(model, adapter["style"] if index % 2 else None):
                assert found[f"{index}@1"] == greedy(model, prompt(20, index), NEW_TOKENS), (name, index)


@pytest.mark.parametrize(
    ("targets", "changes", "said"),
    [
        (("q_proj",), {"target_modules": ["q_proj", "c_attn"]}, "no module 'c_attn'"),
        (("q_proj",), {"target_modules": ["q_proj", "k_proj"]}, "no matrices for model.layers.0.self_attn.k_proj"),
        (("lm_head",), {}, "output embedding"),
    ],
)
def test_an_adapter_that_does_not_fit_the_model_is_refused(
    llama_folder: Path, tmp_path: Path, targets: tuple[str, ...], changes: dict[str, Any], said: str
) -> None:
    folder = save_adapter(tmp_path, base_model(llama_folder), 1, targets)
    config = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps(config | changes))
    with pytest.raises(AdapterError, match="'style'") as refused:
        load(llama_folder, {"style": folder})
    assert said in str(refused.value)


def test_an_adapter_of_another_model_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    wider = save_model(llama_config(hidden_size=192), tmp_path / "wider")
    with pytest.raises(AdapterError, match="is 96 x 192 in the model, and lora_B @ lora_A is 96 x 96"):
        load(wider, {"some": folders["some"]})
    shallow = save_model(llama_config(num_hidden_layers=1), tmp_path / "shallow")
    with pytest.raises(AdapterError, match=r"model.layers.1.\S+ is no module of the model"):
        load(shallow, folders)


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
def test_a_model_that_reads_its_matrices_itself_is_refused(
    folders: dict[str, Path], llama_folder: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    """What an adapter adds would be lost; a short prompt finds it before any request."""
    silu = torch.nn.functional.silu

    def twice(self: Any, x: torch.Tensor) -> torch.Tensor:
        gated: torch.Tensor = self.down_proj(silu((self.gate_proj(x) + self.gate_proj(x)) / 2) * self.up_proj(x) * 1.5)
        return gated

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", twice)
    with pytest.raises(AdapterError, match=r"'all'.*calls model.layers.0.mlp.gate_proj 2 times"):
        load(llama_folder, folders, native=native)
    with pytest.raises(AdapterError, match=r"'all'.*gate_proj computes 1 of"):
        monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, x: self.gate_proj(x[:, :1]))
        load(llama_folder, folders, native=native)


def test_a_sequence_whose_adapter_is_not_here_is_refused(llama_folder: Path, folders: dict[str, Path]) -> None:
    engine = load(llama_folder, {"all": folders["all"]})
    with pytest.raises(ValueError, match="does not have the adapter 'some'"):
        engine.add_sequence(replace(record("r", [1]), adapter=ref(folders, "some")))
    with pytest.raises(ValueError, match="'all' has other weights"):
        engine.add_sequence(replace(record("r", [1]), adapter=AdapterRef("all", "0123")))
    assert engine.num_sequences == 0


LAYER = "base_model.model.model.layers.0"
QUERY = f"{LAYER}.self_attn.q_proj"


@pytest.fixture(scope="module")
def base(llama_folder: Path) -> Any:
    return base_model(llama_folder)


@pytest.fixture
def style_folder(tmp_path: Path, base: Any) -> Path:
    return save_adapter(tmp_path / "style", base, seed=1, targets=ATTENTION, rank=4, alpha=8)


def configure(style_folder: Path, **changes: Any) -> None:
    config = json.loads((style_folder / CONFIG_FILE).read_text())
    (style_folder / CONFIG_FILE).write_text(json.dumps(config | changes))


def change_tensors(style_folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(style_folder / WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, style_folder / WEIGHTS_FILE)


def test_modules_ranks_and_scales_are_read(style_folder: Path) -> None:
    """Of every layer, sorted by path; a module's scale is alpha over the rank."""
    files = read_adapter("style", style_folder)
    assert [module.path for module in files.modules] == sorted(
        f"model.layers.{layer}.self_attn.{target}" for layer in range(3) for target in ATTENTION
    )
    assert {(module.rank, module.scale) for module in files.modules} == {(4, 2.0)}
    assert files.targets == tuple(sorted(ATTENTION))


def test_patterns_and_rank_stabilised_scales(tmp_path: Path, base: Any) -> None:
    """As PEFT has them: the first pattern that fits the end of a path; alpha over the root of the rank."""
    patterns: dict[str, Any] = {
        "rank_pattern": {"layers.1.self_attn.q_proj": 9},
        "alpha_pattern": {"^model.layers.0.*k_proj": 2},
    }
    style_folder = save_adapter(tmp_path, base, seed=1, targets=ATTENTION, use_rslora=True, **patterns)
    scales = {module.path: (module.rank, module.scale) for module in read_adapter("style", style_folder).modules}
    assert scales["model.layers.1.self_attn.q_proj"] == (9, 8 / 3)
    assert scales["model.layers.0.self_attn.k_proj"] == (4, 1)
    assert scales["model.layers.1.self_attn.k_proj"] == (4, 4)


def test_the_digest_is_of_weights_and_scales(style_folder: Path) -> None:
    digest = read_adapter("style", style_folder).digest
    configure(style_folder, base_model_name_or_path="elsewhere", lora_dropout=0.1)
    assert read_adapter("another", style_folder).digest == digest
    configure(style_folder, lora_alpha=9)
    scaled = read_adapter("style", style_folder).digest
    change_tensors(style_folder, lambda tensors: tensors[f"{QUERY}.lora_A.weight"].add_(1e-3))
    assert len({digest, scaled, read_adapter("style", style_folder).digest}) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "lora_only"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"lora_bias": True}, "biases"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"r": 5}, "rank 5"),
        ({"r": 0}, "r in"),
        ({"lora_alpha": "much"}, "lora_alpha"),
        ({"rank_pattern": {"(": 4}}, "pattern"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(style_folder: Path, changes: dict[str, Any], said: str) -> None:
    configure(style_folder, **changes)
    with pytest.raises(AdapterError, match="'style'") as refused:
        read_adapter("style", style_folder)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.clear(), "no tensors"),
        (lambda tensors: tensors.pop(f"{QUERY}.lora_B.weight"), "q_proj has lora_A alone"),
        (lambda tensors: tensors.update({f"{QUERY}.lora_magnitude_vector": torch.ones(96)}), "lora_magnitude_vector"),
        (lambda tensors: tensors.update({"lora_A.weight": torch.ones(4, 4)}), "lora_A.weight is no"),
        (lambda tensors: tensors.update({f"{QUERY}.lora_A.weight": torch.ones(4)}), "no matrix"),
        (lambda tensors: tensors.update({f"{QUERY}.lora_A.weight": torch.ones(4, 96).to(torch.int8)}), "I8"),
    ],
)
def test_other_tensors_are_refused(style_folder: Path, change: Callable[[dict[str, Any]], Any], said: str) -> None:
    change_tensors(style_folder, change)
    with pytest.raises(AdapterError) as refused:
        read_adapter("style", style_folder)
    assert said in str(refused.value)


@pytest.mark.parametrize("file", [CONFIG_FILE, WEIGHTS_FILE])
def test_missing_and_broken_files_are_named(style_folder: Path, file: str) -> None:
    (style_folder / file).write_bytes((style_folder / file).read_bytes()[:100])
    with pytest.raises(AdapterError, match=file):
        read_adapter("style", style_folder)
    (style_folder / file).unlink()
    with pytest.raises(AdapterError, match=f"has no {file}"):
        read_adapter("style", style_folder)
