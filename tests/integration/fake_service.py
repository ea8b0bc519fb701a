"""A fake service for `spotwise up`: registers, answers gRPC health, leaves on SIGTERM. Misbehaves by environment.

FAKE_FAILS, FAKE_SILENT and FAKE_STUBBORN hold the id of a service that fails at its start, never registers, or ignores SIGTERM.
SIGUSR1 makes any of them leave with status 0, as a drained worker does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import redis
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def main() -> None:
    service_id = os.environ["SPOTWISE_SERVICE_ID"]
    sys.stdout.write(f"{service_id} starts\n")
    if os.environ.get("FAKE_FAILS") == service_id:
        sys.exit(f"{service_id} has no weights")
    # a list and no threading.Event: a handler that sets one deadlocks where it interrupts the main thread's wait() on it
    signals: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: signals.append(number))
    if os.environ.get("FAKE_STUBBORN") == service_id:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda number, _frame: signals.append(number))
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    if os.environ.get("FAKE_SILENT") != service_id:
        member = {"id": service_id, "pid": os.getpid(), "grpc_address": f"127.0.0.1:{port}"}
        with redis.Redis.from_url(os.environ["SPOTWISE_REDIS_URL"]) as store:
            store.set(f"spotwise:member:{service_id}", json.dumps(member))
    while not signals:
        time.sleep(0.05)
    server.stop(0)


if __name__ == "__main__":
    main()
