"""Checks of the adapters that a mesh is to serve, before it starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from spotwise.cli.errors import OptionError
from spotwise.cli.options import MeshOptions
from spotwise.core.requests.names import named_folders
from spotwise.engine.model.adapter_files import read_adapter
from spotwise.engine.model.errors import AdapterError

_SETTING = "SPOTWISE_ADAPTERS"


def adapters_option(given: Sequence[str]) -> str:
    """Return the setting of the adapters of `--adapter`, or else of the environment, with absolute folders.

    Raises:
        OptionError: an entry is not NAME=FOLDER, a name occurs twice, or a folder has no adapter that could be served.
    """
    option = "--adapter" if given else _SETTING
    if comma := next((entry for entry in given if "," in entry), None):
        raise OptionError(f"--adapter {comma}: a comma in it; name each adapter with an --adapter of its own")
    listed = ",".join(given) or os.environ.get(_SETTING, "")
    try:
        folders = [(name, Path(folder).absolute()) for name, folder in named_folders(listed)]
        for name, folder in folders:
            read_adapter(name, folder)
    except (AdapterError, ValueError) as error:
        raise OptionError(f"{option}: {error}") from error
    return ",".join(f"{name}={folder}" for name, folder in folders)


def require_other_names(options: MeshOptions) -> None:
    """Refuse an adapter that is called as the model is; raises `OptionError`."""
    if options.model_name in dict(named_folders(options.adapters)):
        raise OptionError(
            f"--adapter {options.model_name}: the model itself has this name; choose another, or give --model-name"
        )
