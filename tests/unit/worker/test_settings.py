"""A worker's settings, as what its role is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from spotwise.core.batching import BatchLimits
from spotwise.core.worker.policy import Batching, Reserve, WorkerPolicy
from spotwise.core.worker.push_policy import KvPush
from spotwise.worker.settings import WorkerSettings


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_without_a_word_a_worker_has_the_default_policy(model_dir: Path) -> None:
    """Iteration-level batches, blocks on demand, prefixes reused; prompts are cut for the sake of those that decode.

    They leave for other workers in the cheaper way.
    """
    assert WorkerSettings(model_dir=model_dir).policy() == WorkerPolicy(max_stall_s=0.06, kv_push=KvPush.AUTO)


def test_no_bound_of_a_stall_is_written_as_zero(model_dir: Path) -> None:
    """Prompts then run whole."""
    assert WorkerSettings(model_dir=model_dir, max_stall_ms=0).policy() == WorkerPolicy(kv_push=KvPush.AUTO)


def test_every_policy_can_be_set(model_dir: Path) -> None:
    """Each by a setting of its own, as the environment writes it."""
    settings = WorkerSettings(
        model_dir=model_dir,
        max_num_seqs=8,
        max_prompt_tokens=512,
        max_num_batched_tokens=64,
        reserve="max_tokens",  # type: ignore[arg-type]
        kv_watermark=0.05,
        max_preemptions=2,
        prefix_caching=False,
        batching="request_level",  # type: ignore[arg-type]
        max_stall_ms=80,
        prompts_first=False,
        preempt_after_ms=250,
        kv_push="layerwise",  # type: ignore[arg-type]
    )
    limits = BatchLimits(8, 512, 64)
    expected = WorkerPolicy(
        limits,
        Reserve.MAX_TOKENS,
        0.05,
        2,
        False,
        Batching.REQUEST_LEVEL,
        0.08,
        prompts_first=False,
        preempt_after_s=0.25,
        kv_push=KvPush.LAYERWISE,
    )
    assert settings.policy() == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_num_batched_tokens": 100}, "max_num_batched_tokens is 100 and max_num_seqs 256"),
        ({"batching": "request_level"}, "needs reserve=max_tokens"),
    ],
    ids=["too few tokens", "request level on demand"],
)
def test_settings_that_contradict_one_another_end_the_start(
    model_dir: Path, settings: dict[str, object], words: str
) -> None:
    """With the names of both."""
    with pytest.raises(ValidationError, match=words):
        WorkerSettings(model_dir=model_dir, **settings)  # type: ignore[arg-type]
