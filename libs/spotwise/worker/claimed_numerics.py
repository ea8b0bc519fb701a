"""Agrees with the mesh on number format and order of summation before a model is loaded: `auto` is the mesh's choice.

The first worker that joins claims its own for the model, in the store; a worker whose settings leave them open adopts what is
claimed. The workers that compute so renew the claim, so that it ends some time after the last of them.
"""

from __future__ import annotations

import asyncio
import os

import structlog

from spotwise.engine.model.loading import expected_numerics
from spotwise.engine.native.order import ORDER_VARIABLE, ORDERS
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.engine_thread import engine_config
from spotwise.worker.settings import WorkerSettings

_log = structlog.get_logger(__name__)

#: Seconds that a claim outlives the last worker that has it; workers renew it three times in them.
CLAIM_S = 30.0


async def agreed_settings(settings: WorkerSettings, host: ServiceHost) -> WorkerSettings:
    """Claim the settings' number format and order for the mesh, or return settings that have the claimed ones where they leave
    these open; the claim is renewed from then on.

    Raises:
        MeshError: the store does not answer, the device does not exist, or `SPOTWISE_KERNEL_ORDER` names no order.
    """
    own = await asyncio.to_thread(_choice_of, settings)
    claimed = await host.store.claim_numerics(settings.served_name, own, CLAIM_S)
    if claimed != own:
        dtype, _, order = claimed.partition("/")
        if settings.dtype == "auto":
            settings = settings.model_copy(update={"dtype": dtype})
        if settings.dtype == dtype and settings.kernel_order == "auto" and order in ORDERS:
            os.environ[ORDER_VARIABLE] = order  # of the whole process, as the kernels are
        own = await asyncio.to_thread(_choice_of, settings)
        log = _log.info if own == claimed else _log.warning
        log("numerics_claimed", mesh=claimed, own=own)

    async def renew() -> None:
        await host.store.claim_numerics(settings.served_name, own, CLAIM_S)

    host.every(CLAIM_S / 3, renew, "claim_numerics")
    return settings


def _choice_of(settings: WorkerSettings) -> str:
    """Return the number format and order of an engine with these settings, as a claim has them."""
    try:
        expected = expected_numerics(engine_config(settings))
    except ValueError as error:
        raise MeshError(f"the model cannot be served: {error}") from error
    return f"{expected.dtype}/{expected.order}"
