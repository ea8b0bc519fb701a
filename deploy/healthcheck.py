"""Exit status 0 where the service of this container answers SERVING (grpc.health.v1), else 1."""

import asyncio
import os
import sys
from pathlib import Path

from spotwise.mesh.grpc.control import is_serving
from spotwise.mesh.grpc.control_access import ControlAccess
from spotwise.mesh.security.plane_tls import PlaneTls

if __name__ == "__main__":
    folder = os.environ.get("SPOTWISE_TLS_DIR")
    access = ControlAccess(PlaneTls(Path(folder)) if folder else None)
    serving = asyncio.run(is_serving(f"127.0.0.1:{os.environ['SPOTWISE_GRPC_PORT']}", access=access))
    sys.exit(0 if serving else 1)
