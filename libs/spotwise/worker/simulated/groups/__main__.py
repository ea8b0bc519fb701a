"""`python -m spotwise.worker.simulated.groups`: a process of simulated devices."""

import sys

from spotwise.mesh.service.run import run_service
from spotwise.worker.simulated.groups.serve import SimulatedDeviceSettings, serve_simulated_devices

if __name__ == "__main__":
    sys.exit(run_service(SimulatedDeviceSettings, serve_simulated_devices))
