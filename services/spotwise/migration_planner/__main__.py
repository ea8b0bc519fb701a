"""The migration planner: moves the requests of workers that leave."""

import contextlib
import sys

from spotwise.core.messages.members import MemberKind
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.metrics_server import served_metrics
from spotwise.mesh.service.run import run_service
from spotwise.migration_planner.metrics import PlannerMetrics
from spotwise.migration_planner.planner import Planner
from spotwise.migration_planner.settings import PlannerSettings


async def serve(settings: PlannerSettings) -> None:
    """Serve as a migration planner."""
    metrics = PlannerMetrics()
    async with contextlib.AsyncExitStack() as stack:
        host = await stack.enter_async_context(ServiceHost.open(settings, MemberKind.MIGRATION_PLANNER))
        stack.enter_context(
            served_metrics(
                metrics.registry, settings.bind_host, settings.planner_metrics_port, "SPOTWISE_PLANNER_METRICS_PORT"
            )
        )
        planner = Planner(host, settings, metrics)
        stack.push_async_callback(planner.close)
        await planner.start()
        await host.run()


if __name__ == "__main__":
    sys.exit(run_service(PlannerSettings, serve))
