"""Checks of the model's further names before a mesh starts."""

from __future__ import annotations

import os
from collections.abc import Sequence

from spotwise.cli.errors import OptionError
from spotwise.cli.options import MeshOptions
from spotwise.core.requests.names import model_aliases, named_folders, require_aliases_of

_ALIASES_SETTING = "SPOTWISE_MODEL_ALIASES"


def aliases_option(given: Sequence[str]) -> str:
    """Return the setting of the aliases of `--model-alias`, or else of the environment.

    Raises:
        OptionError: an entry is not NAME=MODEL, or a name occurs twice.
    """
    if comma := next((entry for entry in given if "," in entry), None):
        raise OptionError(f"--model-alias {comma}: a comma in it; give each alias with a --model-alias of its own")
    listed = ",".join(given) or os.environ.get(_ALIASES_SETTING, "")
    try:
        model_aliases(listed)
    except ValueError as error:
        raise OptionError(f"{'--model-alias' if given else _ALIASES_SETTING}: {error}") from error
    return listed


def require_aliases(options: MeshOptions) -> None:
    """Refuse an alias of what is not served, or that hides what is; raises `OptionError`."""
    served = [options.model_name, *(name for name, _ in named_folders(options.adapters))]
    try:
        require_aliases_of(served, model_aliases(options.model_aliases))
    except ValueError as error:
        raise OptionError(f"--model-alias: {error}") from error
