"""Control tokens in the text of clients: there they are text, and only the chat template writes them.

A tokenizer finds its control tokens anywhere. So a message that holds `<|im_end|>` would end its turn, and could open one of
the system's. Here what clients write is marked before a template renders it, wherever it looks like a control token or could
become one beside other text. After rendering, the tokens that are left are the template's; a twin of the tokenizer knows them
by names that no client can write, and reads the marked texts, restored, as text. Where nothing is marked the tokenizer itself
reads the prompt.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal

from tokenizers import Tokenizer

#: What a control token in the text of a chat is: text like any other, or what the tokenizer reads.
ControlTokensInText = Literal["text", "allow"]
#: Round the number of a marked text. They have no case, are no blanks, and mean nothing: Unicode's private use.
_FRONT, _BACK = "\uf8f0", "\uf8f1"
#: Of one request; each takes microseconds at several places.
MAX_MARKS = 100_000
#: Searched at once.
_SEARCHED_CHARACTERS = 1 << 16
#: Fields whose values are words of the API, not texts.
_WORDS = frozenset({"role", "type"})


class TooManyMarksError(Exception):
    """The texts of a chat hold more control tokens than a request needs; the message says how many are allowed."""

    def __init__(self) -> None:
        super().__init__(f"its texts hold more than {MAX_MARKS} control tokens")


def _substituted(names: re.Pattern[str], longest: int, text: str, of: Callable[[str], str]) -> str:
    """Replace what a pattern finds, whose matches have so many characters at most.

    A search holds the interpreter; what almost has a name everywhere would hold it for seconds.
    """
    parts: list[str] = []
    kept = start = 0
    while start < len(text):
        end = start + _SEARCHED_CHARACTERS
        found = names.search(text, start, end + longest - 1)
        if found is None or found.start() >= end:
            start = end
            continue
        parts += (text[kept : found.start()], of(found[0]))
        kept = start = found.end()
    return "".join((*parts, text[kept:])) if parts else text


class _Names:
    """Finds control tokens, in any case, for a template may change it."""

    def __init__(self, names: Collection[str]) -> None:
        # Single characters first, by which the search finds its places quickly.
        longest_first = sorted(names, key=len, reverse=True)
        self.whole = re.compile("|".join([_FRONT, _BACK, *map(re.escape, longest_first)]), re.IGNORECASE)
        self._longest = max(map(len, names)) - 1
        self._beginnings = {name[:length].lower() for name in names for length in range(1, len(name))}
        self._endings = {name[length:].lower() for name in names for length in range(1, len(name))}

    def substituted(self, text: str, of: Callable[[str], str]) -> str:
        """Return a text with others in place of control tokens."""
        return _substituted(self.whole, self._longest + 1, text, of)

    def beginning_at_end(self, text: str) -> int:
        """Return how many of a text's last characters begin a control token, which other text may complete."""
        most = min(self._longest, len(text))
        return next((size for size in range(most, 0, -1) if text[-size:].lower() in self._beginnings), 0)

    def end_at_beginning(self, text: str) -> int:
        """Return how many of a text's first characters end a control token."""
        most = min(self._longest, len(text))
        return next((size for size in range(most, 0, -1) if text[:size].lower() in self._endings), 0)


class MarkedTexts:
    """What has been marked in the texts of one request."""

    def __init__(self, names: _Names | None) -> None:
        self._names = names
        self._originals: list[str] = []

    @property
    def has_any(self) -> bool:
        """Whether a text looked like a control token."""
        return bool(self._originals)

    def mark(self, value: Any) -> Any:
        """Return a value of JSON with marks in its texts, names included."""
        match value:
            case str():
                return value if self._names is None else self._mark_text(value, self._names)
            case Mapping():
                return {
                    self.mark(name): each if name in _WORDS and isinstance(each, str) else self.mark(each)
                    for name, each in value.items()
                }
            case list() | tuple():
                return [self.mark(each) for each in value]
        return value

    def restore(self, rendered: str) -> str:
        """Return a text with what was marked."""
        return re.sub(f"{_FRONT}([0-9]+){_BACK}", lambda found: self._originals[int(found[1])], rendered)

    def _mark_text(self, text: str, names: _Names) -> str:
        text = names.substituted(text, self._marked)
        # Blanks round it stay where templates find them.
        if size := names.end_at_beginning(inner := text.lstrip()):
            text = text[: len(text) - len(inner)] + self._marked(inner[:size]) + inner[size:]
        if size := names.beginning_at_end(inner := text.rstrip()):
            text = inner[:-size] + self._marked(inner[-size:]) + text[len(inner) :]
        return text

    def _marked(self, original: str) -> str:
        if len(self._originals) >= MAX_MARKS:
            raise TooManyMarksError
        self._originals.append(original)
        return f"{_FRONT}{len(self._originals) - 1}{_BACK}"


class ControlTokens:
    """A tokenizer's control tokens, and its twin.

    Args:
        tokenizer: the model's.
        further_ids: tokens that end a text, also those that the tokenizer does not call special.
        are_read: in clients' texts they are control tokens too: nothing is marked.
    """

    def __init__(self, tokenizer: Tokenizer, further_ids: Collection[int] = (), *, are_read: bool = False) -> None:
        added = tokenizer.get_added_tokens_decoder()
        names = {
            token_id: token.content for token_id, token in added.items() if token.special or token_id in further_ids
        }
        self._marked = None if are_read or not names else _Names(set(names.values()))
        # Of every process another one, so that no client can write it.
        mark = secrets.token_hex(8)
        self._twins = {name: f"<{mark}.{token_id}>" for token_id, name in names.items()}
        longest_first = sorted(self._twins, key=len, reverse=True)
        self._written = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._twin: Tokenizer | None = None
        self._of = tokenizer

    def marking(self) -> MarkedTexts:
        """Return what marks the texts of a request."""
        return MarkedTexts(self._marked)

    def for_twin(self, rendered: str, marked: MarkedTexts) -> str:
        """Return a rendered chat as the twin reads it: the template's control tokens by secret names, the rest as text."""
        if self._written is not None:
            rendered = _substituted(self._written, max(map(len, self._twins)), rendered, self._twins.__getitem__)
        return marked.restore(rendered)

    @property
    def twin(self) -> Tokenizer:
        """The tokenizer with secret names of its control tokens; made when a text needs it first."""
        if self._twin is None:
            self._twin = Tokenizer.from_str(_renamed(self._of.to_str(), self._twins))
            self._twin.no_truncation()
            self._twin.no_padding()
        return self._twin


def _renamed(tokenizer_json: str, names: Mapping[str, str]) -> str:
    """Return a tokenizer whose tokens have other names, so that no text gives them."""
    parts = json.loads(tokenizer_json)
    for token in parts.get("added_tokens") or ():
        token["content"] = names.get(token["content"], token["content"])
    model = parts["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(name, name): token_id for name, token_id in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[names.get(name, name), score] for name, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if names.keys().isdisjoint(_tokens_of(pair))]
    return json.dumps(parts, ensure_ascii=False)


def _tokens_of(merge: str | list[str]) -> Iterator[str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    yield from (left, right, left + right)
