"""`python -m spotwise.worker.simulated`: a process of simulated workers."""

import sys

from spotwise.mesh.service.run import run_service
from spotwise.worker.simulated.serving import serve_simulated
from spotwise.worker.simulated.settings import SimulatedWorkerSettings

if __name__ == "__main__":
    sys.exit(run_service(SimulatedWorkerSettings, serve_simulated))
