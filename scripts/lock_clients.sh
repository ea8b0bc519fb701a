#!/usr/bin/env bash
# Resolve the environments of tests/clients anew: of each tests/clients/environments/NAME.in its NAME.lock, and of
# tests/clients/node/package.json and tests/clients/agents/package.json their package-lock.json. As in requirements.lock there are names, exact versions and the hashes of
# every file, no addresses. Without npm the latter stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder"
pip=("$folder/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install -qq uv
# uv does not read pip's configuration.
index=${PIP_INDEX_URL:-$("${pip[@]}" config get global.index-url 2>/dev/null || true)}
for wanted in tests/clients/environments/*.in; do
  {
    echo "# What \`make test-clients\` installs. Made by scripts/lock_clients.sh of $(basename "$wanted"); do not edit."
    "$folder/bin/uv" pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
      ${index:+--default-index "$index"} "$wanted"
  } >"$folder/lock"
  mv "$folder/lock" "${wanted%.in}.lock"
done
if command -v npm >/dev/null; then
  for wanted in tests/clients/node tests/clients/agents; do
    rm -f "$wanted/package-lock.json"
    npm install --prefix "$wanted" --package-lock-only # no addresses of packages: see .npmrc
  done
fi
