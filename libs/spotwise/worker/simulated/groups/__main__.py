"""`python -m spotwise.worker.simulated.groups`: a process of simulated devices."""

import sys

from spotwise.mesh.service.run import run_service
from spotwise.worker.simulated.groups.serve import serve_simulated_devices
from spotwise.worker.simulated.groups.settings import SimulatedDeviceSettings

if __name__ == "__main__":
    sys.exit(run_service(SimulatedDeviceSettings, serve_simulated_devices))
