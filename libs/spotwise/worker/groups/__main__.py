"""`python -m spotwise.worker.groups`: a device, which computes a part of a model for the worker that leads it."""

import sys

from spotwise.mesh.service.run import run_service
from spotwise.worker.groups.settings import DeviceSettings


async def serve(settings: DeviceSettings) -> None:
    """Serve as a device."""
    # Torch takes seconds to import: a wrong setting is reported before it.
    from spotwise.worker.groups.serve import serve_device

    await serve_device(settings)


if __name__ == "__main__":
    sys.exit(run_service(DeviceSettings, serve))
