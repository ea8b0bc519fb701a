"""KV leaves a GPU and arrives on one: in one process, and from process to process straight from device memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.engine.kv.device import DeviceKv
from spotwise.mesh.links.ucx_transfer import TransferSettings, UcxKvTransport
from spotwise.worker.transfer_memory import transfer_memory
from tests.cuda.on_device import GEOMETRY, filled, load
from tests.unit.engine.tiny_models import Driver, llama_config, record, save_model

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "staged"])
def test_blocks_travel_bit_for_bit(device: torch.device, direct: bool) -> None:
    """Blocks arrive bit for bit, also while the model's stream is busy."""
    source, target = filled(device, 0), filled(device, 1)
    sender, receiver = DeviceKv(source, direct=direct), DeviceKv(target, direct=direct)
    busy = torch.randn(4096, 4096, device=device)
    for _ in range(20):
        busy = (busy @ busy).tanh()
    there, here = tuple(range(0, 120, 2)), tuple(range(60, 120))
    payload = sender.export_layers(1, 4, there)
    assert (hasattr(payload, "__cuda_array_interface__")) is direct
    buffer = receiver.allocate(payload.nbytes)
    buffer[:] = payload
    torch.cuda.synchronize(device)
    assert receiver.checksum(buffer) == sender.checksum(payload)
    receiver.import_layers(1, 4, here, buffer)
    assert torch.equal(target.keys[1:5, :, list(here)], source.keys[1:5, :, list(there)])
    assert torch.equal(target.values[1:5, :, list(here)], source.values[1:5, :, list(there)])


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "staged"])
def test_kv_moved_to_another_engine_goes_on_with_the_same_tokens(
    tmp_path: Path, device: torch.device, direct: bool
) -> None:
    """Prefill here, decode there from what was copied, with decodes recorded."""
    folder = save_model(llama_config(), tmp_path / "llama")
    prompt = list(range(3, 120))
    alone = Driver(load(folder, device))
    alone.add(record("a", prompt, max_new_tokens=20))
    expected = alone.finish()["a@1"]
    source, target = load(folder, device), load(folder, device)
    prefill, decode = Driver(source), Driver(target)
    prefill.add(record("a", prompt, max_new_tokens=20))
    prefill.step()
    decode.pool.allocate("someone else", 37)
    decode.add(record("a", prompt, max_new_tokens=20))
    used = decode.pool.blocks_for(len(prompt))
    there, here = prefill.pool.owned_by("a@1")[:used], decode.pool.owned_by("a@1")[:used]
    sender, receiver = DeviceKv(source.kv, direct=direct), DeviceKv(target.kv, direct=direct)
    for layer in range(source.kv.num_layers):
        receiver.import_layers(layer, 1, here, sender.export_layers(layer, 1, there))
    first = prefill.results["a@1"][0]
    target.append_token("a@1", first.token_id)
    decode.computed["a@1"], decode.known["a@1"] = len(prompt), len(prompt) + 1
    decode.results["a@1"] = [first]
    assert decode.finish()["a@1"] == expected


class Receiver:
    """`tests.cuda.device_receiver` in a process of its own."""

    def __init__(self, device: torch.device, blocks: tuple[int, ...]) -> None:
        options = {"device": str(device), "blocks": blocks}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cuda.device_receiver", json.dumps(options)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())  # type: ignore[no-any-return]

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


async def test_a_process_hands_over_to_another_from_device_memory(device: torch.device) -> None:
    """UCX reaches it, and what arrives in the other process is what left this one, to the last bit."""
    cache = filled(device, 0)
    memory, payloads = transfer_memory(cache)
    assert isinstance(memory, DeviceKv) and memory is payloads
    if "summed on the device" not in memory.layout:
        pytest.skip("UCX does not reach CUDA memory here: payloads pass through the host")
    source, reserved = tuple(range(150)), tuple(range(50, 200))
    with Receiver(device, reserved) as receiver:
        said = await asyncio.to_thread(receiver.line)
        transport = UcxKvTransport(memory, "p", 1, lambda *_: None, TransferSettings(push_timeout_s=60.0), payloads)
        await transport.start()
        try:
            target = KvTarget(worker_id="t", incarnation=2, address=said["address"], block_ids=reserved)
            report = await transport.push(target, KvHandoff("r", 1, 16 * len(source), 5), source)
        finally:
            await transport.close()
        assert report.kv_bytes == GEOMETRY.num_layers * len(source) * cache.layer_block_bytes
        arrived = await asyncio.to_thread(receiver.line)
    sent = cache.export_layers(0, GEOMETRY.num_layers, source)
    assert arrived["sum"] == int(sent.astype("uint64").sum()) and arrived["first"] == sent[:64].tolist()
    assert arrived["exported"] == DeviceKv(cache, direct=True).checksum(torch.from_numpy(sent).to(device))
