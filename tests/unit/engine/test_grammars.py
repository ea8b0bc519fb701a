"""Sequences with a grammar: what they generate fits it, is the likeliest that does, and is the same wherever they go on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import SamplingParams
from spotwise.engine.engine import Engine
from spotwise.engine.model.checkpoint import read_checkpoint
from spotwise.engine.model.sketch_folder import sketch_of, write_sketch
from spotwise.engine.sampling import grammar_following, grammars
from spotwise.engine.sampling.fair_threads import with_deep_stack
from spotwise.engine.sampling.grammar_following import GrammarError, compiled, trial_problem
from spotwise.engine.sampling.logit_changes import SamplingRow, change_logits
from tests.unit.engine.tiny_models import Driver, llama_config, load_engine, record, save_model

SPECIAL = ("<|end|>", "<|turn|>", "<|pad|>")
#: Longer tokens, each of two that are there before it.
MERGES = (('"', ":"), ("{", '"'), ('"', "}"), ("t", "r"), ("tr", "u"), ("tru", "e"), ("1", "2"), ('":', "1"))


def save_byte_tokenizer(folder: Path) -> Tokenizer:
    """Write `tokenizer.json`: the special tokens first, so that `<|end|>` is 0."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*SPECIAL, *alphabet, *("".join(pair) for pair in MERGES)]
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


VOCAB = 280
WAIT_S = 30.0
GREEDY = SamplingParams(temperature=0.0)
END, TURN = 0, 1
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "yz", True]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
JSON = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
REGEX = LLMatcher.grammar_from_regex(r"[a-c]{3}(-[0-9]{2,4})+;")
LARK = LLMatcher.grammar_from_lark('start: "(" (start | /[xyz]{2}/) ")"')
GRAMMARS = {"json": JSON, "regex": REGEX, "lark": LARK}


@pytest.fixture(scope="module")
def byte_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokens are bytes."""
    folder = save_model(llama_config(vocab_size=VOCAB), tmp_path_factory.mktemp("bytes") / "llama", seed=3)
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture
def engine(byte_folder: Path) -> Engine:
    return load_engine(byte_folder)


@pytest.fixture(scope="module")
def text(byte_folder: Path) -> Callable[[list[int]], str]:
    tokenizer = Tokenizer.from_file(str(byte_folder / "tokenizer.json"))
    return lambda ids: str(tokenizer.decode(ids))


@pytest.fixture(scope="module")
def likeliest(byte_folder: Path) -> Callable[..., list[int]]:
    """transformers' own greedy choice among the tokens that a matcher of its own allows, one step after the other."""
    model: Any = AutoModelForCausalLM.from_pretrained(byte_folder, dtype=torch.float32)
    tokenizer = LLTokenizer(str(byte_folder / "tokenizer.json"), n_vocab=VOCAB)

    def generate(prompt: list[int], grammar: str, end: int, change: SamplingParams = GREEDY) -> list[int]:
        matcher, output = LLMatcher(tokenizer, grammar), list[int]()
        while len(output) < 40:
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            fits = [each for each in range(3, VOCAB) if bits[each]] + ([end] if bits[END] else [])
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + output])).logits[0, -1]
                known = np.array(prompt + output)
                change_logits(logits, SamplingRow(change, record("r", prompt).stop, known, len(prompt)))
            output.append(max(fits, key=lambda each: float(logits[each])))
            if output[-1] == end:
                break
            matcher.consume_token(output[-1])
        return output

    return generate


def with_grammar(name: str, prompt: list[int], grammar: str, outputs: tuple[int, ...] = (), **stop: Any) -> Any:
    sampling = SamplingParams(temperature=0.0, grammar=grammar)
    return record(name, prompt, sampling, outputs, stop.pop("max_new_tokens", 40), **stop)


