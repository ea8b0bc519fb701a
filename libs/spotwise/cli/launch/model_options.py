"""The options of `spotwise up` about the model, and their checks: its adapters, further names and device, and its files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.run_folder import cache_folder
from spotwise.cli.option_groups import OptionGroup
from spotwise.core.requests.names import model_aliases, named_folders, require_aliases_of
from spotwise.engine.model.adapter_files import read_adapter
from spotwise.engine.model.errors import AdapterError, ModelError
from spotwise.engine.model.model_store import DEFAULT_MODEL, ModelLocation, resolve_model


class ModelChoice(OptionGroup):
    """The options that say what is served, and under which names."""

    model: Annotated[str, typer.Option(help="A folder, a GGUF file or a hub id.")] = DEFAULT_MODEL
    model_name: Annotated[str | None, typer.Option(help="Model name in requests; by default the model's own.")] = None
    aliases: Annotated[
        list[str],
        typer.Option(
            "--model-alias",
            metavar="NAME=MODEL",
            help="A further name of the model, or of an adapter; *=MODEL: any name that is not known; repeatable.",
        ),
    ] = []
    adapters: Annotated[
        list[str],
        typer.Option(
            "--adapter",
            metavar="NAME=FOLDER",
            help="A LoRA adapter (PEFT's layout) that requests may name as their model; repeatable.",
        ),
    ] = []


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


def resolve_with_progress(reference: str, console: Console, *, widens: bool = False) -> ModelLocation:
    """Return a model's location, fetched or converted first where needed, `widens` as in `resolve_model`; raises `CommandError`
    where it is not available.
    """
    columns = (TextColumn("model: {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"looking for {reference}", total=None)
        shown: set[str] = set()

        def show(stage: str, done: int, total: int) -> None:
            progress.update(bar, description=stage, completed=done, total=total)
            if not console.is_terminal and stage not in shown:
                shown.add(stage)
                console.print(f"model: {stage}", markup=False, highlight=False)

        try:
            return resolve_model(reference, cache_folder(), show, widens=widens)
        except ModelError as error:
            raise CommandError(str(error)) from error


_TIMEOUT_S = 60.0
# In a process of its own: torch and a driver's context would stay in the supervisor's memory.
_COUNT = ("-m", "spotwise.engine.torch_devices")


def require_device(device: str) -> None:
    """Raise `OptionError` where torch does not see the CUDA device that `--device` names; `auto` and `cpu` need none."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return
    count = _cuda_devices()
    if count == 0:
        raise OptionError(
            f"--device {device}: torch sees no CUDA device here; use --device cpu, or install a torch with CUDA and a driver"
        )
    if index and int(index) >= count:
        raise OptionError(f"--device {device}: there are {count} CUDA devices here, cuda:0 to cuda:{count - 1}")


def _cuda_devices() -> int:
    try:
        counted = subprocess.run(
            [sys.executable, "-P", *_COUNT], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
        return int(counted.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0
