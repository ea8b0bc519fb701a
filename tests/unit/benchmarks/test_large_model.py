"""What `bench dev large-model` refuses and counts, and the limits that it sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotwise.benchmarks.large_model import differing, is_loading, large_model
from spotwise.benchmarks.memory_limits import MemoryLimits
from spotwise.cli.errors import CommandError, OptionError

ALLOCATES = "import time; time.sleep(0.5); held = bytearray({} << 20); time.sleep(0.2)"


@pytest.mark.parametrize(("limit", "size"), [("2GiB", "2GiB"), ("3GiB", "2.4GiB")])
def test_a_limit_that_holds_the_model_shows_nothing(limit: str, size: str) -> None:
    with pytest.raises(OptionError, match="--limit"):
        large_model(size=size, limit=limit, json=None)


def test_a_model_of_no_layers_is_refused() -> None:
    with pytest.raises(OptionError, match="--size: give it at least"):
        large_model(size="0.3GiB", limit="0.2GiB", streams=1, input_tokens=1, seed=1, shape="2x2", json=None)


def test_tokens_that_differ_are_counted_and_a_lost_one_is_an_error() -> None:
    assert differing([1, 2, 3], [1, 2, 3]) == 0
    assert differing([1, 9, 9], [1, 2, 3]) == 2
    with pytest.raises(ValueError, match="longer"):
        differing([1, 2], [1, 2, 3])


@pytest.mark.parametrize(
    ("command", "loads"),
    [
        ("python -P -m spotwise.token_worker", True),
        ("python -P -m spotwise.worker.groups", True),
        ("python -P -m spotwise.gateway", False),
    ],
)
def test_only_processes_that_load_a_model_are_limited(command: str, loads: bool) -> None:
    assert is_loading(command) == loads


def test_a_process_over_its_limit_is_ended_and_one_below_it_is_measured() -> None:
    limits = MemoryLimits(100 << 20, lambda command: "held = bytearray" in command)
    try:
        with limits.applied():
            ended = [
                subprocess.run([sys.executable, "-c", ALLOCATES.format(mib)], check=False, timeout=60.0).returncode
                for mib in (40, 300)
            ]
    except CommandError as error:
        pytest.skip(str(error))
    assert ended == [0, -9]
    assert limits.killed == 1
    assert len(limits.peak_bytes) == 2
    assert 40 << 20 <= min(limits.peak_bytes) < 100 << 20
    assert not [*Path("/sys/fs/cgroup").rglob(f"spotwise-{os.getpid()}-*")]
