"""What an engine says of its numerics."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from spotwise.engine.model.loading import EngineConfig, expected_numerics
from spotwise.engine.native import processor
from spotwise.engine.native.build import VARIANT_VARIABLE, VARIANTS, sources_fingerprint
from spotwise.engine.native.order import ORDER_VARIABLE, kernel_order
from tests.unit.engine.tiny_models import load_engine


@pytest.fixture(autouse=True)
def _no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ORDER_VARIABLE, raising=False)


@pytest.mark.parametrize(("dtype", "order"), [("float32", "fma"), ("bfloat16", "dot")])
def test_native_kernels_have_an_order_of_their_own(llama_folder: Path, dtype: str, order: str) -> None:
    """It is known before the model is loaded, for claims and groups; torch computes no layer, so that its capability does not
    matter.
    """
    numerics = load_engine(llama_folder, dtype).numerics
    assert (numerics.dtype, numerics.order, numerics.kernels) == (dtype, order, sources_fingerprint())
    assert (numerics.quantisation, numerics.backend) == ("", f"torch {torch.__version__}")
    assert expected_numerics(EngineConfig(llama_folder, dtype, "cpu")) == numerics


def test_kernels_without_fused_multiply_adds_are_a_class_of_their_own(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other kinds give the same bits, and are one class."""
    engine = load_engine(llama_folder)
    plain = engine.numerics
    for variant in VARIANTS:
        if variant.needs <= processor.usable_flags() and "dot" in variant.orders:
            monkeypatch.setenv(VARIANT_VARIABLE, variant.name)
            assert (engine.numerics == plain) == bool(variant.needs)
    assert engine.numerics.backend.endswith(f"no fused multiply-adds on {platform.machine()}")


def test_torch_computes_in_the_order_of_its_capability(llama_folder: Path) -> None:
    numerics = load_engine(llama_folder, native=False).numerics
    assert (numerics.dtype, numerics.order, numerics.kernels) == ("float32", "torch", "")
    assert torch.backends.cpu.get_cpu_capability() in numerics.backend


def test_formats_without_kernels_are_torchs(llama_folder: Path) -> None:
    assert expected_numerics(EngineConfig(llama_folder, "float16", "cpu")).order == "torch"


@pytest.mark.parametrize(("configured", "order"), [("", "dot"), ("auto", "dot"), ("dot", "dot"), ("amx", "amx")])
def test_the_order_of_bfloat16_is_configured(configured: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 has one order."""
    monkeypatch.setenv(ORDER_VARIABLE, configured)
    monkeypatch.setattr(processor, "usable_flags", lambda: processor.AVX2)
    assert (kernel_order("bfloat16"), kernel_order("float32")) == (order, "fma")


def test_what_is_no_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="float16; they do in float32 and bfloat16"):
        kernel_order("float16")
    monkeypatch.setenv(ORDER_VARIABLE, "fast")
    with pytest.raises(ValueError, match=r"SPOTWISE_KERNEL_ORDER is 'fast'; it must be auto, dot or amx"):
        kernel_order("float32")
