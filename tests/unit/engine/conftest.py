from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotwise.engine.engine import Engine
from spotwise.engine.native import build, processor
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


KINDS = [(variant, order) for variant in (*build.VARIANTS, *build.EMULATIONS) for order in variant.orders]
#: Of which every other kind has the bits (`test_one_order.py`), and that without fused multiply-adds, which has its own.
UNLIKE_KINDS = ["generic-dot", "avx2-amx", "amx_emulated-amx", "avx512_bf16-dot"]


@pytest.fixture(params=UNLIKE_KINDS)
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """The kernels of kinds of processor that this one can pass for, which differ in more than speed; on one thread at first."""
    name, _, order = request.param.partition("-")
    if name == "avx512_bf16" and processor.AVX512_BF16 - processor.usable_flags():
        name = "avx2"
    kernels = named_kernels(name, order)
    yield kernels
    kernels.set_threads(1)  # the best variant is also the engine's


@pytest.fixture
def kernels_of() -> Callable[..., Kernels]:
    """The kernels of a kind of processor by its name, for tests that compare kinds; on one thread."""

    return named_kernels


def named_kernels(name: str, order: str = "dot") -> Kernels:
    """Return the kernels of a kind of processor, on one thread."""
    (variant,) = (variant for variant, known in KINDS if variant.name == name and known == order)
    kernels = usable(variant, order)
    kernels.set_threads(1)
    return kernels


def usable(variant: build.Variant, order: str) -> Kernels:
    """Return the kernels of a variant; the test is skipped where this processor cannot pass for its kind."""
    if missing := variant.needs - processor.usable_flags():
        pytest.skip(processor.tiles_refusal() or f"this processor has no {', '.join(sorted(missing))}")
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
