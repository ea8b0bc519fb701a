"""A small tokenizer with a chat template, and a mesh in memory: the HTTP layer is tested without any other part."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from spotwise.gateway.access.api_access import ApiAccess
from spotwise.gateway.access.auth import ApiKey
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.apps import Encode, Fits, Http, MakeApp, app_over, connect, open_to, with_template
from tests.unit.gateway.fake_mesh import CONTEXT_LENGTH, FakeMesh

CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'refuse' %}{{ raise_exception('refused') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING_TEMPLATE = (
    "{% for t in tools or [] %}[{{ t | tojson }}]{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}A:{% if enable_thinking is not false %}<think>\n{% endif %}{% endif %}"
    "{# </think> <tool_call> #}"
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
def thinking_text(roomy_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    """Of a model whose chat template writes tools, and begins the reasoning unless it is told not to."""
    return with_template(roomy_dir, tmp_path_factory.mktemp("thinking") / "model", THINKING_TEMPLATE)


@pytest.fixture(scope="session")
def encode(model_dir: Path) -> Encode:
    """Token ids of a text, nothing added."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    return lambda words: list(tokenizer.encode(words, add_special_tokens=False).ids)


@pytest.fixture
def mesh(encode: Encode) -> FakeMesh:
    """A mesh that generates `Hello, world!` and the end of the sequence."""
    return FakeMesh([*encode("Hello, world!"), 2])


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def make_app(mesh: FakeMesh, text: ChatText, registry: CollectorRegistry) -> MakeApp:
    """Build the app over the fake mesh with the given options."""

    def make(api_keys: Iterable[ApiKey] = (), access: ApiAccess | None = None, **options: Any) -> Starlette:
        return app_over(mesh, text, registry, access or open_to(api_keys), **options)

    return make


@pytest.fixture
async def client(make_app: MakeApp) -> AsyncIterator[Http]:
    async with connect(make_app()) as opened:
        yield opened


@pytest.fixture(scope="session")
def model_dir_tokenizer(model_dir: Path) -> Tokenizer:
    """The library's own tokenizer of the same model."""
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


@pytest.fixture(scope="module")
def fits(text: ChatText) -> Fits:
    """Whether a grammar allows a text, and that it ends there."""
    tokenizer = LLTokenizer(text._backend.to_str(), n_vocab=text.vocab_size)

    def fits(grammar: str, written: str) -> bool:
        matcher = LLMatcher(tokenizer, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        tokens = tokenizer.tokenize_str(written)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    return fits
