"""The prompt worker: a worker whose home pool is the prompt pool."""

import sys

from spotwise.core.messages.members import MemberKind, Pool
from spotwise.mesh.service.run import run_service
from spotwise.worker.settings import WorkerSettings


async def serve(settings: WorkerSettings) -> None:
    """Serve as a prompt worker."""
    # Torch takes seconds to import: a wrong setting is reported before it, and garbage is collected rarely meanwhile.
    from spotwise.worker.serve import serve_worker

    await serve_worker(settings, MemberKind.PROMPT_WORKER, Pool.PROMPT)


if __name__ == "__main__":
    sys.exit(run_service(WorkerSettings, serve))
