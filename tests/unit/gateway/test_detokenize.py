"""Tokens become text as they come: against the decoding of all at once, and up to a stop string."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from spotwise.text.chat_text import ChatText
from spotwise.text.detokenize import Detokenizer, TokenBytes
from spotwise.text.stop_strings import StopStringScanner, StopTables
from tests.unit.gateway.apps import Encode


def pieces_of(detokenizer: Detokenizer, token_ids: list[Any]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@given(words=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=60))
def test_pieces_of_a_text_join_to_it_without_replacement_characters(text: ChatText, encode: Encode, words: str) -> None:
    pieces = pieces_of(text.detokenizer(skip_special_tokens=False), encode(words))
    assert "".join(pieces) == words
    assert not any("\ufffd" in piece for piece in pieces)


@given(token_ids=st.lists(st.integers(0, 399), max_size=31), skip=st.booleans())
def test_pieces_of_any_tokens_join_to_their_decoding(
    text: ChatText, model_dir_tokenizer: Tokenizer, token_ids: list[int], skip: bool
) -> None:
    pieces = pieces_of(text.detokenizer(skip), token_ids)
    assert "".join(pieces) == model_dir_tokenizer.decode(token_ids, skip_special_tokens=skip)


def test_an_emoji_is_given_with_its_last_byte(text: ChatText, model_dir_tokenizer: Tokenizer) -> None:
    """Four bytes as four tokens: nothing, nothing, nothing, the emoji."""
    letters = [letter for letter, _ in zip("ðŁĺĢ", range(4), strict=True)]
    token_ids = [model_dir_tokenizer.token_to_id(letter) for letter in letters]
    assert pieces_of(text.detokenizer(), token_ids) == ["", "", "", "😀", ""]


def test_an_unfinished_character_is_sent_at_the_end_only(text: ChatText, model_dir_tokenizer: Tokenizer) -> None:
    first_byte = model_dir_tokenizer.token_to_id("ð")
    assert pieces_of(text.detokenizer(), [first_byte]) == ["", "\ufffd"]


def test_bytes_that_never_become_text_are_not_held_for_ever(text: ChatText, model_dir_tokenizer: Tokenizer) -> None:
    """A model that generates only continuation bytes does not make every step slower."""
    continuation: Any = model_dir_tokenizer.token_to_id("Ģ")
    detokenizer = text.detokenizer()
    pieces = [detokenizer.push(continuation) for _ in range(100)]
    assert "".join(pieces) + detokenizer.flush() == "\ufffd" * 100
    assert "".join(pieces).count("\ufffd") >= 64


def byte_fallback_tokenizer() -> Tokenizer:
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    vocab |= {piece: 257 + rank for rank, piece in enumerate(["▁", "▁hello", "▁wor", "ld"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


@given(st.lists(st.sampled_from([257, 258, 259, 260]), max_size=20))
def test_spaces_of_sentencepiece_models_survive(token_ids: list[Any]) -> None:
    """A decoder that strips the first space strips it once a text, not once a piece."""
    tokenizer = byte_fallback_tokenizer()
    pieces = pieces_of(Detokenizer(tokenizer, frozenset()), token_ids)
    assert "".join(pieces) == tokenizer.decode(token_ids, skip_special_tokens=False)


def test_continues_when_later_bytes_spoil_earlier_ones() -> None:
    """Byte fallback decodes a run of bytes as one: sent text stays, and the stream continues."""
    tokenizer = byte_fallback_tokenizer()
    e_acute, half = [0xC3 + 1, 0xA9 + 1], 0xE2 + 1
    pieces = pieces_of(Detokenizer(tokenizer, frozenset()), [258, *e_acute, half, 260, 259])
    assert "".join(pieces) == "helloé\ufffdld wor"


def test_bytes_and_texts_of_single_tokens(text: ChatText, encode: Encode, model_dir_tokenizer: Tokenizer) -> None:
    """Log-probabilities name tokens by exact bytes; halves of characters are spelled."""
    of = text.token_bytes
    assert b"".join(of.bytes_of(token_id) for token_id in encode("emoji 😀!")) == "emoji 😀!".encode()
    half = model_dir_tokenizer.token_to_id("ð")
    assert (of.bytes_of(half), of.text_of(half)) == (b"\xf0", "bytes:\\xf0")
    assert (of.text_of(2), of.bytes_of(2)) == ("<|im_end|>", b"<|im_end|>")
    assert of.bytes_of(511) == b""
    pieces = TokenBytes(byte_fallback_tokenizer())
    assert (pieces.bytes_of(258), pieces.bytes_of(0xE2 + 1)) == (b" hello", b"\xe2")


SMALL_TEXTS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


def scan(pieces: list[str], stops: list[str], include: bool) -> tuple[str, str | None]:
    scanner = StopStringScanner(StopTables(tuple(stops)), include)
    given_text = "".join(scanner.push(piece) for piece in pieces)
    return given_text + scanner.flush(), scanner.matched


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition: of all stop strings found the one that ends first, the longest if several end there."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end if include else end - len(stop)], stop


@given(st.lists(SMALL_TEXTS, max_size=8), STOPS, st.booleans())
def test_any_split_gives_what_find_gives_on_the_whole(pieces: list[str], stops: list[str], include: bool) -> None:
    assert scan(pieces, stops, include) == expected("".join(pieces), stops, include)


@given(st.lists(SMALL_TEXTS, max_size=8), STOPS)
def test_holds_back_only_what_may_become_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    """After every piece the text given is all but the longest end that begins a stop string."""
    scanner = StopStringScanner(StopTables(tuple(stops)))
    text = given_text = ""
    for piece in pieces:
        text += piece
        given_text += scanner.push(piece)
        if scanner.matched is not None:
            break
        beginnings = [stop[:length] for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])]
        assert given_text == text[: len(text) - max(map(len, beginnings), default=0)]
