"""Compiles the kernels, once for each kind of processor and order of summation.

All variants of an order give the same bits, but for `generic`, which has no fused multiply-adds. Two more emulate a tile unit
(AMX), for tests. A library is named after its sources, flags and processor. It is compiled on first use, beside the sources if
writable, else in the user's cache folder. `python -m spotwise.engine.native.build --all` compiles all of them for an image, but
no emulations.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from spotwise.engine.native import processor
from spotwise.engine.native.order import ORDER_VARIABLE, ORDERS, kernel_order
from spotwise.files.user_folders import build_folders, first_writable

_SOURCES = Path(__file__).parent
_MAIN = "kernels.cpp"
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-ffp-contract=off",  # what is fused is written so: variants must not differ
    "-fno-math-errno",
    "-fPIC",
    "-shared",
    "-pthread",
    "-Wall",
    "-Wextra",
)
_COMPILE_TIMEOUT_S = 300


class NoKernelsError(RuntimeError):
    """The kernels cannot be compiled; the message names the cause and a remedy."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A processor type for which the kernels are compiled.

    Attributes:
        name: part of the library's name.
        needs: required processor flags, as in /proc/cpuinfo.
        flags: compiler flags.
        orders: orders of bfloat16's products in which it computes.
    """

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]
    orders: tuple[str, ...] = ORDERS


#: Names the variant to load, for tests and comparisons; unset: the best one that this processor runs.
VARIANT_VARIABLE = "SPOTWISE_KERNELS"
_ORDER_FLAGS = {"dot": (), "amx": ("-DSPOTWISE_ORDER_AMX=1",)}
_AVX2_FLAGS = ("-march=x86-64-v3",)
_AVX512_FLAGS = ("-march=x86-64-v4", "-mprefer-vector-width=512")
_EMULATED = "-DSPOTWISE_EMULATED_AMX=1"
#: Best first.
VARIANTS = (
    Variant(
        "amx",
        processor.AMX,
        (*_AVX512_FLAGS, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
        orders=("amx",),
    ),
    Variant("avx512_bf16", processor.AVX512_BF16, (*_AVX512_FLAGS, "-mavx512bf16"), orders=("dot",)),
    Variant("avx512", processor.AVX512, _AVX512_FLAGS),
    Variant("avx2", processor.AVX2, _AVX2_FLAGS),
    Variant("generic", frozenset(), ()),
)
#: What `amx` computes, with tiles that are emulated in memory, slowly: only `SPOTWISE_KERNELS` chooses them.
EMULATIONS = (
    Variant("amx_emulated", processor.AVX2, (*_AVX2_FLAGS, _EMULATED), orders=("amx",)),
    Variant("amx_emulated_avx512", processor.AVX512, (*_AVX512_FLAGS, _EMULATED), orders=("amx",)),
)


def variant_for_this_processor(order: str | None = None) -> Variant:
    """Return the best variant that this processor runs in an order, or the one that `SPOTWISE_KERNELS` names.

    Asks Linux for the use of tiles where the processor has some.

    Args:
        order: the order of bfloat16's products; `None`: that of this process.

    Raises:
        ValueError: `SPOTWISE_KERNELS` names none, or one that this processor does not run in this order.
    """
    order, flags = order or kernel_order("bfloat16"), processor.usable_flags()
    usable = [variant for variant in (*VARIANTS, *EMULATIONS) if variant.needs <= flags and order in variant.orders]
    wanted = os.environ.get(VARIANT_VARIABLE)
    for variant in usable:
        if variant.name == wanted or (not wanted and variant not in EMULATIONS):
            return variant
    names = ", ".join(variant.name for variant in usable)
    refused = f" ({refusal})" if (refusal := processor.tiles_refusal()) else ""
    raise ValueError(
        f"{VARIANT_VARIABLE} is {wanted!r}; this processor runs in order {order}: {names}{refused}. "
        f"{ORDER_VARIABLE} names the order"
    )


def variants_for_this_architecture() -> tuple[Variant, ...]:
    """Return the variants that a compiler for this architecture supports, without emulations."""
    return tuple(variant for variant in VARIANTS if processor.is_x86() or not variant.needs)


def ensure_library(variant: Variant | None = None, order: str | None = None) -> Path:
    """Return the compiled library for `variant`, by default this processor's, compiling it if missing.

    Args:
        variant: a kind of processor.
        order: the order of bfloat16's products; `None`: that of this process.

    Raises:
        NoKernelsError: no compiler was found, or it failed.
        ValueError: no variant is given, and the environment names one, or an order, that does not exist here.
    """
    order = order or kernel_order("bfloat16")
    variant = variant or variant_for_this_processor(order)
    family = f"{variant.name}-{order}"
    name = f"{family}-{_fingerprint(variant, order)}.so"
    for folder in _folders():
        if (folder / name).exists():
            return folder / name
    folder = _writable_folder()
    with FileLock(folder / f"{variant.name}.lock"):
        if not (folder / name).exists():
            _compile(variant, order, folder / name)
            _remove_older(folder, family, name)
    return folder / name


def sources_fingerprint() -> str:
    """Return a fingerprint of the kernels' sources, the same for all variants."""
    digest = hashlib.sha256()
    for source in sorted([*_SOURCES.glob("*.cpp"), *_SOURCES.glob("*.h")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _fingerprint(variant: Variant, order: str) -> str:
    parts = (*_FLAGS, *variant.flags, *_ORDER_FLAGS[order], platform.machine(), sources_fingerprint())
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def _folders() -> tuple[Path, ...]:
    return build_folders(_SOURCES, "native")


def _writable_folder() -> Path:
    if (folder := first_writable(_folders())) is None:
        shown = ", ".join(map(str, _folders()))
        raise NoKernelsError(f"none of these can be written: {shown}; set XDG_CACHE_HOME to a folder that can")
    return folder


def _compile(variant: Variant, order: str, library: Path) -> None:
    # CXX may include arguments, as in make: "ccache g++"
    compiler = shlex.split(os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "")
    if not compiler:
        raise NoKernelsError("there is no C++ compiler; on Debian and Ubuntu: apt-get install g++")
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    try:
        command = [*compiler, *_FLAGS, *variant.flags, *_ORDER_FLAGS[order], str(_SOURCES / _MAIN), "-o", temporary]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise NoKernelsError(f"{shlex.join(compiler)} failed: {done.stderr.strip()[:2000]}")
        Path(temporary).chmod(0o755)
        Path(temporary).replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernelsError(f"{shlex.join(compiler)} failed: {error}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def _remove_older(folder: Path, family: str, name: str) -> None:
    for library in folder.glob(f"{family}-*.so"):
        if library.name != name:
            library.unlink(missing_ok=True)


def main() -> int:
    """Compile the variant for this processor, or all variants of this architecture."""
    parser = argparse.ArgumentParser(
        prog="python -m spotwise.engine.native.build", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--all", action="store_true", help="for all kinds of processor of this architecture")
    compiles_all = parser.parse_args().all
    try:
        order = kernel_order("bfloat16")
        chosen = [(variant_for_this_processor(order), order)]
        if compiles_all:
            chosen = [(variant, order) for variant in variants_for_this_architecture() for order in variant.orders]
        for variant, order in chosen:
            sys.stdout.write(f"{ensure_library(variant, order)}\n")
    except NoKernelsError as error:
        sys.stderr.write(f"without native kernels, which is slower: {error}\n")
        return 1
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
