"""A worker's own cost profile: kept from an earlier start (`kept_profiles.py`), or measured now (`start_profile.py`). It has
the format of `spotwise profile`, without hand-offs and messages, so that simulations can use it; its KV capacity is this
start's.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import structlog

from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.costs.measured_range import MeasuredRange
from spotwise.engine.model.loading import device_name
from spotwise.engine.native.shared_weights import weights_fingerprint
from spotwise.worker.cost_fit import fit_iterations
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.groups.group_engine import GroupEngine
from spotwise.worker.kept_profiles import KeptProfiles, ProfiledEngine
from spotwise.worker.machine import CoreTime, cores_name
from spotwise.worker.settings import WorkerSettings
from spotwise.worker.start_profile import measure_iterations, profile_sections

ServingEngine = EngineThread | GroupEngine

_log = structlog.get_logger(__name__)

# The lock's holder takes so much longer than measuring may: it loads scipy, and its last step may be longer than foreseen.
_PATIENCE_S = 30.0


async def own_profile(engine: ServingEngine, settings: WorkerSettings) -> CostProfile:
    """Return the cost profile of an engine without sequences, loaded with `settings`; raises `ValueError` where it could not be
    measured, `OSError` where the model's folder cannot be read.
    """
    about = profiled_engine(engine, settings)
    kept = KeptProfiles(settings.cost_profiles)
    async with kept.turn(about, settings.profile_seconds + _PATIENCE_S):
        profile = None if settings.profile_anew else kept.read(about)
        if profile is None:
            profile = await _measured(engine, settings, about, kept)
    return replace(profile, kv_tokens=_kv_tokens(engine))


def profiled_engine(engine: ServingEngine, settings: WorkerSettings) -> ProfiledEngine:
    """Return what the engine's costs depend on; raises `OSError` where the model's folder cannot be read."""
    inner = engine.engine
    return ProfiledEngine(
        model=settings.served_name,
        weights=weights_fingerprint(settings.model_dir),
        dtype=inner.dtype,
        device=inner.device,
        kernels=engine.kernels,
        decode_graphs=settings.decode_graphs,
        threads=settings.threads,
        block_size=engine.block_size,
        machine=device_name(inner.device) or cores_name(),
        versions=" ".join(f"{name} {version(name)}" for name in ("spotwise", "torch")),
    )


async def _measured(
    engine: ServingEngine, settings: WorkerSettings, about: ProfiledEngine, kept: KeptProfiles
) -> CostProfile:
    inner = engine.engine
    sections = profile_sections(engine.num_blocks, engine.block_size, inner.context_length, settings.max_num_seqs)
    before = CoreTime.so_far()
    found = await measure_iterations(engine, inner.vocab_size, sections, settings.profile_seconds)
    waited_share = CoreTime.so_far().waited_share_since(before)
    # Not on the event loop, which sends heartbeats; nor on the engine's thread, which may have a niceness.
    fitted = await asyncio.to_thread(fit_iterations, found.times)
    profile = CostProfile(
        about.name,
        fitted.cost,
        None,
        engine.kv_bytes_per_token,
        _kv_tokens(engine),
        measured=MeasuredRange.of(time.shape for time in found.times),
    )
    fit: dict[str, Any] = {"iterations": fitted.iterations, "mape": fitted.mape, "mape_of": fitted.mape_of}
    measured = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(found.seconds, 3),
        "longest_prompt": found.longest_prompt,
        "widest": found.widest,
        "waited_share": round(waited_share, 3),
    }
    kept.write(about, profile, fit, measured)
    path = kept.path_of(about)
    _log.info(
        "cost_profile_measured",
        file=None if path is None else str(path),
        seconds=round(found.seconds, 1),
        iterations=fitted.iterations,
        longest_prompt=found.longest_prompt,
        widest=found.widest,
        mean_error=round(fitted.mape, 4),
        waited_share=round(waited_share, 3),
    )
    return profile


def _kv_tokens(engine: ServingEngine) -> int:
    return engine.num_blocks * engine.block_size
