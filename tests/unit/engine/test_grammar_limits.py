"""Grammars at the limits of what is compiled and followed: refused by name, or good, and never the end of the process."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from llguidance import LLMatcher, LLTokenizer

from spotwise.engine.sampling import grammar_following
from spotwise.engine.sampling.fair_threads import with_deep_stack
from spotwise.engine.sampling.grammar_following import GrammarError, compiled, trial_problem
from tests.unit.engine.byte_tokenizer import save_byte_tokenizer

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
    """A chain of schemas, each of which refers to the next one."""
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
