"""What transformers gives for a prompt, alone, in float32."""

from __future__ import annotations

import functools
import os
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from spotwise.engine.model.model_store import resolve_model
from tests import adapters

_TEXT = """A mesh of machines that come and go serves one model. Some of them read prompts, others write answers, and what
was read travels from the first to the second before anyone notices. When a machine is taken away, its work goes on
elsewhere at the very next token. Rivers, libraries and markets work like that: none owns the whole, and yet the water,
the books and the bread arrive. Write down three questions about it, answer two of them, and leave the third one open."""


@functools.cache
def model_folder() -> Path:
    """The default model, converted for transformers: a mesh serves the same weights, quantised."""
    given = os.environ.get("SPOTWISE_CACHE")
    return resolve_model(None, Path(given) if given else Path.home() / ".cache" / "spotwise", widens=True).path


@functools.cache
def model() -> Any:
    """The default model as transformers has it."""
    # While it computes, the mesh under test has nothing to do; where another mesh computes beside it, two threads would wait
    # for one another.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    return AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.float32).eval()


@functools.cache
def tokenizer() -> Any:
    """The model's tokenizer."""
    return AutoTokenizer.from_pretrained(model_folder())


@functools.cache
def mixed_prompts(count: int, longest: int) -> tuple[tuple[int, ...], ...]:
    """Prompts of 1 to `longest` tokens: windows of running text, some of them of random tokens."""
    rng = random.Random(11)
    running: list[int] = tokenizer()(_TEXT * (1 + longest // 90))["input_ids"]
    prompts = []
    for number in range(count):
        length = max(1, int(longest ** rng.random())) if number else longest
        start = rng.randrange(len(running) - length)
        text = running[start : start + length]
        prompts.append(tuple(rng.randrange(1000, 40000) for _ in text) if number % 8 == 7 else tuple(text))
    return tuple(prompts)


@functools.cache
def greedy(prompt: tuple[int, ...], new_tokens: int) -> tuple[int, ...]:
    """The tokens of `generate(do_sample=False)`, end of sequence ignored."""
    return greedy_with(prompt, new_tokens)


def greedy_with(prompt: tuple[int, ...], new_tokens: int, **options: Any) -> tuple[int, ...]:
    """The same with further options of `generate`."""
    return tuple(adapters.greedy(model(), prompt, new_tokens, **options))


def prompt_logprobs(prompt: tuple[int, ...]) -> list[float]:
    """The log-probability of each token of a prompt but the first."""
    with torch.inference_mode():
        logprobs = model()(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    return [float(logprobs[place, token_id]) for place, token_id in enumerate(prompt[1:])]


@functools.cache
def hidden_states(prompt: tuple[int, ...]) -> torch.Tensor:
    """The hidden states of a prompt's tokens after the final norm, `[tokens, hidden]`."""
    with torch.inference_mode():
        hidden: torch.Tensor = model().base_model(torch.tensor([prompt])).last_hidden_state[0]
    return hidden


def greedy_with_penalties(
    prompt: tuple[int, ...], new_tokens: int, presence: float, frequency: float, repetition: float
) -> tuple[int, ...]:
    """Greedy decoding of penalised logits, written out: repetition over prompt and output, the others over output."""
    output: list[int] = []
    past = None
    for _ in range(new_tokens):
        step = torch.tensor([list(prompt)] if past is None else [output[-1:]])
        with torch.inference_mode():
            result = model()(step, past_key_values=past, use_cache=True)
        past = result.past_key_values
        logits = result.logits[0, -1].clone()
        for token in {*prompt, *output}:
            logits[token] = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
        for token in set(output):
            logits[token] -= presence + frequency * output.count(token)
        output.append(int(logits.argmax()))
    return tuple(output)
