"""Prompts to tokens, and what is read from a model's folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import Gemma3TextConfig

from spotwise.text.chat_template import ChatTemplateError
from spotwise.text.chat_text import ChatText, ModelTextError
from spotwise.text.prompt_encoder import PromptEncoder, PromptTooLongError
from tests.unit.gateway.apps import Encode, with_template
from tests.unit.gateway.fake_mesh import COMPLETIONS, CONTEXT_LENGTH


@pytest.mark.parametrize("part_characters", [7, 100, 10_000])
def test_long_prompts_give_the_same_tokens(
    text: ChatText, encode: Encode, monkeypatch: pytest.MonkeyPatch, part_characters: int
) -> None:
    monkeypatch.setattr("spotwise.text.prompt_encoder._PART_CHARACTERS", part_characters)
    words = "the quick brown fox 👩‍🚀 " * 40
    assert text.encode(words) == (0, *encode(words))


@pytest.mark.parametrize("words", ["x", "the quick brown fox ", "你好", "👩‍🚀"])
def test_a_prompt_that_cannot_fit_is_not_tokenized_whole(
    text: ChatText, encode: Encode, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Some parts, or its length, suffice to refuse it; the number of tokens in the error is true."""
    monkeypatch.setattr("spotwise.text.prompt_encoder._PART_CHARACTERS", 500)
    tokenized = 0
    tokenize = PromptEncoder._encode

    def counted(self: PromptEncoder, part: str, add_special_tokens: bool) -> tuple[int, ...]:
        nonlocal tokenized
        tokenized += len(part)
        return tokenize(self, part, add_special_tokens)

    monkeypatch.setattr(PromptEncoder, "_encode", counted)
    for characters in (2500, 50_000):
        prompt = (words * characters)[:characters]
        with pytest.raises(PromptTooLongError) as refused:
            text.encode(prompt)
        assert CONTEXT_LENGTH < refused.value.at_least_tokens <= len(encode(prompt))
    assert tokenized <= 2500


def test_final_message_can_be_left_open(text: ChatText) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
    rendered = text.template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered.endswith("<|im_start|>assistant\nWell,")


def test_variables_reach_the_template(model_dir: Path, tmp_path: Path) -> None:
    """Those that it reads; it renders as transformers does."""
    thinking = with_template(
        model_dir,
        tmp_path / "thinking",
        "{{ messages[0].content }}{% if enable_thinking is false %}<no>{% endif %}{{ also.deep if also else '' }}",
    )
    messages = [{"role": "user", "content": "Hi"}]
    assert thinking.template.render(messages, True, False) == "Hi"
    assert thinking.template.render(messages, True, False, {"enable_thinking": True, "unknown": 1}) == "Hi"
    assert (
        thinking.template.render(messages, True, False, {"enable_thinking": False, "also": {"deep": "!"}}) == "Hi<no>!"
    )


def test_model_without_chat_template(model_dir: Path, tmp_path: Path) -> None:
    """A base model's folder loads; a chat request gets an error with what to do instead."""
    folder = shutil.copytree(model_dir, tmp_path / "base")
    (folder / "chat_template.jinja").unlink()
    base = ChatText.load(folder)
    assert not base.template.source
    with pytest.raises(ChatTemplateError, match=COMPLETIONS):
        base.template.render([{"role": "user", "content": "Hi"}], True, False)


def with_config(model_dir: Path, folder: Path, config: str) -> Path:
    """Copy a model's folder, with another `config.json`."""
    shutil.copytree(model_dir, folder)
    (folder / "config.json").write_text(config)
    return folder


def test_facts_are_read_from_the_configs(model_dir: Path, tmp_path: Path) -> None:
    """Context, vocabulary and all ends of sequence; a nested text config counts; the context can be capped."""
    nested = {"text_config": {"n_positions": 99, "vocab_size": 410, "eos_token_id": 5}}
    folder = with_config(model_dir, tmp_path / "nested", json.dumps(nested))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    loaded = ChatText.load(folder)
    assert (loaded.context_length, loaded.vocab_size, loaded.eos_token_ids) == (99, 410, {2, 5, 7, 8})
    assert ChatText.load(folder, max_context_length=50).context_length == 50


@pytest.mark.parametrize(
    ("config", "context_length"),
    [
        ({"text_config": {"model_type": "gemma3_text"}}, Gemma3TextConfig().max_position_embeddings),
        ({"model_type": "bloom"}, 2048),
        ({"model_type": "bloom", "seq_length": 512}, 512),
    ],
)
def test_a_context_that_a_config_leaves_out_is_the_models(
    model_dir: Path, tmp_path: Path, config: dict[str, object], context_length: int
) -> None:
    """Gemma 3 and BLOOM are published without one."""
    folder = with_config(model_dir, tmp_path / "unnamed", json.dumps({"vocab_size": 410, **config}))
    assert ChatText.load(folder).context_length == context_length


@pytest.mark.parametrize(("config", "said"), [('{"vocab_size": 3}', "no context length"), ("{", "not valid JSON")])
def test_an_unusable_config_is_refused(model_dir: Path, tmp_path: Path, config: str, said: str) -> None:
    with pytest.raises(ModelTextError, match=said):
        ChatText.load(with_config(model_dir, tmp_path / "broken", config))


@pytest.mark.parametrize(
    ("missing", "message"), [("tokenizer.json", "save_pretrained"), ("config.json", "has no config.json")]
)
def test_incomplete_folder_is_refused(model_dir: Path, tmp_path: Path, missing: str, message: str) -> None:
    folder = shutil.copytree(model_dir, tmp_path / "broken")
    (folder / missing).unlink()
    with pytest.raises(ModelTextError, match=message):
        ChatText.load(folder)


def test_gateway_never_imports_torch(model_dir: Path) -> None:
    program = (
        "import sys, pathlib, spotwise.gateway.routes.app\n"
        "from spotwise.text.chat_text import ChatText\n"
        "text = ChatText.load(pathlib.Path(sys.argv[1]))\n"
        "text.template.render([{'role': 'user', 'content': 'Hi'}], True, False)\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'torch']\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(model_dir)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
