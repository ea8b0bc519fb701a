"""Refuses checkpoints that lack weights of their model.

transformers fills a missing or misshapen tensor with random numbers, and only logs it: every worker would draw its own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spotwise.engine.errors import ModelError

_MOST_NAMES = 3
_MOST_CHARACTERS = 300
# A row of transformers' table of what went wrong: the tensor's name, and in the next column that it could not be converted.
_CONVERSION_ROW = re.compile(r"^\s*(\S[^|]*?)\s*\|[^|]*CONVERSION", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def require_complete(source: object, info: Mapping[str, Any]) -> None:
    """Refuse a model that was not wholly read.

    Args:
        source: file or folder.
        info: of `from_pretrained(…, output_loading_info=True, ignore_mismatched_sizes=True)`.

    Raises:
        ModelError: tensors are missing, surplus or of another shape; names them in one line.
    """
    wrong = []
    if missing := info["missing_keys"]:
        wrong.append(f"it lacks {_names(missing)}")
    if mismatched := info["mismatched_keys"]:
        wrong.append(_names(f"{name} is {_shape(stored)} instead of {_shape(due)}" for name, stored, due in mismatched))
    if surplus := info["unexpected_keys"]:
        wrong.append(f"the model has no {_names(surplus)}")
    wrong += [one_line(message) for message in info["error_msgs"][:1]]
    if wrong:
        raise ModelError(
            f"the weights in {source} are not those of the model that its config describes: {'; '.join(wrong)}; "
            "copy or save the model anew"
        )


@contextmanager
def named_conversion_errors() -> Iterator[None]:
    """Name the tensors that transformers could not join or split while it loaded, which it says in its log alone.

    Raises:
        ModelError: there were such.
    """
    reports = _Reports()
    logger = logging.getLogger("transformers.modeling_utils")
    handlers, propagates = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [reports], False
    try:
        yield
    except RuntimeError as error:
        if names := reports.not_converted():
            raise ModelError(
                f"tensors are missing or of another shape, from which these would be made: {_names(names)}; "
                "copy or save the model anew"
            ) from error
        raise
    finally:
        logger.handlers, logger.propagate = handlers, propagates


class _Reports(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())

    def not_converted(self) -> list[str]:
        """Return the names in the rows of its tables that say so."""
        return _CONVERSION_ROW.findall(_COLOURS.sub("", "\n".join(self._texts)))


def one_line(error: object) -> str:
    """Return what a library says in one line of bounded length."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]} …"


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _MOST_NAMES
    return ", ".join(ordered[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _shape(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"
