"""A worker's own cost profile: kept from an earlier start, or measured now (`start_profile.py`). It has the format of
`spotwise profile`, without hand-offs and messages, so that simulations can use it; its KV capacity is this start's.

A file's name depends on all that an iteration's seconds depend on (`ProfiledEngine`). It holds the profile and the engine
measured; it is used only where engine and version are equal. The first worker measures under a lock, so that concurrent starts
do not disturb its figures; the others wait and read. Without a file or a lock each measures for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog
from filelock import AsyncFileLock, Timeout

from spotwise.core.costs.cost_fit import fit_iterations
from spotwise.core.costs.cost_profile import CostProfile, MeasuredRange
from spotwise.engine.model.loading import device_name
from spotwise.engine.native.weight_memory import weights_fingerprint
from spotwise.files.cost_profile import profile_as_dict, profile_from_json
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.groups.group_engine import GroupEngine
from spotwise.worker.machine import CoreTime, cores_name
from spotwise.worker.profiles.start_profile import measure_iterations, profile_sections
from spotwise.worker.settings import WorkerSettings

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


# Raised when other steps are measured, or when they are timed or fitted in another way.
_VERSION = 1
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class ProfiledEngine:
    """The engine that a profile was measured on.

    Attributes:
        model: its folder's name.
        weights: fingerprint of the weights, the model's structure and the kernels' sources.
        decode_graphs: decodes are recorded as CUDA graphs, on a GPU.
        threads: threads that compute; `None` where the library chooses.
        block_size: tokens of a KV block.
        machine: cores and processor, or GPU.
        versions: versions of the libraries.
    """

    model: str
    weights: str
    dtype: str
    device: str
    kernels: str
    decode_graphs: bool
    threads: int | None
    block_size: int
    machine: str
    versions: str

    @property
    def name(self) -> str:
        """The engine, for people."""
        return f"{self.model} on {self.machine}"


class KeptProfiles:
    """The profiles of one folder, which is created; no profile is kept where it is `None`."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def path_of(self, engine: ProfiledEngine) -> Path | None:
        """Return the path of an engine's profile."""
        if self._folder is None:
            return None
        digest = hashlib.sha256(json.dumps(asdict(engine), sort_keys=True).encode()).hexdigest()[:12]
        stem = re.sub(r"[^\w.-]+", "-", f"{engine.model}-{engine.dtype}")
        return self._folder / f"{stem}-{digest}{_SUFFIX}"

    def read(self, engine: ProfiledEngine) -> CostProfile | None:
        """Return the profile of an engine; `None` where there is no valid one."""
        path = self.path_of(engine)
        if path is None:
            return None
        try:
            text = path.read_bytes()
            profile = profile_from_json(text)
            measured = json.loads(text).get("measured") or {}
            if (measured.get("version"), measured.get("of")) != (_VERSION, asdict(engine)):
                raise ValueError("it was measured by another version, or of another engine")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError) as error:
            _log.warning("cost_profile_outdated", file=str(path), reason=str(error))
            return None
        _log.info("cost_profile_loaded", file=str(path), measured_at=measured.get("at"))
        return profile

    def write(
        self, engine: ProfiledEngine, profile: CostProfile, fit: dict[str, Any], measured: dict[str, Any]
    ) -> None:
        """Write a profile, with the errors of its fit and facts of its measurement."""
        path = self.path_of(engine)
        if path is None:
            return
        about = {"version": _VERSION, "of": asdict(engine), **measured}
        text = json.dumps({**profile_as_dict(profile), "fit": fit, "measured": about}, indent=2) + "\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", prefix=f".{path.stem}.", dir=path.parent, delete=False
            ) as draft:
                partial = Path(draft.name)
                draft.write(text)
            try:
                partial.chmod(0o644)  # drafts are private, figures need not be
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            _warn(error)

    @contextlib.asynccontextmanager
    async def turn(self, engine: ProfiledEngine, patience_s: float) -> AsyncIterator[None]:
        """Hold the lock of an engine's profile; continue without it where it cannot be acquired within `patience_s`."""
        path = self.path_of(engine)
        lock: AsyncFileLock | None = None
        if path is not None:
            lock = AsyncFileLock(path.parent / f".{path.stem}.lock", timeout=patience_s)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                await lock.acquire()
            except (OSError, NotImplementedError, Timeout) as error:
                _warn(error)
                lock = None
        try:
            yield
        finally:
            if lock is not None:
                await lock.release()


def _warn(error: Exception) -> None:
    _log.warning("cost_profile_not_kept", reason=str(error))
