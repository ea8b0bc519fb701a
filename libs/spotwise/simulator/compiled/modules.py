"""The modules that are compiled, and the folder of their libraries.

A library is named after its sources: once one of them changes, it is not used any more."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from spotwise.files.user_folders import build_folders

#: The folder that has the package `spotwise`.
SOURCES = Path(__file__).parents[3]
#: Name of the one library, which has all compiled modules; each has a small file beside it that stands for it.
LIBRARY = "spotwise"
_OWN = Path(__file__).parent
_MADE_BY = ("build.py", "explicit_classes.py", "modules.py", "native_class.py")

#: What simulated time is spent in: folders of `spotwise`, and single files.
_COMPILED = (
    "core/*.py",
    "core/costs/*.py",
    "core/kv/*.py",
    "core/lives/*.py",
    "core/membership/*.py",
    "core/messages/*.py",
    "core/migration/mapping/*.py",
    "core/migration/planning/*.py",
    "core/parallel/config.py",
    "core/parallel/layer_tables.py",
    "core/parallel/model_*.py",
    "core/parallel/shares.py",
    "core/requests/*.py",
    "core/scheduler/*.py",
    "core/worker/**/*.py",
    "simulator/costs/published_costs.py",
    "simulator/runs/metrics.py",
    "simulator/runs/percentiles.py",
    "simulator/runs/slo.py",
    "simulator/spotserve/batches.py",
    "simulator/spotserve/dispatch.py",
    "simulator/spotserve/pipelines.py",
    "simulator/spotserve/restarts.py",
    "simulator/spotserve/role_dispatch.py",
    "simulator/spotserve/spot_world.py",
    "simulator/world/*.py",
)
#: Of these, what is left to the interpreter.
_INTERPRETED = frozenset(
    {
        "core/latest.py",  # a subclass of `OrderedDict`, which mypyc compiles to what crashes
        "core/values.py",  # a decorator that compiled classes do not have
        # nothing of a simulation, or next to nothing
        "core/costs/cost_fit.py",
        "core/requests/names.py",
        "core/membership/confirmation.py",
        "core/messages/fleet.py",
        "core/messages/groups.py",
        "core/messages/numerics.py",
        "core/kv/stream.py",
        "core/messages/reshape.py",
    }
)


def compiled_modules() -> Iterator[str]:
    """Yield the names of the modules that are compiled."""
    package = SOURCES / "spotwise"
    for pattern in _COMPILED:
        for path in sorted(package.glob(pattern)):
            name = path.relative_to(package).as_posix()
            if name not in _INTERPRETED and path.name != "__init__.py":
                yield f"spotwise.{name.removesuffix('.py').replace('/', '.')}"


def source_of(module: str) -> Path:
    """Return the source of a module."""
    return SOURCES / f"{module.replace('.', '/')}.py"


def fingerprint() -> str:
    """Return the name of what is compiled from the sources that are here now, for this Python."""
    digest = hashlib.sha256(f"{sys.implementation.cache_tag} {sysconfig.get_platform()}".encode())
    for path in (*(source_of(module) for module in compiled_modules()), *(_OWN / name for name in _MADE_BY)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def folders() -> tuple[Path, ...]:
    """Return where it may lie: beside the sources, or in the user's cache folder, if there is one."""
    return build_folders(_OWN, "simulator")


def compiled_folder() -> Path | None:
    """Return the folder of what is compiled from today's sources, if it is there."""
    name = fingerprint()
    return next((folder / name for folder in folders() if (folder / name).is_dir()), None)


def extension_of(folder: Path, module: str) -> Path:
    """Return the file of a compiled module."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return folder / f"{module.replace('.', '/')}{suffix}"
