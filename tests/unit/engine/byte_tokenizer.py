"""A tokenizer of single bytes and a few longer tokens, for models of a few hundred tokens."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

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
