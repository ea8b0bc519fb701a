"""The numerics class of a group's members: all compute in one."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.messages.groups import FormGroup
from spotwise.core.messages.numerics import Numerics, is_crossing
from spotwise.engine.model.loading import expected_numerics
from spotwise.mesh.ports.ports import MeshError
from spotwise.worker.engine_thread import engine_config
from spotwise.worker.settings import WorkerSettings


def group_numerics(settings: WorkerSettings, dtype: str | None = None) -> Numerics:
    """Return how a process of groups computes, in the groups' number format where that is given; raises `MeshError` where it
    cannot.
    """
    config = engine_config(settings)
    try:
        return expected_numerics(config if dtype is None else replace(config, dtype=dtype))
    except ValueError as error:
        raise MeshError(f"the model cannot be served: {error}") from error


def require_class(form: FormGroup, settings: WorkerSettings) -> None:
    """Check that a process can be in a group; raises `MeshError` where it computes in another class than the leader."""
    if not form.numerics_class:
        return  # of a leader that computes nothing
    own = group_numerics(settings, form.dtype).name
    if is_crossing(form.numerics_class, own):
        raise MeshError(
            f"it computes in the numerics class {own}, and {form.leader_id} in {form.numerics_class}; the processes of a group "
            "need the same version, kernels and SPOTWISE_KERNEL_ORDER"
        )
