"""A small tokenizer with a chat template, and a mesh in memory: the HTTP layer is tested without any other part."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from spotwise.gateway.access.api_access import ApiAccess
from spotwise.gateway.access.auth import ApiKey
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.routes.app import create_app
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.access import open_to
from tests.unit.gateway.fake_mesh import CONTEXT_LENGTH, MODEL, FakeMesh

CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'refuse' %}{{ raise_exception('refused') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SENTENCES = [
    "the quick brown fox jumps over the lazy dog",
    "Hello, world! How are you today?",
    "stop strings span token borders",
    "你好,世界。今天天气很好。",
    "emoji 😀 👩‍🚀 🎉 everywhere",
]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder as far as the gateway reads it: byte-level BPE that begins prompts with `<s>`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 5, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    folder = tmp_path_factory.mktemp("tiny-chat")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    facts = {"model_type": "llama", "max_position_embeddings": CONTEXT_LENGTH, "vocab_size": 512, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(facts))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2]}))
    return folder


@pytest.fixture(scope="session")
def text(model_dir: Path) -> ChatText:
    return ChatText.load(model_dir)


@pytest.fixture(scope="session")
def roomy_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model's folder, with a context that has room for tools."""
    folder = shutil.copytree(model_dir, tmp_path_factory.mktemp("roomy") / "model")
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(facts | {"max_position_embeddings": 4096}))
    return folder


@pytest.fixture(scope="session")
def roomy_text(roomy_dir: Path) -> ChatText:
    return ChatText.load(roomy_dir)


@pytest.fixture(scope="session")
def encode(model_dir: Path) -> Callable[[str], list[int]]:
    """Token ids of a text, nothing added."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    return lambda words: list(tokenizer.encode(words, add_special_tokens=False).ids)


@pytest.fixture
def mesh(encode: Callable[[str], list[int]]) -> FakeMesh:
    """A mesh that generates `Hello, world!` and the end of the sequence."""
    return FakeMesh([*encode("Hello, world!"), 2])


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def make_app(mesh: FakeMesh, text: ChatText, registry: CollectorRegistry) -> Callable[..., Starlette]:
    """Build the app over the fake mesh with the given options."""

    def make(api_keys: Iterable[ApiKey] = (), access: ApiAccess | None = None, **options: object) -> Starlette:
        metrics = GatewayMetrics(registry, MODEL)
        access = access or open_to(api_keys)
        return create_app(mesh, text, ApiOptions(MODEL, **options), metrics, access)  # type: ignore[arg-type]

    return make


@pytest.fixture
async def client(make_app: Callable[..., Starlette]) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app()), base_url="http://gateway") as opened:
        yield opened


@pytest.fixture(scope="session")
def model_dir_tokenizer(model_dir: Path) -> Tokenizer:
    """The library's own tokenizer of the same model."""
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))
