"""The check of comments and docstrings: each rule finds what breaks it, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[2] / "scripts" / "plain_english.py"
_SPEC = importlib.util.spec_from_file_location("plain_english", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
plain_english = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(plain_english)

LIBRARY = "libs/spotwise/mesh/example.py"
CORE = "libs/spotwise/core/example.py"
#: In two parts: this file is checked, too.
PRONOUN = "who" + "ever"


def lines(source: str, path: str = LIBRARY) -> list[int]:
    """The lines that a source breaks rules in."""
    return [line for line, _ in plain_english.problems(source, path)]


@pytest.mark.parametrize("pronoun", [PRONOUN, "no" + "body", "Some" + "body"])
@pytest.mark.parametrize("path", [LIBRARY, "tests/unit/test_example.py"])
def test_a_subject_has_a_name(pronoun: str, path: str) -> None:
    assert lines(f'"""Text.\n\n{pronoun} waits.\n"""\n', path) == [3]
    assert lines(f"one = 1  # {pronoun} waits\n", path) == [1]
    assert lines(f'one = 1\nprint(f"{pronoun} of {{one}} waits")\n', path) == [2]
    assert lines(f"{pronoun} = {pronoun}s = 1  # each {pronoun}s_name\n", path) == []


@pytest.mark.parametrize("word", ["What", "How", "Which", "Whether", "Who", "When", "Where"])
def test_a_module_says_what_it_is_or_does(word: str) -> None:
    assert lines(f'"""{word} a worker computes."""\n') == [1]
    assert lines(f'"""{word}soever computes a worker."""\n') == []
    assert lines(f'"""Computes.\n\n{word} it computes.\n"""\n') == []
    assert lines(f'def run():\n    """{word} it computes."""\n') == []
    assert lines(f'"""{word} a worker computes."""\n', "tests/unit/test_example.py") == []


@pytest.mark.parametrize("section", ["Args", "Attributes"])
@pytest.mark.parametrize("word", ["of", "that", "by", "which", "whether", "Of"])
def test_an_entry_begins_with_a_noun_or_a_verb(section: str, word: str) -> None:
    def documented(entry: str) -> str:
        return (
            f'class Worker:\n    """A worker.\n\n    {section}:\n        first: its name.\n        {entry}\n    """\n'
        )

    assert lines(documented(f"blocks: {word} the cache.")) == [6]
    assert lines(documented(f"blocks, bytes (int): {word} the cache.")) == [6]
    assert lines(documented("blocks: offered blocks of the cache.")) == []
    assert lines(documented(f"blocks: its blocks,\n            more: {word} the cache.")) == []
    assert lines(documented(f"\n    Raises:\n        ValueError: {word} the cache.")) == []


def test_laws_are_of_core() -> None:
    source = '"""Computes.\n\nLaw: a sequence ends once.\n"""\n'
    assert lines(source) == [3]
    assert lines(source, CORE) == []
    assert lines('"""Computes.\n\nKeeps the Law: see core.\n"""\n') == []


def test_a_law_has_at_most_six_lines() -> None:
    def law(number: int, ending: str) -> str:
        return '"""Computes.\n\nLaw: one rule.\n' + "Another rule.\n" * (number - 1) + ending

    assert lines(law(6, '"""\n'), CORE) == []
    assert lines(law(6, '\nSource: a paper.\n"""\n'), CORE) == []
    assert lines(law(7, '"""\n'), CORE) == [3]
    assert lines(law(7, '\nSource: a paper.\n"""\n'), CORE) == [3]
