"""Packed weights in a file that processes share: whole or not there, and never other weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spotwise.engine.engine import Engine
from spotwise.engine.forward.fused_layer import FusedDecoderLayer
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.weight_memory import open_memory
from tests.unit.engine.sharing import events, left_in, load, plain_model, tokens_of, weights_files
from tests.unit.engine.tiny_models import load_engine

ROOT = Path(__file__).parents[3]


# --- One copy


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_from_the_file_are_those_that_were_packed(
    dtype: str, folder: Path, cache: Path, best_kernels: Kernels
) -> None:
    alone, _ = load(folder, None, dtype)
    first, first_logs = load(folder, cache, dtype)
    second, second_logs = load(folder, cache, dtype)
    assert (events(first_logs), events(second_logs)) == (["weights_written"], ["weights_mapped"])
    assert second_logs[0]["own_bytes"] == 0
    for engine in (first, second):
        assert tokens_of(engine) == tokens_of(alone)
        for ours, theirs in zip(layers(engine), layers(alone), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours._kept, theirs._kept, strict=True))


def layers(engine: Engine) -> list[FusedDecoderLayer]:
    found = [module for module in engine._model.modules() if isinstance(module, FusedDecoderLayer)]
    assert len(found) == 3
    return found


def test_every_large_weight_is_in_the_file(folder: Path, cache: Path, best_kernels: Kernels) -> None:
    """The embeddings too, as they are and packed; both engines read them there."""
    engine, _ = load(folder, cache)
    (file,) = weights_files(cache)
    held = load_file(file)
    packed = {f"model.layers.{layer}.{part}" for layer in range(3) for part in ("qkv", "output", "gate_up", "down")}
    assert set(held) == packed | {"lm_head.packed", "model.embed_tokens.weight"}
    embedding = engine._model.get_input_embeddings().weight
    assert torch.equal(held["model.embed_tokens.weight"][: embedding.numel()], embedding.flatten())
    assert embedding.untyped_storage().data_ptr() == layers(engine)[0]._kept[-1].untyped_storage().data_ptr()


def test_two_processes_that_start_together_hold_one_copy(folder: Path, cache: Path, best_kernels: Kernels) -> None:
    """One writes the file, and both compute with all packed weights in it; a page counts for both, and none of them is a
    process's own.
    """
    with sharing_worker(folder, cache) as one, sharing_worker(folder, cache) as two:
        reported = [answer(one), answer(two)]
        processes = [answer(each, ask=True) for each in (one, two)]
    assert reported[0]["tokens"] == reported[1]["tokens"] == tokens_of(load_engine(folder))
    assert sorted(events(reported[0]["logs"]) + events(reported[1]["logs"])) == ["weights_mapped", "weights_written"]
    assert left_in(cache) == []
    (file,) = weights_files(cache)
    packed_bytes = sum(tensor.nbytes for name, tensor in load_file(file).items() if "embed" not in name)
    for pages in processes:
        assert pages["Rss"] >= packed_bytes
        assert pages["Anonymous"] == 0
    assert sum(pages["Pss"] for pages in processes) <= file.stat().st_size + 4096 * len(processes)


@contextmanager
def sharing_worker(folder: Path, cache: Path, prologue: str = "") -> Iterator[subprocess.Popen[str]]:
    code = f"{prologue}\nfrom tests.unit.engine.sharing import main\nmain()"
    argv = [sys.executable, "-c", code, str(folder), "float32", str(cache)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.communicate(timeout=60)


def answer(process: subprocess.Popen[str], *, ask: bool = False) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    if ask:
        process.stdin.write("\n")
        process.stdin.flush()
    return json.loads(process.stdout.readline())


# --- Whole or not there


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def other_weights(file: Path) -> None:
    """A sound file of the same names and shapes, without checksums."""
    save_file({name: torch.ones_like(tensor) for name, tensor in load_file(file).items()}, file)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
    "a flipped weight": lambda file: flip(file, file.stat().st_size - 1000),
    "a flipped name": lambda file: flip(file, file.read_bytes().index(b"model.layers.0.qkv") + 13),
    "other content": lambda file: file.write_bytes(b"no weights" * 1000),
    "other weights": other_weights,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_made_anew(
    damage: Callable[[Path], object], folder: Path, cache: Path, best_kernels: Kernels
) -> None:
    tokens = tokens_of(load(folder, cache)[0])
    (file,) = weights_files(cache)
    whole = file.read_bytes()
    damage(file)
    assert file.read_bytes() != whole
    engine, logs = load(folder, cache)
    assert events(logs)[0] == "weights_file_damaged"
    assert events(logs)[-1] == "weights_written"
    assert tokens_of(engine) == tokens
    assert file.read_bytes() == whole


def test_a_process_that_maps_a_file_keeps_its_weights_when_it_is_replaced(
    folder: Path, cache: Path, best_kernels: Kernels
) -> None:
    """A new file is another one under the same name."""
    load(folder, cache)
    mapped, _ = load(folder, cache)
    tokens = tokens_of(mapped)
    (file,) = weights_files(cache)
    file.unlink()
    load(folder, cache)
    assert tokens_of(mapped) == tokens


def test_a_process_that_dies_before_the_rename_leaves_nothing_that_counts(
    folder: Path, cache: Path, best_kernels: Kernels
) -> None:
    """The unfinished file has no valid name, its lock is free, and the next process removes it."""
    with sharing_worker(folder, cache, "import os, pathlib; pathlib.Path.replace = lambda *_: os._exit(9)") as process:
        assert process.wait(60) == 9
    assert weights_files(cache) == []
    assert len(left_in(cache)) == 1
    engine, logs = load(folder, cache)
    assert events(logs) == ["weights_written"]
    assert left_in(cache) == []
    assert tokens_of(engine) == tokens_of(load_engine(folder))


def test_a_load_that_fails_leaves_no_file(folder: Path, cache: Path) -> None:
    model = plain_model(weight=(64, 64))
    with pytest.raises(ZeroDivisionError), open_memory(cache, folder, model) as memory:
        memory.place("weight", 4096, torch.float32, lambda to: to.fill_(1))
        raise ZeroDivisionError
    assert (weights_files(cache), left_in(cache)) == ([], [])
    with open_memory(cache, folder, model) as memory:
        memory.place("weight", 4096, torch.float32, lambda to: to.fill_(2))
    assert len(weights_files(cache)) == 1


def test_of_two_that_come_at_once_one_packs(folder: Path, cache: Path) -> None:
    model = plain_model(weight=(64, 64))
    packed: list[str] = []

    def pack(name: str) -> Callable[[torch.Tensor], object]:
        return lambda to: (packed.append(name), to.fill_(7))

    def come_second() -> None:
        with open_memory(cache, folder, model) as memory:
            assert torch.equal(memory.place("weight", 4096, torch.float32, pack("second")), torch.full((4096,), 7.0))
            ended.append("second")

    ended: list[str] = []
    second = threading.Thread(target=come_second)
    with open_memory(cache, folder, model) as memory:
        second.start()
        memory.place("weight", 4096, torch.float32, pack("first"))
        ended.append("first")
    second.join(60)
    assert (packed, ended) == (["first"], ["first", "second"])
