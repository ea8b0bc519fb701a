"""Copies of KV on other threads run beside a forward, and beside the recording of decodes."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.engine.kv.device import DeviceKv
from tests.cuda.on_device import GEOMETRY, filled, load
from tests.unit.engine.tiny_models import Driver, llama_config, record, save_model

pytestmark = pytest.mark.cuda

LAYERS = 8
PROMPT = list(range(3, 120))


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "staged"])
def test_a_reported_layer_leaves_before_the_next_is_computed(
    tmp_path: Path, device: torch.device, direct: bool
) -> None:
    """The model's stream is half a second behind: a copy that did not wait for its layer would find nothing there."""
    engine = load(save_model(llama_config(num_hidden_layers=LAYERS), tmp_path / "llama"), device)
    memory = DeviceKv(engine.kv, direct=direct)
    blocks = tuple(range(9, 1, -1))
    engine.add_sequence(record("a", PROMPT))
    leaving: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as copies:

        def listen(layers: int) -> None:
            leaving.append(copies.submit(memory.export_layers, layers - 1, 1, blocks))

        with torch.cuda.device(device):
            torch.cuda._sleep(1_000_000_000)
        engine.run_iteration(Batch((BatchRow("a@1", 0, len(PROMPT), blocks),)), listen)
        left = [memory.checksum(part.result()) for part in leaving]
    assert left == [memory.checksum(memory.export_layers(layer, 1, blocks)) for layer in range(LAYERS)]
    assert len(set(left)) == LAYERS


def test_decodes_are_recorded_beside_copies(tmp_path: Path, device: torch.device) -> None:
    """What other threads copy, allocate and wait for neither ends a recording nor gets into it."""
    folder = save_model(llama_config(), tmp_path / "llama")
    engine, over = load(folder, device), threading.Event()

    def copy(direct: bool) -> int:
        memory, rounds = DeviceKv(filled(device, 1), direct=direct), 0
        while not over.is_set():
            size = 1 + 7 * rounds % 100
            payload = memory.export_layers(0, GEOMETRY.num_layers, tuple(range(size)))
            memory.import_layers(0, GEOMETRY.num_layers, tuple(range(100, 100 + size)), payload)
            again = memory.export_layers(0, GEOMETRY.num_layers, tuple(range(100, 100 + size)))
            assert memory.checksum(again) == memory.checksum(payload)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(2) as copies:
        copying = [copies.submit(copy, direct) for direct in (True, False)]
        try:
            tokens = staggered(Driver(engine))
        finally:
            over.set()
        assert all(part.result() for part in copying)
    assert tokens == staggered(Driver(load(folder, device, decode_graphs=False)))
    assert engine.graphs is not None and not engine.graphs.off and engine.graphs.recorded >= 4


def staggered(driver: Driver) -> dict[str, list[int]]:
    """Sequences that come and end one after the other, so that many buckets are recorded."""
    for index in range(12):
        driver.add(record(str(index), PROMPT[index:], max_new_tokens=16))
        driver.step()
    return driver.finish()
