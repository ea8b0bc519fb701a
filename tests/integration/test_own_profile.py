"""A real engine that measures itself: nothing of it is left in what it computes afterwards, and the next start need not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from spotwise.cli.profile_files import read_profile
from spotwise.core.costs.cost_model import BatchShape, TableIterationCost, pairs
from spotwise.engine.model.loading import EngineConfig
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.profiles.own_profile import own_profile
from spotwise.worker.settings import WorkerSettings
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, llama_config, record, save_model

pytestmark = pytest.mark.long

BLOCK_SIZE = 16
KV_BYTES = 4 << 20
REQUESTS = [
    record(
        f"r{number}", [(7 * number + 3 * index) % VOCAB_SIZE for index in range(20 + 15 * number)], max_new_tokens=12
    )
    for number in range(4)
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(llama_config(), tmp_path_factory.mktemp("own-profile") / "llama")


@pytest.fixture
def settings(model_dir: Path, tmp_path: Path) -> WorkerSettings:
    return WorkerSettings(
        service_id="w",
        model_dir=model_dir,
        dtype="float32",
        device="cpu",
        threads=1,
        kv_cache_bytes=KV_BYTES,
        kv_block_size=BLOCK_SIZE,
        cost_profiles=tmp_path / "profiles",
        profile_seconds=2.0,
    )


async def loaded(settings: WorkerSettings) -> EngineThread:
    assert settings.kv_cache_bytes != "auto"
    config = EngineConfig(
        settings.model_dir, settings.dtype, settings.device, settings.kv_cache_bytes, BLOCK_SIZE, threads=1
    )
    return await EngineThread.load(config)


@pytest.fixture
async def engine(settings: WorkerSettings) -> AsyncIterator[EngineThread]:
    thread = await loaded(settings)
    yield thread
    thread.close()


def answers(engine: EngineThread) -> dict[str, list[int]]:
    driver = Driver(engine.engine)
    for request in REQUESTS:
        driver.add(request)
    tokens = driver.finish()
    for request in REQUESTS:
        engine.engine.drop_sequence(request.sequence_id)
    return tokens


def events(logs: Iterable[Mapping[str, object]]) -> list[object]:
    return [line["event"] for line in logs if str(line["event"]).startswith("cost_profile")]


async def test_an_engine_is_measured_once_and_computes_as_before(
    engine: EngineThread, settings: WorkerSettings
) -> None:
    """A measured profile is reused by the next start, by simulations and by readers; measured anew, it is written again."""
    before = answers(engine)
    with capture_logs() as logs:
        profile = await own_profile(engine, settings)
        again = await own_profile(engine, settings)
    assert events(logs) == ["cost_profile_measured", "cost_profile_loaded"]
    assert engine.num_sequences == 0
    assert answers(engine) == before
    assert again == profile
    assert isinstance(profile.iteration, TableIterationCost)
    assert profile.link is None
    assert profile.measured is not None
    # tables end at the middle of their largest sizes
    assert profile.measured.prompt_tokens == pytest.approx(profile.iteration.prompt.at[-1], rel=0.1)
    assert profile.measured.decodes == pytest.approx(profile.iteration.decode.at[-1], rel=0.1)
    assert profile.kv_bytes_per_token == engine.kv_bytes_per_token
    assert profile.kv_tokens == engine.num_blocks * BLOCK_SIZE
    assert settings.cost_profiles is not None
    (path,) = settings.cost_profiles.glob("*.json")
    assert read_profile(path, "--profile") == profile
    document = json.loads(path.read_text())
    assert document["fit"]["iterations"] > 20
    assert document["measured"]["widest"] > 1
    assert 0.0 <= document["measured"]["waited_share"] < 1.0
    with capture_logs() as logs:
        await own_profile(engine, settings.model_copy(update={"profile_anew": True}))
    assert events(logs) == ["cost_profile_measured"]


async def test_two_starts_at_once_measure_once(engine: EngineThread, settings: WorkerSettings) -> None:
    """Of two concurrent starts one measures, and the other waits and reads its file; each keeps its own KV size."""
    smaller = await loaded(settings.model_copy(update={"kv_cache_bytes": KV_BYTES // 2}))
    try:
        with capture_logs() as logs:
            profiles = await asyncio.gather(own_profile(engine, settings), own_profile(smaller, settings))
    finally:
        smaller.close()
    assert sorted(map(str, events(logs))) == ["cost_profile_loaded", "cost_profile_measured"]
    assert profiles[0].iteration == profiles[1].iteration
    assert [each.kv_tokens for each in profiles] == [each.num_blocks * BLOCK_SIZE for each in (engine, smaller)]
    assert profiles[0].kv_tokens > profiles[1].kv_tokens


async def test_longer_prompts_and_wider_batches_are_said_to_take_longer(
    engine: EngineThread, settings: WorkerSettings
) -> None:
    """With and without a folder, longer prompts and wider batches cost more, by enough for a slow machine to measure it."""
    profile = await own_profile(engine, settings.model_copy(update={"cost_profiles": None}))
    cost = profile.iteration
    short, long = (cost.iteration_s(BatchShape(tokens, pairs(0, tokens))) for tokens in (16, 400))
    assert 0.0 < short < long
    one, many = (cost.iteration_s(BatchShape(decodes=rows, decode_context=100 * rows)) for rows in (1, 32))
    assert 0.0 < one < many
