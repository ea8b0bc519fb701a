"""The spot watcher: publishes notices with absolute deadlines for instances that are interrupted. Its sources are the machine's
cloud (`SPOTWISE_CLOUD`) and an operator's `spotwise drain WORKER --deadline 30s`. It also announces members of its machine
whose process has ended. With a fleet file (`SPOTWISE_FLEET_FILE`) it keeps the mesh's fleet besides: docs/fleet.md.
"""

import contextlib
import sys

from spotwise.core.messages.members import MemberKind
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.metrics_server import served_metrics
from spotwise.mesh.service.run import run_service
from spotwise.spot_watcher.clouds import cloud_of_this_machine
from spotwise.spot_watcher.fleet_keeper import kept_fleet
from spotwise.spot_watcher.metrics import WatcherMetrics
from spotwise.spot_watcher.settings import SpotWatcherSettings
from spotwise.spot_watcher.watcher import SpotWatcher


async def serve(settings: SpotWatcherSettings) -> None:
    """Serve as the spot watcher."""
    metrics = WatcherMetrics()
    with served_metrics(metrics.registry, settings.bind_host, settings.metrics_port, "SPOTWISE_METRICS_PORT"):
        async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER) as host, kept_fleet(host, settings, metrics):
            with contextlib.closing(SpotWatcher(host, settings, metrics)) as watcher:
                await watcher.start()
                host.spawn(watcher.watch(cloud_of_this_machine(settings)), "watch")
                await host.run()


if __name__ == "__main__":
    sys.exit(run_service(SpotWatcherSettings, serve))
