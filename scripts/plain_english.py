"""Reports words and forms that make comments and docstrings hard to read; `make check` runs it."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("libs", "services", "benchmarks", "studies", "scripts")
CORE = "libs/spotwise/core/"
LAW_LINES = 6

#: Pronouns in place of a subject that has a name; written so that this file passes its own check.
PRONOUN = re.compile(r"\b(?:who(?:ever)|(?:no|some)body)\b", re.IGNORECASE)
QUESTION = re.compile(r"\s*(what|how|which|whether|who|when|where)\b", re.IGNORECASE)
SECTION = re.compile(r"( *)(?:Args|Attributes):$")
ENTRY = re.compile(r" *[\w*, `.]+?(?: \([^)]*\))?: +(of|that|by|which|whether)\b", re.IGNORECASE)
TEXT = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}

Found = Iterator[tuple[int, str]]


def pronouns(source: str) -> Found:
    """Yield the line of each such pronoun in a comment or a string, and a reason."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline) if PRONOUN.search(source) else ():
        for match in PRONOUN.finditer(token.string) if token.type in TEXT else ():
            line = token.start[0] + token.string.count("\n", 0, match.start())
            yield line, f'"{match[0]}" names no subject: say which process, request or user'


def entries(line: int, docstring: list[str]) -> Found:
    """Yield the line of each described argument or attribute that begins with a preposition or conjunction."""
    section: int | None = None  # The indent of the section's title.
    for number, text in enumerate(docstring, line):
        indent = len(text) - len(text.lstrip())
        if match := SECTION.match(text):
            section = len(match[1])
        elif section is not None and text.strip() and indent <= section:
            section = None
        elif section is not None and indent == section + 4 and (match := ENTRY.match(text)):
            yield number, f'the entry begins with "{match[1]}": begin with a noun or a verb'


def laws(line: int, docstring: list[str], path: str) -> Found:
    """Yield the line of each law that is outside core or too long."""
    for at, text in enumerate(docstring):
        if text.lstrip().startswith("Law:"):
            lines = [*(each.strip() for each in docstring[at:]), ""].index("")
            if not path.startswith(CORE):
                yield line + at, "a law outside core: describe the module instead"
            elif lines > LAW_LINES:
                yield line + at, f"a law of {lines} lines: {LAW_LINES} at most"


def problems(source: str, path: str) -> Found:
    """Yield the line of each broken rule in a file, and a reason; for tests the pronouns are the only rule."""
    yield from pronouns(source)
    for node in () if path.startswith("tests/") else ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = (ast.get_docstring(node, clean=False) or "").split("\n")
            line = node.body[0].lineno if node.body else 1
            if isinstance(node, ast.Module) and (match := QUESTION.match(docstring[0])):
                yield line, f'the module\'s docstring begins with "{match[1]}": say what the module is or does'
            yield from entries(line, docstring)
            yield from laws(line, docstring, path)


def main() -> int:
    """Print what breaks a rule, and return 1 if anything does."""
    files = [file for root in (*SOURCES, "tests") for file in sorted((ROOT / root).rglob("*.py"))]
    found = [
        f"{path}:{line}: {reason}\n"
        for file in files
        if not {"v1", "_build"} & set((path := file.relative_to(ROOT)).parts)
        for line, reason in sorted(problems(file.read_text(encoding="utf-8"), path.as_posix()))
    ]
    sys.stdout.writelines(found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
