"""Kernels and order of a processor with a tile unit (AMX), granted or refused by Linux or hidden by a hypervisor."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from spotwise.engine.native import build, library, processor
from spotwise.engine.native.order import ORDER_VARIABLE, kernel_order


class Linux:
    """Answers the request for tile data with an error number; 0: it is granted."""

    def __init__(self) -> None:
        self.error = 0
        self.calls: list[list[int]] = []

    def syscall(self, *arguments: ctypes._SimpleCData[int]) -> int:
        self.calls.append([argument.value for argument in arguments])
        ctypes.set_errno(self.error)
        return -1 if self.error else 0


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> Iterator[Linux]:
    """A processor with a tile unit, under a Linux that is made up."""
    made_up = Linux()
    monkeypatch.setattr(processor, "flags", lambda: processor.AMX)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: made_up)
    for variable in (build.VARIANT_VARIABLE, ORDER_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    processor._permission_error.cache_clear()
    yield made_up
    processor._permission_error.cache_clear()


def loaded(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[dict[str, object]]]:
    """Load kernels that are not compiled; return the kinds that were wanted, and what was logged before."""
    wanted: list[str] = []

    def ensure_library(variant: build.Variant) -> None:
        wanted.append(variant.name)
        raise build.NoKernelsError("not in this test")

    monkeypatch.setattr(library, "ensure_library", ensure_library)
    with capture_logs() as logs:
        assert library.load_kernels.__wrapped__() is None
    assert logs[-1]["event"] == "no_native_kernels"
    return wanted, [dict(log) for log in logs[:-1]]


def test_a_tile_unit_that_is_granted_is_used(linux: Linux, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for once, by arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA); the order is its own."""
    assert kernel_order("bfloat16") == "amx"
    assert loaded(monkeypatch) == (["amx"], [])
    assert linux.calls == [[158, 0x1023, 18]]


@pytest.mark.parametrize(("order", "kind"), [("auto", "avx512_bf16"), ("dot", "avx512_bf16"), ("amx", "avx512")])
def test_a_refused_tile_unit_falls_back_by_name(
    order: str, kind: str, linux: Linux, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the next kind, in the order that is set or in that kind's own; the log says to which and why."""
    linux.error = errno.ENOSPC
    monkeypatch.setenv(ORDER_VARIABLE, order)
    assert kernel_order("bfloat16") == {"auto": "dot"}.get(order, order)
    wanted, logs = loaded(monkeypatch)
    assert wanted == [kind]
    assert [(log["event"], log["log_level"], log["kernels"]) for log in logs] == [("amx_not_used", "warning", kind)]
    assert "alternate signal stack is too small" in str(logs[0]["reason"])


@pytest.mark.parametrize(
    ("error", "words"),
    [(errno.EINVAL, "5.16 and later do"), (errno.EPERM, "Linux refused tiles: Operation not permitted")],
)
def test_other_refusals_are_told_apart(error: int, words: str, linux: Linux, monkeypatch: pytest.MonkeyPatch) -> None:
    linux.error = error
    assert words in str(processor.tiles_refusal())
    monkeypatch.setenv(build.VARIANT_VARIABLE, "amx")
    with pytest.raises(ValueError, match=words):
        build.variant_for_this_processor()


def test_a_tile_unit_that_is_half_hidden_is_not_asked_for(linux: Linux, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a flag that the kernels need, as some hypervisors show it; the flag is named."""
    monkeypatch.setattr(processor, "flags", lambda: processor.AMX - {"amx_bf16"})
    assert kernel_order("bfloat16") == "dot"
    wanted, logs = loaded(monkeypatch)
    assert wanted == ["avx512_bf16"] and "shows no amx_bf16" in str(logs[0]["reason"])
    assert linux.calls == []


def test_a_processor_without_a_tile_unit_refuses_nothing(linux: Linux, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "flags", lambda: processor.AVX512_BF16)
    assert processor.tiles_refusal() is None and kernel_order("bfloat16") == "dot"
    assert loaded(monkeypatch) == (["avx512_bf16"], [])
    assert linux.calls == []


def test_an_emulation_is_used_only_where_it_is_named(linux: Linux, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing else computes in the order; and not in another order."""
    monkeypatch.setattr(processor, "flags", lambda: processor.AVX2)
    assert build.variant_for_this_processor("amx").name == "avx2"
    monkeypatch.setenv(build.VARIANT_VARIABLE, "amx_emulated")
    assert build.variant_for_this_processor("amx").name == "amx_emulated"
    with pytest.raises(ValueError, match=f"runs in order dot: avx2, generic. {ORDER_VARIABLE} names the order"):
        build.variant_for_this_processor()
    assert not {variant.name for variant in build.EMULATIONS} & {
        variant.name for variant in build.variants_for_this_architecture()
    }
