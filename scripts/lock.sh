#!/usr/bin/env bash
# Resolve the dependencies of pyproject.toml in an environment of their own and write requirements.lock, and its parts that images
# install, deploy/*.lock: names, exact versions and the hashes of every file of a version that the index has, no addresses, so
# that a changed file is refused on any platform. torch is not in it (see the Makefile); use its CPU build here, or its CUDA
# packages end up in the lock.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
torch=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$python" -m venv "$folder/tools"
pip=("$folder/venv/bin/python" -m pip --disable-pip-version-check)
# shellcheck disable=SC2086 # TORCH may hold several arguments
"${pip[@]}" install -qq $torch
"${pip[@]}" install -qq ".[engine,embedded,bench,aws,dev]" hatchling editables async-timeout
"$folder/tools/bin/python" -m pip --disable-pip-version-check install -qq uv
"${pip[@]}" freeze --all --exclude pip --exclude torch --exclude spotwise >"$folder/pins.txt"
# uv does not read pip's configuration.
index=${PIP_INDEX_URL:-$("${pip[@]}" config get global.index-url 2>/dev/null || true)}
{
  echo "# What CI and \`make setup\` install beside torch. Made by \`make lock\`; do not edit."
  "$folder/tools/bin/uv" pip compile --quiet --no-config --no-deps --generate-hashes --no-header --no-annotate \
    --python "$folder/venv/bin/python" ${index:+--default-index "$index"} "$folder/pins.txt"
} >"$folder/requirements.lock"
"$folder/venv/bin/python" scripts/lock_images.py "$folder/requirements.lock" "$folder"
mv "$folder/requirements.lock" requirements.lock
mv "$folder/control.lock" "$folder/worker.lock" deploy/
