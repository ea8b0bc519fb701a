#!/usr/bin/env bash
# Build the images of docker-compose.yml, and run tests/compose against the mesh that they make. What it starts it stops; images
# stay, as a cache. Without a Docker engine nothing is tested: that is said, and is no failure.
#
#     scripts/compose-test.sh [--start-engine] [arguments of pytest]
#
# --start-engine: where none answers, run dockerd (as root) for the length of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

start_engine=no
if [ "${1:-}" = --start-engine ]; then
  start_engine=yes
  shift
fi

engine_pid=
stop_engine() {
  if [ -n "$engine_pid" ]; then
    kill "$engine_pid" 2>/dev/null || true
    wait "$engine_pid" || true
  fi
}
trap stop_engine EXIT

engine_answers() {
  docker info >/dev/null 2>&1
}

if ! engine_answers; then
  if [ "$start_engine" = no ]; then
    echo "SKIP: no Docker engine answers, so docker-compose.yml is not tested; start one, or give --start-engine as root"
    exit 0
  fi
  command -v dockerd >/dev/null || { echo "error: dockerd is missing; on Debian and Ubuntu: apt-get install docker.io docker-compose" >&2; exit 1; }
  log=$(mktemp)
  setsid dockerd >"$log" 2>&1 &
  engine_pid=$! # in a session of its own: Ctrl-C must not end it before the containers
  for _ in $(seq 60); do
    engine_answers && break
    kill -0 "$engine_pid" 2>/dev/null || break
    sleep 0.5
  done
  engine_answers || { echo "error: dockerd does not come up; its log ends:" >&2; tail -n 5 "$log" >&2; exit 1; }
  rm "$log"
fi

if docker compose version >/dev/null 2>&1; then
  compose=(docker compose)
elif command -v docker-compose >/dev/null; then
  compose=(docker-compose)
else
  echo "error: neither \`docker compose\` nor docker-compose is installed" >&2
  exit 1
fi

can_have() {
  docker image inspect "$1" >/dev/null 2>&1 || timeout 300 docker pull --quiet "$1" >/dev/null 2>&1
}

if [ -z "${BASE_IMAGE:-}" ] && ! { can_have python:3.11-slim-bookworm && can_have nats:2-alpine && can_have redis:7; }; then
  echo "no image registry can be reached: making base images from Debian packages and wheels"
  scripts/compose-offline.sh
  export BASE_IMAGE=spotwise-base BUILD_BASE_IMAGE=spotwise-build-base NATS_IMAGE=spotwise-servers REDIS_IMAGE=spotwise-servers
  export BALANCER_IMAGE=spotwise-servers
fi

echo "building ..."
log=$(mktemp)
"${compose[@]}" --project-name spotwise-test build >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
rm "$log"
COMPOSE="${compose[*]}" .venv/bin/pytest -m compose tests/compose "$@"
echo "the integration tests once more, over a broker and a store in containers ..."
.venv/bin/pytest -k container tests/integration