def until(end: int, tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("end", [END, TURN])
@pytest.mark.parametrize("chunk_tokens", [3, 1 << 30])
def test_the_likeliest_tokens_that_fit(
    engine: Engine, likeliest: Callable[..., list[int]], kind: str, end: int, chunk_tokens: int
) -> None:
    """Beside sequences without grammars, which are as alone; the model's own stop token ends it."""
    prompts = {"a@1": [9, 8, 70], "b@1": [50, 4, 60, 100, 101, 102, 7]}
    alone = Driver(engine)
    alone.add(record("free", [20, 30, 40]))
    expected_free = alone.finish()["free@1"]
    engine.drop_all()
    driver = Driver(engine, chunk_tokens)
    driver.add(with_grammar("a", prompts["a@1"], GRAMMARS[kind], stop_token_ids=(end,)))
    driver.add(record("free", [20, 30, 40]))
    driver.add(with_grammar("b", prompts["b@1"], GRAMMARS[kind], stop_token_ids=(end,)))
    found = driver.finish()
    assert found.pop("free@1") == expected_free
    expected = {name: likeliest(prompt, GRAMMARS[kind], end) for name, prompt in prompts.items()}
    assert {name: until(end, tokens) for name, tokens in found.items()} == expected


@pytest.mark.parametrize(("kind", "fits"), [("json", json.loads), ("regex", None), ("lark", None)])
def test_draws_fit(engine: Engine, text: Callable[[list[int]], str], kind: str, fits: Any) -> None:
    ways: list[dict[str, Any]] = [{}, {"top_p": 0.5}, {"top_k": 4, "min_p": 0.01}, {"repetition_penalty": 1.7}]
    ways += [{"presence_penalty": 2.0}, {"logit_bias": ((20, 90.0), (40, -100.0))}, {"bad_words": ((34,), (35, 36))}]
    driver = Driver(engine)
    for seed in range(28):
        sampling = SamplingParams(temperature=1.5, seed=seed, grammar=GRAMMARS[kind], **ways[seed % len(ways)])
        driver.add(record(f"r{seed}", [5, 6, seed + 3], sampling, max_new_tokens=60, stop_token_ids=(END,)))
    ended = 0
    for tokens in driver.finish().values():
        if END in tokens:
            ended += 1
            written = text(tokens[: tokens.index(END)])
            if kind == "json":
                value = fits(written)
                assert set(value) == {"a", "b"} and 0 <= value["a"] <= 99 and value["b"] in ("x", "yz", True)
            else:
                assert re.fullmatch(r"[a-c]{3}(-[0-9]{2,4})+;" if kind == "regex" else r"\(+[xyz]{2}\)+", written)
    assert ended >= (28 if kind == "json" else 10)


@pytest.mark.parametrize("kind", GRAMMARS)
def test_a_sequence_goes_on_from_its_tokens(byte_folder: Path, engine: Engine, kind: str) -> None:
    """At any of them, at an engine that has not seen the others; also where its first token came from elsewhere."""
    prompt = [9, 8, 70]
    driver = Driver(engine)
    driver.add(with_grammar("r", prompt, GRAMMARS[kind], stop_token_ids=(END,)))
    whole = until(END, driver.finish()["r@1"])
    other = Driver(load_engine(byte_folder))
    for cut in range(1, len(whole)):
        other.add(with_grammar(f"r{cut}", prompt, GRAMMARS[kind], tuple(whole[:cut]), stop_token_ids=(END,)))
    found = other.finish()
    for cut in range(1, len(whole)):
        assert whole[:cut] + until(END, found[f"r{cut}@1"]) == whole
    other.engine.add_sequence(with_grammar("handed", prompt, GRAMMARS[kind], stop_token_ids=(END,)))
    assert isinstance(other.engine, Engine)
    other.engine.append_token("handed@1", whole[0])
    (sampled,) = other.engine.run_iteration(Batch((BatchRow("handed@1", 0, 4, (60,)),)))
    assert sampled.token_id == whole[1]


def test_penalties_come_after_the_grammar(engine: Engine, likeliest: Callable[..., list[int]]) -> None:
    """They order what fits; the scores are of the model's own distribution."""
    change = SamplingParams(temperature=0.0, repetition_penalty=1.6, frequency_penalty=0.7)
    sampling = SamplingParams(0.0, repetition_penalty=1.6, frequency_penalty=0.7, grammar=REGEX, logprobs=2)
    driver = Driver(engine)
    driver.add(record("r", [9, 8, 70], sampling, max_new_tokens=40, stop_token_ids=(END,)))
    found = driver.finish()["r@1"]
    assert until(END, found) == likeliest([9, 8, 70], REGEX, END, change)
    first = driver.results["r@1"][0].logprobs
    assert first is not None
    assert first.logprob < first.top_logprobs[0]  # the model's own likeliest token does not fit


def test_an_end_that_comes_before_the_minimum_counts(engine: Engine, text: Callable[[list[int]], str]) -> None:
    """`min_new_tokens` cannot lengthen what the grammar has ended; without stop tokens the end is repeated."""
    driver = Driver(engine)
    driver.add(with_grammar("r", [9, 8], JSON, stop_token_ids=(TURN,), min_new_tokens=39))
    driver.add(with_grammar("s", [9, 8], JSON))
    found = driver.finish()
    ended = until(TURN, found["r@1"])
    assert ended[-1] == TURN
    json.loads(text(ended[:-1]))
    assert found["s@1"][: len(ended) - 1] == ended[:-1]
    assert set(found["s@1"][len(ended) - 1 :]) == {END}


@pytest.mark.parametrize("grammar", ["not a grammar", LLMatcher.grammar_from_regex("(a|b"), '{"grammars": []}'])
def test_what_cannot_be_followed_fails_alone(engine: Engine, grammar: str) -> None:
    """It says why and has no token; the others of its batch have theirs."""
    driver = Driver(engine)
    driver.add(record("free", [20, 30, 40]))
    driver.add(with_grammar("r", [9, 8], grammar))
    driver.add(with_grammar("s", [9, 8], JSON))
    ends = (("free@1", 3), ("r@1", 2), ("s@1", 2))
    rows = tuple(BatchRow(name, 0, tokens, driver.pool.owned_by(name)) for name, tokens in ends)
    free, failed, fitting = engine.run_iteration(Batch(rows))
    assert failed.failure is not None and "grammar" in failed.failure
    assert (free.failure, fitting.failure) == (None, None)
    again = engine.run_iteration(Batch((rows[1], rows[2]._replace(first_position=2, num_tokens=1))))
    assert again[0].failure == failed.failure
    assert again[1].failure is None


def test_no_iteration_compiles_what_was_prepared(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many grammars are compiled between a sequence's preparation and its addition, and while it runs."""
    compiled: list[str] = []

    def noting(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
        compiled.append(grammar)
        return grammar_following.compiled(tokenizer, grammar)

    monkeypatch.setattr(grammars, "compiled", noting)

    def prepare(name: str, grammar: str) -> tuple[RequestRecord, Future[LLMatcher]]:
        sequence = with_grammar(name, [9, 8], grammar)
        preparing = engine.prepare(sequence)
        assert preparing is not None
        preparing.result(WAIT_S)
        return sequence, preparing

    def crowd(name: str) -> None:
        for number in range(80):
            of_crowd = LLMatcher.grammar_from_regex(f"{name}{number}")
            prepare("c", of_crowd)

    sequence, prepared = prepare("r", JSON)
    crowd("before")
    engine.add_sequence(sequence, prepared)
    blocks = BlockPool(engine.num_blocks, engine.block_size)
    blocks.allocate("r@1", 4)
    row = BatchRow("r@1", 0, 2, blocks.owned_by("r@1"))
    (first,) = engine.run_iteration(Batch((row,)))
    crowd("meanwhile")
    (second,) = engine.run_iteration(Batch((row._replace(first_position=2, num_tokens=1),)))
    assert (first.failure, second.failure) == (None, None) and compiled.count(JSON) == 1


def failure_of(engine: Engine, outputs: tuple[int, ...] = ()) -> str | None:
    driver = Driver(engine)
    driver.add(with_grammar("r", [9, 8], JSON, outputs))
    driver.step()
    return driver.results["r@1"][0].failure


def test_tokens_that_do_not_fit_are_a_failure(engine: Engine) -> None:
    assert "cannot be followed" in (failure_of(engine, (77, 78)) or "")


def test_without_its_tokenizer_an_engine_says_so(tmp_path: Path) -> None:
    folder = save_model(llama_config(vocab_size=VOCAB), tmp_path / "llama")
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json" in (failure_of(load_engine(folder)) or "")


def test_a_sketch_has_the_tokenizer(byte_folder: Path, tmp_path: Path) -> None:
    """A worker that gets its weights from others, and has no folder, follows grammars as well."""
    write_sketch(sketch_of(byte_folder, read_checkpoint(byte_folder), "bytes", "digest"), tmp_path / "sketch")
    assert (tmp_path / "sketch" / "tokenizer.json").read_bytes() == (byte_folder / "tokenizer.json").read_bytes()


MOST_BYTES = 128 << 10


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_byte_tokenizer(folder)
    return LLTokenizer(str(folder / "tokenizer.json"), n_vocab=280)


def chained_rules(name: str, tail: str = "") -> str:
    """A chain of rules, or of terminals, each of which is the next one."""
    count = MOST_BYTES // (24 + 2 * len(tail))
    rules = [f"start: {name}0", *(f"{name}{each}: {name}{each + 1}{tail}" for each in range(count))]
    return LLMatcher.grammar_from_lark("\n".join([*rules, f'{name}{count}: "x"']))


def chained_schemas(link: Callable[[str], object]) -> str:
    names = [f"#/$defs/p{each}" for each in range(1900)]
    schemas = {f"p{each}": link(name) for each, name in enumerate(names[1:])}
    given = {"$ref": names[0], "$defs": schemas | {f"p{len(names) - 1}": {"type": "string"}}}
    return LLMatcher.grammar_from_json_schema(json.dumps(given))


@pytest.mark.parametrize(
    "grammar",
    [
        chained_rules("a"),
        chained_rules("A"),
        chained_rules("A", ' "y"'),
        chained_schemas(lambda name: {"type": "object", "properties": {"a": {"$ref": name}}}),
        chained_schemas(lambda name: {"allOf": [{"$ref": name}]}),
        chained_schemas(lambda name: {"type": "array", "items": {"$ref": name}}),
        chained_schemas(lambda name: {"anyOf": [{"type": "integer"}, {"$ref": name}]}),
    ],
    ids=["rules", "terminals", "sequences", "objects", "all of", "arrays", "any of"],
)
def test_a_chain_as_long_as_a_grammar_may_be_ends_no_process(tokenizer: LLTokenizer, grammar: str) -> None:
    """They overflow a usual stack, of which a gateway or a worker would die with all that it serves."""
    try:
        assert compiled(tokenizer, grammar).compute_bitmask()
    except GrammarError as error:
        assert error.why == grammar_following.TOO_COMPLEX


def test_more_optional_properties_than_a_parser_follows_are_too_complex(tokenizer: LLTokenizer) -> None:
    """Its limit on what may come next has a message of another form."""
    properties = {f"p{each}": {"type": "string"} for each in range(600)}
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "object", "properties": properties}))
    assert trial_problem(tokenizer, grammar) == grammar_following.TOO_COMPLEX


def test_an_error_comes_back_from_a_deep_stack() -> None:
    with pytest.raises(ZeroDivisionError):
        with_deep_stack(lambda: 1 // 0)


@pytest.mark.parametrize(
    ("limit", "problem"),
    [
        ("MAX_COMPILE_CPU_S", grammar_following.TOO_SLOW),
        ("MAX_TRIAL_CPU_S", grammar_following.SLOW_TO_FOLLOW),
    ],
)
def test_what_takes_too_long_is_refused(
    tokenizer: LLTokenizer, monkeypatch: pytest.MonkeyPatch, limit: str, problem: str
) -> None:
    """In time of a processor, whatever else the machine does: compiling it, and following it for a while."""
    grammar = LLMatcher.grammar_from_regex("[ab]{3}")
    assert trial_problem(tokenizer, grammar) == ""
    monkeypatch.setattr(grammar_following, limit, 0.0)
    assert trial_problem(tokenizer, grammar) == problem
