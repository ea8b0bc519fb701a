#!/usr/bin/env bash
# Resolve the dependencies of pyproject.toml in an environment of their own and write requirements.lock: names and exact versions,
# no addresses, no files. torch is not in it (see the Makefile); use its CPU build here, or its CUDA packages end up in the lock.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
torch=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
pip=("$folder/venv/bin/python" -m pip --disable-pip-version-check)
# shellcheck disable=SC2086 # TORCH may hold several arguments
"${pip[@]}" install -qq $torch
"${pip[@]}" install -qq ".[engine,embedded,bench,aws,dev]" hatchling editables
{
  echo "# What CI and \`make setup\` install beside torch. Made by \`make lock\`; do not edit."
  "${pip[@]}" freeze --all --exclude pip --exclude torch --exclude spotwise
} >"$folder/requirements.lock"
mv "$folder/requirements.lock" requirements.lock
