"""Number format and order of summation are the mesh's, where a worker's settings leave them open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from spotwise.engine.native.order import ORDER_VARIABLE
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker import claimed_numerics
from spotwise.worker.claimed_numerics import CLAIM_S, agreed_settings
from spotwise.worker.settings import WorkerSettings
from tests.fakes.memory import FakeClock, MemoryStore


class Joining:
    """A worker that joins; the test lets it renew its claim."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.renew: Callable[[], Awaitable[None]]

    def every(self, interval_s: float, work: Callable[[], Awaitable[None]], name: str) -> None:
        assert interval_s < CLAIM_S / 2
        self.renew = work


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose processor multiplies bfloat16, with kernels; no order is chosen yet."""
    monkeypatch.delenv(ORDER_VARIABLE, raising=False)
    monkeypatch.setattr(claimed_numerics, "expected_numerics", lambda config: _expected(config.dtype))


def _expected(dtype: str) -> Any:
    from spotwise.core.messages.numerics import Numerics
    from spotwise.engine.native.order import kernel_order

    dtype = "bfloat16" if dtype == "auto" else dtype
    return Numerics(dtype, kernel_order(dtype))


async def joined(store: MemoryStore, folder: Path, dtype: str = "auto") -> tuple[WorkerSettings, Joining]:
    (folder / "config.json").write_text("{}")
    settings = WorkerSettings(model_dir=folder, model_name="m", dtype=dtype, service_id="w")  # type: ignore[arg-type]
    host = Joining(store)
    return await agreed_settings(settings, cast(ServiceHost, host)), host


async def claim(store: MemoryStore) -> str:
    """What a newcomer with an unheard-of format finds claimed."""
    return await store.claim_numerics("m", "none/none", 0.0)


async def test_the_first_worker_claims_what_its_machine_chooses(store: MemoryStore, tmp_path: Path) -> None:
    settings, _ = await joined(store, tmp_path)
    assert settings.dtype == "auto"
    assert await claim(store) == "bfloat16/dot"


async def test_a_later_worker_adopts_format_and_order(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its own machine would choose."""
    import os

    await store.claim_numerics("m", "float32/fma", CLAIM_S)
    settings, _ = await joined(store, tmp_path)
    assert settings.dtype == "float32"
    await store.claim_numerics("n", "bfloat16/amx", CLAIM_S)
    monkeypatch.setattr(store, "_numerics", {"m": store._numerics["n"]})
    settings, host = await joined(store, tmp_path)
    assert (settings.dtype, os.environ[ORDER_VARIABLE]) == ("bfloat16", "amx")
    monkeypatch.setenv(ORDER_VARIABLE, "")  # which removes what was adopted, at the end of the test
    await host.renew()
    assert await claim(store) == "bfloat16/amx"


async def test_settings_that_say_more_form_another_class(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is the mesh's all the same, and such a worker does not renew it."""
    await store.claim_numerics("m", "bfloat16/dot", CLAIM_S)
    settings, _ = await joined(store, tmp_path, "float32")
    assert settings.dtype == "float32"
    monkeypatch.setenv(ORDER_VARIABLE, "amx")
    settings, _ = await joined(store, tmp_path)
    assert settings.dtype == "bfloat16"
    assert await claim(store) == "bfloat16/dot"


async def test_a_mesh_that_is_gone_binds_no_later_one(store: MemoryStore, clock: FakeClock, tmp_path: Path) -> None:
    """A claim lasts while a worker renews it, and ends some time after the last one."""
    _, first = await joined(store, tmp_path)
    _, other = await joined(store, tmp_path, "float32")
    for _ in range(4):
        clock.advance(CLAIM_S / 2)
        await first.renew()
        await other.renew()
    assert await claim(store) == "bfloat16/dot"
    clock.advance(CLAIM_S + 1.0)
    await other.renew()
    settings, _ = await joined(store, tmp_path)
    assert settings.dtype == "float32"


async def test_an_unknown_order_is_refused_with_the_other_settings(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ORDER_VARIABLE, "fast")
    with pytest.raises(ValueError, match="kernel_order"):
        await joined(store, tmp_path)
