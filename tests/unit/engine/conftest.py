from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotwise.engine.engine import Engine
from spotwise.engine.native import build
from spotwise.engine.native.library import Kernels, load_kernels
from tests.unit.engine.tiny_models import llama_config, load_engine, save_model


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(llama_config(), tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture
def engine(llama_folder: Path) -> Engine:
    return load_engine(llama_folder)


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "llama"
    shutil.copytree(llama_folder, copy)
    return copy


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder, not yet made, in which processes share weights."""
    return tmp_path / "cache" / "weights"


KINDS = [(variant, order) for variant in build.VARIANTS for order in variant.orders]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0].name}-{kind[1]}")
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """The kernels of each kind of processor that this one can pass for, in each order; on one thread at first."""
    kernels = usable(*request.param)
    kernels.set_threads(1)
    yield kernels
    kernels.set_threads(1)  # the best variant is also the engine's


@pytest.fixture
def kernels_of() -> Callable[..., Kernels]:
    """The kernels of a kind of processor by its name, for tests that compare kinds; on one thread."""

    def named(name: str, order: str = "dot") -> Kernels:
        (variant,) = (variant for variant in build.VARIANTS if variant.name == name)
        kernels = usable(variant, order)
        kernels.set_threads(1)
        return kernels

    return named


def usable(variant: build.Variant, order: str) -> Kernels:
    """Return the kernels of a variant; the test is skipped where this processor cannot pass for its kind."""
    if missing := variant.needs - build._processor_flags():
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    try:
        return compiled(variant, order)
    except build.NoKernelsError as error:
        pytest.skip(str(error))


@pytest.fixture
def best_kernels() -> Kernels:
    """The kernels that an engine uses here, on one thread."""
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("the kernels cannot be compiled here")
    kernels.set_threads(1)
    return kernels


@functools.cache
def compiled(variant: build.Variant, order: str) -> Kernels:
    return Kernels(str(build.ensure_library(variant, order)))
