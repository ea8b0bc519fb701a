"""Refuses checkpoints that lack weights of their model.

transformers fills a missing or misshapen tensor with random numbers, and only logs it: every worker would draw its own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spotwise.engine.model.errors import ModelError

_MOST_NAMES = 3
_MOST_CHARACTERS = 300
# A row of transformers' loading report: the tensor's name, and a failed conversion in the next column.
_CONVERSION_ROW = re.compile(r"^\s*(\S[^|]*?)\s*\|[^|]*CONVERSION", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def require_complete(source: object, info: Mapping[str, Any]) -> None:
    """Refuse a model whose checkpoint does not match its architecture.

    Args:
        source: file or folder.
        info: from `from_pretrained(…, output_loading_info=True, ignore_mismatched_sizes=True)`.

    Raises:
        ModelError: tensors are missing, unexpected or of another shape; names them in one line.
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
            "copy or save the model again"
        )


@contextmanager
def named_conversion_errors() -> Iterator[None]:
    """Name the tensors that transformers could not merge or split while loading, which only its log names.

    Raises:
        ModelError: the load inside failed, and the log names such tensors.
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
                "copy or save the model again"
            ) from error
        raise
    finally:
        logger.handlers, logger.propagate = handlers, propagates


class _Reports(logging.Handler):
    """A log handler that keeps the messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())

    def not_converted(self) -> list[str]:
        """Return the tensor names in report rows with a failed conversion."""
        return _CONVERSION_ROW.findall(_COLOURS.sub("", "\n".join(self._texts)))


def one_line(error: object) -> str:
    """Return a library's error as one line of bounded length."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]} …"


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _MOST_NAMES
    return ", ".join(ordered[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _shape(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"
