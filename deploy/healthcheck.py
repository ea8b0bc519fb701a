"""Exit status 0 where the service of this container answers SERVING (grpc.health.v1), else 1."""

import asyncio
import os
import sys

from spotwise.mesh.grpc_control import is_serving

if __name__ == "__main__":
    serving = asyncio.run(is_serving(f"127.0.0.1:{os.environ['SPOTWISE_GRPC_PORT']}"))
    sys.exit(0 if serving else 1)
