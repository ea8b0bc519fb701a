"""KV goes from a GPU to the host's memory and comes back while the model computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spotwise.engine.kv import host_swap
from spotwise.engine.kv.host_swap import HostSwap
from tests.cuda.on_device import BLOCKS, GEOMETRY, filled, load
from tests.unit.engine.tiny_models import Driver, llama_config, record, save_model

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_what_comes_back_is_what_went(monkeypatch: pytest.MonkeyPatch, device: torch.device, at_once: int) -> None:
    """Bit for bit, while the model's stream is busy with something else, however many blocks a buffer holds."""
    cache = filled(device, 0)
    monkeypatch.setattr(host_swap, "_BUFFER_BYTES", at_once * GEOMETRY.num_layers * cache.layer_block_bytes)
    swap = HostSwap(cache, 2 * BLOCKS)
    keys, values = cache.keys.clone(), cache.values.clone()
    torch.cuda.synchronize(device)
    busy = torch.randn(4096, 4096, device=device)
    for _ in range(50):
        busy = (busy @ busy).tanh()
    there, on_host, here = tuple(range(0, 120, 2)), tuple(range(300, 360)), tuple(range(60, 120))
    swap.swap_out(there, on_host)
    swap.swap_in(on_host, here)
    assert torch.equal(cache.keys[:, :, list(here)], keys[:, :, list(there)])
    assert torch.equal(cache.values[:, :, list(here)], values[:, :, list(there)])
    others = [block for block in range(BLOCKS) if block not in here]
    assert torch.equal(cache.keys[:, :, others], keys[:, :, others])


def test_a_move_does_not_wait_for_the_model(device: torch.device) -> None:
    """The copy has ended before the model's stream, with seconds of work queued, is done."""
    cache = filled(device, 0)
    swap = HostSwap(cache, BLOCKS)
    done = torch.cuda.Event()
    for work in (0, 4_000_000_000):  # at first nothing: what is made with the first copies is there then
        with torch.cuda.device(device):
            torch.cuda._sleep(work)
            done.record()
        swap.swap_out(tuple(range(100)), tuple(range(100)))
        swap.swap_in(tuple(range(100)), tuple(range(100, 200)))
    overlapped = not done.query()
    torch.cuda.synchronize(device)
    assert overlapped


@pytest.mark.parametrize("decode_graphs", [True, False])
def test_a_sequence_goes_on_with_the_same_tokens_from_other_blocks(
    tmp_path: Path, device: torch.device, decode_graphs: bool
) -> None:
    """Swapped out and in between every two of its tokens, its old blocks overwritten."""
    folder = save_model(llama_config(), tmp_path / "llama")
    prompt = list(range(3, 120))
    alone = Driver(load(folder, device, decode_graphs=decode_graphs))
    alone.add(record("a", prompt, max_new_tokens=20))
    expected = alone.finish()["a@1"]
    engine = load(folder, device, decode_graphs=decode_graphs)
    swap = HostSwap(engine.kv, 64)
    driver = Driver(engine)
    driver.add(record("a", prompt, max_new_tokens=20))
    while driver.step():
        owned = driver.pool.owned_by("a@1")
        on_host = tuple(range(len(owned)))
        swap.swap_out(owned, on_host)
        engine.kv.keys[:, :, list(owned)] = 7.0
        engine.kv.values[:, :, list(owned)] = 7.0
        torch.cuda.synchronize(device)
        swap.swap_in(on_host, owned)
    assert driver.finish()["a@1"] == expected
