"""Has Python import the compiled modules in place of their sources."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from spotwise.simulator.compiled.modules import LIBRARY, compiled_folder, compiled_modules, extension_of

#: `0` in the environment leaves all to the interpreter.
VARIABLE = "SPOTWISE_COMPILED"


def use_compiled() -> bool:
    """Import the simulator's compiled modules from now on, if they are there and none of their sources is imported yet.

    Returns whether this process has them. All it decides is speed: what they compute is the same to the last bit.
    """
    if is_compiled():
        return True
    if os.environ.get(VARIABLE) == "0":
        return False
    modules = frozenset(compiled_modules())
    if not modules.isdisjoint(sys.modules):
        return False
    folder = compiled_folder()
    if folder is None:
        return False
    sys.meta_path.insert(0, _CompiledModules(folder, modules))
    return True


def is_compiled() -> bool:
    """Whether this process imports the compiled modules."""
    return any(isinstance(finder, _CompiledModules) for finder in sys.meta_path)


class _CompiledModules:
    """A finder of the compiled modules, and of the library that they are in."""

    def __init__(self, folder: Path, modules: frozenset[str]) -> None:
        library = f"{LIBRARY}__mypyc"
        self._files = {name: extension_of(folder, name) for name in (library, *modules)}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the place of a compiled module; `None` for any other."""
        file = self._files.get(name)
        if file is None:
            return None
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))
