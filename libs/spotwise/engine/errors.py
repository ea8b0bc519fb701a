"""Errors of a model that cannot be served; every message says what to do."""

from __future__ import annotations


class ModelError(Exception):
    """The model cannot be found, fetched, converted or read."""


class UnsupportedModelError(ModelError):
    """The model is there, and this engine would compute it wrongly: it is refused with the reason."""
